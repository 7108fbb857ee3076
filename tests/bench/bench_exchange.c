/* tests/bench/bench_exchange.c - dispatch and combine over MPI beside a bare alltoallv of the same
 * bytes.
 *
 *   mpirun -n 2 bench_exchange -b 64K -e 16M -f 4 --iters 20 --warmup 3 --check --csv out.csv
 *
 * The swept size is the bytes of token rows that each rank brings to one layer. GB/s counts bytes
 * that change ranks, summed over all ranks; a time is the slowest rank's, of which the median and
 * the worst are shown. */
#include "dist/comm_mpi.h"
#include "dist/exchange.h"
#include "dist/placement.h"
#include "io/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

typedef struct Options {
    size_t from, to, round_bytes;
    double factor;
    int iters, warmup, experts, top_k, hidden;
    bool check;
    const char *csv;
} Options;

typedef struct Timing {
    double median_s, worst_s;
} Timing;

static size_t parse_size(const char *s)
{
    char *end;
    double v = strtod(s, &end);
    int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    return v > 0 ? (size_t)(v * (double)((size_t)1 << shift)) : 0;
}

static bool parse(int argc, char **argv, Options *o)
{
    *o = (Options){1 << 14, 1 << 24, 1 << 26, 4, 20, 3, 32, 4, 2880, false, NULL};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--check") == 0) {
            o->check = true;
            continue;
        }
        if (i + 1 >= argc)
            return false;
        const char *name = argv[i++], *value = argv[i];
        if (strcmp(name, "-b") == 0)
            o->from = parse_size(value);
        else if (strcmp(name, "-e") == 0)
            o->to = parse_size(value);
        else if (strcmp(name, "-f") == 0)
            o->factor = atof(value);
        else if (strcmp(name, "--iters") == 0)
            o->iters = atoi(value);
        else if (strcmp(name, "--warmup") == 0)
            o->warmup = atoi(value);
        else if (strcmp(name, "--csv") == 0)
            o->csv = value;
        else if (strcmp(name, "--experts") == 0)
            o->experts = atoi(value);
        else if (strcmp(name, "--top-k") == 0)
            o->top_k = atoi(value);
        else if (strcmp(name, "--hidden") == 0)
            o->hidden = atoi(value);
        else if (strcmp(name, "--round") == 0)
            o->round_bytes = parse_size(value);
        else
            return false;
    }
    return o->from > 0 && o->to >= o->from && o->factor > 1 && o->iters > 0 && o->warmup >= 0 &&
           o->top_k > 0 && o->experts >= o->top_k && o->hidden > 0 && o->round_bytes > 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Each time becomes that of the slowest rank. */
static Timing over_ranks(Comm *c, double *times_s, int n)
{
    MPI_Allreduce(MPI_IN_PLACE, times_s, n, MPI_DOUBLE, MPI_MAX, c->state->mpi);
    qsort(times_s, (size_t)n, sizeof *times_s, by_value);
    return (Timing){times_s[n / 2], times_s[n - 1]};
}

typedef struct Work {
    Comm *c;
    const Options *o;
    Placement place;
    Exchange *x;
    int n_tokens;
    float *rows;
    int32_t *expert;
    double *dispatch_s, *combine_s, *plain_s[2];
    int64_t bytes[2]; /* dispatch and combine of one layer, this rank */
    int errors, n_rounds;
} Work;

static bool run_layer(Work *w, int iter, Err *e)
{
    size_t hidden = (size_t)w->o->hidden;
    MPI_Barrier(w->c->state->mpi);
    double begin_s = clock_s(), dispatch_s = 0, combine_s = 0;
    HomeRows home = {0};
    if (exchange_begin(w->x, (ExchangeRows){.rows = w->rows}, w->expert, w->n_tokens,
                       (ExchangeStep){0}, ST_OK, &w->n_rounds, e) != ST_OK)
        return false;
    for (int round = 0; round < w->n_rounds; round++) {
        RecvRows recv;
        if (exchange_dispatch(w->x, round, &recv, e) != ST_OK)
            return false;
        dispatch_s += clock_s() - begin_s;
        const float *in = recv.rows;
        float *out = recv.out;
        for (size_t p = 0; p < (size_t)recv.max_pairs; p++)
            memcpy(out + p * hidden, in + (size_t)recv.row_of[p] * hidden, hidden * sizeof *out);
        MPI_Barrier(w->c->state->mpi);
        begin_s = clock_s();
        if (exchange_combine(w->x, round, ST_OK, &home, e) != ST_OK)
            return false;
        combine_s += clock_s() - begin_s;
        begin_s = clock_s();
    }
    if (iter >= 0) {
        w->dispatch_s[iter] = dispatch_s;
        w->combine_s[iter] = combine_s;
    }
    if (w->o->check) {
        for (int i = 0; i < home.n_tokens * w->o->top_k; i++)
            w->errors +=
                memcmp((const float *)home.rows + (size_t)home.slot[i] * hidden,
                       w->rows + (size_t)(i / w->o->top_k) * hidden, hidden * sizeof *w->rows) != 0;
    }
    return true;
}

