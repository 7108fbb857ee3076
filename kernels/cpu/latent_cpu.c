/* kernels/cpu/latent_cpu.c - the ops of latent attention: latents into pages, scratch memory, and
 * the choice of the form. */
#include "kernels/cpu/latent.h"

#include <string.h>

size_t cpu_latent_page_bytes(const Backend *b, int latent_dim, int rope_dim, KvDtype dtype)
{
    (void)b;
    return KV_PAGE * latent_row_bytes(latent_dim, rope_dim, dtype);
}

/* Both parts of a row, in whole panels. */
static void encode_row(uint8_t *to, const float *from, const LatentSpec *spec)
{
    const int dims[2] = {spec->latent_dim, spec->rope_dim};
    for (int part = 0; part < 2; from += dims[part], part++) {
        KvDtype dtype = part == 0 ? spec->kv.dtype : KV_BF16;
        for (int i = 0; i < dims[part]; i += PANEL, to += cpu_kv_bytes(dtype, PANEL)) {
            int n = dims[part] - i < PANEL ? dims[part] - i : PANEL;
            float x[PANEL] = {0};
            uint8_t code[4 * PANEL]; /* of any type */
            memcpy(x, from + i, (size_t)n * sizeof *x);
            cpu_kv_encode(code, x, dtype, spec->kv.k_scale);
            memcpy(to, code, cpu_kv_bytes(dtype, PANEL));
        }
    }
}

const float *latent_rows(const LatentJob *job, const AttnSeq *s, int page, int n, float *memory)
{
    const LatentSpec *spec = job->spec;
    const char *rows = latent_page(job, s, page);
    if (spec->kv.dtype == KV_F32)
        return (const float *)(const void *)rows;
    size_t row_bytes = latent_row_bytes(spec->latent_dim, spec->rope_dim, spec->kv.dtype);
    int latent = whole_panels(spec->latent_dim), rope = whole_panels(spec->rope_dim);
    for (int j = 0; j < n; j++) {
        const uint8_t *from = (const uint8_t *)rows + (size_t)j * row_bytes;
        float *to = memory + j * job->page_stride;
        job->b->kernels->kv_decode(to, from, latent, spec->kv.dtype, spec->kv.k_scale);
        job->b->kernels->kv_decode(to + latent, from + cpu_kv_bytes(spec->kv.dtype, (size_t)latent),
                                   rope, KV_BF16, 1.0f);
    }
    return memory;
}

static Status check_format(const KvFormat *kv, Err *e)
{
    if (kv->dtype == KV_NVFP4)
        return err_set(e, ST_INPUT, "latent attention: no NVFP4 cache; fp8 and bf16 are");
    if (kv->dtype == KV_FP8 && !(kv->k_scale > 0))
        return err_set(e, ST_INPUT, "latent attention: a scale of latents of %g: not positive",
                       (double)kv->k_scale);
    return ST_OK;
}

typedef struct WriteJob {
    Backend *b;
    char *pool;
    const float *rows;
    int64_t stride;
    const AttnSeq *seqs;
    int n_seqs;
    const LatentSpec *spec;
    size_t page_bytes;
} WriteJob;

static void write_task(void *ctx, int task, int thread)
{
    (void)thread;
    const WriteJob *job = ctx;
    int i = cpu_find_group(job->b->task_first, job->n_seqs, task);
    const AttnSeq *s = &job->seqs[i];
    int page = s->pos / KV_PAGE + task - job->b->task_first[i], start = page * KV_PAGE;
    if (s->pages[page] < 0)
        return; /* no later step can see these positions */
    int lo = s->pos > start ? s->pos - start : 0;
    int hi = s->pos + s->n_rows - start < KV_PAGE ? s->pos + s->n_rows - start : KV_PAGE;
    const LatentSpec *spec = job->spec;
    size_t row_bytes = latent_row_bytes(spec->latent_dim, spec->rope_dim, spec->kv.dtype);
    size_t used = (size_t)(spec->latent_dim + spec->rope_dim) * sizeof(float);
    char *to = job->pool + (size_t)s->pages[page] * job->page_bytes + (size_t)lo * row_bytes;
    for (int j = lo; j < hi; j++, to += row_bytes) {
        const float *from = job->rows + (s->row + start + j - s->pos) * job->stride;
        if (spec->kv.dtype == KV_F32) {
            memcpy(to, from, used);
            memset(to + used, 0, row_bytes - used);
        } else {
            encode_row((uint8_t *)to, from, spec);
        }
    }
}

Status cpu_latent_write(Backend *b, void *pool, const void *rows, int64_t stride,
                        const AttnList *list, const LatentSpec *spec, Err *e)
{
    int width = spec->latent_dim + spec->rope_dim;
    if (width < 1)
        return err_set(e, ST_INPUT, "latent attention: rows of %d values", width);
    TRY(check_format(&spec->kv, e));
    WriteJob job = {.b = b,
                    .pool = pool,
                    .rows = rows,
                    .stride = stride,
                    .spec = spec,
                    .page_bytes =
                        cpu_latent_page_bytes(b, spec->latent_dim, spec->rope_dim, spec->kv.dtype)};
    for (int from = 0; from < list->n_seqs; from += job.n_seqs) {
        job.seqs = list->seqs + from;
        job.n_seqs = list->n_seqs - from < MAX_GROUPS ? list->n_seqs - from : MAX_GROUPS;
        int *first = b->task_first;
        int64_t n_rows = 0;
        first[0] = 0;
        for (int i = 0; i < job.n_seqs; i++) {
            const AttnSeq *s = &job.seqs[i];
            int last = (s->pos + s->n_rows - 1) / KV_PAGE;
            first[i + 1] = first[i] + (s->n_rows > 0 ? last - s->pos / KV_PAGE + 1 : 0);
            n_rows += s->n_rows;
        }
        cpu_run(b, first[job.n_seqs], n_rows * width, write_task, &job);
    }
    return ST_OK;
}

