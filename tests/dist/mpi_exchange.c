/* tests/dist/mpi_exchange.c - random routings: every result is the serial answer bit for bit, every
 * row travels once to each rank that needs it, and a rank that fails takes all the others along. */
#include "dist/exchange.h"
#include "dist/placement.h"
#include "tests/support/check.h"
#include "tests/support/exchange_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int experts, top_k, hidden, max_tokens;
    size_t round_bytes;
    Routing routing;
    int only_rank; /* the one rank with tokens; -1: all of them */
} cases[] = {
    {"even", 8, 2, 16, 12, 1 << 20, RANDOM, -1},
    {"odd sizes", 7, 3, 13, 17, 1 << 20, RANDOM, -1},
    {"one token", 8, 4, 5, 1, 1 << 20, RANDOM, -1},
    {"top 1", 5, 1, 9, 33, 1 << 20, RANDOM, -1},
    {"every expert for every token", 4, 4, 3, 11, 1 << 20, RANDOM, -1},
    {"one expert", 1, 1, 4, 9, 1 << 20, RANDOM, -1},
    {"more ranks than experts", 2, 2, 7, 10, 1 << 20, RANDOM, -1},
    {"all tokens to one expert", 8, 1, 6, 40, 1 << 20, ONE_EXPERT, -1},
    {"dropped choices", 6, 3, 8, 21, 1 << 20, DROPPED, -1},
    {"every choice dropped", 6, 3, 8, 5, 1 << 20, ALL_DROPPED, -1},
    {"the same expert twice", 3, 4, 10, 15, 1 << 20, DUPLICATES, -1},
    {"only rank 0 has tokens", 8, 2, 12, 19, 1 << 20, RANDOM, 0},
    {"only the last rank has tokens", 8, 2, 12, 19, 1 << 20, RANDOM, -2},
    {"nobody has tokens", 8, 2, 12, 19, 1 << 20, RANDOM, 99},
    {"many rounds", 8, 2, 16, 50, 300, RANDOM, -1},
    {"a row a round", 7, 3, 13, 23, 1, RANDOM, -1},
    {"many rounds to one expert", 8, 2, 16, 50, 200, ONE_EXPERT, -1},
    {"many rounds, dropped and twice", 5, 4, 11, 31, 500, DUPLICATES, -1},
    {"many rounds from one rank", 8, 4, 16, 40, 256, RANDOM, 0},
    {"wide rows", 16, 4, 2880, 37, 100000, RANDOM, -1},
};

static void fill_row(int32_t *row, int hidden, int rank, int step, int token)
{
    uint64_t seed = exchange_mix((uint64_t)rank << 40 | (uint64_t)step << 24 | (uint64_t)token);
    for (int i = 0; i < hidden; i++)
        row[i] = (int32_t)exchange_mix(seed + (uint64_t)i);
}

/* What a row travels as: its first n values, which repeat in the rows of a layer that codes
 * them. */
static int coded_values(int hidden, int step)
{
    static const int parts[] = {0, 2, 3, 5}; /* 0: as it is; steps are layers, of other widths */
    return parts[step % 4] ? (hidden + parts[step % 4] - 1) / parts[step % 4] : 0;
}

static void repeat_row(int32_t *row, int hidden, int n)
{
    for (int i = n; n > 0 && i < hidden; i++)
        row[i] = row[i - n];
}

static void decode_rows(const RecvRows *recv, int hidden, int n)
{
    for (int i = 0; i < recv->n_coded; i++) {
        const int32_t *from = recv->coded[i].from;
        int32_t *to = recv->coded[i].to;
        for (int r = 0; r < recv->coded[i].n; r++, from += n, to += hidden) {
            memcpy(to, from, (size_t)n * sizeof *to);
            repeat_row(to, hidden, n);
        }
    }
}

/* The "expert": any function of the expert's number and the row's bytes. */
static void apply(int32_t *out, const int32_t *row, int hidden, int expert)
{
    uint32_t carry = (uint32_t)expert * 2654435761u;
    for (int i = 0; i < hidden; i++) {
        carry = carry * 31 + (uint32_t)row[i];
        out[i] = (int32_t)(carry ^ (uint32_t)expert);
    }
}

