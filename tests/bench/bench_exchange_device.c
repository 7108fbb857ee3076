/* tests/bench/bench_exchange_device.c - dispatch and combine between GPUs beside a plain grouped
 * ncclSend/ncclRecv loop of the same bytes.
 *
 *   mpirun -n 2 bench_exchange_device [--tokens N,N,...] [--hidden N] [--top-k N] [--experts N]
 *                                     [--iters N] [--round MIB] [--share-gpu]
 *
 * One layer brings N tokens on each rank, spread evenly over the experts; it is queued iters times
 * without waiting, as a model does. GB/s counts the bytes that a rank sends to others: rows once to
 * each rank that needs them, results as their own vectors. counted: messages of exactly those, after
 * counts have been read by the host; fixed: messages of one size, recorded as a graph; the plain loop
 * moves the counted bytes in two groups a layer. The slowest rank's time. One rank alone only groups
 * rows by expert. */
#include "dist/exchange.h"
#include "dist/placement.h"
#include "io/clock.h"
#include "jobs/backend_choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SIZES = 16, WARMUP = 3 };

typedef struct Options {
    int tokens[MOST_SIZES], n_sizes;
    int hidden, top_k, experts, iters;
    size_t round_bytes;
    bool share;
} Options;

typedef struct Work {
    const Options *o;
    Comm *c;
    const BackendOps *ops;
    Backend *b;
    Link *plain;
    Placement place;
    int n_tokens;
    Exchange *x;
    int32_t *expert; /* on the device */
    char *send, *recv;
    LinkMove *moves[2]; /* of dispatch and of combine */
    size_t sent[2];
} Work;

static void must(Comm *c, Status st, Err *e)
{
    if (st != ST_OK)
        dist_abort(c, 1, e);
}

static bool parse(int argc, char **argv, Options *o)
{
    static const int usual[] = {1, 8, 32, 128, 512, 2048, 8192};
    *o = (Options){.n_sizes = sizeof usual / sizeof *usual,
                   .hidden = 2880,
                   .top_k = 4,
                   .experts = 32,
                   .iters = 20,
                   .round_bytes = (size_t)2 << 30};
    memcpy(o->tokens, usual, sizeof usual);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--share-gpu") == 0) {
            o->share = true;
            continue;
        }
        if (i + 1 >= argc)
            return false;
        const char *name = argv[i++];
        char *value = argv[i];
        if (strcmp(name, "--tokens") == 0) {
            o->n_sizes = 0;
            for (char *rest = NULL, *n = strtok_r(value, ",", &rest); n && o->n_sizes < MOST_SIZES;
                 n = strtok_r(NULL, ",", &rest))
                o->tokens[o->n_sizes++] = atoi(n);
        } else if (strcmp(name, "--hidden") == 0)
            o->hidden = atoi(value);
        else if (strcmp(name, "--top-k") == 0)
            o->top_k = atoi(value);
        else if (strcmp(name, "--experts") == 0)
            o->experts = atoi(value);
        else if (strcmp(name, "--iters") == 0)
            o->iters = atoi(value);
        else if (strcmp(name, "--round") == 0)
            o->round_bytes = (size_t)atof(value) << 20;
        else
            return false;
    }
    for (int i = 0; i < o->n_sizes; i++)
        if (o->tokens[i] < 1)
            return false;
    return o->n_sizes > 0 && o->hidden > 0 && o->hidden % 8 == 0 && o->top_k > 0 &&
           o->experts >= o->top_k && o->iters > 0 && o->round_bytes > 0;
}

/* A token's experts: a random start, then spread. */
static void choose(const Work *w, int rank, int32_t *out)
{
    unsigned seed = 12345u + (unsigned)rank;
    const Options *o = w->o;
    for (int t = 0; t < w->n_tokens; t++) {
        seed = seed * 1664525u + 1013904223u;
        for (int s = 0; s < o->top_k; s++)
            out[t * o->top_k + s] =
                (int32_t)(((seed >> 8) + (unsigned)(s * (o->experts / o->top_k))) %
                          (unsigned)o->experts);
    }
}

/* Rows and pairs that one rank has for another. */
static void count(const Work *w, const int32_t *expert, int to, size_t *rows, size_t *pairs)
{
    *rows = *pairs = 0;
    for (int t = 0; t < w->n_tokens; t++) {
        size_t n = 0;
        for (int s = 0; s < w->o->top_k; s++)
            n += w->place.owner[expert[t * w->o->top_k + s]] == to;
        *rows += n > 0;
        *pairs += n;
    }
}

