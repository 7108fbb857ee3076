/* kernels/cpu/attention_cpu.c - keys and values into pages, and attention as tasks of (sequence,
 * KV head, tile of queries). A page of a layer holds the keys of all heads, then the values; how
 * they lie within a head is attention.inc's. */
#include "kernels/cpu/cpu.h"
#include "quant/lanes.h"

#include <stdlib.h>
#include <string.h>

Status cpu_list_create(Backend *b, int max_rows, int max_seqs, int max_pages, AttnList **out,
                       Err *e)
{
    (void)b;
    (void)max_rows; /* rows and pages are read where the caller has them */
    (void)max_pages;
    AttnList *l = calloc(1, sizeof *l);
    if (l)
        l->seqs = malloc((size_t)(max_seqs > 0 ? max_seqs : 1) * sizeof *l->seqs);
    if (!l || !l->seqs) {
        free(l);
        return err_set(e, ST_MEMORY, "out of memory for a list of %d sequences", max_seqs);
    }
    l->most_seqs = max_seqs;
    *out = l;
    return ST_OK;
}

Status cpu_list_set(Backend *b, AttnList *l, const AttnSeq *seqs, int n_seqs, int n_padded, Err *e)
{
    (void)b;
    (void)n_padded; /* nothing is recorded */
    if (n_seqs < 0 || n_seqs > l->most_seqs)
        return err_set(e, ST_INPUT, "attention: %d sequences in a list of at most %d", n_seqs,
                       l->most_seqs);
    if (n_seqs > 0)
        memcpy(l->seqs, seqs, (size_t)n_seqs * sizeof *l->seqs);
    l->n_seqs = n_seqs;
    return ST_OK;
}

void cpu_list_destroy(Backend *b, AttnList *l)
{
    (void)b;
    if (!l)
        return;
    free(l->seqs);
    free(l);
}

size_t cpu_kv_page_bytes(const Backend *b, int n_kv_heads, int head_dim, KvDtype dtype)
{
    (void)b;
    size_t per_position = (size_t)head_dim + (size_t)cpu_value_stride(head_dim);
    return (size_t)n_kv_heads * cpu_kv_bytes(dtype, per_position * KV_PAGE);
}

static Status check_spec(const AttnSpec *spec, Err *e)
{
    if (spec->head_dim < 1 || spec->head_dim > MAX_HEAD_DIM || spec->n_kv_heads < 1 ||
        spec->n_heads % spec->n_kv_heads)
        return err_set(e, ST_INPUT, "attention: %d heads over %d KV heads of %d lanes (at most %d)",
                       spec->n_heads, spec->n_kv_heads, spec->head_dim, MAX_HEAD_DIM);
    if (spec->kv.dtype == KV_NVFP4 && spec->head_dim % LANES)
        return err_set(e, ST_INPUT, "attention: NVFP4 keys of %d lanes: not a multiple of 16",
                       spec->head_dim);
    bool scaled = spec->kv.dtype == KV_FP8 || spec->kv.dtype == KV_NVFP4;
    if (scaled && !(spec->kv.k_scale > 0 && spec->kv.v_scale > 0))
        return err_set(e, ST_INPUT, "attention: scales of keys and values %g, %g: not positive",
                       (double)spec->kv.k_scale, (double)spec->kv.v_scale);
    return ST_OK;
}

typedef struct AttnJob {
    Backend *b;
    float *out;
    const float *q, *k, *v;
    char *pool;            /* kv_write only */
    const char *pool_read; /* attention only */
    int64_t stride;
    const AttnSeq *seqs;
    int n_seqs;
    const AttnSpec *spec;
    size_t page_bytes;
} AttnJob;

static int pages_touched(const AttnSeq *s)
{
    return s->n_rows ? (s->pos + s->n_rows - 1) / KV_PAGE - s->pos / KV_PAGE + 1 : 0;
}

