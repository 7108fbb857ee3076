/* kernels/cuda/attention_cuda.c - keys and values in their pages and attention over them, and the lists of
 * a step's rows. */
#include "kernels/cuda/attention_list.h"
#include "kernels/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_HEAD = 256 };

Status cuda_attention_open(Backend *b, Err *e)
{
    void *partials = NULL, *counters = NULL, *zeros = NULL;
    size_t bytes = ATTENTION_COUNTERS * sizeof *b->counters;
    TRY(cuda_alloc(b, ATTENTION_FLOATS * sizeof *b->partials, "attention's results between kernels",
                   &partials, e));
    b->partials = partials;
    TRY(cuda_alloc(b, bytes, "attention's counters", &counters, e));
    b->counters = counters;
    TRY(cuda_ring_take(b, bytes, &zeros, e));
    memset(zeros, 0, bytes);
    return cuda_ring_send(b, counters, zeros, bytes, e);
}

void cuda_attention_close(Backend *b)
{
    cuda_release(b, b->partials);
    cuda_release(b, b->counters);
}

/* --- lists --- */

Status cuda_list_create(Backend *b, int max_rows, int max_seqs, int max_pages, AttnList **out,
                        Err *e)
{
    Status st;
    AttnList *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ST_MEMORY, "out of memory for a list of %d rows", max_rows);
    l->max_rows = max_rows > 0 ? max_rows : 1;
    l->max_seqs = max_seqs > 0 ? max_seqs : 1;
    l->max_pages = max_pages > 0 ? max_pages : 1;
    l->first_page = malloc(((size_t)l->max_seqs + 1) * sizeof *l->first_page);
    if (!l->first_page) {
        st = err_set(e, ST_MEMORY, "out of memory for a list of %d sequences", l->max_seqs);
        goto fail;
    }
    TRY_GOTO(cuda_alloc(
        b, cuda_list_bytes(l->max_rows, l->max_seqs, (int64_t)l->max_seqs * l->max_pages),
        "the rows and pages of a step", &l->memory, e));
    *out = l;
    return ST_OK;
fail:
    cuda_list_destroy(b, l);
    return st;
}

void cuda_list_destroy(Backend *b, AttnList *l)
{
    if (!l)
        return;
    cuda_release(b, l->memory);
    free(l->first_page);
    free(l);
}

Status cuda_list_set(Backend *b, AttnList *l, const AttnSeq *seqs, int n_seqs, int n_padded, Err *e)
{
    int64_t n_rows = 0, n_pages = 0;
    for (int i = 0; i < n_seqs; i++) {
        int pages = (seqs[i].pos + seqs[i].n_rows + KV_PAGE - 1) / KV_PAGE;
        if (pages > l->max_pages)
            return err_set(e, ST_INPUT, "attention: position %d is past %d pages",
                           seqs[i].pos + seqs[i].n_rows - 1, l->max_pages);
        n_rows += seqs[i].n_rows;
        n_pages += pages;
    }
    if (n_seqs < 0 || n_seqs > l->max_seqs || n_rows > l->max_rows || n_padded > l->max_rows)
        return err_set(e, ST_INPUT,
                       "attention: %d sequences of %lld rows in a list of at most %d and %d",
                       n_seqs, (long long)n_rows, l->max_seqs, l->max_rows);
    void *host;
    int rows = n_padded > 0 ? n_padded : (int)n_rows;
    TRY(cuda_ring_take(b, cuda_list_bytes(rows, n_seqs, n_pages), &host, e));
    size_t bytes = cuda_list_fill(host, l->memory, &l->list, seqs, n_seqs, n_padded);
    l->n_seqs = n_seqs;
    l->first_page[0] = 0;
    for (int i = 0; i < n_seqs; i++)
        l->first_page[i + 1] =
            l->first_page[i] + (seqs[i].pos + seqs[i].n_rows + KV_PAGE - 1) / KV_PAGE;
    return cuda_ring_send(b, l->memory, host, bytes, e);
}