/* The same bytes from buffer to buffer, which is as fast as this MPI does it. n_rows[d]: to each
 * rank. */
static bool run_plain(Work *w, const int *n_rows, double *times_s)
{
    int n = w->c->size, n_send = 0, n_recv = 0, *c = calloc(4 * (size_t)n, sizeof *c);
    MPI_Datatype type;
    if (!c || MPI_Type_contiguous(w->o->hidden, MPI_FLOAT, &type) != MPI_SUCCESS ||
        MPI_Type_commit(&type) != MPI_SUCCESS)
        return false;
    memcpy(c, n_rows, (size_t)n * sizeof *c);
    MPI_Alltoall(c, 1, MPI_INT, c + 2 * n, 1, MPI_INT, w->c->state->mpi);
    for (int r = 0; r < n; r++) {
        c[n + r] = n_send;
        c[3 * n + r] = n_recv;
        n_send += c[r];
        n_recv += c[2 * n + r];
    }
    size_t row_bytes = (size_t)w->o->hidden * sizeof(float);
    char *send = calloc((size_t)n_send + 1, row_bytes),
         *recv = calloc((size_t)n_recv + 1, row_bytes);
    bool ok = send && recv;
    if (ok) /* untouched memory is one zero page, which would be read from cache */
        memset(send, 1, (size_t)n_send * row_bytes);
    for (int i = -w->o->warmup; ok && i < w->o->iters; i++) {
        MPI_Barrier(w->c->state->mpi);
        double begin_s = clock_s();
        ok = MPI_Alltoallv(send, c, c + n, type, recv, c + 2 * n, c + 3 * n, type,
                           w->c->state->mpi) == MPI_SUCCESS;
        if (i >= 0)
            times_s[i] = clock_s() - begin_s;
    }
    free(send);
    free(recv);
    free(c);
    MPI_Type_free(&type);
    return ok;
}

static void count_rows(const Work *w, int *rows, int *pairs)
{
    for (int t = 0; t < w->n_tokens; t++)
        for (int d = 0; d < w->c->size; d++) {
            int n = 0;
            for (int s = 0; s < w->o->top_k; s++)
                n += w->place.owner[w->expert[t * w->o->top_k + s]] == d;
            rows[d] += n > 0 && d != w->c->rank;
            pairs[d] += d != w->c->rank ? n : 0;
        }
}

/* What a rank receives in combine is what it asked for in dispatch, so the plain run swaps the two
 * directions. */
static bool measure(Work *w, Err *e)
{
    int n = w->c->size;
    int *rows = calloc(3 * (size_t)n, sizeof *rows), *pairs = rows + n, *back = rows + 2 * n;
    if (!rows)
        return false;
    count_rows(w, rows, pairs);
    MPI_Alltoall(pairs, 1, MPI_INT, back, 1, MPI_INT, w->c->state->mpi);
    bool ok = true;
    for (int i = -w->o->warmup; ok && i < w->o->iters; i++) {
        ExchangeStats before = exchange_stats(w->x);
        ok = run_layer(w, i, e);
        w->bytes[0] = exchange_stats(w->x).dispatch_bytes - before.dispatch_bytes;
        w->bytes[1] = exchange_stats(w->x).combine_bytes - before.combine_bytes;
    }
    ok = ok && run_plain(w, rows, w->plain_s[0]) && run_plain(w, back, w->plain_s[1]);
    free(rows);
    return ok;
}

static void show(Work *w, FILE *csv)
{
    static const char *const names[] = {"dispatch", "combine"};
    int64_t totals[3] = {w->bytes[0], w->bytes[1], w->errors};
    Err e;
    if (comm_sum_int64(w->c, totals, 3, &e) != ST_OK)
        return;
    w->errors = (int)totals[2];
    for (int way = 0; way < 2; way++) {
        Timing ours = over_ranks(w->c, way ? w->combine_s : w->dispatch_s, w->o->iters);
        Timing plain = over_ranks(w->c, w->plain_s[way], w->o->iters);
        double gb = (double)totals[way] / 1e9,
               share = ours.median_s > 0 ? plain.median_s / ours.median_s : 0;
        if (w->c->rank != 0)
            continue;
        size_t size = (size_t)w->n_tokens * (size_t)w->o->hidden * sizeof(float);
        printf("%10zu %7d %6d  %-8s %10.1f %10.1f %8.2f %10.2f %6.0f%% %7lld\n", size, w->n_tokens,
               w->n_rounds, names[way], ours.median_s * 1e6, ours.worst_s * 1e6, gb / ours.median_s,
               gb / plain.median_s, 100 * share, (long long)totals[2]);
        if (csv)
            fprintf(csv, "%zu,%d,%d,%s,%.9f,%.9f,%lld,%.9f,%lld\n", size, w->n_tokens, w->n_rounds,
                    names[way], ours.median_s, ours.worst_s, (long long)totals[way], plain.median_s,
                    (long long)totals[2]);
    }
}