static int tokens_of(size_t i, const Comm *c, int rank, int step)
{
    int only = cases[i].only_rank == -2 ? c->size - 1 : cases[i].only_rank;
    return exchange_tokens(only, cases[i].max_tokens, rank, step);
}

/* Rows that arrived in a round stay within round_bytes, or within one token of each other rank. */
static int check_limit(const char *name, const RecvRows *recv, int most_pairs, int size,
                       const ExchangeShape *shape)
{
    if (check_true(name, recv->max_pairs <= most_pairs))
        return 1;
    int received = 0;
    for (int p = 0; p < recv->max_pairs; p++) {
        bool seen = recv->row_of[p] < shape->max_tokens;
        for (int before = 0; before < p && !seen; before++)
            seen = recv->row_of[before] == recv->row_of[p];
        received += !seen;
    }
    size_t least = (size_t)(size - 1) * (size_t)shape->top_k * (size_t)shape->row_bytes;
    size_t limit = shape->round_bytes > least ? shape->round_bytes : least;
    return check_true(name, (size_t)received * (size_t)shape->row_bytes <= limit);
}

static void run_experts(const Placement *place, int rank, int hidden, RecvRows *recv)
{
    const int32_t *rows = recv->rows;
    int32_t *out = recv->out;
    for (int x = 0; x < place->n_local[rank]; x++)
        for (int p = recv->first[x]; p < recv->first[x + 1]; p++)
            apply(out + (size_t)p * (size_t)hidden, rows + (size_t)recv->row_of[p] * (size_t)hidden,
                  hidden, placement_expert(place, rank, x));
}

static int check_results(const char *name, const HomeRows *home, const int32_t *rows,
                         const int32_t *expert, int n_tokens, int top_k, int hidden)
{
    const void *got_rows = home->rows;
    const int32_t *slot = home->slot;
    int32_t want[4096];
    int wrong = home->first_token != 0 || home->n_tokens != n_tokens;
    for (int i = 0; i < n_tokens * top_k; i++) {
        if (expert[i] < 0) {
            wrong += slot[i] != -1;
            continue;
        }
        apply(want, rows + (size_t)(i / top_k) * (size_t)hidden, hidden, expert[i]);
        wrong += slot[i] < 0 || memcmp((const int32_t *)got_rows + (size_t)slot[i] * (size_t)hidden,
                                       want, (size_t)hidden * sizeof *want) != 0;
    }
    return check_int(name, wrong, 0);
}

/* What must have been sent: a row once to each other rank with an expert of it, a result for each
 * pair. */
static void expect_bytes(const Placement *place, int rank, const int32_t *expert, int n_tokens,
                         int top_k, int64_t *rows, int64_t *results)
{
    for (int t = 0; t < n_tokens; t++)
        for (int d = 0; d < place->n_ranks; d++) {
            int pairs = 0;
            for (int s = 0; s < top_k; s++)
                pairs += expert[t * top_k + s] >= 0 && place->owner[expert[t * top_k + s]] == d;
            *rows += pairs > 0 && d != rank;
            results[d] += d != rank ? pairs : 0;
        }
}

