/* kernels/cuda/attention_cuda.c - the cache and attention: where a page has what, and the lists of
 * rows and pages that the kernels read.
 *
 * Latent attention takes the absorbed form for every row: queries go through kv_b_proj, meet the
 * latents as they rest in the cache, and come back through it. The expanded form would save
 * arithmetic in long prompts only. */
#include "kernels/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

enum { LANE_UNIT = 16, MOST_HEAD = 256, MOST_LATENT = 512, MOST_LANES = 1024 };

static int lanes(int n)
{
    return (n + LANE_UNIT - 1) / LANE_UNIT * LANE_UNIT;
}

static int lane_bytes(KvDtype dtype)
{
    return dtype == KV_FP8 ? 1 : 2;
}

static Status check_kv(const KvFormat *kv, Err *e)
{
    if (kv->dtype != KV_BF16 && kv->dtype != KV_FP8)
        return err_set(e, ST_INPUT, "the cuda backend keeps keys and values as bf16 or fp8 only");
    if (kv->dtype == KV_FP8 && !(kv->k_scale > 0 && kv->v_scale > 0))
        return err_set(e, ST_INPUT, "attention: scales of keys and values of %g and %g",
                       (double)kv->k_scale, (double)kv->v_scale);
    return ST_OK;
}

/* --- lists --- */

Status cuda_list_create(Backend *b, int max_rows, int max_seqs, int max_pages, AttnList **out,
                        Err *e)
{
    Status st;
    void *rows = NULL, *row_of = NULL, *pages = NULL;
    AttnList *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ST_MEMORY, "out of memory for a list of %d rows", max_rows);
    l->max_rows = max_rows > 0 ? max_rows : 1;
    l->max_seqs = max_seqs > 0 ? max_seqs : 1;
    l->max_pages = max_pages > 0 ? max_pages : 1;
    TRY_GOTO(cuda_alloc(b, (size_t)l->max_rows * sizeof *l->rows, "rows of a step", &rows, e));
    l->rows = rows;
    TRY_GOTO(cuda_alloc(b, (size_t)l->max_rows * sizeof *l->row_of, "rows of a step", &row_of, e));
    l->row_of = row_of;
    TRY_GOTO(cuda_alloc(b, (size_t)l->max_seqs * (size_t)l->max_pages * sizeof *l->pages,
                        "pages of a step", &pages, e));
    l->pages = pages;
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
    cuda_release(b, l->rows);
    cuda_release(b, l->row_of);
    cuda_release(b, l->pages);
    free(l);
}

static Status check_seqs(const AttnList *l, const AttnSeq *seqs, int n_seqs, int n_padded, Err *e)
{
    int64_t n_rows = 0;
    for (int i = 0; i < n_seqs; i++) {
        n_rows += seqs[i].n_rows;
        if ((seqs[i].pos + seqs[i].n_rows + KV_PAGE - 1) / KV_PAGE > l->max_pages)
            return err_set(e, ST_INPUT, "attention: position %d is past %d pages",
                           seqs[i].pos + seqs[i].n_rows - 1, l->max_pages);
    }
    if (n_seqs < 0 || n_seqs > l->max_seqs || n_rows > l->max_rows || n_padded > l->max_rows)
        return err_set(e, ST_INPUT,
                       "attention: %d sequences of %lld rows in a list of at most %d and %d",
                       n_seqs, (long long)n_rows, l->max_seqs, l->max_rows);
    return ST_OK;
}

Status cuda_list_set(Backend *b, AttnList *l, const AttnSeq *seqs, int n_seqs, int n_padded, Err *e)
{
    void *rows, *row_of, *pages;
    int n = 0, at = 0;
    TRY(check_seqs(l, seqs, n_seqs, n_padded, e));
    TRY(cuda_ring_reserve(b,
                          (size_t)l->max_rows * (sizeof *l->rows + sizeof *l->row_of) +
                              (size_t)n_seqs * (size_t)l->max_pages * sizeof *l->pages,
                          3, e));
    TRY(cuda_ring_take(b, (size_t)l->max_rows * sizeof *l->rows, &rows, e));
    TRY(cuda_ring_take(b, (size_t)l->max_rows * sizeof *l->row_of, &row_of, e));
    TRY(cuda_ring_take(b, (size_t)n_seqs * (size_t)l->max_pages * sizeof *l->pages, &pages, e));
    for (int i = 0; i < n_seqs; i++) {
        const AttnSeq *s = &seqs[i];
        int held = (s->pos + s->n_rows + KV_PAGE - 1) / KV_PAGE;
        for (int r = 0; r < s->n_rows; r++, n++) {
            ((CudaRow *)rows)[n] = (CudaRow){s->row + r, s->pos + r, at};
            ((int32_t *)row_of)[n] = s->row + r;
        }
        if (held > 0)
            memcpy((int32_t *)pages + at, s->pages, (size_t)held * sizeof *l->pages);
        at += held;
    }
    for (; n < n_padded; n++) {
        ((CudaRow *)rows)[n] = (CudaRow){n, -1, 0};
        ((int32_t *)row_of)[n] = n;
    }
    l->n_rows = n;
    TRY(cuda_ring_send(b, l->rows, rows, (size_t)n * sizeof *l->rows, e));
    TRY(cuda_ring_send(b, l->row_of, row_of, (size_t)n * sizeof *l->row_of, e));
    return cuda_ring_send(b, l->pages, pages, (size_t)at * sizeof *l->pages, e);
}

