/* tests/support/tempdir.h - a directory of the test's own, and files in it. */
#ifndef MB_TESTS_TEMPDIR_H
#define MB_TESTS_TEMPDIR_H

#include <stddef.h>

/* Makes a new directory below TMPDIR or /tmp, which becomes the current one and is removed with all
 * it holds when the process that called this exits. Ends the process when that is not possible. */
void tempdir_enter(void);
/* Removes path and all below it; nothing there is fine. */
void tempdir_remove(const char *path);
/* Whole files. get gives the number of bytes (cut at cap - 1, NUL-terminated), or -1. */
void tempdir_put(const char *path, const void *bytes, size_t len);
long tempdir_get(const char *path, void *out, size_t cap);

#endif
