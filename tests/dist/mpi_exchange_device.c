/* tests/dist/mpi_exchange_device.c - the exchange between devices, on a stand-in for one: every
 * result comes home once and is the serial answer bit for bit, with counts and with messages of one
 * size, in any number of rounds; and a rank that failed keeps nobody waiting. */
#include "dist/exchange.h"
#include "tests/support/check.h"
#include "tests/support/exchange_case.h"
#include "tests/support/fake_device.h"

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
    {"odd sizes", 7, 3, 14, 17, 1 << 20, RANDOM, -1},
    {"one token", 8, 4, 6, 1, 1 << 20, RANDOM, -1},
    {"top 1", 5, 1, 10, 33, 1 << 20, RANDOM, -1},
    {"every expert for every token", 4, 4, 8, 11, 1 << 20, RANDOM, -1},
    {"more ranks than experts", 2, 2, 8, 10, 1 << 20, RANDOM, -1},
    {"all tokens to one expert", 8, 2, 6, 40, 1 << 20, ONE_EXPERT, -1},
    {"dropped choices", 6, 3, 8, 21, 1 << 20, DROPPED, -1},
    {"every choice dropped", 6, 3, 8, 5, 1 << 20, ALL_DROPPED, -1},
    {"only rank 0 has tokens", 8, 2, 12, 19, 1 << 20, RANDOM, 0},
    {"nobody has tokens", 8, 2, 12, 19, 1 << 20, RANDOM, 99},
    {"many rounds", 8, 2, 16, 50, 600, RANDOM, -1},
    {"a token a round", 7, 3, 14, 23, 1, RANDOM, -1},
    {"many rounds to one expert", 8, 2, 16, 50, 600, ONE_EXPERT, -1},
    {"many rounds from one rank", 8, 4, 16, 40, 700, RANDOM, 0},
    {"more tokens than a block lists", 16, 4, 4, 2500, 1 << 30, RANDOM, -1},
    {"wide rows", 16, 4, 2880, 37, 400000, DROPPED, -1},
};

/* Each half of a row is the same, so that one half can travel for both. */
static void fill_row(uint16_t *row, int hidden, int rank, int step, int token)
{
    uint64_t seed = exchange_mix((uint64_t)rank << 40 | (uint64_t)step << 24 | (uint64_t)token);
    for (int i = 0; i < hidden; i++)
        row[i] = (uint16_t)exchange_mix(seed + (uint64_t)(i % (hidden / 2)));
}

/* The "expert": any function of the expert's number and the row's bytes. */
static void apply(uint16_t *out, const uint16_t *row, int hidden, int expert)
{
    uint32_t carry = (uint32_t)expert * 2654435761u;
    for (int i = 0; i < hidden; i++) {
        carry = carry * 31 + row[i];
        out[i] = (uint16_t)(carry >> 7 ^ (uint32_t)expert);
    }
}

static int tokens_of(size_t i, int rank, int step)
{
    return exchange_tokens(cases[i].only_rank, cases[i].max_tokens, rank, step);
}

typedef struct Work {
    size_t i;
    Comm *c;
    Backend *b;
    Exchange *x;
    Placement place;
    uint16_t *rows, *codes;
    int32_t *expert;
    int *seen; /* how often a token came home */
} Work;

/* read: the rows are codes, the first half of what they stand for twice. */
static void run_experts(const Work *w, const RecvRows *recv, bool read)
{
    int hidden = cases[w->i].hidden;
    uint16_t row[4096];
    for (int i = 0; i < recv->n_coded; i++)
        for (int r = 0; r < recv->coded[i].n; r++) {
            const char *from = (const char *)recv->coded[i].from + r * hidden;
            char *to = (char *)recv->coded[i].to + r * 2 * hidden;
            memcpy(to, from, (size_t)hidden);
            memcpy(to + hidden, from, (size_t)hidden);
        }
    for (int e = 0; e < w->place.n_local[w->c->rank]; e++)
        for (int p = recv->first[e]; p < recv->first[e + 1]; p++) {
            const uint16_t *x = (const uint16_t *)recv->rows + recv->row_of[p] * hidden;
            if (read) {
                const char *codes = (const char *)recv->rows + recv->row_of[p] * hidden;
                memcpy(row, codes, (size_t)hidden);
                memcpy((char *)row + hidden, codes, (size_t)hidden);
                x = row;
            }
            apply((uint16_t *)recv->out + p * hidden, x, hidden,
                  placement_expert(&w->place, w->c->rank, e));
        }
}

