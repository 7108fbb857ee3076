/* tests/support/files.h - data files of the tests: whole, gzipped, JSON, JSON lines. */
#ifndef MB_TESTS_FILES_H
#define MB_TESTS_FILES_H

#include "io/json.h"
#include "io/strbuf.h"

#include <stdbool.h>
#include <stdio.h>

/* snprintf that ends the test when the path does not fit. */
void test_path(char *out, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The bytes of a file, decompressed when it is gzipped; false (and a line on stderr) when it cannot
 * be read. The caller frees out. */
bool test_read(const char *path, StrBuf *out);

typedef struct TestJson {
    Arena arena;
    StrBuf text;
    JsonValue *value;
} TestJson;
bool test_json_open(TestJson *j, const char *path);
void test_json_close(TestJson *j); /* also after a failed open */

/* One JSON object a line, split on LF only. */
typedef struct TestLines {
    Arena arena;
    StrBuf text;
    size_t at;
    int number;     /* of the current line, from 1 */
    JsonValue *row; /* valid until the next line */
} TestLines;
bool test_lines_open(TestLines *l, const char *path);
bool test_lines_next(TestLines *l); /* false at the end; a line that does not parse ends the test */
void test_lines_close(TestLines *l);

/* A member that must be a string; a missing one ends the test. */
const char *test_text(const JsonValue *row, const char *key);

#endif
