/* kernels/cuda/latent_cuda.c - multi-head latent attention: latents in their pages, and the products with
 * kv_b_proj around attention over them.
 *
 * Latent attention takes the absorbed form for every row: queries go through kv_b_proj, meet the
 * latents as they rest in the cache, and come back through it. The expanded form would save
 * arithmetic in long prompts only. */
#include "kernels/cuda/cuda.h"

enum { BLOCK_LANES = 64, MOST_LATENT = 512, MOST_ROPE = 512 };

static int blocks(int n)
{
    return (n + BLOCK_LANES - 1) / BLOCK_LANES;
}

static CudaLatents latent_cache(const void *pool, int latent_dim, int rope_dim, const KvFormat *kv)
{
    CudaLatents c = {.pool = (void *)(uintptr_t)pool, .kv = *kv};
    c.latent_blocks = blocks(latent_dim);
    c.rope_blocks = blocks(rope_dim);
    c.page_bytes = KV_PAGE * BLOCK_LANES *
                   ((int64_t)c.latent_blocks * (kv->dtype == KV_FP8 ? 1 : 2) + c.rope_blocks * 2);
    if (kv->dtype == KV_BF16)
        c.kv.k_scale = 1;
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
        s->rope_dim > MOST_ROPE)
        return err_set(e, ST_INPUT, "latent attention: latents of %d and %d lanes; at most %d",
                       s->latent_dim, s->rope_dim, MOST_LATENT);
    KvFormat kv = s->kv;
    kv.v_scale = kv.k_scale;
    if (kv.dtype == KV_NVFP4)
        return err_set(e, ST_INPUT, "latent attention: latents are not kept as nvfp4");
    return cuda_check_kv(&kv, e);
}

Status cuda_latent_write(Backend *b, void *pool, const void *rows, int64_t stride,
                         const AttnList *list, const LatentSpec *spec, Err *e)
{
    TRY(check_latents(spec, e));
    CudaLatents c = latent_cache(pool, spec->latent_dim, spec->rope_dim, &spec->kv);
    c.list = list->list;
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
    CudaLatentAttention a = {
        .cache = latent_cache(pool, spec->latent_dim, spec->rope_dim, &spec->kv),
        .q = scratch,
        .q_split = spec->latent_dim,
        .q_rest = spec->rope_dim,
        .q_stride = (int64_t)spec->n_heads * (spec->latent_dim + spec->rope_dim),
        .out_stride = (int64_t)spec->n_heads * spec->latent_dim,
        .n_heads = spec->n_heads,
        .out_dim = spec->latent_dim,
        .scale = spec->scale,
        .partials = b->partials,
        .most_floats = ATTENTION_FLOATS,
        .counters = b->counters,
        .most_counters = ATTENTION_COUNTERS};
    const int32_t *rows = list->list.row_of;
    a.cache.list = list->list;
    int n = a.cache.list.n_rows, head = spec->nope_dim + spec->rope_dim;
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
    TRY(cuda_status(b, b->api->latent_attention(&a, b->stream), "latent attention", e));
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
