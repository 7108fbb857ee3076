/* dist/exchange_plan.h - the bookkeeping of an exchange: which row goes where in which round; for
 * dist/ only.
 *
 * Plain integers on the host, no MPI and no row bytes, so that every exchange (MPI, NCCL) moves the
 * same rows in the same order. Between each pair of ranks there is a list of rows, in order of
 * token; a round takes the next window of every list. Sender and receiver both know a list's
 * choices, so both cut the same windows. */
#ifndef MB_DIST_EXCHANGE_PLAN_H
#define MB_DIST_EXCHANGE_PLAN_H

#include "dist/exchange.h"

/* The rows that one rank brings for another, and the window of them that the current round moves.
 */
typedef struct RowList {
    int32_t first_row; /* where the list begins among all lists of its side */
    int32_t n_rows;
    int32_t first_pair; /* the same in pairs; on the sending side also the place of its results at
                           home */
    int32_t n_pairs;
    int32_t row, pair; /* the window's begin, counted from the list's */
    int32_t window_rows, window_pairs;
} RowList;

typedef struct Plan {
    int rank, size, top_k, max_tokens, n_local;
    int32_t window_pairs; /* a window ends before its pairs would exceed this; rows never exceed
                             pairs */
    const Placement *placement;

    /* What this rank brings. Rows of all lists lie one after the other, by destination. */
    RowList *to;       /* [size], this rank's own included */
    int32_t *token_of; /* [rows brought] */
    int32_t
        *choice; /* [rows brought, top_k]: index of the expert on the destination, -1: not there */
    int32_t *slot; /* [n_tokens, top_k]: where the result will lie at home */
    int n_tokens;

    /* What other ranks, and this one, bring here. */
    RowList *from;        /* [size] */
    int32_t *from_choice; /* [rows coming, top_k] */

    /* The current round. */
    int32_t *row_of; /* [n_pairs] as in RecvRows: own row t is t, the k-th received row is
                        max_tokens + k */
    int32_t *first;  /* [n_local + 1] */
    int32_t *next;   /* [n_local + 1] scratch of the sort; [size + 1] in plan_route */
    int32_t *place; /* [n_pairs] the k-th pair in order of (source, token, slot) is pair place[k] of
                       row_of */
    int n_pairs;
} Plan;

/* The most pairs that one list gives to one round. The same on every rank. */
int32_t plan_window_pairs(int size, const ExchangeShape *shape);
size_t plan_bytes(int rank, int size, const Placement *placement, const ExchangeShape *shape);
/* ST_USAGE when the shape makes no sense or more pairs than an int32 counts. */
Status plan_create(Plan *out, int rank, int size, const Placement *placement,
                   const ExchangeShape *shape, Err *e);
void plan_free(Plan *p); /* fine after a create that failed */

/* Fills to, token_of, choice and slot; *n_rounds is how many this rank's lists take. ST_INPUT on an
 * expert that does not exist or too many tokens. */
Status plan_route(Plan *p, const int32_t *expert, int n_tokens, int *n_rounds, Err *e);
/* n_rows[size]: how many rows each rank brings here; lays the lists out. from_choice is filled by
 * the caller afterwards. ST_COMM when a rank brings more than the shape allows. */
Status plan_expect(Plan *p, const int32_t *n_rows, Err *e);
/* Moves every list on to its next window, and groups the pairs that come here by expert. */
void plan_next_round(Plan *p);

#endif
