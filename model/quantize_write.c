/* model/quantize_write.c - see quantize_write.h.
 *
 * Matrices that share a scale are neighbours in the plan. They are taken in batches: first the
 * largest magnitude of each, by all threads, then their codes. Every byte has its place from the
 * start, so threads write without asking each other. */
#include "model/quantize_write.h"

#include "model/kept.h"
#include "quant/encode.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_VALUES = 1 << 20, /* of a matrix at a time, and no fewer than 128 rows: whole blocks */
    COPY_BYTES = 16 << 20,  /* of a tensor at a time */
    /* Of a batch, and whatever shares a scale with the last of them. The matrices of a pack are in
     * memory meanwhile. */
    BATCH_MATRICES = 256,
    BATCH_VALUES = 1 << 27
};

typedef struct Found { /* in a matrix, or all that share its scale */
    float amax;
    int low, high; /* exponents, where the source is MXFP4 */
} Found;

typedef struct Scratch { /* a thread's */
    float *values;       /* [chunk] */
    uint8_t *codes, *turned, *scales;
    size_t cap_values, cap_codes, cap_scales;
} Scratch;

typedef struct Writer {
    const QuantizePlan *plan;
    const PlanPart *part;
    const Checkpoint *source;
    TensorFile file;
    Scratch *scratch; /* [threads] */
    Found *found;     /* [batch] */
    int first, n;     /* of the batch, in the plan's matrices */
    atomic_int failed;
    Err *errors; /* [threads] */
    atomic_llong read, written, not_lossless;
} Writer;

/* --- memory --- */

static bool reserve(void **p, size_t *cap, size_t bytes)
{
    if (bytes <= *cap)
        return true;
    free(*p);
    *p = malloc(bytes);
    *cap = *p ? bytes : 0;
    return *p;
}

static Status take_values(Scratch *s, int64_t n, Err *e)
{
    void *p = s->values;
    bool ok = reserve(&p, &s->cap_values, (size_t)n * sizeof *s->values);
    s->values = p;
    return ok ? ST_OK : err_set(e, ST_MEMORY, "not enough memory for %lld values", (long long)n);
}

/* codes and turned of code_bytes, scales of scale_bytes. */
static Status take_codes(Scratch *s, int64_t code_bytes, int64_t scale_bytes, Err *e)
{
    void *p = s->codes, *q = s->scales;
    bool ok = reserve(&p, &s->cap_codes, 2 * (size_t)code_bytes);
    s->codes = p;
    s->turned = s->codes ? s->codes + code_bytes : NULL;
    ok = reserve(&q, &s->cap_scales, 2 * (size_t)scale_bytes) && ok;
    s->scales = q;
    return ok ? ST_OK
              : err_set(e, ST_MEMORY, "not enough memory for %lld bytes of codes",
                        (long long)code_bytes);
}

/* --- one matrix --- */

static Status view_of(const Writer *w, const PlanMatrix *x, QuantTensor *out, Err *e)
{
    QuantTensor all;
    TRY(linear_view(&w->source->files, x->source, x->expert, &all, e));
    *out = quant_rows(&all, x->first_row, x->rows);
    return ST_OK;
}

static int64_t chunk_rows(const PlanMatrix *x)
{
    int64_t rows = CHUNK_VALUES / x->cols / 128 * 128;
    if (x->transposed || rows > x->rows)
        return x->rows;
    return rows < 128 ? (x->rows < 128 ? x->rows : 128) : rows;
}

static bool lossless(const PlanMatrix *x)
{
    return x->of_mxfp4 && quantize_target(x->target)->format == FORMAT_NVFP4 && x->group == 16;
}

/* Its codes lie byte after byte, as in every layout of MXFP4 that is read. */
static void widen_range(const QuantTensor *q, Found *f)
{
    for (int64_t r = 0; r < q->rows; r++)
        encode_mxfp4_range(q->data + r * q->row_bytes,
                           q->scales + (q->first_row + r) * q->scale_row_bytes, q->cols / 32,
                           &f->low, &f->high);
}

/* Whether a scale is made from all of the matrix, which must then be read twice. */
static bool needs_look(const PlanMatrix *x)
{
    return x->target == TARGET_FP8_STATIC || quantize_target(x->target)->format == FORMAT_NVFP4;
}

static Status not_finite(const Writer *w, const PlanMatrix *x, Err *e)
{
    return err_set(e, ST_INPUT, "%s: tensor \"%.200s\": holds a value that is not finite",
                   tensor_set_file(&w->source->files, x->source->weight), x->source->weight->name);
}

