/* tests/support/fake_device.c - see fake_device.h. */
#include "tests/support/fake_device.h"

#include "dist/comm_mpi.h"
#include "tests/support/exchange_ref.h"

#include <stdlib.h>
#include <string.h>

enum { TAG = 77 };

struct Backend {
    Comm *comm;
    int moves, waits;
};

struct Link {
    int rank, size;
};

Backend *fake_device_create(Comm *comm)
{
    Backend *b = calloc(1, sizeof *b);
    if (b)
        b->comm = comm;
    return b;
}

void fake_device_destroy(Backend *b)
{
    free(b);
}

int fake_device_moves(const Backend *b)
{
    return b->moves;
}

int fake_device_waits(const Backend *b)
{
    return b->waits;
}

static Status host_alloc(Backend *b, size_t bytes, void **out, Err *e)
{
    (void)b;
    *out = malloc(bytes ? bytes : 1);
    if (!*out)
        return err_set(e, ST_MEMORY, "out of memory: %zu bytes", bytes);
    memset(*out, 0xa5, bytes);
    return ST_OK;
}

static Status alloc(Backend *b, size_t bytes, const char *what, void **out, Err *e)
{
    return host_alloc(b, bytes, out, e) == ST_OK ? ST_OK : err_in(e, "%s", what);
}

static void release(Backend *b, void *p)
{
    (void)b;
    free(p);
}

static Status upload(Backend *b, void *dst, const void *src, size_t bytes, Err *e)
{
    (void)b;
    (void)e;
    memcpy(dst, src, bytes);
    return ST_OK;
}

static Status wait_done(Backend *b, Err *e)
{
    (void)b;
    (void)e;
    return ST_OK;
}

static Status link_id(Backend *b, void *id, Err *e)
{
    (void)b;
    (void)e;
    memset(id, 42, LINK_ID_BYTES);
    return ST_OK;
}

static Status link_open(Backend *b, const void *id, int rank, int size, Link **out, Err *e)
{
    const char *text = id;
    if (text[0] != 42 || text[LINK_ID_BYTES - 1] != 42 || rank != b->comm->rank)
        return err_set(e, ST_COMM, "rank %d has another id", rank);
    *out = calloc(1, sizeof **out);
    if (!*out)
        return err_set(e, ST_MEMORY, "out of memory: a link");
    **out = (Link){rank, size};
    return ST_OK;
}

static void link_close(Backend *b, Link *l)
{
    (void)b;
    free(l);
}

static const char *link_trouble(Link *l)
{
    (void)l;
    return NULL;
}

static void link_abort(Link *l)
{
    (void)l;
}

static Status link_move(Backend *b, Link *l, const LinkMove *moves, int n, Err *e)
{
    MPI_Request requests[4 * EXCHANGE_MAX_RANKS];
    int code = MPI_SUCCESS, n_requests = 0;
    (void)l;
    b->moves++;
    for (int i = 0; i < n && code == MPI_SUCCESS; i++) {
        const LinkMove *m = &moves[i];
        if (m->bytes == 0)
            continue;
        MPI_Request *r = &requests[n_requests++];
        MPI_Comm mpi = b->comm->state->mpi;
        code = m->send ? MPI_Isend(m->at, (int)m->bytes, MPI_BYTE, m->peer, TAG, mpi, r)
                       : MPI_Irecv(m->at, (int)m->bytes, MPI_BYTE, m->peer, TAG, mpi, r);
    }
    if (code == MPI_SUCCESS)
        code = MPI_Waitall(n_requests, requests, MPI_STATUSES_IGNORE);
    return code == MPI_SUCCESS ? ST_OK : comm_mpi_error(e, code, "link_move");
}

static Status link_gather(Backend *b, Link *l, const void *mine, void *all, size_t bytes, Err *e)
{
    (void)l;
    return comm_allgather(b->comm, mine, bytes, all, e);
}

static Status clear(Backend *b, void *dst, size_t bytes, Err *e)
{
    (void)b;
    (void)e;
    memset(dst, 0, bytes);
    return ST_OK;
}

static Status copy(Backend *b, Link *l, void *dst, const void *src, size_t bytes, Err *e)
{
    (void)l;
    return upload(b, dst, src, bytes, e);
}

static Status wait_copy(Backend *b, Link *l, Err *e)
{
    (void)l;
    b->waits++;
    return wait_done(b, e);
}

static Status count(Backend *b, const WindowSpec *w, Err *e)
{
    exchange_ref_count(w);
    return wait_done(b, e);
}

static Status pack(Backend *b, const WindowSpec *w, Err *e)
{
    exchange_ref_pack(w);
    return wait_done(b, e);
}

static Status group(Backend *b, const GroupSpec *g, Err *e)
{
    exchange_ref_group(g);
    return wait_done(b, e);
}

static Status results(Backend *b, const ResultSpec *r, Err *e)
{
    exchange_ref_results(r);
    return wait_done(b, e);
}

static const ExchangeOps exchange = {
    .link_id = link_id,
    .link_open = link_open,
    .link_move = link_move,
    .link_gather = link_gather,
    .link_trouble = link_trouble,
    .link_abort = link_abort,
    .link_close = link_close,
    .host_alloc = host_alloc,
    .host_release = release,
    .clear = clear,
    .copy = copy,
    .wait_copy = wait_copy,
    .count = count,
    .pack = pack,
    .group = group,
    .results = results,
};

const BackendOps fake_device = {
    .name = "fake",
    .act_bytes = 2,
    .alloc = alloc,
    .release = release,
    .upload = upload,
    .wait = wait_done,
    .exchange = &exchange,
};
