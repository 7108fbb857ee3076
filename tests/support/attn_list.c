/* tests/support/attn_list.c - see attn_list.h. */
#include "tests/support/attn_list.h"

static Status list_of(const BackendOps *ops, Backend *b, const AttnSeq *seqs, int n_seqs,
                      AttnList **out, Err *e)
{
    int rows = 0, pages = 1;
    for (int i = 0; i < n_seqs; i++) {
        int held = (seqs[i].pos + seqs[i].n_rows + KV_PAGE - 1) / KV_PAGE;
        rows += seqs[i].n_rows;
        pages = held > pages ? held : pages;
    }
    TRY(ops->list_create(b, rows, n_seqs, pages, out, e));
    return ops->list_set(b, *out, seqs, n_seqs, 0, e);
}

Status test_kv_write(const BackendOps *ops, Backend *b, void *pool, const void *k, const void *v,
                     int64_t stride, const AttnSeq *seqs, int n_seqs, const AttnSpec *spec, Err *e)
{
    AttnList *list = NULL;
    Status st = list_of(ops, b, seqs, n_seqs, &list, e);
    if (st == ST_OK)
        st = ops->kv_write(b, pool, k, v, stride, list, spec, e);
    ops->list_destroy(b, list);
    return st;
}

Status test_attention(const BackendOps *ops, Backend *b, void *out, const void *q, int64_t stride,
                      const void *pool, const AttnSeq *seqs, int n_seqs, const AttnSpec *spec,
                      Err *e)
{
    AttnList *list = NULL;
    Status st = list_of(ops, b, seqs, n_seqs, &list, e);
    if (st == ST_OK)
        st = ops->attention(b, out, q, stride, pool, list, spec, e);
    ops->list_destroy(b, list);
    return st;
}

Status test_latent_write(const BackendOps *ops, Backend *b, void *pool, const void *rows,
                         int64_t stride, const AttnSeq *seqs, int n_seqs, const LatentSpec *spec,
                         Err *e)
{
    AttnList *list = NULL;
    Status st = list_of(ops, b, seqs, n_seqs, &list, e);
    if (st == ST_OK)
        st = ops->latent_write(b, pool, rows, stride, list, spec, e);
    ops->list_destroy(b, list);
    return st;
}

Status test_latent_attention(const BackendOps *ops, Backend *b, void *out, const void *q,
                             const void *pool, const AttnSeq *seqs, int n_seqs,
                             const LatentSpec *spec, const LatentWeights *w, LatentForm form,
                             void *scratch, Err *e)
{
    AttnList *list = NULL;
    Status st = list_of(ops, b, seqs, n_seqs, &list, e);
    if (st == ST_OK)
        st = ops->latent_attention(b, out, q, pool, list, spec, w, form, scratch, e);
    ops->list_destroy(b, list);
    return st;
}
