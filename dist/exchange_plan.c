/* dist/exchange_plan.c - see exchange_plan.h. */
#include "dist/exchange_plan.h"

#include <stdlib.h>
#include <string.h>

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

int32_t plan_window_pairs(int size, const ExchangeShape *shape)
{
    int64_t all = (int64_t)shape->max_tokens * shape->top_k;
    if (size <= 1)
        return (int32_t)all; /* nothing is received, so there is nothing to bound */
    /* All other ranks may send to one rank in the same round, so each gets an equal part of its
     * limit. A row brings at most top_k pairs and must fit whole, or nothing would move. */
    int64_t fit = (int64_t)(shape->round_bytes / (size_t)shape->row_bytes) / (size - 1);
    if (fit < shape->top_k)
        fit = shape->top_k;
    return (int32_t)(fit < all ? fit : all);
}

/* Rows that one rank can bring: a token goes to at most top_k ranks. */
static size_t rows_brought(int size, const ExchangeShape *shape)
{
    return (size_t)shape->max_tokens * (size_t)min_int(size, shape->top_k);
}

static size_t pairs_in_round(int rank, int size, const Placement *placement,
                             const ExchangeShape *shape)
{
    if (placement->n_local[rank] == 0)
        return 0;
    return (size_t)size * (size_t)plan_window_pairs(size, shape);
}

size_t plan_bytes(int rank, int size, const Placement *placement, const ExchangeShape *shape)
{
    size_t k = (size_t)shape->top_k, brought = rows_brought(size, shape),
           tokens = (size_t)shape->max_tokens;
    size_t coming = placement->n_local[rank] ? (size_t)size * tokens : 0;
    size_t ints = brought * (1 + k) + tokens * k + coming * k;
    ints += 2 * pairs_in_round(rank, size, placement, shape);
    ints += 2 * ((size_t)placement->n_local[rank] + 1) + (size_t)size + 1;
    return ints * sizeof(int32_t) + 2 * (size_t)size * sizeof(RowList);
}

static Status take(int32_t **out, size_t n, Err *e)
{
    *out = malloc((n ? n : 1) * sizeof **out);
    return *out ? ST_OK : err_set(e, ST_MEMORY, "exchange: no memory for %zu row numbers", n);
}

Status plan_create(Plan *out, int rank, int size, const Placement *placement,
                   const ExchangeShape *shape, Err *e)
{
    Status st;
    memset(out, 0, sizeof *out);
    if (shape->top_k < 1 || shape->max_tokens < 1 || shape->row_bytes < 1 || shape->hidden < 1)
        return err_set(e, ST_USAGE, "exchange: top_k %d, %d tokens, rows of %d values in %d bytes",
                       shape->top_k, shape->max_tokens, shape->hidden, shape->row_bytes);
    if (placement->n_ranks != size)
        return err_set(e, ST_USAGE, "exchange: experts are placed on %d ranks, but there are %d",
                       placement->n_ranks, size);
    /* Half of what an int32 counts, since home results and a round's results are numbered in one
     * sequence. */
    if ((double)size * shape->max_tokens * shape->top_k > INT32_MAX / 2)
        return err_set(
            e, ST_USAGE,
            "exchange: %d tokens per rank and step are too many for %d ranks and top_k %d",
            shape->max_tokens, size, shape->top_k);
    out->rank = rank;
    out->size = size;
    out->top_k = shape->top_k;
    out->max_tokens = shape->max_tokens;
    out->n_local = placement->n_local[rank];
    out->window_pairs = plan_window_pairs(size, shape);
    out->placement = placement;

    size_t k = (size_t)shape->top_k, tokens = (size_t)shape->max_tokens,
           n_local = (size_t)out->n_local;
    size_t brought = rows_brought(size, shape),
           pairs = pairs_in_round(rank, size, placement, shape);
    out->to = calloc((size_t)size, sizeof *out->to);
    out->from = calloc((size_t)size, sizeof *out->from);
    if (!out->to || !out->from) {
        st = err_set(e, ST_MEMORY, "exchange: no memory for lists of %d ranks", size);
        goto fail;
    }
    TRY_GOTO(take(&out->token_of, brought, e));
    TRY_GOTO(take(&out->choice, brought * k, e));
    TRY_GOTO(take(&out->slot, tokens * k, e));
    TRY_GOTO(take(&out->from_choice, n_local ? (size_t)size * tokens * k : 0, e));
    TRY_GOTO(take(&out->row_of, pairs, e));
    TRY_GOTO(take(&out->place, pairs, e));
    TRY_GOTO(take(&out->first, n_local + 1, e));
    TRY_GOTO(take(&out->next, n_local + 1 + (size_t)size, e));
    memset(out->first, 0, (n_local + 1) * sizeof *out->first);
    return ST_OK;
fail:
    plan_free(out);
    return st;
}

