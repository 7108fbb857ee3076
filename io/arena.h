/* io/arena.h - memory that is taken piece by piece and given back all at once. */
#ifndef MB_IO_ARENA_H
#define MB_IO_ARENA_H

#include <stddef.h>

typedef struct ArenaBlock ArenaBlock;
typedef struct Arena {
    ArenaBlock *blocks; /* newest first */
    char *at, *end;     /* free part of the newest */
} Arena;                /* all zero: empty */

/* 16-byte aligned, not zeroed; NULL when memory is short. */
void *arena_alloc(Arena *a, size_t bytes);
/* A NUL-terminated copy of text[0..len). */
char *arena_copy(Arena *a, const char *text, size_t len);
/* Forgets everything but keeps the newest block for reuse. */
void arena_reset(Arena *a);
void arena_free(Arena *a);

#endif
