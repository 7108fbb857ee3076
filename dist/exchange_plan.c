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

int32_t plan_window_rows(int size, const ExchangeShape *shape)
{
    int32_t pairs = plan_window_pairs(size, shape); /* a row has at least one */
    return pairs < shape->max_tokens ? pairs : shape->max_tokens;
}

/* Rows that one rank can bring: a token goes to at most top_k ranks. */
static size_t rows_brought(int size, const ExchangeShape *shape)
{
    return (size_t)shape->max_tokens * (size_t)min_int(size, shape->top_k);
}

static size_t to_mail_ints(int size, const ExchangeShape *shape)
{
    return rows_brought(size, shape) * (size_t)shape->top_k + (size_t)size * MAIL_HEAD;
}

/* Of one source; a rank without experts gets no rows. */
static size_t from_mail_ints(int n_local, const ExchangeShape *shape)
{
    return MAIL_HEAD + (n_local > 0 ? (size_t)shape->max_tokens * (size_t)shape->top_k : 0);
}

static size_t pairs_in_round(int n_local, int size, const ExchangeShape *shape)
{
    return n_local > 0 ? (size_t)size * (size_t)plan_window_pairs(size, shape) : 0;
}

size_t plan_bytes(int rank, int size, const Placement *placement, const ExchangeShape *shape)
{
    int n_local = placement->n_local[rank];
    size_t ints = rows_brought(size, shape) + (size_t)shape->max_tokens * (size_t)shape->top_k;
    ints += to_mail_ints(size, shape) + (size_t)size * from_mail_ints(n_local, shape);
    ints += 2 * pairs_in_round(n_local, size, shape);
    ints += 2 * ((size_t)n_local + 1) + (size_t)size;
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
    int n_local = placement->n_local[rank];
    out->rank = rank;
    out->size = size;
    out->top_k = shape->top_k;
    out->max_tokens = shape->max_tokens;
    out->n_local = n_local;
    out->window_pairs = plan_window_pairs(size, shape);
    out->window_rows = plan_window_rows(size, shape);
    out->placement = placement;

    size_t pairs = pairs_in_round(n_local, size, shape), from_ints = from_mail_ints(n_local, shape);
    out->to = calloc((size_t)size, sizeof *out->to);
    out->from = calloc((size_t)size, sizeof *out->from);
    if (!out->to || !out->from) {
        st = err_set(e, ST_MEMORY, "exchange: no memory for lists of %d ranks", size);
        goto fail;
    }
    TRY_GOTO(take(&out->token_of, rows_brought(size, shape), e));
    TRY_GOTO(take(&out->slot, (size_t)shape->max_tokens * (size_t)shape->top_k, e));
    TRY_GOTO(take(&out->to_mail, to_mail_ints(size, shape), e));
    TRY_GOTO(take(&out->from_mail, (size_t)size * from_ints, e));
    TRY_GOTO(take(&out->row_of, pairs, e));
    TRY_GOTO(take(&out->place, pairs, e));
    TRY_GOTO(take(&out->first, (size_t)n_local + 1, e));
    TRY_GOTO(take(&out->next, (size_t)n_local + 1 + (size_t)size, e));
    memset(out->first, 0, ((size_t)n_local + 1) * sizeof *out->first);
    for (int s = 0; s < size; s++)
        out->from[s].mail = out->from_mail + (size_t)s * from_ints;
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
    free(p->slot);
    free(p->to_mail);
    free(p->from_mail);
    free(p->row_of);
    free(p->place);
    free(p->first);
    free(p->next);
    memset(p, 0, sizeof *p);
}

int plan_mail_ints(const Plan *p, int to)
{
    return MAIL_HEAD + p->to[to].n_rows * p->top_k;
}

int plan_most_mail_ints(const Plan *p)
{
    return MAIL_HEAD + (p->n_local > 0 ? p->max_tokens * p->top_k : 0);
}

int32_t plan_first_received(const Plan *p, int from)
{
    return p->max_tokens + (from < p->rank ? from : from - 1) * p->window_rows;
}

static const int32_t *choices_of(const Plan *p, const RowList *list, int32_t row)
{
    return list->mail + MAIL_HEAD + (size_t)row * (size_t)p->top_k;
}

/* Makes the list's window the one after the current; an empty one at the end. */
static void advance(const Plan *p, RowList *list)
{
    list->row += list->window_rows;
    list->pair += list->window_pairs;
    list->window_rows = list->window_pairs = 0;
    const int32_t *choice = choices_of(p, list, list->row);
    for (int r = list->row; r < list->n_rows; r++) {
        int n = 0;
        for (int s = 0; s < p->top_k; s++)
            n += *choice++ >= 0;
        if (list->window_pairs + n > p->window_pairs)
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
        p->to[d] = (RowList){.mail = p->to_mail};
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
        const RowList *before = &p->to[d - 1];
        p->to[d].mail = before->mail + plan_mail_ints(p, d - 1);
        p->to[d].first_row = before->first_row + before->n_rows;
        p->to[d].first_pair = before->first_pair + before->n_pairs;
    }
}

/* Writes choices, tokens and slots. row and pair of each list serve as fill marks. last_token:
 * [size]. */
