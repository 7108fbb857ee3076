/* tests/support/check.h - one line per failed check, and a test's exit code. */
#ifndef MB_TESTS_CHECK_H
#define MB_TESTS_CHECK_H

#include <stdbool.h>
#include <stdint.h>

/* Each prints name and both values when they differ, and returns 1 then, else 0. */
int check_int(const char *name, int64_t got, int64_t want);
int check_str(const char *name, const char *got, const char *want);
int check_true(const char *name, bool ok);
int check_near(const char *name, double got, double want, double tolerance);
/* got contains part; for error messages. */
int check_has(const char *name, const char *got, const char *part);

/* The folder of reference data (environment SHARED), or NULL where it is absent. */
const char *test_shared(void);
/* "skipped: WHY" and exit code 77. */
int test_skip(const char *why);
/* Prints "N failed" if any, and returns the exit code. */
int test_result(int failed);

#endif