/* Positions lo .. hi-1 of one page, 16 lanes of the head at a time: a cache line of each row. */
static void write_page(const AttnJob *job, const AttnSeq *s, int page, int lo, int hi)
{
    int d = job->spec->head_dim, stride = cpu_value_stride(d), n_kv = job->spec->n_kv_heads;
    float *keys = (float *)(void *)(job->pool + (size_t)s->pages[page] * job->page_bytes);
    float *values = keys + (int64_t)n_kv * d * KV_PAGE;
    int64_t row = s->row + (int64_t)page * KV_PAGE - s->pos; /* of the page's position 0 */
    for (int h = 0; h < n_kv; h++, keys += d * KV_PAGE, values += stride * KV_PAGE)
        for (int i0 = 0; i0 < d; i0 += PANEL) {
            int n = d - i0 < PANEL ? d - i0 : PANEL;
            for (int j = lo; j < hi; j++) {
                int64_t from = (row + j) * job->stride + (int64_t)h * d + i0;
                float *key = keys + (j / PANEL * d + i0) * PANEL + j % PANEL;
                float *value = values + (i0 * KV_PAGE) + j * PANEL;
                for (int i = 0; i < n; i++)
                    key[i * PANEL] = job->k[from + i];
                for (int i = 0; i < PANEL; i++)
                    value[i] = i < n ? job->v[from + i] : 0.0f;
            }
        }
}

static void write_coded_page(const AttnJob *job, const AttnSeq *s, int page, int lo, int hi)
{
    const AttnSpec *spec = job->spec;
    const KvFormat *kv = &spec->kv;
    int d = spec->head_dim, stride = cpu_value_stride(d), n_kv = spec->n_kv_heads;
    size_t key_bytes = cpu_kv_bytes(kv->dtype, (size_t)d * KV_PAGE);
    size_t value_bytes = cpu_kv_bytes(kv->dtype, (size_t)stride * KV_PAGE);
    uint8_t *keys = (uint8_t *)job->pool + (size_t)s->pages[page] * job->page_bytes;
    uint8_t *values = keys + (size_t)n_kv * key_bytes;
    int64_t row = s->row + (int64_t)page * KV_PAGE - s->pos; /* of the page's position 0 */
    for (int h = 0; h < n_kv; h++, keys += key_bytes, values += value_bytes)
        for (int i0 = 0; i0 < d; i0 += LANES) {
            size_t bytes = (size_t)(d - i0 < LANES ? d - i0 : LANES) * sizeof(float);
            for (int j = lo; j < hi; j++) {
                int64_t from = (row + j) * job->stride + (int64_t)h * d + i0;
                float x[LANES] = {0};
                uint8_t code[2 * LANES];
                memcpy(x, job->k + from, bytes);
                cpu_kv_encode(code, x, kv->dtype, kv->k_scale);
                cpu_kv_store_key(keys, code, spec, j, i0);
                memcpy(x, job->v + from, bytes);
                cpu_kv_encode(code, x, kv->dtype, kv->v_scale);
                cpu_kv_store_value(values, code, spec, j, i0);
            }
        }
}

static void kv_write_task(void *ctx, int task, int thread)
{
    (void)thread;
    const AttnJob *job = ctx;
    int i = cpu_find_group(job->b->task_first, job->n_seqs, task);
    const AttnSeq *s = &job->seqs[i];
    int page = s->pos / KV_PAGE + task - job->b->task_first[i], start = page * KV_PAGE;
    if (s->pages[page] < 0)
        return; /* no later step can see these positions */
    int lo = s->pos > start ? s->pos - start : 0;
    int hi = s->pos + s->n_rows - start < KV_PAGE ? s->pos + s->n_rows - start : KV_PAGE;
    if (job->spec->kv.dtype == KV_F32)
        write_page(job, s, page, lo, hi);
    else
        write_coded_page(job, s, page, lo, hi);
}

static int group_of(const AttnSpec *spec)
{
    return spec->n_heads / spec->n_kv_heads;
}

