/* io/name_table.c - open addressing over FNV-1a, at most half full. See name_table.h. */
#include "io/name_table.h"

#include <stdlib.h>
#include <string.h>

static uint32_t hash_of(const char *name)
{
    uint64_t h = 14695981039346656037u;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        h = (h ^ *c) * 1099511628211u;
    return (uint32_t)(h ^ h >> 32);
}

Status name_table_create(NameTable *out, int max, Err *e)
{
    size_t n_slots = 16;
    while (n_slots < 2 * (size_t)max)
        n_slots *= 2;
    *out = (NameTable){.max = max, .mask = (uint32_t)(n_slots - 1)};
    out->names = malloc(((size_t)max + 1) * sizeof *out->names);
    out->slots = calloc(n_slots, sizeof *out->slots);
    if (!out->names || !out->slots) {
        name_table_free(out);
        return err_set(e, ST_MEMORY, "not enough memory for %d names", max);
    }
    return ST_OK;
}

void name_table_free(NameTable *t)
{
    free(t->names);
    free(t->slots);
    *t = (NameTable){0};
}

/* The slot that holds name, or the free one where it belongs. */
static uint32_t *slot_of(const NameTable *t, const char *name)
{
    uint32_t i = hash_of(name) & t->mask;
    while (t->slots[i] != 0 && strcmp(t->names[t->slots[i] - 1], name) != 0)
        i = (i + 1) & t->mask;
    return &t->slots[i];
}

int name_table_add(NameTable *t, const char *name, int *added)
{
    uint32_t *slot = slot_of(t, name);
    *added = *slot == 0;
    if (*added) {
        t->names[t->n++] = name;
        *slot = (uint32_t)t->n;
    }
    return (int)(*slot - 1);
}

int name_table_find(const NameTable *t, const char *name)
{
    return t->slots ? (int)*slot_of(t, name) - 1 : -1;
}