void plan_free(Plan *p)
{
    free(p->to);
    free(p->from);
    free(p->token_of);
    free(p->choice);
    free(p->slot);
    free(p->from_choice);
    free(p->row_of);
    free(p->place);
    free(p->first);
    free(p->next);
    memset(p, 0, sizeof *p);
}

static int pairs_of_row(const int32_t *choice, int top_k)
{
    int n = 0;
    for (int s = 0; s < top_k; s++)
        n += choice[s] >= 0;
    return n;
}

/* Makes the list's window the one after the current; an empty one at the end. */
static void advance(RowList *list, const int32_t *choices, int top_k, int32_t most_pairs)
{
    list->row += list->window_rows;
    list->pair += list->window_pairs;
    list->window_rows = list->window_pairs = 0;
    const int32_t *choice = choices + ((size_t)list->first_row + (size_t)list->row) * (size_t)top_k;
    for (int r = list->row; r < list->n_rows; r++, choice += top_k) {
        int n = pairs_of_row(choice, top_k);
        if (list->window_pairs + n > most_pairs)
            return;
        list->window_rows++;
        list->window_pairs += n;
    }
}

static void rewind_list(RowList *list)
{
    list->row = list->pair = list->window_rows = list->window_pairs = 0;
}

/* Counts rows and pairs for each destination, and lays the lists out one after the other.
 * last_token: [size]. */
static void lay_out(Plan *p, const int32_t *expert, int32_t *last_token)
{
    for (int d = 0; d < p->size; d++) {
        p->to[d] = (RowList){0};
        last_token[d] = -1;
    }
    for (int t = 0; t < p->n_tokens; t++)
        for (int s = 0; s < p->top_k; s++, expert++) {
            if (*expert < 0)
                continue;
            int d = p->placement->owner[*expert];
            p->to[d].n_rows += last_token[d] != t;
            p->to[d].n_pairs++;
            last_token[d] = t;
        }
    for (int d = 1; d < p->size; d++) {
        p->to[d].first_row = p->to[d - 1].first_row + p->to[d - 1].n_rows;
        p->to[d].first_pair = p->to[d - 1].first_pair + p->to[d - 1].n_pairs;
    }
}