static Status look(const Writer *w, const PlanMatrix *x, Scratch *s, Found *f, Err *e)
{
    QuantTensor q;
    *f = (Found){.low = 127, .high = -128};
    TRY(view_of(w, x, &q, e));
    int64_t step = chunk_rows(x);
    TRY(take_values(s, step * x->cols, e));
    for (int64_t r = 0; r < x->rows; r += step) {
        QuantTensor rows = quant_rows(&q, r, x->rows - r < step ? x->rows - r : step);
        quant_decode(&rows, s->values);
        float amax = encode_amax(s->values, rows.rows * x->cols);
        if (!isfinite(amax))
            return not_finite(w, x, e);
        f->amax = amax > f->amax ? amax : f->amax;
    }
    if (lossless(x))
        widen_range(&q, f);
    return ST_OK;
}

/* Bytes of a row of scales; 0: none of its own. Blocks: of 128 rows. */
static int64_t scale_row(const PlanMatrix *x)
{
    int64_t groups = x->group > 0 ? x->cols / x->group + (x->cols % x->group != 0) : 0;
    switch (x->target) {
    case TARGET_FP8_DYNAMIC:
        return 4;
    case TARGET_FP8_BLOCK:
        return 4 * groups;
    case TARGET_INT4:
        return 2 * groups;
    default:
        return groups;
    }
}

static int64_t scale_rows(const PlanMatrix *x, int64_t rows)
{
    return x->target == TARGET_FP8_BLOCK ? (rows + 127) / 128 : rows;
}

/* v [rows, cols] into s->codes and s->scales. */
static void encode_rows(const PlanMatrix *x, const Found *f, const float *v, int64_t rows,
                        Scratch *s)
{
    float *floats = (float *)(void *)s->scales;
    uint16_t *halves = (uint16_t *)(void *)s->scales;
    switch (x->target) {
    case TARGET_FP8_STATIC:
        encode_fp8(v, rows * x->cols, x->rounds_to, encode_scale(f->amax, 448.0f), s->codes);
        break;
    case TARGET_FP8_DYNAMIC:
        encode_fp8_channel(v, rows, x->cols, s->codes, floats);
        break;
    case TARGET_FP8_BLOCK:
        encode_fp8_block(v, rows, x->cols, 128, s->codes, floats);
        break;
    case TARGET_NVFP4:
    case TARGET_W4A16_NVFP4:
        encode_nvfp4(v, rows, x->cols, x->group, encode_scale(f->amax, 2688.0f), s->codes,
                     s->scales);
        break;
    case TARGET_MXFP8:
        encode_mxfp8(v, rows, x->cols, s->codes, s->scales);
        break;
    case TARGET_MXFP4:
        encode_mxfp4(v, rows, x->cols, s->codes, s->scales);
        break;
    case TARGET_INT4:
        if (x->of_mxfp4 && x->group == 32)
            encode_int4_of_mxfp4(v, rows, x->cols, s->codes, halves);
        else
            encode_int4(v, rows, x->cols, x->group, x->rounds_to, s->codes, halves);
        break;
    case TARGET_Q8_0:
        encode_q8_0(v, rows, x->cols, s->codes);
        break;
    default: /* TARGET_BF16 */
        for (int64_t i = 0; i < rows * x->cols; i++) {
            uint16_t half = float_to_bf16(v[i]);
            memcpy(s->codes + 2 * i, &half, sizeof half);
        }
        break;
    }
}

/* Codes as they are, scales as two E4M3 powers each. */
static void take_over(const QuantTensor *q, const Found *f, Scratch *s)
{
    int64_t bytes = q->cols / 2, blocks = q->cols / 32;
    for (int64_t r = 0; r < q->rows; r++) {
        memcpy(s->codes + r * bytes, q->data + r * q->row_bytes, (size_t)bytes);
        encode_nvfp4_of_mxfp4(q->scales + (q->first_row + r) * q->scale_row_bytes, blocks, f->low,
                              f->high, s->scales + 2 * r * blocks);
    }
}

/* [rows, cols] of elements of size bytes to [cols, rows]. */
static void turn(const uint8_t *in, int64_t rows, int64_t cols, int64_t size, uint8_t *out)
{
    enum { TILE = 32 }; /* so that neither side is walked across a page a value */
    for (int64_t r0 = 0; r0 < rows; r0 += TILE)
        for (int64_t c0 = 0; c0 < cols; c0 += TILE)
            for (int64_t r = r0; r < rows && r < r0 + TILE; r++)
                for (int64_t c = c0; c < cols && c < c0 + TILE; c++)
                    memcpy(out + (c * rows + r) * size, in + (r * cols + c) * size, (size_t)size);
}

