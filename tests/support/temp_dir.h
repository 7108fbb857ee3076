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
/* Removes the files in dir (not directories), and dir. */
void temp_dir_remove(const char *dir);
/* Removes the files in dir only. */
void temp_dir_empty(const char *dir);

#endif