static void use_list(CudaCache *c, const AttnList *l)
{
    c->rows = l->rows;
    c->pages = l->pages;
    c->n_rows = l->n_rows;
}

/* --- heads --- */

static CudaCache head_cache(const void *pool, int n_kv_heads, int head_dim, const KvFormat *kv)
{
    CudaCache c = {.pool = (void *)(uintptr_t)pool, .kv = *kv, .n_kv_heads = n_kv_heads};
    c.lanes = c.coded = lanes(head_dim);
    c.row_bytes = (int64_t)c.lanes * lane_bytes(kv->dtype);
    c.values_offset = KV_PAGE * c.row_bytes;
    c.head_bytes = 2 * c.values_offset;
    c.page_bytes = n_kv_heads * c.head_bytes;
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
    return check_kv(&s->kv, e);
}

Status cuda_kv_write(Backend *b, void *pool, const void *k, const void *v, int64_t stride,
                     const AttnList *list, const AttnSpec *spec, Err *e)
{
    TRY(check_heads(spec, e));
    CudaCache c = head_cache(pool, spec->n_kv_heads, spec->head_dim, &spec->kv);
    use_list(&c, list);
    return cuda_status(b, b->api->write_keys(&c, k, v, stride, spec->head_dim, b->stream),
                       "kv_write", e);
}

Status cuda_attention(Backend *b, void *out, const void *q, int64_t stride, const void *pool,
                      const AttnList *list, const AttnSpec *spec, Err *e)
{
    TRY(check_heads(spec, e));
    CudaAttention a = {.cache = head_cache(pool, spec->n_kv_heads, spec->head_dim, &spec->kv),
                       .q = q,
                       .out = out,
                       .by_row = true,
                       .q_stride = stride,
                       .out_stride = (int64_t)spec->n_heads * spec->head_dim,
                       .q_split = spec->head_dim,
                       .n_heads = spec->n_heads,
                       .out_dim = spec->head_dim,
                       .window = spec->window,
                       .scale = spec->scale,
                       .sinks = spec->sinks};
    use_list(&a.cache, list);
    return cuda_status(b, b->api->attention(&a, b->stream), "attention", e);
}

/* --- latents --- */

static CudaCache latent_cache(const void *pool, int latent_dim, int rope_dim, const KvFormat *kv)
{
    CudaCache c = {.pool = (void *)(uintptr_t)pool, .kv = *kv, .n_kv_heads = 1};
    c.kv.v_scale = kv->k_scale;
    c.coded = lanes(latent_dim);
    c.lanes = c.coded + lanes(rope_dim);
    c.row_bytes = (int64_t)c.coded * lane_bytes(kv->dtype) + (int64_t)(c.lanes - c.coded) * 2;
    c.page_bytes = c.head_bytes = KV_PAGE * c.row_bytes;
    return c;
}

size_t cuda_latent_page_bytes(const Backend *b, int latent_dim, int rope_dim, KvDtype dtype)
{
    (void)b;
    const KvFormat kv = {dtype, 1, 1};
    return (size_t)latent_cache(NULL, latent_dim, rope_dim, &kv).page_bytes;
}

static Status check_latents(const LatentSpec *s, Err *e)
{
    if (s->latent_dim < 1 || s->latent_dim > MOST_LATENT || s->rope_dim < 0 ||
        lanes(s->latent_dim) + lanes(s->rope_dim) > MOST_LANES)
        return err_set(e, ST_INPUT, "latent attention: latents of %d and %d lanes; at most %d",
                       s->latent_dim, s->rope_dim, MOST_LATENT);
    KvFormat kv = s->kv;
    kv.v_scale = kv.k_scale;
    return check_kv(&kv, e);
}

