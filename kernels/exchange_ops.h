/* kernels/exchange_ops.h - what dist/exchange_device.c asks of a backend whose memory is not the
 * host's: rows are packed, sent and grouped by expert where they lie.
 *
 * A row's choices are its top_k experts, -1 where there is none. A (row, choice) that has an
 * expert is a pair. Between each two ranks there is a list of rows, in order of token: those that
 * have an expert there. A message holds a list: the rows, filled up to a multiple of 16 bytes, then
 * for each row its mail, exchange_mail_ints: its choices as the destination numbers its experts
 * (-1: not there), and how many pairs of the list come before it. Results travel back in the order
 * of (row, choice).
 *
 * Everything is queued on the backend's stream and returns; link_open, link_close and wait_copy wait.
 * Pointers are backend memory unless a name says host. Nothing decides an order but the order of
 * ranks, tokens and choices. */
#ifndef MB_KERNELS_EXCHANGE_OPS_H
#define MB_KERNELS_EXCHANGE_OPS_H

#include "io/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__ /* a message's layout is for both sides */
#define ON_BOTH_SIDES static __host__ __device__ inline
#else
#define ON_BOTH_SIDES static inline
#endif

enum {
    EXCHANGE_MAX_RANKS = 128,
    EXCHANGE_MAX_EXPERTS = 1024,
    EXCHANGE_MAX_TOP_K = 32,
    LINK_ID_BYTES = 128,
    /* Tokens that one block counts: pack needs no counts of a window of no more. */
    EXCHANGE_BLOCK_TOKENS = 1024,
    EXCHANGE_GROUP_BLOCKS = 128 /* the most that group's counts are for */
};

ON_BOTH_SIDES int exchange_mail_ints(int top_k) /* of one row, 16 bytes or a multiple */
{
    return (top_k + 1 + 3) / 4 * 4;
}

ON_BOTH_SIDES size_t exchange_mail_at(size_t n_rows, size_t row_bytes) /* in a message */
{
    return (n_rows * row_bytes + 15) / 16 * 16;
}

ON_BOTH_SIDES size_t exchange_message_bytes(size_t n_rows, size_t row_bytes, int top_k)
{
    return exchange_mail_at(n_rows, row_bytes) +
           n_rows * (size_t)exchange_mail_ints(top_k) * sizeof(int32_t);
}

/* The tokens of this rank that one round moves. */
typedef struct WindowSpec {
    const int32_t *expert;        /* [n, top_k] experts of the layer */
    const int32_t *owner, *local; /* [n_experts] rank, and number there */
    int n, top_k, n_ranks, rank;

    /* count: rows and pairs for each rank, own one included, of each EXCHANGE_BLOCK_TOKENS:
     * [blocks, n_ranks, 2]; and of all: [n_ranks, 2], which count adds to. pack reads them where
     * there are several blocks, and else writes what it likes to totals. */
    int32_t *counts, *totals;

    int32_t *token, *pair; /* scratch [n_ranks, room] of pack, for lists */
    int room;

    /* pack: where each pair's result will lie at home. */
    int32_t *slot;         /* [n, top_k]; what has no expert on another rank is left alone */
    int32_t result_row;    /* where the results of the first other rank begin */
    int32_t result_stride; /* from one rank's results to the next's; 0: they follow each other */

    /* pack: messages to the other ranks, in order of rank, message_stride bytes apart. */
    const void *rows; /* [n, row_bytes] */
    size_t row_bytes; /* a multiple of 4 */
    char *messages;
    size_t message_stride;
    int message_rows; /* of every message: rows beyond the list have mail of -1; 0: as listed */
    int most_rows;    /* the longest list, or message_rows: at most room */

    int32_t *mark; /* host memory that the device can write, or NULL: pack writes value there */
    int32_t value;
} WindowSpec;

typedef struct ChoiceRows { /* rows of one rank, for group */
    const int32_t *choice;  /* [n, stride], of which top_k: local experts, or -1 */
    int32_t *place;         /* [n, top_k] gets the number of the choice's pair, or -1 */
    int32_t n, stride;
    int32_t row; /* what row_of calls the first */
    int32_t at;  /* rows of the lists before this one: the sum of their n */
} ChoiceRows;

/* A stable counting sort: pair p of local expert i, first[i] <= p < first[i+1], is row row_of[p];
 * within an expert pairs have the order of (list, row, choice). */
typedef struct GroupSpec {
    int32_t *first, *row_of; /* [n_local + 1], [pairs] */
    int32_t *counts;         /* scratch [EXCHANGE_GROUP_BLOCKS, n_local] */
    /* [n_experts] or NULL: of list `own`, which has experts of the layer: their numbers here, -1:
     * on another rank. place is left alone for those. */
    const int32_t *local;
    int own;
    int n_local, top_k, n_lists;
    ChoiceRows list[EXCHANGE_MAX_RANKS];
} GroupSpec;

typedef struct ResultList {
    const int32_t *mail;  /* [n, mail_ints] as it came */
    const int32_t *place; /* [n, top_k] from group */
    void *to;             /* row (pairs before) + (the row's how-manieth pair) of it */
    int32_t n;
} ResultList;

typedef struct ResultSpec { /* copies results out of the order of pairs */
    const void *rows;       /* [pairs, row_bytes] */
    size_t row_bytes;       /* a multiple of 4 */
    int top_k, n_lists;
    int most_rows; /* the longest list */
    int32_t *mark; /* as in WindowSpec */
    int32_t value;
    ResultList list[EXCHANGE_MAX_RANKS];
} ResultSpec;

typedef struct Link Link; /* this rank's end of a communicator */
typedef struct Backend Backend;

typedef struct LinkMove {
    void *at;
    size_t bytes;
    int peer;
    bool send;
} LinkMove;

typedef struct ExchangeOps {
    /* One rank makes the id (host, LINK_ID_BYTES), all open with it, together. link_open waits. */
    Status (*link_id)(Backend *b, void *id, Err *e);
    Status (*link_open)(Backend *b, const void *id, int rank, int size, Link **out, Err *e);
    /* All moves at once; messages between two ranks arrive in the order given. */
    Status (*link_move)(Backend *b, Link *l, const LinkMove *moves, int n, Err *e);
    /* all: [size, bytes] */
    Status (*link_gather)(Backend *b, Link *l, const void *mine, void *all, size_t bytes, Err *e);
    /* For another thread, while work is queued: what has gone wrong, or NULL; and the end of all
     * that is queued, without waiting for other ranks. */
    const char *(*link_trouble)(Link *l);
    void (*link_abort)(Link *l);
    void (*link_close)(Backend *b, Link *l); /* NULL is fine; waits for what is queued */

    Status (*host_alloc)(Backend *b, size_t bytes, void **out,
                         Err *e); /* the device writes there */
    void (*host_release)(Backend *b, void *p);
    Status (*clear)(Backend *b, void *dst, size_t bytes, Err *e);
    /* dst_host from host_alloc; wait_copy waits for the last copy, not for what is queued after
     * it. */
    Status (*copy)(Backend *b, Link *l, void *dst_host, const void *src, size_t bytes, Err *e);
    Status (*wait_copy)(Backend *b, Link *l, Err *e);

    Status (*count)(Backend *b, const WindowSpec *w, Err *e);
    Status (*pack)(Backend *b, const WindowSpec *w, Err *e);
    Status (*group)(Backend *b, const GroupSpec *g, Err *e);
    Status (*results)(Backend *b, const ResultSpec *r, Err *e);
} ExchangeOps;

#endif
