/* io/name_table.h - names to numbers 0, 1, 2 ... in the order they were added, by hashing. */
#ifndef MB_IO_NAME_TABLE_H
#define MB_IO_NAME_TABLE_H

#include "io/err.h"

#include <stdint.h>

typedef struct NameTable {
    const char **names; /* [n] borrowed: they must outlive the table */
    int n, max;
    uint32_t *slots; /* [mask + 1] number + 1, or 0 */
    uint32_t mask;
} NameTable;

/* Room for max names, which is all there will be. */
Status name_table_create(NameTable *out, int max, Err *e);
void name_table_free(NameTable *t); /* all zero is fine, and so is twice */
/* The number of name, which is added when it is new (*added). At most max names are the caller's
 * promise. */
int name_table_add(NameTable *t, const char *name, int *added);
int name_table_find(const NameTable *t, const char *name); /* -1: not there */

#endif
