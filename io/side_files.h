/* io/side_files.h - the files of a model that are no weights: configuration, tokenizer,
 * template. */
#ifndef MB_IO_SIDE_FILES_H
#define MB_IO_SIDE_FILES_H

#include "io/err.h"

#include <stdbool.h>

enum { SIDE_FILE_MAX = 256 << 20 }; /* bytes; what is larger is no configuration */

/* Whether name ends in suffix. */
bool file_name_ends(const char *name, const char *suffix);

/* Their names, in alphabetical order, in a directory or a pack (file_read reads both): one
 * allocation, which the caller frees. Hidden files, weights in any program's format and lists of
 * them are left out, and so are files above SIDE_FILE_MAX, with a warning. ST_IO, ST_MEMORY. */
Status side_files_list(const char *model, char ***out, int *n, Err *e);

#endif
