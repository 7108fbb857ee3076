/* io/vocab_table.h - a hash table from byte strings to ids, for vocabularies. */
#ifndef MB_IO_VOCAB_TABLE_H
#define MB_IO_VOCAB_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct Text {
    const char *at; /* NULL: no such entry */
    uint32_t len;
} Text;

typedef struct VocabTable {
    struct VocabSlot *slots;
    size_t mask, n;
} VocabTable; /* all zero: empty */

/* Room for at least n entries; false when memory is short. */
bool vocab_table_create(VocabTable *t, size_t n);
void vocab_table_free(VocabTable *t);

/* texts[id] is the string of every id in the table. -1 when there is none. */
int32_t vocab_table_find(const VocabTable *t, const Text *texts, const char *s, size_t len);
/* For a string that is not in the table; there must be room. */
void vocab_table_add(VocabTable *t, const char *s, size_t len, int32_t id);
/* Makes a string that is in the table stand for another id. */
void vocab_table_change(VocabTable *t, const Text *texts, const char *s, size_t len, int32_t id);

/* Quick and well spread in the high bits; not meant to resist somebody who looks for collisions. */
static inline uint64_t hash_bytes(const char *s, size_t len)
{
    const uint64_t k = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t h = len * k, w;
    if (len >= 8) {
        size_t i = 0;
        for (; i + 8 < len; i += 8) {
            memcpy(&w, s + i, 8);
            h = (h ^ w) * k;
            h ^= h >> 32;
        }
        memcpy(&w, s + len - 8, 8); /* the last word overlaps the one before */
    } else if (len >= 4) {
        uint32_t a, b;
        memcpy(&a, s, 4);
        memcpy(&b, s + len - 4, 4);
        w = (uint64_t)a << 32 | b;
    } else if (len) {
        w = (uint64_t)(uint8_t)s[0] << 16 | (uint64_t)(uint8_t)s[len / 2] << 8 |
            (uint8_t)s[len - 1];
    } else {
        w = 0;
    }
    h = (h ^ w) * k;
    h ^= h >> 29;
    return h * k;
}

#endif
