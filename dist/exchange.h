/* dist/exchange.h - sends token rows to the ranks that own their experts, and brings results
 * back.
 *
 * One layer: begin, then for each round dispatch, the experts' work, combine. A
 * row travels once to each rank that owns at least one of its experts. Each (token, slot) result
 * travels home as a vector of its own; weighting and summing happen at home only, in slot order
 * (BackendOps.combine), so the bits do not depend on the number of ranks, on placement or on
 * rounds. Alone, a rank's rows are not copied at all; with several ranks, rows that stay at home
 * are copied once, unless the caller has put them into exchange_home_rows.
 *
 * Where rows are rounded before dispatch, they can travel coded:
 *   encode_rows(coded, rows)                    with several ranks only
 *   round_rows(rows), or decode_rows(coded)     as the local experts read them
 *   exchange_begin({rows, coded, coded_bytes})
 *   exchange_dispatch(&recv)
 *   for each recv.coded[i]: decode_rows(to, from, n)
 *   ffn(recv.rows, recv.row_of, ...)
 * so that an expert reads the same bits wherever it lives. Index arrays and rows lie in the memory of
 * the model's backend. Rows are encoded before they are
 * rounded, since some schemes would find another scale for rounded rows. */
#ifndef MB_DIST_EXCHANGE_H
#define MB_DIST_EXCHANGE_H

#include "dist/comm.h"
#include "dist/placement.h"
#include "kernels/backend.h"

typedef struct Exchange Exchange; /* opaque: its fields are in exchange_kind.h */

typedef struct ExchangeShape {
    int top_k;      /* experts per token */
    int hidden;     /* values per row */
    int row_bytes;  /* hidden * the backend's act_bytes */
    int max_tokens; /* per rank and step; home buffers are sized from it, once */
    /* most that a rank receives in one round of dispatch or combine (rows, or results); where it
     * is too small for one token from each other rank, that is what a round moves */
    size_t round_bytes;
    /* most bytes of a coded row, over all layers; at most row_bytes; 0: rows travel as they are */
    int coded_bytes;
    /* The backend whose memory rows, choices and results lie in, for one whose memory is not the
     * host's: then they stay there, and travel over NCCL. Borrowed. NULL: rows are in host memory. */
    const BackendOps *ops;
    Backend *backend;
} ExchangeShape;

typedef struct ExchangeRows { /* of one layer */
    const void *rows;         /* [n_tokens, hidden] act */
    /* [n_tokens, coded_bytes] what travels in their place. Not read when a rank is alone, has no
     * tokens, or has failed. */
    const void *coded;
    int coded_bytes; /* 0: rows themselves travel. The same on all ranks, failed ones included */
    /* The experts read codes: RecvRows.rows are coded rows, coded_bytes each, and nothing is to be
     * decoded. rows and coded are the same then, and lie in exchange_home_codes where that is not
     * NULL. Only where rows lie on devices. */
    bool codes_read;
} ExchangeRows;

typedef struct CodedRows {
    const void *from; /* [n, coded_bytes] as they arrived */
    void *to;         /* [n, hidden] act: where RecvRows.rows is to have them */
    int n;            /* > 0 */
} CodedRows;

typedef struct RecvRows {
    const void *rows; /* [*, hidden] act: distinct rows, own and received */
    /* [pairs] pair -> row of rows; pairs are grouped by local expert and, within one, ordered
     * by (source rank, token) */
    const int32_t *row_of;
    const int32_t *first; /* [n_local_experts + 1]: expert i has pairs first[i] .. first[i+1]-1 */
    int max_pairs;        /* at least as many as there are; 0: none */
    /* [max_pairs, hidden] act: the experts' results go here before exchange_combine */
    void *out;
    /* What the caller decodes before the experts read rows; every other row is there already. None
     * where rows travelled as they are. */
    const CodedRows *coded;
    int n_coded;
} RecvRows; /* borrowed: valid until the round's combine returns */

/* Tokens whose results are all at home. */
typedef struct HomeRows {
    const void *rows;    /* [*, hidden] act */
    const int32_t *slot; /* [n_tokens, top_k] -> row, -1 for a dropped choice */
    int first_token, n_tokens;
} HomeRows; /* borrowed: valid until the next dispatch or begin */

