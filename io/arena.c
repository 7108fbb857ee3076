/* io/arena.c - see arena.h. */
#include "io/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct ArenaBlock {
    ArenaBlock *older;
    size_t bytes; /* usable, behind this header */
    char pad[16]; /* the usable part starts on 16 */
};
_Static_assert(sizeof(ArenaBlock) % 16 == 0, "blocks start aligned");

enum { FIRST_BLOCK = 16 << 10, LARGEST_STEP = 4 << 20 };

static char *block_start(ArenaBlock *b)
{
    return (char *)(b + 1);
}

void *arena_alloc(Arena *a, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + 15) & ~(size_t)15;
    if (!a->blocks || bytes > (size_t)(a->end - a->at)) {
        size_t step = a->blocks ? a->blocks->bytes * 2 : FIRST_BLOCK;
        if (step > LARGEST_STEP)
            step = LARGEST_STEP;
        if (step < bytes)
            step = bytes;
        ArenaBlock *b = malloc(sizeof *b + step);
        if (!b)
            return NULL;
        b->older = a->blocks;
        b->bytes = step;
        a->blocks = b;
        a->at = block_start(b);
        a->end = a->at + step;
    }
    void *p = a->at;
    a->at += bytes;
    return p;
}

char *arena_copy(Arena *a, const char *text, size_t len)
{
    char *p = arena_alloc(a, len + 1);
    if (!p)
        return NULL;
    memcpy(p, text, len);
    p[len] = 0;
    return p;
}

static void free_older(ArenaBlock *b)
{
    while (b) {
        ArenaBlock *older = b->older;
        free(b);
        b = older;
    }
}

void arena_reset(Arena *a)
{
    if (!a->blocks)
        return;
    free_older(a->blocks->older);
    a->blocks->older = NULL;
    a->at = block_start(a->blocks);
}

void arena_free(Arena *a)
{
    free_older(a->blocks);
    *a = (Arena){0};
}
