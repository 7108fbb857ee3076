/* jobs/id_table.h - which row first used a custom_id: 64-bit hashes, so that a hundred million rows
 * fit into memory.
 *
 * A hash that is there already is a suspicion, not a proof; the caller compares the ids themselves.
 */
#ifndef MB_JOBS_ID_TABLE_H
#define MB_JOBS_ID_TABLE_H

#include "io/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct IdSlot {
    uint64_t hash, row_plus_1; /* 0: free */
} IdSlot;

typedef struct IdTable {
    IdSlot *slots;
    size_t n, cap;
} IdTable; /* all zero: empty */

uint64_t id_hash(const char *id, size_t len);
/* The next slot with that hash, starting behind previous (NULL: from the start); NULL when there is
 * no more. */
IdSlot *id_table_find(const IdTable *t, uint64_t hash, const IdSlot *previous);
/* Adds one more row with that hash; slots move. 16 bytes per slot, 57 to 85 of 100 in use. */
Status id_table_add(IdTable *t, uint64_t hash, uint64_t row, Err *e);
void id_table_free(IdTable *t);

#endif