void latent_piece_add(LatentPieces *p, int seq, int query, int n)
{
    p->seq[p->n] = seq;
    p->query[p->n] = query;
    p->row[p->n + 1] = p->row[p->n] + n;
    p->n++;
}

/* The scratch memory holds the pieces, of which there are at most as many as rows, then the
 * absorbed form's latent rows, then what each thread needs for either form. */
typedef struct Layout {
    size_t list, rows, thread; /* bytes of one list of pieces, of the latent rows, of one thread */
} Layout;

static size_t lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static Layout layout_of(int n_rows, const LatentSpec *spec)
{
    size_t expanded = latent_expanded_thread_bytes(n_rows, spec);
    size_t absorbed = latent_absorbed_thread_bytes(spec);
    size_t at_once = (size_t)(n_rows < ABSORB_ROWS ? n_rows : ABSORB_ROWS);
    return (Layout){
        .list = lines((size_t)(n_rows + 1) * sizeof(int)),
        .rows = lines(at_once * (size_t)spec->n_heads * (size_t)spec->latent_dim * sizeof(float)),
        .thread = lines(expanded > absorbed ? expanded : absorbed)};
}

size_t cpu_latent_scratch_bytes(const Backend *b, int n_rows, int n_positions,
                                const LatentSpec *spec)
{
    (void)n_positions;
    Layout l = layout_of(n_rows, spec);
    return 4 * l.list + l.rows + (size_t)b->n_threads * l.thread;
}

static bool is_bank(const Weight *w, const LatentSpec *spec, int n_parts, int64_t cols)
{
    return w->n_mats == spec->n_heads && w->n_parts == n_parts && w->cols == cols;
}

static Status check(const LatentSpec *s, const LatentWeights *w, Err *e)
{
    if (s->n_heads < 1 || s->nope_dim < 1 || s->rope_dim < 0 || s->v_dim < 1 || s->latent_dim < 1)
        return err_set(e, ST_INPUT,
                       "latent attention: %d heads of %d + %d lanes, values of %d, latents of %d",
                       s->n_heads, s->nope_dim, s->rope_dim, s->v_dim, s->latent_dim);
    if (!is_bank(w->up, s, 2, s->latent_dim) || w->up->part[0].rows != s->nope_dim ||
        w->up->part[1].rows != s->v_dim)
        return err_set(e, ST_INPUT, "%s: is not %d matrices of %d + %d rows over %d latents",
                       w->up->name, s->n_heads, s->nope_dim, s->v_dim, s->latent_dim);
    if (!is_bank(w->absorb, s, 1, s->nope_dim) || w->absorb->rows != s->latent_dim)
        return err_set(e, ST_INPUT, "%s: is not %d matrices of %d latents over %d lanes",
                       w->absorb->name, s->n_heads, s->latent_dim, s->nope_dim);
    return ST_OK;
}

Status cpu_latent_attention(Backend *b, void *out, const void *q, const void *pool,
                            const AttnList *list, const LatentSpec *spec, const LatentWeights *w,
                            LatentForm form, void *scratch, Err *e)
{
    TRY(check(spec, w, e));
    TRY(check_format(&spec->kv, e));
    bool coded = spec->kv.dtype != KV_F32;
    int latent = coded ? whole_panels(spec->latent_dim) : spec->latent_dim;
    LatentJob job = {
        .b = b,
        .out = out,
        .q = q,
        .pool = pool,
        .seqs = list->seqs,
        .n_seqs = list->n_seqs,
        .spec = spec,
        .w = w,
        .q_stride = (int64_t)spec->n_heads * latent_query_dim(spec),
        .out_stride = (int64_t)spec->n_heads * spec->v_dim,
        .page_stride = whole_panels(latent + spec->rope_dim),
        .rope_at = latent,
        .page_bytes = cpu_latent_page_bytes(b, spec->latent_dim, spec->rope_dim, spec->kv.dtype)};
    for (int i = 0; i < list->n_seqs; i++)
        job.n_rows += list->seqs[i].n_rows;
    if (job.n_rows == 0)
        return ST_OK;
    Layout l = layout_of(job.n_rows, spec);
    char *at = scratch;
    job.pieces = (LatentPieces){.seq = (int *)(void *)at,
                                .query = (int *)(void *)(at + l.list),
                                .row = (int *)(void *)(at + 2 * l.list),
                                .task = (int *)(void *)(at + 3 * l.list)};
    job.pieces.row[0] = 0;
    job.rows = (float *)(void *)(at + 4 * l.list);
    job.threads = at + 4 * l.list + l.rows;
    job.thread_bytes = l.thread;
    if (form == LATENT_EXPANDED)
        latent_expanded(&job);
    else
        latent_absorbed(&job);
    return ST_OK;
}