static int run_case(size_t i, Comm *c, bool in_place, bool coded)
{
    const char *name = cases[i].name;
    int failed = 0, hidden = cases[i].hidden, top_k = cases[i].top_k,
        max_tokens = cases[i].max_tokens;
    ExchangeShape shape = {
        top_k, hidden, hidden * 4, max_tokens, cases[i].round_bytes, coded ? hidden * 4 : 0,
        NULL,  NULL};
    Err e = {0};
    Placement place;
    Exchange *x = NULL;
    if (placement_create(&place, cases[i].experts, c->size, &e) != ST_OK ||
        exchange_create(&x, c, &place, &shape, &e) != ST_OK)
        return check_true(e.text, false);
    failed += check_true(name, exchange_plan_bytes(c, &place, &shape) > 0);

    int32_t *own = calloc((size_t)max_tokens * (size_t)hidden, 4);
    int32_t *rows = in_place && c->size > 1 ? exchange_home_rows(x) : own;
    int32_t *expert = calloc((size_t)max_tokens * (size_t)top_k, 4);
    int64_t *results = calloc((size_t)c->size, sizeof *results);
    if (!own || !expert || !results)
        return check_true("memory for the test", false);
    int32_t *codes = coded ? calloc((size_t)max_tokens * (size_t)hidden, 4) : NULL;
    int64_t want_bytes = 0, n_rounds_seen = 0;
    for (int step = 0; step < 4; step++) {
        int n_tokens = tokens_of(i, c, c->rank, step), n_rounds = -1, most = 0;
        for (int r = 0; r < c->size; r++)
            most = tokens_of(i, c, r, step) > most ? tokens_of(i, c, r, step) : most;
        int n_coded = coded ? coded_values(hidden, step) : 0;
        for (int t = 0; t < n_tokens; t++) {
            int32_t *row = rows + (size_t)t * (size_t)hidden;
            fill_row(row, hidden, c->rank, step, t);
            repeat_row(row, hidden, n_coded);
            if (n_coded > 0 && codes)
                memcpy(codes + t * n_coded, row, (size_t)n_coded * sizeof *codes);
            for (int s = 0; s < top_k; s++)
                expert[t * top_k + s] =
                    exchange_choose(cases[i].routing, cases[i].experts, c->rank, step, t, s);
        }
        ExchangeRows give = {rows, c->size > 1 && n_tokens > 0 ? codes : NULL, n_coded * 4, false};
        failed += check_int(
            name,
            exchange_begin(x, give, expert, n_tokens, (ExchangeStep){0}, ST_OK, &n_rounds, &e),
            ST_OK);
        failed += check_true(name, most == 0 ? n_rounds == 0 : n_rounds >= 1);
        HomeRows home = {0};
        for (int round = 0; round < n_rounds; round++) {
            RecvRows recv;
            failed += check_int(name, home.n_tokens, 0); /* not before the last round */
            failed += check_int(name, exchange_dispatch(x, round, &recv, &e), ST_OK);
            int n_local = place.n_local[c->rank];
            failed += exchange_check_groups(name, &recv, n_local, max_tokens);
            failed += check_int(name, recv.first[n_local], recv.max_pairs);
            failed += check_limit(name, &recv, exchange_max_pairs(x), c->size, &shape);
            failed += check_true(name, recv.n_coded == 0 || (n_coded > 0 && c->size > 1));
            decode_rows(&recv, hidden, n_coded);
            run_experts(&place, c->rank, hidden, &recv);
            failed += check_int(name, exchange_combine(x, round, ST_OK, &home, &e), ST_OK);
        }
        failed += check_results(name, &home, rows, expert, n_tokens, top_k, hidden);
        int64_t want_rows = 0;
        expect_bytes(&place, c->rank, expert, n_tokens, top_k, &want_rows, results);
        want_bytes += want_rows * (n_coded > 0 ? n_coded : hidden) * 4;
        n_rounds_seen += n_rounds;
    }
    ExchangeStats stats = exchange_stats(x);
    failed += check_int(name, comm_sum_int64(c, results, c->size, &e), ST_OK);
    failed += check_int(name, stats.dispatch_bytes, want_bytes);
    failed += check_int(name, stats.combine_bytes, results[c->rank] * hidden * 4);
    failed += check_int(name, stats.n_rounds, n_rounds_seen);
    if (c->size > 1 && strncmp(name, "many rounds", 11) == 0)
        failed += check_true("it took many rounds", n_rounds_seen > 8);
    exchange_destroy(x);
    placement_free(&place);
    free(own);
    free(codes);
    free(expert);
    free(results);
    return failed;
}

/* The last rank fails in begin, or in the first combine; all leave together and learn the same
 * message. A later step works as if nothing had happened. */
