/* io/vocab_table.c - see vocab_table.h. Open addressing, at most half full. */
#include "io/vocab_table.h"

#include <stdlib.h>

typedef struct VocabSlot {
    uint32_t hash; /* the low bits, so that most other strings are told apart without their bytes */
    int32_t id;    /* -1: free */
} VocabSlot;

bool vocab_table_create(VocabTable *t, size_t n)
{
    size_t slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    *t = (VocabTable){.slots = malloc(slots * sizeof *t->slots), .mask = slots - 1};
    if (!t->slots)
        return false;
    memset(t->slots, 0xff, slots * sizeof *t->slots);
    return true;
}

void vocab_table_free(VocabTable *t)
{
    free(t->slots);
    *t = (VocabTable){0};
}

static VocabSlot *find_slot(const VocabTable *t, const Text *texts, const char *s, size_t len,
                            uint64_t hash)
{
    size_t i = (size_t)(hash >> 32) & t->mask;
    for (; t->slots[i].id >= 0; i = (i + 1) & t->mask) {
        const VocabSlot *slot = &t->slots[i];
        if (slot->hash == (uint32_t)hash && texts[slot->id].len == len &&
            memcmp(texts[slot->id].at, s, len) == 0)
            break;
    }
    return &t->slots[i];
}

int32_t vocab_table_find(const VocabTable *t, const Text *texts, const char *s, size_t len)
{
    return t->slots ? find_slot(t, texts, s, len, hash_bytes(s, len))->id : -1;
}

void vocab_table_add(VocabTable *t, const char *s, size_t len, int32_t id)
{
    uint64_t hash = hash_bytes(s, len);
    size_t i = (size_t)(hash >> 32) & t->mask;
    while (t->slots[i].id >= 0)
        i = (i + 1) & t->mask;
    t->slots[i] = (VocabSlot){(uint32_t)hash, id};
    t->n++;
}

void vocab_table_change(VocabTable *t, const Text *texts, const char *s, size_t len, int32_t id)
{
    find_slot(t, texts, s, len, hash_bytes(s, len))->id = id;
}
