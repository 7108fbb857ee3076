/* tests/dist/mpi_comm.c - ranks agree on errors, and byte collectives of any length arrive whole.
 */
#include "dist/comm.h"
#include "dist/comm_mpi.h"
#include "tests/support/check.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned char pattern(int rank, size_t i)
{
    return (unsigned char)((size_t)rank * 31 + i * 7 + i / 251);
}

static int check_bytes(Comm *c, size_t bytes)
{
    char name[64];
    snprintf(name, sizeof name, "%zu bytes in pieces of %zu", bytes, c->state->piece_bytes);
    int failed = 0, last = c->size - 1;
    Err e;
    unsigned char *mine = malloc(bytes + 1), *all = calloc((size_t)c->size, bytes + 1);
    if (!mine || !all)
        return check_true("memory for the test", false);
    for (size_t i = 0; i < bytes; i++)
        mine[i] = pattern(c->rank, i);

    failed += check_int(name, comm_allgather(c, mine, bytes, all, &e), ST_OK);
    int wrong = 0;
    for (int r = 0; r < c->size; r++)
        for (size_t i = 0; i < bytes; i++)
            wrong += all[(size_t)r * bytes + i] != pattern(r, i);
    failed += check_int(name, wrong, 0);

    memset(all, 0, (size_t)c->size * (bytes + 1));
    failed += check_int(name, comm_gather(c, mine, bytes, all, last, &e), ST_OK);
    wrong = 0;
    for (int r = 0; r < c->size; r++)
        for (size_t i = 0; i < bytes; i++)
            wrong += all[(size_t)r * bytes + i] != (c->rank == last ? pattern(r, i) : 0);
    failed += check_int(name, wrong, 0);

    failed += check_int(name, comm_bcast(c, mine, bytes, last, &e), ST_OK);
    wrong = 0;
    for (size_t i = 0; i < bytes; i++)
        wrong += mine[i] != pattern(last, i);
    failed += check_int(name, wrong, 0);
    free(mine);
    free(all);
    return failed;
}

/* Ranks first, first + step, ... fail with the given status. */
static const struct {
    const char *name;
    int first, step;
    Status status;
    int comm_rank; /* this one brings ST_COMM; -1: none */
} agreements[] = {
    {"nobody fails", 99, 1, ST_IO, -1},       {"rank 0 fails", 0, 99, ST_IO, -1},
    {"the last fails", -1, 99, ST_INPUT, -1}, {"two fail", 1, 2, ST_MEMORY, -1},
    {"all fail", 0, 1, ST_DEVICE, -1},        {"hearsay comes last", 1, 99, ST_IO, 0},
    {"nothing but hearsay", 99, 1, ST_IO, 0},
};

static int check_agreement(Comm *c, size_t i)
{
    int first_of = agreements[i].first < 0 ? c->size - 1 : agreements[i].first, want_rank = -1;
    Status mine = ST_OK, want = ST_OK;
    for (int r = c->size - 1; r >= 0; r--) {
        bool fails = r >= first_of && (r - first_of) % agreements[i].step == 0;
        if (fails)
            want_rank = r, want = agreements[i].status;
        if (fails && r == c->rank)
            mine = agreements[i].status;
    }
    if (agreements[i].comm_rank == c->rank && mine == ST_OK)
        mine = ST_COMM;
    if (want == ST_OK && agreements[i].comm_rank >= 0)
        want = ST_COMM, want_rank = agreements[i].comm_rank;

    Err e = {ST_OK, -1, "stale"};
    char text[64];
    if (mine != ST_OK)
        err_set(&e, mine, "from rank %d", c->rank);
    int failed = check_int(agreements[i].name, dist_agree(c, mine, &e), want);
    if (want != ST_OK) {
        snprintf(text, sizeof text, "from rank %d", want_rank);
        failed += check_str(agreements[i].name, e.text, text);
        failed += check_int(agreements[i].name, e.rank, want_rank);
        failed += check_int(agreements[i].name, e.code, want);
    }
    failed += check_int(agreements[i].name, dist_agree(c, mine, NULL), want);
    return failed;
}

