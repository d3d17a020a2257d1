#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/settings.h"
#include "tool.h"

enum { MAX_OPTIONS = 64, FIRST_OPTION = 256 };

int tuttiUsage(const char *command, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  fprintf(stderr, "%s: ", command);
  vfprintf(stderr, fmt, args);
  va_end(args);
  fprintf(stderr, "\nTry '%s --help'.\n", command);
  return TUTTI_EXIT_USAGE;
}

/* ---- options -------------------------------------------------------------------------------- */

static int help(const char *command, const char *usage, const tuttiOption *options, int n,
                const char *more) {
  int width = sizeof "-h, --help" - 1;
  for (int i = 0; i < n; i++) {
    if (options[i].name == NULL) continue;
    int length = snprintf(NULL, 0, "--%s %s", options[i].name, options[i].value ?: "");
    if (length > width) width = length;
  }
  fputs(usage, stdout);
  for (int i = 0; i < n; i++) {
    char name[64];
    const char *line = options[i].help;
    if (options[i].name == NULL) {
      puts(line);
      continue;
    }
    snprintf(name, sizeof name, "--%s %s", options[i].name, options[i].value ?: "");
    for (bool first = true; line != NULL; first = false) {
      printf("  %-*s  %.*s\n", width, first ? name : "", (int)strcspn(line, "\n"), line);
      line = strchr(line, '\n');
      if (line != NULL) line++;
    }
  }
  printf("  %-*s  this text\n%s", width, "-h, --help", more);
  return tuttiFlushed(stdout, command, "the help") ? TUTTI_EXIT_OK : TUTTI_EXIT_FAILED;
}

/* Says why getopt_long returned '?' or ':'; returns TUTTI_EXIT_USAGE. */
static int misused(const char *command, const tuttiOption *options, int n, const char *word) {
  const char *names[MAX_OPTIONS + 1];
  int count = 0;
  if (optopt >= FIRST_OPTION) {
    const tuttiOption *o = &options[optopt - FIRST_OPTION];
    return tuttiUsage(
        command, o->value ? "option --%s needs a value" : "option --%s takes no value", o->name);
  }
  if (optopt != 0) return tuttiUsage(command, "unknown option -%c", optopt);
  for (int i = 0; i < n; i++)
    if (options[i].name != NULL) names[count++] = options[i].name;
  names[count++] = "help";
  char plain[64];
  word += strspn(word, "-");
  snprintf(plain, sizeof plain, "%.*s", (int)strcspn(word, "="), word);
  const char *nearest = tuttiNearest(plain, names, count);
  if (nearest == NULL) return tuttiUsage(command, "unknown option --%s", plain);
  return tuttiUsage(command, "unknown option --%s; did you mean --%s?", plain, nearest);
}

static int takeWord(const char *command, const tuttiOption *o) {
  int found = -1;
  for (int i = 0; i < o->nwords && o->find == NULL; i++)
    if (strcasecmp(optarg, o->words[i]) == 0) found = i;
  if (o->find != NULL) found = o->find(optarg);
  *o->number = found;
  if (found >= 0 || (o->all && strcmp(optarg, "all") == 0)) return -1;
  const char *nearest = tuttiNearest(optarg, o->words, o->nwords);
  if (nearest == NULL) nearest = o->all ? "all" : o->words[0];
  return tuttiUsage(command, "unknown --%s '%s'; did you mean '%s'?", o->name, optarg, nearest);
}

/* Takes optarg; returns -1 or the exit code. */
static int take(const char *command, const tuttiOption *o) {
  int64_t number;
  if (o->flag != NULL) *o->flag = true;
  if (o->text != NULL) *o->text = optarg;
  if (o->words != NULL) return takeWord(command, o);
  if (o->size != NULL &&
      (!tuttiParseSize(optarg, o->size) || *o->size == 0 || *o->size > SIZE_MAX / 4))
    return tuttiUsage(command, "--%s is '%s'; it must be a size like 8, 64K, 16M or 1G", o->name,
                      optarg);
  if (o->number == NULL) return -1;
  if (!tuttiParseInt(optarg, o->min, o->max, &number))
    return tuttiUsage(command, "--%s is '%s'; it must be a number from %d to %d", o->name, optarg,
                      o->min, o->max);
  *o->number = (int)number;
  return -1;
}

int tuttiParseOptions(const char *command, const char *usage, const tuttiOption *options, int n,
                      const char *more, int argc, char **argv) {
  struct option table[MAX_OPTIONS + 2] = {{"help", no_argument, NULL, 'h'}};
  int c, code = -1;
  for (int i = 0, used = 1; i < n && used <= MAX_OPTIONS; i++)
    if (options[i].name != NULL)
      table[used++] = (struct option){
          .name = options[i].name, .has_arg = options[i].value != NULL, .val = FIRST_OPTION + i};
  opterr = 0;
  optind = 0; /* it may have been used before */
  while (code < 0 && (c = getopt_long(argc, argv, ":h", table, NULL)) != -1) {
    if (c == 'h')
      code = help(command, usage, options, n, more);
    else if (c == '?' || c == ':')
      code = misused(command, options, n, argv[optind - 1]);
    else
      code = take(command, &options[c - FIRST_OPTION]);
  }
  return code;
}

/* ---- numbers and strings -------------------------------------------------------------------- */

bool tuttiParseInt(const char *text, int64_t min, int64_t max, int64_t *out) {
  const tuttiSettingRow row = {.type = TUTTI_SETTING_INT, .min = min, .max = max};
  return tuttiSettingParse(&row, text, out) == NULL;
}

bool tuttiParseSize(const char *text, size_t *out) {
  static const char units[] = "KkMmGgTt";
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  const char *unit = *end != '\0' ? strchr(units, *end) : NULL;
  int shift = unit != NULL ? 10 * (int)((unit - units) / 2 + 1) : 0;
  if (unit != NULL) end++;
  bool ends = *end == '\0' || strcmp(end, "B") == 0 || (unit != NULL && strcmp(end, "iB") == 0);
  if (text[0] < '0' || text[0] > '9' || errno != 0 || !ends || value > (SIZE_MAX >> shift))
    return false;
  *out = (size_t)value << shift;
  return true;
}

bool tuttiFlushed(FILE *out, const char *command, const char *name) {
  errno = 0;
  if (fflush(out) == 0 && !ferror(out)) return true;
  fprintf(stderr, "%s: cannot write %s: %s\n", command, name,
          errno != 0 ? strerror(errno) : "an earlier write failed");
  return false;
}
