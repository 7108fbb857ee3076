/* tests/support/temp_dir.h - a directory of its own for a test that needs files. */
#ifndef MB_TESTS_TEMP_DIR_H
#define MB_TESTS_TEMP_DIR_H

#include <stdbool.h>
#include <stddef.h>

enum { TEMP_DIR_MAX = 512 };

/* Makes a directory under $TMPDIR or /tmp; its path is in dir[TEMP_DIR_MAX]. */
bool temp_dir_create(char *dir);
/* Writes DIR/NAME. */
bool temp_dir_write(const char *dir, const char *name, const void *bytes, size_t len);
/* Removes path and all below it; nothing there is fine. */
void temp_dir_remove(const char *path);

/* Makes path an empty directory, whatever it was before. Ends the process when that is not
 * possible. */
void temp_dir_fresh(const char *path);

/* Makes one that becomes the current directory and is removed when the process that called this
 * exits. Ends the process when that is not possible. */
void temp_dir_enter(void);
/* Whole files by path. put ends the process when it fails; get gives the number of bytes (cut at
 * cap - 1, NUL-terminated), or -1. */
void temp_dir_put(const char *path, const void *bytes, size_t len);
long temp_dir_get(const char *path, void *out, size_t cap);

#endif