static Status put(Writer *w, int tensor, int64_t at, const void *bytes, int64_t len, Err *e)
{
    atomic_fetch_add(&w->written, len);
    return tensor_file_put(&w->file, w->plan->tensors[tensor].offset + at, bytes, (size_t)len, e);
}

static Status put_global(Writer *w, const PlanMatrix *x, const Found *f, bool as_it_is, Err *e)
{
    if (x->global < 0)
        return ST_OK;
    float scale = as_it_is
                      ? encode_nvfp4_of_mxfp4_scale(f->low, f->high)
                      : encode_scale(f->amax, x->target == TARGET_FP8_STATIC ? 448.0f : 2688.0f);
    return put(w, x->global, 0, &scale, sizeof scale, e);
}

static Status write_matrix(Writer *w, const PlanMatrix *x, const Found *f, Scratch *s, Err *e)
{
    QuantTensor q;
    FormatId id = quantize_target(x->target)->format;
    int64_t step = chunk_rows(x), code_row = encode_row_bytes(id, x->cols),
            scale_bytes = scale_row(x);
    bool as_it_is = lossless(x) && encode_mxfp4_fits_nvfp4(f->low, f->high);
    TRY(view_of(w, x, &q, e));
    TRY(take_values(s, step * x->cols, e));
    TRY(take_codes(s, step * code_row, scale_rows(x, step) * scale_bytes, e));
    TRY(put_global(w, x, f, as_it_is, e));
    if (lossless(x) && !as_it_is)
        atomic_fetch_add(&w->not_lossless, 1);
    for (int64_t r = 0; r < x->rows; r += step) {
        QuantTensor rows = quant_rows(&q, r, x->rows - r < step ? x->rows - r : step);
        int64_t n_scales = scale_rows(x, rows.rows) * scale_bytes;
        const uint8_t *codes = s->codes, *scales = s->scales;
        if (as_it_is) {
            take_over(&rows, f, s);
        } else {
            quant_decode(&rows, s->values);
            if (!needs_look(x) && !isfinite(encode_amax(s->values, rows.rows * x->cols)))
                return not_finite(w, x, e);
            encode_rows(x, f, s->values, rows.rows, s);
        }
        if (x->transposed) {
            int64_t size = id == FORMAT_BF16 ? 2 : 1;
            turn(s->codes, x->rows, code_row / size, size, s->turned);
            turn(s->scales, x->rows, scale_bytes, 1, s->scales + n_scales);
            codes = s->turned;
            scales = s->scales + n_scales;
        }
        TRY(put(w, x->weight, x->weight_at + r * code_row, codes, rows.rows * code_row, e));
        if (x->scale >= 0)
            TRY(put(w, x->scale, x->scale_at + scale_rows(x, r) * scale_bytes, scales, n_scales,
                    e));
    }
    return ST_OK;
}

/* --- a batch --- */

static void look_task(void *ctx, int task, int thread)
{
    Writer *w = ctx;
    const PlanMatrix *x = &w->plan->matrices[w->first + task];
    if (!atomic_load(&w->failed) && needs_look(x) &&
        look(w, x, &w->scratch[thread], &w->found[task], &w->errors[thread]) != ST_OK)
        atomic_store(&w->failed, 1);
}

static void write_task(void *ctx, int task, int thread)
{
    Writer *w = ctx;
    const PlanMatrix *x = &w->plan->matrices[w->first + task];
    atomic_fetch_add(&w->read,
                     x->rows * quant_row_bytes(x->source->q.format, x->cols, x->source->q.group,
                                               x->source->q.scale_type));
    if (!atomic_load(&w->failed) &&
        write_matrix(w, x, &w->found[task], &w->scratch[thread], &w->errors[thread]) != ST_OK)
        atomic_store(&w->failed, 1);
}

/* All that share a scale get the largest of what was found in any of them. */
static void share_found(Writer *w)
{
    const PlanMatrix *x = w->plan->matrices + w->first;
    for (int i = 0, end; i < w->n; i = end) {
        Found all = w->found[i];
        for (end = i + 1; end < w->n && x[end].set == x[i].set; end++) {
            const Found *f = &w->found[end];
            all.amax = f->amax > all.amax ? f->amax : all.amax;
            all.low = f->low < all.low ? f->low : all.low;
            all.high = f->high > all.high ? f->high : all.high;
        }
        for (int j = i; j < end; j++)
            w->found[j] = all;
    }
}