/* What all ranks know of a step before its first layer. */
typedef struct ExchangeStep {
    int most_tokens; /* that a rank brings; 0: not known */
    /* Every rank brings this many, padding included, and layers may be recorded: messages have one
     * size, and the host waits for nothing. */
    bool fixed;
} ExchangeStep;

/* Not collective, but every rank must make one with the same shape. comm and placement are
 * borrowed and must outlive it. All memory is taken here, but what NCCL takes for itself. */
Status exchange_create(Exchange **out, Comm *comm, const Placement *placement,
                       const ExchangeShape *shape, Err *e);
/* Collective, before the first begin, when every rank has made its own: brings up NCCL where rows
 * lie on devices. All ranks return the same. */
Status exchange_connect(Exchange *x, Err *e);
void exchange_destroy(Exchange *x); /* NULL is fine */
/* Most pairs that one round's RecvRows can hold: what the experts' scratch is sized by. */
int exchange_max_pairs(const Exchange *x);
/* Bytes that create will take on this rank, for the memory plan. */
size_t exchange_plan_bytes(const Comm *comm, const Placement *placement,
                           const ExchangeShape *shape);
/* [max_tokens, row_bytes] where a caller may put the rows that it gives to begin, which saves a
 * copy of those that stay at home. NULL when there is one rank: nothing is copied then. */
void *exchange_home_rows(Exchange *x);

/* [max_tokens, coded_bytes] where a caller puts coded rows that the experts read. NULL when there is
 * one rank, when rows never travel coded, and where rows lie in host memory. */
void *exchange_home_codes(Exchange *x);

/* Collective, and optional: the choices that begin will be given, ahead of it, so that counts travel
 * while the caller queues other work. Only where begin will be called with mine ST_OK. */
Status exchange_announce(Exchange *x, const int32_t *expert, int n_tokens, ExchangeStep step,
                         Err *e);
/* Collective: swaps counts and choices, sends the first round's rows, and agrees on *n_rounds (>= 1
 * when any rank has tokens).
 *   rows    of this layer, and coded rows, unchanged until the last round's combine
 *   expert  [n_tokens, top_k] 0 .. n_experts-1, or -1 for a choice the router dropped
 *   step    the same on all ranks; the exchange over MPI needs to know nothing
 *   mine    ST_OK, or this rank's failure: then every rank returns ST_COMM here, together, and none
 *           is left waiting. The failing rank's *e stays as it is. The caller then calls dist_agree,
 *           with its own failure where it has one and else with what begin returned, to learn the
 *           message.
 * A choice that is not an expert, or more tokens than planned, fails in the same way, and returns
 * ST_INPUT here.
 * On devices nobody waits for an answer: a rank that failed takes part without tokens, here and in
 * all that follows, gets ST_OK, and tells the others when the step is over. What the device or NCCL
 * refuses there ends the job on all ranks, with a message. */
Status exchange_begin(Exchange *x, ExchangeRows rows, const int32_t *expert, int n_tokens,
                      ExchangeStep step, Status mine, int *n_rounds, Err *e);
/* Collective. round = 0 .. n_rounds-1, in order. */
Status exchange_dispatch(Exchange *x, int round, RecvRows *recv, Err *e);
/* Collective: results of this round go home. mine as in begin (the experts failed). home: of which
 * tokens the caller now sums up the results; of every token once in a layer. */
Status exchange_combine(Exchange *x, int round, Status mine, HomeRows *home, Err *e);

/* Since create: bytes sent to other ranks by this rank. */
typedef struct ExchangeStats {
    int64_t dispatch_bytes, combine_bytes, n_rounds; /* rows only, not the counts and choices */
    double wait_s;                                   /* in the collectives */
} ExchangeStats;
ExchangeStats exchange_stats(const Exchange *x);
/* What a recorded step moves when it is replayed, which nobody calls dispatch for. */
void exchange_count_replay(Exchange *x, const ExchangeStats *moved);

#endif