static int check_reductions(Comm *c)
{
    int64_t n = c->size, r = c->rank;
    int64_t low[3] = {r, -r, ((int64_t)1 << 40) + r}, high[3], sum[3];
    memcpy(high, low, sizeof low);
    memcpy(sum, low, sizeof low);
    Err e;
    int failed = check_int("min", comm_min_int64(c, low, 3, &e), ST_OK);
    failed += check_int("max", comm_max_int64(c, high, 3, &e), ST_OK);
    failed += check_int("sum", comm_sum_int64(c, sum, 3, &e), ST_OK);
    int64_t want_low[3] = {0, 1 - n, (int64_t)1 << 40},
            want_high[3] = {n - 1, 0, ((int64_t)1 << 40) + n - 1};
    int64_t want_sum[3] = {n * (n - 1) / 2, -n * (n - 1) / 2,
                           n * ((int64_t)1 << 40) + n * (n - 1) / 2};
    for (int i = 0; i < 3; i++) {
        failed += check_int("min of ranks", low[i], want_low[i]);
        failed += check_int("max of ranks", high[i], want_high[i]);
        failed += check_int("sum of ranks", sum[i], want_sum[i]);
    }
    failed += check_int("nothing to reduce", comm_sum_int64(c, NULL, 0, &e), ST_OK);
    return failed;
}

/* Each host's ranks are numbered there in the order of their ranks. */
static int check_places(Comm *c)
{
    int n_local = 0, local_rank = 0, failed = check_true("host", c->host[0] != 0);
    char(*hosts)[sizeof c->host] = calloc((size_t)c->size, sizeof *hosts);
    Err e;
    if (!hosts)
        return check_true("memory for the test", false);
    failed += check_int("hosts", comm_allgather(c, c->host, sizeof c->host, hosts, &e), ST_OK);
    for (int r = 0; r < c->size; r++) {
        bool here = strcmp(hosts[r], c->host) == 0;
        n_local += here;
        local_rank += here && r < c->rank;
    }
    free(hosts);
    cpu_set_t mine;
    if (sched_getaffinity(0, sizeof mine, &mine) ==
        0) /* under CTest nothing is bound: all share all */
        failed += check_true("cores", c->n_cores >= 1 && c->n_cores <= CPU_COUNT(&mine) &&
                                          (c->n_cores == 1 || c->n_cores * c->n_local <=
                                                                  sysconf(_SC_NPROCESSORS_ONLN)));
    return failed + check_int("ranks on this node", c->n_local, n_local) +
           check_int("local rank", c->local_rank, local_rank);
}

int main(int argc, char **argv)
{
    Comm c;
    Err e;
    if (comm_start(&argc, &argv, &c, &e) != ST_OK) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    int failed = 0;
    failed += check_true("rank", c.rank >= 0 && c.rank < c.size);
    failed += check_places(&c);
    failed += check_int("watch", comm_watch(&c, 60, NULL, NULL, &e), ST_OK);
    comm_at(&c, 3, 1, "tests");
    size_t pieces[] = {(size_t)1 << 30, 1000, 1}, sizes[] = {0, 1, 999, 1000, 1001, 4097};
    for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++) {
        c.state->piece_bytes = pieces[p];
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            failed += check_bytes(&c, sizes[s]);
    }
    c.state->piece_bytes = pieces[0];
    failed += check_reductions(&c);
    for (size_t i = 0; i < sizeof agreements / sizeof *agreements; i++)
        failed += check_agreement(&c, i);
    failed += check_int("watch again", comm_watch(&c, 30, NULL, NULL, &e), ST_OK);
    failed += check_int("barrier", comm_barrier(&c, &e), ST_OK);
    int64_t total = failed;
    if (comm_sum_int64(&c, &total, 1, &e) != ST_OK)
        total = 1;
    comm_end(&c);
    comm_end(&c);
    return test_result((int)total);
}