/* --- heads --- */

Status cuda_check_kv(const KvFormat *kv, Err *e)
{
    if (kv->dtype == KV_F32)
        return err_set(e, ST_INPUT,
                       "the cuda backend keeps keys and values as bf16, fp8 or nvfp4, not fp32");
    if (kv->dtype != KV_BF16 && !(kv->k_scale > 0 && kv->v_scale > 0))
        return err_set(e, ST_INPUT, "attention: scales of keys and values of %g and %g",
                       (double)kv->k_scale, (double)kv->v_scale);
    return ST_OK;
}

static CudaCache head_cache(const void *pool, int n_kv_heads, int head_dim, const KvFormat *kv)
{
    CudaCache c = {.pool = (void *)(uintptr_t)pool, .kv = *kv, .n_kv_heads = n_kv_heads};
    c.lanes = (head_dim + 15) / 16 * 16;
    int bits = kv->dtype == KV_BF16 ? 256 : kv->dtype == KV_FP8 ? 128 : 72; /* of 16 lanes */
    c.head_bytes = 2 * KV_PAGE * (c.lanes / 16) * (bits / 8);
    c.page_bytes = n_kv_heads * c.head_bytes;
    if (kv->dtype == KV_BF16)
        c.kv.k_scale = c.kv.v_scale = 1;
    return c;
}

size_t cuda_kv_page_bytes(const Backend *b, int n_kv_heads, int head_dim, KvDtype dtype)
{
    (void)b;
    const KvFormat kv = {dtype, 1, 1};
    return (size_t)head_cache(NULL, n_kv_heads, head_dim, &kv).page_bytes;
}

static Status check_heads(const AttnSpec *s, Err *e)
{
    if (s->head_dim < 1 || s->head_dim > MOST_HEAD || s->n_kv_heads < 1 ||
        s->n_heads % s->n_kv_heads || s->n_heads < 1)
        return err_set(e, ST_INPUT, "attention: %d heads over %d of %d lanes; at most %d",
                       s->n_heads, s->n_kv_heads, s->head_dim, MOST_HEAD);
    if (s->kv.dtype == KV_NVFP4 && s->head_dim % 16 != 0)
        return err_set(e, ST_INPUT, "attention: heads of %d lanes in nvfp4, whose blocks have 16",
                       s->head_dim);
    return cuda_check_kv(&s->kv, e);
}

Status cuda_kv_write(Backend *b, void *pool, const void *k, const void *v, int64_t stride,
                     const AttnList *list, const AttnSpec *spec, Err *e)
{
    TRY(check_heads(spec, e));
    CudaCache c = head_cache(pool, spec->n_kv_heads, spec->head_dim, &spec->kv);
    return cuda_status(b,
                       b->api->write_keys(&c, &list->list, k, v, stride, spec->head_dim, b->stream),
                       "kv_write", e);
}

Status cuda_attention(Backend *b, void *out, const void *q, int64_t stride, const void *pool,
                      const AttnList *list, const AttnSpec *spec, Err *e)
{
    TRY(check_heads(spec, e));
    CudaAttention a = {.cache = head_cache(pool, spec->n_kv_heads, spec->head_dim, &spec->kv),
                       .list = list->list,
                       .q = q,
                       .out = out,
                       .q_stride = stride,
                       .out_stride = (int64_t)spec->n_heads * spec->head_dim,
                       .n_heads = spec->n_heads,
                       .head_dim = spec->head_dim,
                       .window = spec->window,
                       .scale = spec->scale,
                       .sinks = spec->sinks,
                       .partials = b->partials,
                       .most_floats = ATTENTION_FLOATS,
                       .counters = b->counters,
                       .most_counters = ATTENTION_COUNTERS};
    return cuda_status(b, b->api->attention(&a, b->stream), "attention", e);
}