static int tiles_of(const AttnJob *job, const AttnSeq *s)
{
    return (int)(((int64_t)s->n_rows * group_of(job->spec) + ATTN_ROWS - 1) / ATTN_ROWS);
}

static void attention_task(void *ctx, int task, int thread)
{
    const AttnJob *job = ctx;
    int i = cpu_find_group(job->b->task_first, job->n_seqs, task), n_kv = job->spec->n_kv_heads;
    const AttnSeq *s = &job->seqs[i];
    int at = task - job->b->task_first[i], group = group_of(job->spec);
    int tile =
        tiles_of(job, s) - 1 - at / n_kv; /* the longest first: the last to finish ends the step */
    int64_t rest = (int64_t)s->n_rows * group - (int64_t)tile * ATTN_ROWS;
    AttnTile t = {.out_stride = (int64_t)job->spec->n_heads * job->spec->head_dim,
                  .q = job->q + s->row * job->stride,
                  .q_stride = job->stride,
                  .pool = job->pool_read,
                  .page_bytes = job->page_bytes,
                  .seq = s,
                  .spec = job->spec,
                  .kv_head = at % n_kv,
                  .group = group,
                  .first = tile * ATTN_ROWS,
                  .n_rows = rest < ATTN_ROWS ? (int)rest : ATTN_ROWS};
    t.out = job->out + s->row * t.out_stride;
    job->b->kernels->attention(&t, &job->b->scratch[thread]);
}

/* Runs fn over all sequences, in runs that the task table can hold. */
static void run_sequences(AttnJob *job, int n_seqs,
                          int tasks_of(const AttnJob *job, const AttnSeq *s),
                          void (*fn)(void *ctx, int task, int thread))
{
    const AttnSeq *all = job->seqs;
    for (int from = 0; from < n_seqs; from += job->n_seqs) {
        job->seqs = all + from;
        job->n_seqs = n_seqs - from < MAX_GROUPS ? n_seqs - from : MAX_GROUPS;
        int *first = job->b->task_first;
        first[0] = 0;
        for (int i = 0; i < job->n_seqs; i++)
            first[i + 1] = first[i] + tasks_of(job, &job->seqs[i]);
        cpu_run(job->b, first[job->n_seqs],
                (int64_t)first[job->n_seqs] * KV_PAGE * job->spec->head_dim, fn, job);
    }
}

static int write_tasks(const AttnJob *job, const AttnSeq *s)
{
    (void)job;
    return pages_touched(s);
}

static int attention_tasks(const AttnJob *job, const AttnSeq *s)
{
    return tiles_of(job, s) * job->spec->n_kv_heads;
}

Status cpu_kv_write(Backend *b, void *pool, const void *k, const void *v, int64_t stride,
                    const AttnList *list, const AttnSpec *spec, Err *e)
{
    TRY(check_spec(spec, e));
    AttnJob job = {.b = b,
                   .k = k,
                   .v = v,
                   .pool = pool,
                   .stride = stride,
                   .seqs = list->seqs,
                   .spec = spec,
                   .page_bytes =
                       cpu_kv_page_bytes(b, spec->n_kv_heads, spec->head_dim, spec->kv.dtype)};
    run_sequences(&job, list->n_seqs, write_tasks, kv_write_task);
    return ST_OK;
}

Status cpu_attention(Backend *b, void *out, const void *q, int64_t stride, const void *pool,
                     const AttnList *list, const AttnSpec *spec, Err *e)
{
    TRY(check_spec(spec, e));
    AttnJob job = {.b = b,
                   .out = out,
                   .q = q,
                   .pool_read = pool,
                   .stride = stride,
                   .seqs = list->seqs,
                   .spec = spec,
                   .page_bytes =
                       cpu_kv_page_bytes(b, spec->n_kv_heads, spec->head_dim, spec->kv.dtype)};
    run_sequences(&job, list->n_seqs, attention_tasks, attention_task);
    return ST_OK;
}