static int check_home(const Work *w, const HomeRows *home)
{
    int top_k = cases[w->i].top_k, hidden = cases[w->i].hidden, wrong = 0;
    uint16_t want[4096];
    for (int t = 0; t < home->n_tokens; t++) {
        int token = home->first_token + t;
        w->seen[token]++;
        for (int s = 0; s < top_k; s++) {
            int32_t expert = w->expert[token * top_k + s], slot = home->slot[t * top_k + s];
            if (expert < 0) {
                wrong += slot != -1;
                continue;
            }
            apply(want, w->rows + token * hidden, hidden, expert);
            wrong +=
                slot < 0 || memcmp((const uint16_t *)home->rows + (size_t)slot * (size_t)hidden,
                                   want, (size_t)hidden * sizeof *want) != 0;
        }
    }
    return check_int(cases[w->i].name, wrong, 0);
}

/* read: experts read the codes. fails: the last rank brings a failure and no tokens. */
static int run_step(Work *w, int step, bool fixed, bool coded, bool read, bool fails)
{
    const char *name = cases[w->i].name;
    int failed = 0, top_k = cases[w->i].top_k, hidden = cases[w->i].hidden, most = 0, n_rounds;
    int live = tokens_of(w->i, w->c->rank, step);
    Err e = {0};
    for (int r = 0; r < w->c->size; r++)
        most = tokens_of(w->i, r, step) > most ? tokens_of(w->i, r, step) : most;
    char *codes = read && w->c->size > 1 ? exchange_home_codes(w->x) : (char *)(void *)w->codes;
    int n = fixed ? most : live, moves = fake_device_moves(w->b), waits = fake_device_waits(w->b);
    for (int t = 0; t < n; t++) {
        fill_row(w->rows + t * hidden, hidden, w->c->rank, step, t);
        memcpy(codes + t * hidden, w->rows + t * hidden, (size_t)hidden);
        for (int s = 0; s < top_k; s++)
            w->expert[t * top_k + s] =
                t >= live ? -1
                          : exchange_choose(cases[w->i].routing, cases[w->i].experts, w->c->rank,
                                            step, t, s);
    }
    memset(w->seen, 0, (size_t)cases[w->i].max_tokens * sizeof *w->seen);
    bool me = fails && w->c->rank == w->c->size - 1 && w->c->size > 1;
    ExchangeRows give = {read ? (void *)codes : w->rows, coded ? codes : NULL, coded ? hidden : 0,
                         read};
    ExchangeStep about = {most, fixed};
    failed += check_int(
        name, exchange_begin(w->x, give, w->expert, n, about, me ? ST_IO : ST_OK, &n_rounds, &e),
        ST_OK);
    for (int round = 0; round < n_rounds; round++) {
        RecvRows recv;
        HomeRows home;
        failed += check_int(name, exchange_dispatch(w->x, round, &recv, &e), ST_OK);
        int n_local = w->place.n_local[w->c->rank];
        failed += exchange_check_groups(name, &recv, n_local, cases[w->i].max_tokens);
        failed += check_true(name, n_local == 0 || recv.first[n_local] <= recv.max_pairs);
        failed += check_true(name, recv.max_pairs <= exchange_max_pairs(w->x));
        failed += check_true(name, !read || recv.n_coded == 0);
        run_experts(w, &recv, read);
        failed +=
            check_int(name, exchange_combine(w->x, round, me ? ST_IO : ST_OK, &home, &e), ST_OK);
        failed += check_home(w, &home);
    }
    for (int t = 0; t < n && !me; t++)
        failed += check_int(name, w->seen[t], 1);
    if (w->c->size == 1)
        return failed + check_int(name, fake_device_moves(w->b), moves);
    failed += check_int(name, fake_device_moves(w->b) - moves, 2 * n_rounds);
    return failed +
           check_int(name, fake_device_waits(w->b) - waits, n_rounds > 0 && !fixed ? 1 : 0);
}