Status plan_route(Plan *p, const int32_t *expert, int n_tokens, int *n_rounds, Err *e)
{
    *n_rounds = 0;
    if (n_tokens < 0 || n_tokens > p->max_tokens)
        return err_set(e, ST_INPUT, "exchange: %d tokens in a step, planned for %d", n_tokens,
                       p->max_tokens);
    for (int64_t i = 0; i < (int64_t)n_tokens * p->top_k; i++)
        if (expert[i] < -1 || expert[i] >= p->placement->n_experts)
            return err_set(e, ST_INPUT, "exchange: token %lld chose expert %d of %d",
                           (long long)(i / p->top_k), expert[i], p->placement->n_experts);
    p->n_tokens = n_tokens;
    int32_t *last_token = p->next;
    lay_out(p, expert, last_token);

    /* row and pair of each list serve as fill marks here; rewind_list clears them. */
    size_t k = (size_t)p->top_k;
    for (int d = 0; d < p->size; d++)
        last_token[d] = -1;
    for (int t = 0; t < n_tokens; t++)
        for (int s = 0; s < p->top_k; s++) {
            size_t at = (size_t)t * k + (size_t)s;
            p->slot[at] = -1;
            if (expert[at] < 0)
                continue;
            int d = p->placement->owner[expert[at]];
            RowList *list = &p->to[d];
            if (last_token[d] != t) {
                last_token[d] = t;
                size_t row = (size_t)(list->first_row + list->row++);
                p->token_of[row] = t;
                for (size_t i = 0; i < k; i++)
                    p->choice[row * k + i] = -1;
            }
            size_t row = (size_t)(list->first_row + list->row - 1);
            p->choice[row * k + (size_t)s] = p->placement->local_expert[expert[at]];
            p->slot[at] = list->first_pair + list->pair++;
        }

    for (int d = 0; d < p->size; d++) {
        RowList *list = &p->to[d];
        int rounds = 0;
        rewind_list(list);
        for (advance(list, p->choice, p->top_k, p->window_pairs); list->window_rows > 0;
             advance(list, p->choice, p->top_k, p->window_pairs))
            rounds++;
        rewind_list(list);
        if (rounds > *n_rounds)
            *n_rounds = rounds;
    }
    if (*n_rounds == 0 && n_tokens > 0)
        *n_rounds = 1; /* every choice was dropped; the caller still sees a round */
    return ST_OK;
}

Status plan_expect(Plan *p, const int32_t *n_rows, Err *e)
{
    int32_t at = 0;
    for (int s = 0; s < p->size; s++) {
        if (n_rows[s] < 0 || n_rows[s] > (p->n_local ? p->max_tokens : 0))
            return err_set(
                e, ST_COMM,
                "exchange: rank %d brings %d rows, but at most %d fit: the ranks' plans differ", s,
                n_rows[s], p->n_local ? p->max_tokens : 0);
        p->from[s] = (RowList){.first_row = at, .n_rows = n_rows[s]};
        at += n_rows[s];
    }
    return ST_OK;
}

/* A counting sort by expert that keeps the order of (source, token, slot) within one. */
static void group_pairs(Plan *p)
{
    size_t k = (size_t)p->top_k;
    memset(p->first, 0, ((size_t)p->n_local + 1) * sizeof *p->first);
    p->n_pairs = 0;
    for (int s = 0; s < p->size; s++) {
        const RowList *list = &p->from[s];
        const int32_t *choice = p->from_choice + (size_t)(list->first_row + list->row) * k;
        p->n_pairs += list->window_pairs;
        for (size_t i = 0; i < (size_t)list->window_rows * k; i++)
            if (choice[i] >= 0)
                p->first[choice[i] + 1]++;
    }
    for (int i = 0; i < p->n_local; i++)
        p->first[i + 1] += p->first[i];
    memcpy(p->next, p->first, ((size_t)p->n_local + 1) * sizeof *p->next);

    int32_t received = p->max_tokens, nth = 0;
    const int32_t *own_token = p->token_of + p->to[p->rank].first_row;
    for (int s = 0; s < p->size; s++) {
        const RowList *list = &p->from[s];
        const int32_t *choice = p->from_choice + (size_t)(list->first_row + list->row) * k;
        for (int r = 0; r < list->window_rows; r++) {
            int32_t row = s == p->rank ? own_token[list->row + r] : received++;
            for (size_t i = 0; i < k; i++, choice++) {
                if (*choice < 0)
                    continue;
                int32_t pair = p->next[*choice]++;
                p->row_of[pair] = row;
                p->place[nth++] = pair;
            }
        }
    }
}

void plan_next_round(Plan *p)
{
    for (int r = 0; r < p->size; r++) {
        advance(&p->to[r], p->choice, p->top_k, p->window_pairs);
        advance(&p->from[r], p->from_choice, p->top_k, p->window_pairs);
    }
    group_pairs(p);
}
