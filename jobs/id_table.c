/* jobs/id_table.c - see id_table.h. Open addressing with linear probing; the table grows by half,
 * not by two, to stay near 24 bytes per row. */
#include "jobs/id_table.h"

#include <stdlib.h>

uint64_t id_hash(const char *id, size_t len)
{
    uint64_t h =
        0xcbf29ce484222325u; /* FNV-1a, then a finalizer, since the slot comes from the high bits */
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)id[i]) * 0x100000001b3u;
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdu;
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 33;
}

static size_t first_slot(uint64_t hash, size_t cap)
{
    return (size_t)((hash >> 32) * (uint64_t)cap >> 32); /* cap is below 2^32 */
}

IdSlot *id_table_find(const IdTable *t, uint64_t hash, const IdSlot *previous)
{
    if (!t->cap)
        return NULL;
    size_t i = previous ? (size_t)(previous - t->slots) + 1 : first_slot(hash, t->cap);
    for (;; i++) {
        IdSlot *s = &t->slots[i < t->cap ? i : (i = 0)];
        if (!s->row_plus_1)
            return NULL;
        if (s->hash == hash)
            return s;
    }
}

static void put(IdSlot *slots, size_t cap, uint64_t hash, uint64_t row_plus_1)
{
    size_t i = first_slot(hash, cap);
    while (slots[i].row_plus_1)
        i = i + 1 < cap ? i + 1 : 0;
    slots[i] = (IdSlot){hash, row_plus_1};
}

static Status grow(IdTable *t, Err *e)
{
    size_t cap = t->cap ? t->cap + t->cap / 2 : 64;
    IdSlot *slots = cap > UINT32_MAX ? NULL : calloc(cap, sizeof *slots);
    if (!slots)
        return err_set(e, ST_MEMORY, "not enough memory to remember %zu values of custom_id", t->n);
    for (size_t i = 0; i < t->cap; i++)
        if (t->slots[i].row_plus_1)
            put(slots, cap, t->slots[i].hash, t->slots[i].row_plus_1);
    free(t->slots);
    t->slots = slots;
    t->cap = cap;
    return ST_OK;
}

Status id_table_add(IdTable *t, uint64_t hash, uint64_t row, Err *e)
{
    if (t->n + 1 > t->cap - t->cap / 7)
        TRY(grow(t, e));
    put(t->slots, t->cap, hash, row + 1);
    t->n++;
    return ST_OK;
}

void id_table_free(IdTable *t)
{
    free(t->slots);
    *t = (IdTable){0};
}