static void fill_lists(Plan *p, const int32_t *expert, int32_t *last_token)
{
    size_t k = (size_t)p->top_k;
    for (int d = 0; d < p->size; d++)
        last_token[d] = -1;
    for (int t = 0; t < p->n_tokens; t++)
        for (size_t s = 0; s < k; s++) {
            size_t at = (size_t)t * k + s;
            p->slot[at] = -1;
            if (expert[at] < 0)
                continue;
            int d = p->placement->owner[expert[at]];
            RowList *list = &p->to[d];
            if (last_token[d] != t) {
                last_token[d] = t;
                p->token_of[list->first_row + list->row++] = t;
                for (size_t i = 0; i < k; i++)
                    list->mail[MAIL_HEAD + (size_t)(list->row - 1) * k + i] = -1;
            }
            list->mail[MAIL_HEAD + (size_t)(list->row - 1) * k + s] =
                p->placement->local_expert[expert[at]];
            p->slot[at] = list->first_pair + list->pair++;
        }
}

Status plan_route(Plan *p, const int32_t *expert, int n_tokens, Err *e)
{
    if (n_tokens < 0 || n_tokens > p->max_tokens)
        return err_set(e, ST_INPUT, "exchange: %d tokens in a step, planned for %d", n_tokens,
                       p->max_tokens);
    for (int64_t i = 0; i < (int64_t)n_tokens * p->top_k; i++)
        if (expert[i] < -1 || expert[i] >= p->placement->n_experts)
            return err_set(e, ST_INPUT, "exchange: token %lld chose expert %d of %d",
                           (long long)(i / p->top_k), expert[i], p->placement->n_experts);
    p->n_tokens = n_tokens;
    lay_out(p, expert, p->next);
    fill_lists(p, expert, p->next);

    /* Where every choice was dropped there is still a round, so that the caller need not ask. */
    int most = n_tokens > 0 ? 1 : 0;
    for (int d = 0; d < p->size; d++) {
        RowList *list = &p->to[d];
        int rounds = 0;
        rewind_list(list);
        for (advance(p, list); list->window_rows > 0; advance(p, list))
            rounds++;
        rewind_list(list);
        advance(p, list);
        most = rounds > most ? rounds : most;
    }
    for (int d = 0; d < p->size; d++) {
        p->to[d].mail[MAIL_ROWS] = p->to[d].n_rows;
        p->to[d].mail[MAIL_ROUNDS] = most;
    }
    return ST_OK;
}

void plan_route_failure(Plan *p)
{
    p->n_tokens = 0;
    for (int d = 0; d < p->size; d++) {
        p->to[d] = (RowList){.mail = p->to_mail + (size_t)d * MAIL_HEAD};
        p->to[d].mail[MAIL_ROWS] = ROWS_FAILED;
        p->to[d].mail[MAIL_ROUNDS] = 0;
    }
}

Status plan_expect(Plan *p, int *n_rounds, int *failed, Err *e)
{
    *n_rounds = 0;
    *failed = -1;
    int most = p->n_local > 0 ? p->max_tokens : 0;
    for (int s = 0; s < p->size; s++) {
        RowList *list = &p->from[s];
        int32_t n = list->mail[MAIL_ROWS];
        if (n == ROWS_FAILED && *failed < 0)
            *failed = s;
        if (n != ROWS_FAILED && (n < 0 || n > most))
            return err_set(
                e, ST_COMM,
                "exchange: rank %d brings %d rows, but at most %d fit: the ranks' plans differ", s,
                n, most);
        if (list->mail[MAIL_ROUNDS] > *n_rounds)
            *n_rounds = list->mail[MAIL_ROUNDS];
        rewind_list(list);
        list->n_rows = n == ROWS_FAILED ? 0 : n;
    }
    return ST_OK;
}

void plan_next_send(Plan *p)
{
    for (int d = 0; d < p->size; d++)
        advance(p, &p->to[d]);
}

void plan_next_receive(Plan *p)
{
    for (int s = 0; s < p->size; s++)
        advance(p, &p->from[s]);
}

/* A counting sort by expert that keeps the order of (source, token, slot) within one. */
void plan_group(Plan *p)
{
    size_t k = (size_t)p->top_k;
    memset(p->first, 0, ((size_t)p->n_local + 1) * sizeof *p->first);
    p->n_pairs = 0;
    for (int s = 0; s < p->size; s++) {
        const RowList *list = &p->from[s];
        const int32_t *choice = choices_of(p, list, list->row);
        p->n_pairs += list->window_pairs;
        for (size_t i = 0; i < (size_t)list->window_rows * k; i++)
            if (choice[i] >= 0)
                p->first[choice[i] + 1]++;
    }
    for (int i = 0; i < p->n_local; i++)
        p->first[i + 1] += p->first[i];
    memcpy(p->next, p->first, ((size_t)p->n_local + 1) * sizeof *p->next);

    int32_t nth = 0;
    const int32_t *own_token = p->token_of + p->to[p->rank].first_row;
    for (int s = 0; s < p->size; s++) {
        const RowList *list = &p->from[s];
        const int32_t *choice = choices_of(p, list, list->row);
        for (int r = 0; r < list->window_rows; r++) {
            int32_t row = s == p->rank ? own_token[list->row + r] : plan_first_received(p, s) + r;
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