/* The plain loop's messages. */
static void plan_moves(Work *w, const int32_t *mine, Err *e)
{
    size_t row_bytes = 2 * (size_t)w->o->hidden, out = 0, in = 0, rows, pairs, least = 0;
    int32_t *theirs = malloc((size_t)w->n_tokens * (size_t)w->o->top_k * sizeof *theirs);
    for (int way = 0; way < 2; way++)
        w->moves[way] = calloc(2 * (size_t)w->c->size, sizeof **w->moves);
    if (!theirs || !w->moves[0] || !w->moves[1])
        must(w->c, err_set(e, ST_MEMORY, "out of memory"), e);
    for (int way = 0; way < 2; way++) {
        size_t at[2] = {0, 0};
        int n = 0;
        w->sent[way] = 0;
        for (int r = 0; r < w->c->size; r++) {
            if (r == w->c->rank)
                continue;
            choose(w, r, theirs);
            count(w, mine, r, &rows, &pairs);
            out = (way ? pairs : rows) * row_bytes; /* of what this rank asks of r */
            count(w, theirs, w->c->rank, &rows, &pairs);
            in = (way ? pairs : rows) * row_bytes;
            size_t send = way ? in : out, recv = way ? out : in;
            w->moves[way][n++] = (LinkMove){(void *)at[0], send, r, true};
            w->moves[way][n++] = (LinkMove){(void *)at[1], recv, r, false};
            at[0] += send;
            at[1] += recv;
            w->sent[way] += send;
        }
        least = at[0] > least ? at[0] : least;
        least = at[1] > least ? at[1] : least;
    }
    void *send, *recv;
    must(w->c, w->ops->alloc(w->b, least + 64, "messages", &send, e), e);
    must(w->c, w->ops->alloc(w->b, least + 64, "messages", &recv, e), e);
    w->send = send;
    w->recv = recv;
    for (int way = 0; way < 2; way++)
        for (int i = 0; i < 2 * (w->c->size - 1); i++) {
            LinkMove *m = &w->moves[way][i];
            m->at = (m->send ? w->send : w->recv) + (uintptr_t)m->at;
        }
    free(theirs);
}

static void layer(const Work *w, bool fixed, Err *e)
{
    int n_rounds;
    ExchangeRows rows = {.rows = exchange_home_rows(w->x)};
    ExchangeStep step = {w->n_tokens, fixed};
    must(w->c, exchange_begin(w->x, rows, w->expert, w->n_tokens, step, ST_OK, &n_rounds, e), e);
    for (int round = 0; round < n_rounds; round++) {
        RecvRows recv;
        HomeRows home;
        must(w->c, exchange_dispatch(w->x, round, &recv, e), e);
        must(w->c, exchange_combine(w->x, round, ST_OK, &home, e), e);
    }
}

static void plain(const Work *w, bool fixed, Err *e)
{
    (void)fixed;
    if (w->c->size == 1)
        return;
    for (int way = 0; way < 2; way++)
        must(w->c,
             w->ops->exchange->link_move(w->b, w->plain, w->moves[way], 2 * (w->c->size - 1), e),
             e);
}

/* Seconds of one call, on the slowest rank; recorded: as a graph. */
static double measure(const Work *w, void (*call)(const Work *w, bool fixed, Err *e), bool recorded,
                      Err *e)
{
    Graph *graph = NULL;
    for (int i = 0; i < WARMUP; i++)
        call(w, recorded, e);
    must(w->c, w->ops->wait(w->b, e), e);
    if (recorded) {
        must(w->c, w->ops->capture_begin(w->b, e), e);
        call(w, true, e);
        must(w->c, w->ops->capture_end(w->b, &graph, e), e);
        must(w->c, w->ops->graph_launch(w->b, graph, e), e);
        must(w->c, w->ops->wait(w->b, e), e);
    }
    must(w->c, comm_barrier(w->c, e), e);
    double start = clock_s();
    for (int i = 0; i < w->o->iters; i++)
        if (recorded)
            must(w->c, w->ops->graph_launch(w->b, graph, e), e);
        else
            call(w, false, e);
    must(w->c, w->ops->wait(w->b, e), e);
    int64_t ns = (int64_t)((clock_s() - start) * 1e9 / w->o->iters);
    must(w->c, comm_max_int64(w->c, &ns, 1, e), e);
    if (graph)
        w->ops->graph_destroy(w->b, graph);
    return (double)ns * 1e-9;
}

