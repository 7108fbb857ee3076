/* io/idtable.c - see idtable.h. Open addressing, at most half full. */
#include "io/idtable.h"

#include <stdlib.h>

typedef struct IdSlot {
    uint32_t hash; /* the low bits, so that most other strings are told apart without their bytes */
    int32_t id;    /* -1: free */
} IdSlot;

bool idtable_create(IdTable *t, size_t n)
{
    size_t slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    *t = (IdTable){.slots = malloc(slots * sizeof *t->slots), .mask = slots - 1};
    if (!t->slots)
        return false;
    memset(t->slots, 0xff, slots * sizeof *t->slots);
    return true;
}

void idtable_free(IdTable *t)
{
    free(t->slots);
    *t = (IdTable){0};
}

static IdSlot *find_slot(const IdTable *t, const Text *texts, const char *s, size_t len,
                         uint64_t hash)
{
    size_t i = (size_t)(hash >> 32) & t->mask;
    for (; t->slots[i].id >= 0; i = (i + 1) & t->mask) {
        const IdSlot *slot = &t->slots[i];
        if (slot->hash == (uint32_t)hash && texts[slot->id].len == len &&
            memcmp(texts[slot->id].at, s, len) == 0)
            break;
    }
    return &t->slots[i];
}

int32_t idtable_find(const IdTable *t, const Text *texts, const char *s, size_t len)
{
    return t->slots ? find_slot(t, texts, s, len, hash_bytes(s, len))->id : -1;
}

void idtable_add(IdTable *t, const char *s, size_t len, int32_t id)
{
    uint64_t hash = hash_bytes(s, len);
    size_t i = (size_t)(hash >> 32) & t->mask;
    while (t->slots[i].id >= 0)
        i = (i + 1) & t->mask;
    t->slots[i] = (IdSlot){(uint32_t)hash, id};
    t->n++;
}

void idtable_change(IdTable *t, const Text *texts, const char *s, size_t len, int32_t id)
{
    find_slot(t, texts, s, len, hash_bytes(s, len))->id = id;
}