static int check_failure(Comm *c, bool in_begin, bool bad_choice)
{
    const char *name = bad_choice ? "no such expert"
                       : in_begin ? "failure in begin"
                                  : "failure in combine";
    ExchangeShape shape = {2, 4, 16, 5, 64, 8, NULL, NULL};
    Err e = {0};
    Placement place;
    Exchange *x = NULL;
    if (placement_create(&place, 3, c->size, &e) != ST_OK ||
        exchange_create(&x, c, &place, &shape, &e) != ST_OK)
        return check_true(e.text, false);
    int32_t rows[5 * 4], expert[5 * 2];
    int failed = 0, last = c->size - 1;
    for (int step = 0; step < 2; step++) {
        bool fails = step == 0 && c->rank == last;
        for (int t = 0; t < 5; t++) {
            fill_row(rows + t * 4, 4, c->rank, step, t);
            for (int s = 0; s < 2; s++)
                expert[t * 2 + s] = exchange_choose(RANDOM, 3, c->rank, step, t, s);
        }
        if (fails && bad_choice)
            expert[7] = 3;
        Status mine = fails && !bad_choice ? ST_IO : ST_OK, st = ST_OK;
        if (mine != ST_OK)
            err_set(&e, ST_IO, "disk of rank %d", c->rank);
        int n_rounds = 0;
        int32_t codes[5 * 2]; /* in the second step rows travel coded */
        for (int t = 0; t < 5 && step == 1; t++) {
            repeat_row(rows + t * 4, 4, 2);
            memcpy(codes + t * 2, rows + t * 4, 2 * sizeof *codes);
        }
        ExchangeRows give = {rows, codes, step * 8, false};
        st = exchange_begin(x, give, expert, 5, (ExchangeStep){0}, in_begin ? mine : ST_OK,
                            &n_rounds, &e);
        HomeRows home = {0};
        for (int round = 0; round < n_rounds && st == ST_OK; round++) {
            RecvRows recv;
            st = exchange_dispatch(x, round, &recv, &e);
            decode_rows(&recv, 4, 2);
            run_experts(&place, c->rank, 4, &recv);
            if (st == ST_OK)
                st = exchange_combine(x, round, mine, &home, &e);
        }
        if (step == 1) {
            failed += check_int(name, st, ST_OK);
            failed += check_results(name, &home, rows, expert, 5, 2, 4);
            continue;
        }
        failed += check_int(name, st, fails && bad_choice ? ST_INPUT : ST_COMM);
        failed += check_int(name, dist_agree(c, mine != ST_OK ? mine : st, &e),
                            bad_choice ? ST_INPUT : ST_IO);
        failed += check_int(name, e.rank, last);
        char text[32];
        snprintf(text, sizeof text, "disk of rank %d", last);
        failed += check_has(name, e.text, bad_choice ? "token 3 chose expert 3 of 3" : text);
    }
    exchange_destroy(x);
    placement_free(&place);
    return failed;
}

static int check_refusals(Comm *c)
{
    Err e = {0};
    Placement place;
    Exchange *x = NULL;
    if (placement_create(&place, 4, c->size, &e) != ST_OK)
        return check_true(e.text, false);
    ExchangeShape no_tokens = {2, 4, 16, 0, 64, 0, NULL, NULL},
                  too_many = {64, 4, 16, 1 << 26, 64, 0, NULL, NULL};
    ExchangeShape wide_codes = {2, 4, 16, 8, 64, 17, NULL, NULL};
    int failed = check_int("no tokens", exchange_create(&x, c, &place, &no_tokens, &e), ST_USAGE);
    failed += check_int("wide codes", exchange_create(&x, c, &place, &wide_codes, &e), ST_USAGE);
    failed += check_int("too many", exchange_create(&x, c, &place, &too_many, &e), ST_USAGE);
    placement_free(&place);
    if (placement_create(&place, 4, c->size + 1, &e) != ST_OK)
        return check_true(e.text, false);
    ExchangeShape good = {2, 4, 16, 8, 64, 0, NULL, NULL};
    failed +=
        check_int("another job's placement", exchange_create(&x, c, &place, &good, &e), ST_USAGE);
    placement_free(&place);
    exchange_destroy(NULL);
    return failed;
}

int main(int argc, char **argv)
{
    Comm c;
    Err e = {0};
    if (comm_start(&argc, &argv, &c, &e) != ST_OK || comm_watch(&c, 60, NULL, NULL, &e) != ST_OK) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        comm_at(&c, (int64_t)i, -1, cases[i].name);
        failed += run_case(i, &c, false, false);
        failed += run_case(i, &c, true, false);
        failed += run_case(i, &c, true, true);
        failed += run_case(i, &c, false, true);
    }
    failed += check_failure(&c, true, false);
    failed += check_failure(&c, false, false);
    failed += check_failure(&c, false, true);
    failed += check_refusals(&c);
    int64_t total = failed;
    if (comm_sum_int64(&c, &total, 1, &e) != ST_OK)
        total = 1;
    comm_end(&c);
    return test_result((int)total);
}
