#include "text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tool.h"

#define MAX_OPTIONS 64

static int min3(int a, int b, int c) {
  int ab = a < b ? a : b;
  return ab < c ? ab : c;
}

/* Levenshtein's distance, of words that are cut at 32 characters. */
static int distance(const char *a, const char *b) {
  enum { LONGEST = 32 };
  int row[LONGEST + 1];
  int n = (int)strnlen(b, LONGEST);
  for (int j = 0; j <= n; j++)
    row[j] = j;
  for (int i = 0; i < LONGEST && a[i] != '\0'; i++) {
    int diagonal = row[0];
    row[0] = i + 1;
    for (int j = 1; j <= n; j++) {
      int changed = diagonal + (a[i] != b[j - 1]);
      diagonal = row[j];
      row[j] = min3(row[j] + 1, row[j - 1] + 1, changed);
    }
  }
  return row[n];
}

const char *tuttiNearest(const char *word, const char *const *words, int n) {
  const char *best = NULL;
  int least = (int)strlen(word) / 2 + 1;
  if (least > 4) least = 4;
  for (int i = 0; i < n; i++) {
    int d = distance(word, words[i]);
    if (d < least) {
      least = d;
      best = words[i];
    }
  }
  return best;
}

int tuttiUsage(const char *command, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  fprintf(stderr, "%s: ", command);
  vfprintf(stderr, fmt, args);
  va_end(args);
  fprintf(stderr, "\nTry '%s --help'.\n", command);
  return TUTTI_EXIT_USAGE;
}

/* "--json" of optopt for a missing argument, else the word that getopt_long stumbled over. */
int tuttiUsageOption(const char *command, const struct option *table, char *const *argv) {
  const char *names[MAX_OPTIONS];
  int n = 0;
  const char *word = argv[optind - 1];
  for (; table[n].name != NULL && n < MAX_OPTIONS; n++) {
    names[n] = table[n].name;
    if (optopt != 0 && table[n].val == optopt)
      return tuttiUsage(
          command, table[n].has_arg ? "option --%s needs a value" : "option --%s takes no value",
          table[n].name);
  }
  if (optopt != 0) return tuttiUsage(command, "unknown option -%c", optopt);
  char plain[64];
  word += strspn(word, "-");
  snprintf(plain, sizeof plain, "%.*s", (int)strcspn(word, "="), word);
  const char *nearest = tuttiNearest(plain, names, n);
  if (nearest == NULL) return tuttiUsage(command, "unknown option --%s", plain);
  return tuttiUsage(command, "unknown option --%s; did you mean --%s?", plain, nearest);
}

bool tuttiParseInt(const char *text, int64_t min, int64_t max, int64_t *out) {
  char *end;
  errno = 0;
  long long value = strtoll(text, &end, 10);
  if (end == text || *end != '\0' || errno != 0 || value < min || value > max) return false;
  *out = value;
  return true;
}

bool tuttiParseSize(const char *text, size_t *out) {
  static const char units[] = "KMGT";
  char *end;
  if (text[0] < '0' || text[0] > '9') return false;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (errno != 0) return false;
  int shift = 0;
  for (int u = 0; units[u] != '\0'; u++)
    if (*end == units[u] || *end == units[u] + ('a' - 'A')) shift = 10 * (u + 1);
  if (shift > 0) {
    end++;
    if (*end == 'i' && end[1] == 'B') end++;
  }
  if (*end == 'B') end++;
  if (*end != '\0' || value > (SIZE_MAX >> shift)) return false;
  *out = (size_t)value << shift;
  return true;
}

/* Bytes of the UTF-8 character at `text`; 0 if it is none. */
static int utf8Length(const unsigned char *text) {
  unsigned char lead = text[0];
  int length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (lead > 0xf4) return 0;
  for (int i = 1; i < length; i++)
    if ((text[i] & 0xc0) != 0x80) return 0;
  /* Longer than needed, a surrogate, or beyond the last character. */
  if ((lead == 0xe0 && text[1] < 0xa0) || (lead == 0xed && text[1] > 0x9f)) return 0;
  if ((lead == 0xf0 && text[1] < 0x90) || (lead == 0xf4 && text[1] > 0x8f)) return 0;
  return length;
}

void tuttiJsonString(FILE *out, const char *text) {
  putc('"', out);
  for (const unsigned char *c = (const unsigned char *)text; *c != '\0';) {
    int length = utf8Length(c);
    if (length == 0)
      fputs("\\ufffd", out);
    else if (*c == '"' || *c == '\\')
      fprintf(out, "\\%c", *c);
    else if (*c < 0x20 || *c == 0x7f)
      fprintf(out, "\\u%04x", *c);
    else
      fwrite(c, 1, (size_t)length, out);
    c += length > 0 ? length : 1;
  }
  putc('"', out);
}

bool tuttiFlushed(FILE *out, const char *command, const char *name) {
  errno = 0;
  if (fflush(out) == 0 && !ferror(out)) return true;
  fprintf(stderr, "%s: cannot write %s: %s\n", command, name,
          errno != 0 ? strerror(errno) : "an earlier write failed");
  return false;
}