Status cuda_latent_write(Backend *b, void *pool, const void *rows, int64_t stride,
                         const AttnList *list, const LatentSpec *spec, Err *e)
{
    TRY(check_latents(spec, e));
    CudaCache c = latent_cache(pool, spec->latent_dim, spec->rope_dim, &spec->kv);
    use_list(&c, list);
    return cuda_status(
        b, b->api->write_latents(&c, rows, stride, spec->latent_dim, spec->rope_dim, b->stream),
        "latent_write", e);
}

/* Of one row: latent queries with their rope lanes, then latent outputs. */
static size_t query_bytes(const LatentSpec *s)
{
    return (size_t)s->n_heads * (size_t)(s->latent_dim + s->rope_dim) * 2;
}

static size_t output_bytes(const LatentSpec *s)
{
    return (size_t)s->n_heads * (size_t)s->latent_dim * 2;
}

static size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

size_t cuda_latent_scratch_bytes(const Backend *b, int n_rows, const LatentSpec *spec)
{
    (void)b;
    return aligned((size_t)n_rows * query_bytes(spec)) + (size_t)n_rows * output_bytes(spec);
}

static CudaGemm head_gemm(const Weight *w, int part, const LatentSpec *spec, int n)
{
    CudaGemm g = {.n_parts = 1,
                  .planes = w->planes,
                  .k = (int)w->cols,
                  .k_padded = (int)w->cols_padded,
                  .n_mats = spec->n_heads,
                  .n_rows = n};
    g.part[0] = w->part[part];
    g.part[0].first_row = 0;
    return g;
}

static Status check_bank(const Weight *w, const LatentSpec *s, int n_parts, int64_t cols, Err *e)
{
    if (w->n_mats != s->n_heads || w->n_parts != n_parts || w->cols != cols)
        return err_set(e, ST_INPUT, "%s: is not %d matrices of %d parts over %lld inputs", w->name,
                       s->n_heads, n_parts, (long long)cols);
    return ST_OK;
}

Status cuda_latent_attention(Backend *b, void *out, const void *q, const void *pool,
                             const AttnList *list, const LatentSpec *spec, const LatentWeights *w,
                             LatentForm form, void *scratch, Err *e)
{
    (void)form;
    TRY(check_latents(spec, e));
    TRY(check_bank(w->up, spec, 2, spec->latent_dim, e));
    TRY(check_bank(w->absorb, spec, 1, spec->nope_dim, e));
    CudaAttention a = {.cache = latent_cache(pool, spec->latent_dim, spec->rope_dim, &spec->kv),
                       .q = scratch,
                       .q_split = spec->latent_dim,
                       .q_rest = spec->rope_dim,
                       .q_stride = (int64_t)spec->n_heads * (spec->latent_dim + spec->rope_dim),
                       .out_stride = (int64_t)spec->n_heads * spec->latent_dim,
                       .n_heads = spec->n_heads,
                       .out_dim = spec->latent_dim,
                       .scale = spec->scale};
    const int32_t *rows = list->row_of;
    use_list(&a.cache, list);
    int n = a.cache.n_rows, head = spec->nope_dim + spec->rope_dim;
    if (n == 0)
        return ST_OK;
    a.out = (char *)scratch + aligned((size_t)n * query_bytes(spec));

    CudaGemm g = head_gemm(w->absorb, 0, spec, n);
    g.x = q;
    g.x_stride = (int64_t)spec->n_heads * head;
    g.x_mat = head;
    g.x_row = rows;
    g.y = scratch;
    g.y_stride = a.q_stride;
    g.y_mat = spec->latent_dim + spec->rope_dim;
    TRY(cuda_status(b, b->api->gemm(&g, b->stream), "latent queries", e));
    TRY(cuda_status(b,
                    b->api->copy_lanes((char *)scratch + (size_t)spec->latent_dim * 2, a.q_stride,
                                       spec->latent_dim + spec->rope_dim,
                                       (const char *)q + (size_t)spec->nope_dim * 2, g.x_stride,
                                       head, rows, n, spec->n_heads, spec->rope_dim, b->stream),
                    "latent queries", e));
    TRY(cuda_status(b, b->api->attention(&a, b->stream), "latent attention", e));
    g = head_gemm(w->up, 1, spec, n);
    g.x = a.out;
    g.x_stride = a.out_stride;
    g.x_mat = spec->latent_dim;
    g.y = out;
    g.y_stride = (int64_t)spec->n_heads * spec->v_dim;
    g.y_mat = spec->v_dim;
    g.y_row = rows;
    return cuda_status(b, b->api->gemm(&g, b->stream), "latent outputs", e);
}
