/* kernels/cuda/latent_cuda.c - multi-head latent attention: latents in their pages, and the products with
 * kv_b_proj around attention over them.
 *
 * The absorbed form: queries go through kv_b_proj, meet the latents as they rest in the cache, and
 * come back through it. The expanded form: the sequences' latents go through kv_b_proj, some heads at
 * a time as memory allows, and queries meet the keys and values that come out. It exists for heads as
 * all published models have them, on Hopper; elsewhere a prompt's rows take the absorbed form, too. */
#include "kernels/cuda/cuda.h"

enum {
    BLOCK_LANES = 64,
    MOST_LATENT = 512,
    MOST_ROPE = 512,
    EXPANDED_HEADS = 4 /* of the longest sequence that memory is planned for */
};

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

static bool can_expand(const Backend *b, const LatentSpec *s)
{
    return b->api->has_sm90a() && s->nope_dim == 128 && s->rope_dim == 64 && s->v_dim == 128 &&
           s->latent_dim % 8 == 0;
}

/* Keys without rope lanes, and values, of one position and head. */
static size_t pair_bytes(const LatentSpec *s)
{
    return (size_t)(s->nope_dim + s->v_dim) * 2;
}

static size_t expanded_bytes(int n_pages, int n_heads, const LatentSpec *s)
{
    size_t n = (size_t)n_pages * KV_PAGE;
    return aligned(n * (size_t)s->latent_dim * 2) + n * (size_t)n_heads * pair_bytes(s);
}

size_t cuda_latent_scratch_bytes(const Backend *b, int n_rows, int n_positions,
                                 const LatentSpec *spec)
{
    size_t absorbed =
        aligned((size_t)n_rows * query_bytes(spec)) + (size_t)n_rows * output_bytes(spec);
    if (!can_expand(b, spec))
        return absorbed;
    int heads = spec->n_heads < EXPANDED_HEADS ? spec->n_heads : EXPANDED_HEADS;
    size_t expanded = expanded_bytes((n_positions + KV_PAGE - 1) / KV_PAGE, heads, spec);
    return expanded > absorbed ? expanded : absorbed;
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

/* Rows of sequences first .. end - 1 of the list, for as many heads at a time as there is memory. */
static Status expanded_part(Backend *b, CudaExpandedAttention a, const AttnList *list, int first,
                            int end, const LatentSpec *spec, const LatentWeights *w, void *scratch,
                            size_t scratch_bytes, Err *e)
{
    int n_pages = list->first_page[end] - list->first_page[first], n = n_pages * KV_PAGE;
    size_t latents = expanded_bytes(n_pages, 0, spec);
    size_t most = (scratch_bytes - latents) / ((size_t)n * pair_bytes(spec));
    int heads = most < (size_t)spec->n_heads ? (int)most : spec->n_heads;
    int passes = (spec->n_heads + heads - 1) / heads, q_lanes = spec->nope_dim + spec->rope_dim;
    const char *q = a.q;
    char *out = a.out;
    a.first_page = list->first_page[first];
    a.end_page = list->first_page[end];
    a.kv = (char *)scratch + latents;
    TRY(cuda_status(
        b,
        b->api->read_latents(scratch, &a.cache, a.first_page, n_pages, spec->latent_dim, b->stream),
        "latents", e));
    for (int pass = 0, head = 0; pass < passes; pass++, head += a.n_heads) {
        a.n_heads = (spec->n_heads - head + passes - pass - 1) / (passes - pass);
        CudaGemm g = head_gemm(w->up, 0, spec, n);
        g.n_parts = 2;
        g.n_mats = a.n_heads;
        for (int i = 0; i < 2; i++) {
            CudaPart *p = &g.part[i];
            *p = w->up->part[i];
            p->codes += head * p->codes_mat;
            p->scales = p->scales ? p->scales + head * p->scales_mat : NULL;
            p->row_scale = p->row_scale ? p->row_scale + head * p->row_scale_mat : NULL;
        }
        g.x = scratch;
        g.x_stride = spec->latent_dim;
        g.y = (char *)scratch + latents;
        g.y_mat = spec->nope_dim + spec->v_dim;
        g.y_stride = a.n_heads * g.y_mat;
        TRY(cuda_status(b, b->api->gemm(&g, b->stream), "keys and values of latents", e));
        a.q = q + (size_t)head * (size_t)q_lanes * 2;
        a.out = out + (size_t)head * (size_t)spec->v_dim * 2;
        TRY(cuda_status(b, b->api->expanded_attention(&a, b->stream), "expanded attention", e));
    }
    return ST_OK;
}

static Status expanded(Backend *b, void *out, const void *q, const void *pool, const AttnList *list,
                       const LatentSpec *spec, const LatentWeights *w, void *scratch, Err *e)
{
    CudaExpandedAttention a = {
        .cache = latent_cache(pool, spec->latent_dim, spec->rope_dim, &spec->kv),
        .q = q,
        .out = out,
        .q_stride = (int64_t)spec->n_heads * (spec->nope_dim + spec->rope_dim),
        .out_stride = (int64_t)spec->n_heads * spec->v_dim,
        .scale = spec->scale,
        .partials = b->partials,
        .most_floats = ATTENTION_FLOATS};
    a.cache.list = list->list;
    size_t bytes = cuda_latent_scratch_bytes(b, list->max_rows, list->max_pages * KV_PAGE, spec);
    /* As many sequences at a time as all heads of them have room, but at least one. */
    for (int first = 0, end; first < list->n_seqs; first = end) {
        int32_t from = list->first_page[first];
        for (end = first + 1; end < list->n_seqs; end++)
            if (expanded_bytes(list->first_page[end + 1] - from, spec->n_heads, spec) > bytes)
                break;
        TRY(expanded_part(b, a, list, first, end, spec, w, scratch, bytes, e));
    }
    return ST_OK;
}

static Status absorbed(Backend *b, void *out, const void *q, const void *pool, const AttnList *list,
                       const LatentSpec *spec, const LatentWeights *w, void *scratch, Err *e)
{
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

Status cuda_latent_attention(Backend *b, void *out, const void *q, const void *pool,
                             const AttnList *list, const LatentSpec *spec, const LatentWeights *w,
                             LatentForm form, void *scratch, Err *e)
{
    TRY(check_latents(spec, e));
    TRY(check_bank(w->up, spec, 2, spec->latent_dim, e));
    TRY(check_bank(w->absorb, spec, 1, spec->nope_dim, e));
    return form == LATENT_EXPANDED && can_expand(b, spec)
               ? expanded(b, out, q, pool, list, spec, w, scratch, e)
               : absorbed(b, out, q, pool, list, spec, w, scratch, e);
}
