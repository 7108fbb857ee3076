/* kernels/cuda/exchange_cuda.c - what the CUDA backend does for an exchange: NCCL and the kernels of
 * the plugin, with their codes turned into messages. */
#include "kernels/cuda/cuda.h"

#include <stdlib.h>

struct Link {
    const CudaExchangeApi *api;
    void *comm, *mark;
};

static Status nccl_status(const Link *l, const CudaExchangeApi *api, int code, const char *call,
                          Err *e)
{
    if (code == 0)
        return ST_OK;
    return err_set(e, ST_DEVICE, "%s: %s", call, api->nccl_text(l ? l->comm : NULL, code));
}

static Status link_id(Backend *b, void *id, Err *e)
{
    return nccl_status(NULL, b->exchange, b->exchange->nccl_id(id), "ncclGetUniqueId", e);
}

static void link_close(Backend *b, Link *l)
{
    if (!l)
        return;
    (void)b->api->wait(b->stream);
    if (l->comm)
        (void)l->api->nccl_close(l->comm);
    if (l->mark)
        (void)b->api->event_destroy(l->mark);
    free(l);
}

static Status link_open(Backend *b, const void *id, int rank, int size, Link **out, Err *e)
{
    Status st;
    Link *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ST_MEMORY, "out of memory: the link between GPUs");
    l->api = b->exchange;
    TRY_GOTO(cuda_status(b, b->api->event_create(&l->mark), "an event", e));
    TRY_GOTO(nccl_status(NULL, l->api, l->api->nccl_open(&l->comm, id, rank, size),
                         "ncclCommInitRankConfig", e));
    *out = l;
    return ST_OK;
fail:
    link_close(b, l);
    return st;
}

static Status link_move(Backend *b, Link *l, const LinkMove *moves, int n, Err *e)
{
    return nccl_status(l, l->api, l->api->nccl_move(l->comm, moves, n, b->stream),
                       "ncclSend and ncclRecv", e);
}

static Status link_gather(Backend *b, Link *l, const void *mine, void *all, size_t bytes, Err *e)
{
    return nccl_status(l, l->api, l->api->nccl_gather(l->comm, mine, all, bytes, b->stream),
                       "ncclAllGather", e);
}

static const char *link_trouble(Link *l)
{
    int code = l->api->nccl_trouble(l->comm);
    return code ? l->api->nccl_text(l->comm, code) : NULL;
}

static void link_abort(Link *l)
{
    (void)l->api->nccl_abort(l->comm);
}

static Status host_alloc(Backend *b, size_t bytes, void **out, Err *e)
{
    return cuda_status(b, b->api->take_host(out, bytes), "pinned memory of an exchange", e);
}

static void host_release(Backend *b, void *p)
{
    if (p)
        (void)b->api->release_host(p);
}

static Status clear(Backend *b, void *dst, size_t bytes, Err *e)
{
    return cuda_status(b, b->exchange->clear(dst, bytes, b->stream), "clear", e);
}

static Status copy(Backend *b, Link *l, void *dst_host, const void *src, size_t bytes, Err *e)
{
    TRY(cuda_status(b, b->api->to_host(dst_host, src, bytes, b->stream), "counts", e));
    return cuda_status(b, b->api->event_record(l->mark, b->stream), "counts", e);
}

static Status wait_copy(Backend *b, Link *l, Err *e)
{
    return cuda_status(b, b->api->event_wait(l->mark), "counts", e);
}

static Status count(Backend *b, const WindowSpec *w, Err *e)
{
    return cuda_status(b, b->exchange->count(w, b->stream), "counting rows", e);
}

static Status pack(Backend *b, const WindowSpec *w, Err *e)
{
    return cuda_status(b, b->exchange->pack(w, b->stream), "packing rows", e);
}

static Status group(Backend *b, const GroupSpec *g, Err *e)
{
    return cuda_status(b, b->exchange->group(g, b->stream), "grouping rows", e);
}

static Status results(Backend *b, const ResultSpec *r, Err *e)
{
    return cuda_status(b, b->exchange->results(r, b->stream), "packing results", e);
}

const ExchangeOps cuda_exchange = {
    .link_id = link_id,
    .link_open = link_open,
    .link_move = link_move,
    .link_gather = link_gather,
    .link_trouble = link_trouble,
    .link_abort = link_abort,
    .link_close = link_close,
    .host_alloc = host_alloc,
    .host_release = host_release,
    .clear = clear,
    .copy = copy,
    .wait_copy = wait_copy,
    .count = count,
    .pack = pack,
    .group = group,
    .results = results,
};