static bool sweep(Comm *c, const Options *o, size_t bytes, FILE *csv, int *errors, Err *e)
{
    size_t row_bytes = (size_t)o->hidden * sizeof(float), iters = (size_t)o->iters;
    Work w = {.c = c, .o = o};
    w.n_tokens = bytes > row_bytes ? (int)(bytes / row_bytes) : 1;
    ExchangeShape shape = {o->top_k,       o->hidden, (int)row_bytes, w.n_tokens,
                           o->round_bytes, 0,         NULL,           NULL};
    w.rows = malloc((size_t)w.n_tokens * row_bytes);
    w.expert = malloc((size_t)w.n_tokens * (size_t)o->top_k * sizeof *w.expert);
    double *times_s = calloc(4 * iters, sizeof *times_s);
    bool ok = w.rows && w.expert && times_s &&
              placement_create(&w.place, o->experts, c->size, e) == ST_OK &&
              exchange_create(&w.x, c, &w.place, &shape, e) == ST_OK;
    if (ok) {
        w.dispatch_s = times_s;
        w.combine_s = times_s + iters;
        w.plain_s[0] = times_s + 2 * iters;
        w.plain_s[1] = times_s + 3 * iters;
        unsigned seed = 12345u + (unsigned)c->rank;
        for (int t = 0; t < w.n_tokens; t++) {
            for (int i = 0; i < o->hidden; i++)
                w.rows[(size_t)t * (size_t)o->hidden + (size_t)i] = (float)(t + i + c->rank);
            seed = seed * 1664525u + 1013904223u;
            for (int s = 0; s < o->top_k; s++) /* spread, and all different */
                w.expert[t * o->top_k + s] =
                    (int32_t)(((seed >> 8) + (unsigned)(s * (o->experts / o->top_k))) %
                              (unsigned)o->experts);
        }
        ok = measure(&w, e);
    }
    if (ok)
        show(&w, csv);
    *errors += w.errors;
    exchange_destroy(w.x);
    placement_free(&w.place);
    free(times_s);
    free(w.rows);
    free(w.expert);
    return ok;
}

int main(int argc, char **argv)
{
    Comm c;
    Err e = {0};
    Options o;
    if (comm_start(&argc, &argv, &c, &e) != ST_OK) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    if (!parse(argc, argv, &o) || !c.state->mpi_started) {
        fprintf(stderr,
                "usage: mpirun -n N bench_exchange [-b SIZE] [-e SIZE] [-f FACTOR] [--iters N] "
                "[--warmup N] [--check]\n"
                "       [--csv FILE] [--experts N] [--top-k N] [--hidden N] [--round SIZE]\n");
        comm_end(&c);
        return 2;
    }
    FILE *csv = NULL;
    if (c.rank == 0) {
        struct utsname u = {0};
        char mpi[MPI_MAX_LIBRARY_VERSION_STRING];
        int n = 0;
        uname(&u);
        MPI_Get_library_version(mpi, &n);
        mpi[strcspn(mpi, ",")] = 0;
        printf(
            "# %d ranks, %d on this node (%s, %s %s), %s; %d experts, top %d, rows of %d floats\n",
            c.size, c.n_local, c.host, u.sysname, u.machine, mpi, o.experts, o.top_k, o.hidden);
        printf("%10s %7s %6s  %-8s %10s %10s %8s %10s %7s %7s\n", "bytes", "tokens", "rounds",
               "way", "median us", "worst us", "GB/s", "bare GB/s", "share",
               o.check ? "errors" : "(no check)");
        if (o.csv && (csv = fopen(o.csv, "w")))
            fprintf(csv,
                    "bytes,tokens,rounds,way,median_s,worst_s,moved_bytes,bare_median_s,errors\n");
        if (o.csv && !csv)
            perror(o.csv);
    }
    int errors = 0;
    bool ok = true;
    for (double size = (double)o.from; ok && size <= (double)o.to; size *= o.factor)
        ok = sweep(&c, &o, (size_t)size, csv, &errors, &e);
    if (!ok)
        dist_abort(&c, 1, &e);
    if (csv)
        fclose(csv);
    comm_end(&c);
    return errors ? 1 : 0;
}
