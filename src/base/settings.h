/* The settings table: TUTTI_<NAME> wins over the NCCL_ name, which wins over the default. The only
 * place of the library that reads the environment. In a program with more rights than its user
 * (tuttiPrivileged) what names files is not taken from there, and one line of the log says so. */
#ifndef TUTTI_BASE_SETTINGS_H_
#define TUTTI_BASE_SETTINGS_H_

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "tutti.h"

__BEGIN_DECLS

typedef enum {
#define SETTING(ident, name, type, dflt, min, max, nccl, help) TUTTI_SETTING_##ident,
#include "base/settings.def"
#undef SETTING
  TUTTI_SETTING_COUNT
} tuttiSettingId;

typedef enum {
  TUTTI_SETTING_INT,
  TUTTI_SETTING_BOOL,
  TUTTI_SETTING_SIZE,
  TUTTI_SETTING_SECONDS,
  TUTTI_SETTING_STRING,
  TUTTI_SETTING_FILE
} tuttiSettingType;

typedef struct {
  const char *name;     /* without the TUTTI_ prefix */
  const char *variable; /* with it */
  const char *ncclName; /* "" if none */
  const char *help;
  tuttiSettingType type;
  int64_t dflt, min, max;
  const char *dfltString;
} tuttiSettingRow;

/* Its value is a string. */
static inline bool tuttiSettingIsText(const tuttiSettingRow *row) {
  return row->type == TUTTI_SETTING_STRING || row->type == TUTTI_SETTING_FILE;
}

extern const tuttiSettingRow tuttiSettingTable[TUTTI_SETTING_COUNT];

/* Reads the environment again (each communicator's init calls it). A malformed or out-of-range
 * value fails with tuttiInvalidArgument and names variable, value and what is accepted; nothing
 * changes then. Of an unknown TUTTI_ variable it warns once, with the nearest name. Thread-safe. */
tuttiResult_t tuttiSettingsLoad(void);

/* The value in force: a number (INT, BOOL, SIZE in bytes, SECONDS in ms) or a string (STRING, FILE:
 * never NULL, valid for ever). Loads on first use. Thread-safe. */
int64_t tuttiSettingInt(tuttiSettingId id);
const char *tuttiSettingString(tuttiSettingId id);
/* The variable the value came from ("TUTTI_X", "NCCL_X"), or "default". */
const char *tuttiSettingOrigin(tuttiSettingId id);

/* For messages: the word nearest to `word`, whatever the case of the letters; NULL if none is
 * close. words[n] in any order. */
const char *tuttiNearest(const char *word, const char *const *words, int n);

/* Parses one value of a setting's type into *out (STRING, FILE: *out = 0); also for the tool and
 * fuzzing. Returns NULL, or what is wrong with it. */
const char *tuttiSettingParse(const tuttiSettingRow *row, const char *text, int64_t *out);

__END_DECLS

#endif