static void run_size(Work *w, int n_tokens, Err *e)
{
    const Options *o = w->o;
    size_t pairs = (size_t)n_tokens * (size_t)o->top_k;
    void *expert_dev;
    w->n_tokens = n_tokens;
    ExchangeShape shape = {.top_k = o->top_k,
                           .hidden = o->hidden,
                           .row_bytes = 2 * o->hidden,
                           .max_tokens = n_tokens,
                           .round_bytes = o->round_bytes,
                           .ops = w->ops,
                           .backend = w->b};
    int32_t *expert = malloc(pairs * sizeof *expert);
    if (!expert)
        must(w->c, err_set(e, ST_MEMORY, "out of memory"), e);
    choose(w, w->c->rank, expert);
    must(w->c, w->ops->alloc(w->b, pairs * sizeof *expert, "choices", &expert_dev, e), e);
    w->expert = expert_dev;
    must(w->c, w->ops->upload(w->b, w->expert, expert, pairs * sizeof *expert, e), e);
    must(w->c, exchange_create(&w->x, w->c, &w->place, &shape, e), e);
    must(w->c, exchange_connect(w->x, e), e);
    plan_moves(w, expert, e);
    double counted_s = measure(w, layer, false, e), fixed_s = measure(w, layer, true, e);
    double plain_s = measure(w, plain, false, e), plain_graph_s = measure(w, plain, true, e);
    if (w->c->size == 1)
        printf("%7d grouped in %9.1f us, recorded %9.1f us\n", n_tokens, counted_s * 1e6,
               fixed_s * 1e6);
    double bytes = (double)(w->sent[0] + w->sent[1]);
    if (w->c->rank == 0 && w->c->size > 1) {
        printf("%7d %12.0f  counted %9.1f us %8.2f GB/s of plain %5.2f   fixed %9.1f us %8.2f GB/s "
               "of plain %5.2f   plain %9.1f us %8.2f GB/s, recorded %9.1f us\n",
               n_tokens, bytes, counted_s * 1e6, bytes / counted_s * 1e-9, plain_s / counted_s,
               fixed_s * 1e6, bytes / fixed_s * 1e-9, plain_graph_s / fixed_s, plain_s * 1e6,
               bytes / plain_s * 1e-9, plain_graph_s * 1e6);
        fflush(stdout);
    }
    exchange_destroy(w->x);
    w->ops->release(w->b, w->expert);
    w->ops->release(w->b, w->send);
    w->ops->release(w->b, w->recv);
    free(w->moves[0]);
    free(w->moves[1]);
    free(expert);
}

int main(int argc, char **argv)
{
    Comm c;
    Err e = {0};
    Options o;
    BackendChoice choice;
    if (comm_start(&argc, &argv, &c, &e) != ST_OK) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    if (!parse(argc, argv, &o)) {
        fprintf(stderr, "usage: mpirun -n N bench_exchange_device [--tokens N,N,...] [--hidden N] "
                        "[--top-k N] [--experts N] [--iters N] [--round MIB] [--share-gpu]\n");
        comm_end(&c);
        return 2;
    }
    must(&c, comm_watch(&c, 60, NULL, NULL, &e), &e);
    if (dist_agree(&c, backend_choose(&c, "cuda", o.share, &choice, &e), &e) != ST_OK) {
        if (c.rank == 0)
            printf("skipped: %s\n", e.text);
        comm_end(&c);
        return 77;
    }
    Work w = {.o = &o, .c = &c, .ops = choice.ops};
    BackendConfig config = {.isa = isa_best(), .local_rank = c.local_rank};
    char id[LINK_ID_BYTES] = {0};
    must(&c, w.ops->create(&config, &w.b, &e), &e);
    must(&c, placement_create(&w.place, o.experts, c.size, &e), &e);
    if (c.size > 1 && c.rank == 0)
        must(&c, w.ops->exchange->link_id(w.b, id, &e), &e);
    must(&c, comm_bcast(&c, id, sizeof id, 0, &e), &e);
    if (c.size > 1)
        must(&c, w.ops->exchange->link_open(w.b, id, c.rank, c.size, &w.plain, &e), &e);
    if (c.rank == 0)
        printf("# %d ranks, %d on a GPU; rows of %d bf16 values, top %d of %d experts; bytes that "
               "rank 0 sends in a layer\n",
               c.size, choice.n_sharing, o.hidden, o.top_k, o.experts);
    for (int i = 0; i < o.n_sizes; i++)
        run_size(&w, o.tokens[i], &e);
    w.ops->exchange->link_close(w.b, w.plain);
    w.ops->destroy(w.b);
    placement_free(&w.place);
    comm_end(&c);
    return 0;
}