static int run_case(size_t i, Comm *c)
{
    size_t hidden = (size_t)cases[i].hidden, tokens = (size_t)cases[i].max_tokens;
    Err e = {0};
    Work w = {.i = i, .c = c, .b = fake_device_create(c)};
    ExchangeShape shape = {.top_k = cases[i].top_k,
                           .hidden = cases[i].hidden,
                           .row_bytes = 2 * cases[i].hidden,
                           .max_tokens = cases[i].max_tokens,
                           .round_bytes = cases[i].round_bytes,
                           .coded_bytes = hidden % 4 == 0 ? cases[i].hidden : 0,
                           .ops = &fake_device,
                           .backend = w.b};
    uint16_t *own = malloc(2 * hidden * tokens);
    w.codes = malloc(hidden * tokens);
    w.expert = malloc(tokens * (size_t)cases[i].top_k * sizeof *w.expert);
    w.seen = malloc(tokens * sizeof *w.seen);
    if (!w.b || !own || !w.codes || !w.expert || !w.seen ||
        placement_create(&w.place, cases[i].experts, c->size, &e) != ST_OK ||
        exchange_create(&w.x, c, &w.place, &shape, &e) != ST_OK ||
        exchange_connect(w.x, &e) != ST_OK)
        return check_true(e.text, false);
    int failed = check_true(cases[i].name, exchange_plan_bytes(c, &w.place, &shape) > 0);
    failed += check_true(cases[i].name, (exchange_home_rows(w.x) == NULL) == (c->size == 1));
    w.rows = c->size == 1 ? own : exchange_home_rows(w.x);
    for (int step = 0; step < 4; step++)
        for (int kind = 0; kind < 8; kind++) {
            bool fixed = kind % 2 == 1, read = kind / 2 == 3 && shape.coded_bytes > 0,
                 coded = (kind / 2 == 1 && shape.coded_bytes > 0) || read;
            failed += run_step(&w, step, fixed, coded, read, kind / 2 == 2);
        }
    exchange_destroy(w.x);
    placement_free(&w.place);
    fake_device_destroy(w.b);
    free(own);
    free(w.codes);
    free(w.expert);
    free(w.seen);
    return failed;
}

static int check_refusals(Comm *c)
{
    static const struct {
        const char *name;
        int experts, top_k, row_bytes, coded_bytes, max_tokens;
        Status want;
    } refused[] = {
        {"no tokens", 8, 2, 16, 0, 0, ST_USAGE},
        {"too many tokens", 64, 32, 16, 0, 1 << 26, ST_USAGE},
        {"wide codes", 8, 2, 16, 20, 8, ST_USAGE},
        {"odd codes", 8, 2, 16, 7, 8, ST_USAGE},
        {"too many experts", EXCHANGE_MAX_EXPERTS + 1, 2, 16, 0, 8, ST_INPUT},
        {"too many choices", 64, EXCHANGE_MAX_TOP_K + 1, 16, 0, 8, ST_INPUT},
    };
    Backend *b = fake_device_create(c);
    int failed = 0;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        Err e = {0};
        Placement place;
        Exchange *x = NULL;
        ExchangeShape shape = {.top_k = refused[i].top_k,
                               .hidden = 8,
                               .row_bytes = refused[i].row_bytes,
                               .max_tokens = refused[i].max_tokens,
                               .round_bytes = 64,
                               .coded_bytes = refused[i].coded_bytes,
                               .ops = &fake_device,
                               .backend = b};
        if (placement_create(&place, refused[i].experts, c->size, &e) != ST_OK)
            return check_true(e.text, false);
        failed +=
            check_int(refused[i].name, exchange_create(&x, c, &place, &shape, &e), refused[i].want);
        failed += check_true(refused[i].name, x == NULL && e.text[0]);
        placement_free(&place);
    }
    fake_device_destroy(b);
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
        comm_at(&c, (int64_t)i, 0, cases[i].name);
        failed += run_case(i, &c);
    }
    failed += check_refusals(&c);
    int64_t total = failed;
    if (comm_sum_int64(&c, &total, 1, &e) != ST_OK)
        total = 1;
    comm_end(&c);
    return test_result((int)total);
}