static Status failure(const Writer *w, int n_threads, Err *e)
{
    for (int i = 0; i < n_threads; i++)
        if (w->errors[i].code != ST_OK) {
            if (e)
                *e = w->errors[i];
            return w->errors[i].code;
        }
    return ST_OK;
}

/* Where the batch that begins at first ends: never between two that share a scale. */
static int batch_end(const QuantizePlan *plan, const PlanPart *part, int first)
{
    const PlanMatrix *x = plan->matrices;
    int end = first, limit = part->first_matrix + part->n_matrices;
    int64_t values = 0;
    do
        values += x[end].rows * x[end].cols;
    while (++end < limit && ((end - first < BATCH_MATRICES && values < BATCH_VALUES) ||
                             x[end].set == x[end - 1].set));
    return end;
}

static Status write_matrices(Writer *w, Team *team, int n_threads, Err *e)
{
    int limit = w->part->first_matrix + w->part->n_matrices;
    for (int first = w->part->first_matrix; first < limit; first += w->n) {
        w->first = first;
        w->n = batch_end(w->plan, w->part, first) - first;
        free(w->found);
        w->found = calloc((size_t)w->n, sizeof *w->found);
        if (!w->found)
            return err_set(e, ST_MEMORY, "not enough memory for %d matrices", w->n);
        team_run(team, w->n, look_task, w);
        if (atomic_load(&w->failed))
            return failure(w, n_threads, e);
        share_found(w);
        team_run(team, w->n, write_task, w);
        if (atomic_load(&w->failed))
            return failure(w, n_threads, e);
        for (int i = first; i < first + w->n; i++)
            kept_drop(&w->source->files, w->plan->matrices[i].source->weight);
    }
    return ST_OK;
}

static Status write_fixed(Writer *w, Err *e)
{
    for (int i = 0; i < w->part->n_fixed; i++) {
        const PlanFixed *f = &w->plan->fixed[w->part->first_fixed + i];
        int64_t bytes = w->plan->tensors[f->tensor].bytes;
        if (!f->copy) {
            TRY(put(w, f->tensor, 0, f->value, bytes, e));
            continue;
        }
        TRY(kept_need(&w->source->files, f->copy, e));
        atomic_fetch_add(&w->read, bytes);
        for (int64_t at = 0; at < bytes; at += COPY_BYTES)
            TRY(put(w, f->tensor, at, f->copy->data + at,
                    bytes - at < COPY_BYTES ? bytes - at : COPY_BYTES, e));
    }
    return ST_OK;
}

static void free_writer(Writer *w, int n_threads)
{
    for (int i = 0; w->scratch && i < n_threads; i++) {
        free(w->scratch[i].values);
        free(w->scratch[i].codes);
        free(w->scratch[i].scales);
    }
    free(w->scratch);
    free(w->errors);
    free(w->found);
}

Status quantize_write_part(const QuantizePlan *plan, int part, const Checkpoint *source,
                           const char *dir, Team *team, QuantizeCounts *counts, Err *e)
{
    int n_threads = team ? team_size(team) : 1;
    char path[FILE_PATH_MAX];
    Writer w = {.plan = plan, .part = &plan->parts[part], .source = source, .file = {.fd = -1}};
    Status st;
    TRY(file_join(path, dir, w.part->name, e));
    w.scratch = calloc((size_t)n_threads, sizeof *w.scratch);
    w.errors = calloc((size_t)n_threads, sizeof *w.errors);
    if (!w.scratch || !w.errors) {
        st = err_set(e, ST_MEMORY, "not enough memory for %d threads", n_threads);
        goto fail;
    }
    TRY_GOTO(tensor_file_create(path, &w.part->header, w.part->bytes, &w.file, e));
    TRY_GOTO(write_fixed(&w, e));
    TRY_GOTO(write_matrices(&w, team, n_threads, e));
    TRY_GOTO(tensor_file_finish(&w.file, e));
    counts->matrices += w.part->n_matrices;
    counts->bytes_read += atomic_load(&w.read);
    counts->bytes_written += atomic_load(&w.written);
    counts->not_lossless += atomic_load(&w.not_lossless);
fail:
    tensor_file_abandon(&w.file);
    free_writer(&w, n_threads);
    return st;
}
