/* dist/exchange_plan.h - the bookkeeping of an exchange: which row goes where in which round;
 * for dist/ only.
 *
 * Plain integers on the host, no MPI and no row bytes, so that every exchange (MPI, NCCL) moves
 * the same rows in the same order. Between each pair of ranks there is a list of rows, in order
 * of token; a round takes the next window of every list. The sender mails the list's choices
 * along with the first window, so that afterwards both ends cut the same windows. */
#ifndef MB_DIST_EXCHANGE_PLAN_H
#define MB_DIST_EXCHANGE_PLAN_H

#include "dist/exchange.h"

enum { MAIL_ROWS, MAIL_ROUNDS, MAIL_HEAD /* ints before the choices */ };
enum { ROWS_FAILED = -1 /* in place of the rows: the sender failed in this step */ };

/* The rows that one rank brings for another, and the window of them that the current round
 * moves. */
typedef struct RowList {
    int32_t *
        /* rows in the list, rounds that its sender needs, then [n_rows, top_k] choices: the
         * index of the expert on the destination, -1: not there */
        mail;
    int32_t n_rows;
    int32_t first_row;  /* sender only: where the list begins in token_of */
    int32_t first_pair; /* sender only: where its results begin at home */
    int32_t n_pairs;    /* sender only */
    int32_t row, pair;  /* the window's begin, counted from the list's */
    int32_t window_rows, window_pairs;
} RowList;

typedef struct Plan {
    int rank, size, top_k, max_tokens, n_local;
    int32_t window_pairs; /* a window ends before its pairs would exceed this */
    int32_t window_rows;  /* the most rows that a window can then have */
    const Placement *placement;

    /* What this rank brings: lists by destination, this rank's own included. */
    RowList *to;       /* [size] */
    int32_t *token_of; /* [rows brought] */
    int32_t *slot;     /* [n_tokens, top_k]: where the result will lie at home */
    int32_t *to_mail, *from_mail;
    int n_tokens;

    /* What other ranks, and this one, bring here. */
    RowList *from; /* [size] */

    /* The current round. */
    int32_t *
        /* [n_pairs] as in RecvRows: own row t is t; the rows of the k-th other rank begin at
         * max_tokens + k * window_rows */
        row_of;
    int32_t *first; /* [n_local + 1] */
    int32_t *next;  /* scratch: of the sort [n_local + 1], of plan_route [size] */
    int32_t *
        /* [n_pairs] the k-th pair in order of (source, token, slot) is pair place[k] of row_of */
        place;
    int n_pairs;
} Plan;

/* The most pairs, and the most rows, that one list gives to one round. The same on every rank. */
int32_t plan_window_pairs(int size, const ExchangeShape *shape);
int32_t plan_window_rows(int size, const ExchangeShape *shape);
size_t plan_bytes(int rank, int size, const Placement *placement, const ExchangeShape *shape);
/* ST_USAGE when the shape makes no sense or more pairs than an int32 counts. */
Status plan_create(Plan *out, int rank, int size, const Placement *placement,
                   const ExchangeShape *shape, Err *e);
void plan_free(Plan *p); /* fine after a create that failed */

/* Ints of the mail for a rank, and of the longest that one may send here. */
int plan_mail_ints(const Plan *p, int to);
int plan_most_mail_ints(const Plan *p);
/* The place of another rank's received rows: max_tokens + k * window_rows. */
int32_t plan_first_received(const Plan *p, int from);

/* Fills the lists of to, with their mail and their first windows, and slot. ST_INPUT on an
 * expert that does not exist or too many tokens. */
Status plan_route(Plan *p, const int32_t *expert, int n_tokens, Err *e);
/* Instead of plan_route: mail that says that this rank failed. */
void plan_route_failure(Plan *p);
/* Reads the mail that has come into from. *n_rounds is what the neediest rank needs. *failed is
 * the rank that failed, or -1. ST_COMM when a rank brings more than the shape allows. */
Status plan_expect(Plan *p, int *n_rounds, int *failed, Err *e);
/* Before each round. begin sends the first windows, before it knows what it will get; so the
 * sending side is ahead. */
void plan_next_send(Plan *p); /* not before round 0 */
void plan_next_receive(Plan *p);
/* Groups the pairs of the round by expert. */
void plan_group(Plan *p);

#endif
