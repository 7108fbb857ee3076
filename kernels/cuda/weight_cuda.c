/* kernels/cuda/weight_cuda.c - banks of weight matrices: slabs (slabs.h) wherever the device has
 * Hopper's tensor cores and the shape allows (slabs_cuda.c); else codes and scales as they are
 * stored, rows filled up to whole tiles, so that kernels read them in 16-byte pieces.
 *
 * What the tensor cores take as it is keeps its bits: bf16. What has no kernel of its own becomes
 * bf16 while loading: float16, float32 and the IQ2 formats. A router's float32 is kept, as three
 * bf16 matrices whose sum it is: products are exact and sums are float32. Scales that hold for a
 * whole row (FP8 per tensor or row, the tensor's scale of NVFP4) are applied to the float32 sums. */
#include "io/log.h"
#include "kernels/check.h"
#include "kernels/cuda/weight_rows.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROW_ALIGN = 16, ROUTER_PLANES = 3, Q8_UNIT = 32 };

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static CudaCodes codes_of(FormatId format)
{
    switch (format) {
    case FORMAT_FP8:
    case FORMAT_MXFP8:
        return CUDA_E4M3;
    case FORMAT_NVFP4:
    case FORMAT_MXFP4:
        return CUDA_E2M1;
    case FORMAT_INT4:
        return CUDA_INT4;
    case FORMAT_Q8_0:
        return CUDA_INT8;
    default:
        return CUDA_BF16;
    }
}

static int64_t code_bytes(CudaCodes kind, int64_t n)
{
    return kind == CUDA_BF16 ? 2 * n : kind == CUDA_E2M1 || kind == CUDA_INT4 ? n / 2 : n;
}

static Status check_shape(const char *name, int n_mats, const WeightPart *parts, int n_parts,
                          int64_t cols, Err *e)
{
    if (n_mats < 1 || n_parts < 1 || n_parts > MAX_PARTS || cols < 1 || cols > INT32_MAX / 4)
        return err_set(e, ST_INPUT,
                       "%s: %d matrices of %d parts over %lld inputs cannot be a weight", name,
                       n_mats, n_parts, (long long)cols);
    for (int i = 0; i < n_parts; i++) {
        const WeightPart *p = &parts[i];
        if (p->rows < 1 || p->rows > INT32_MAX / 4)
            return err_set(e, ST_INPUT, "%s: part %d has %lld rows", name, i, (long long)p->rows);
        if ((unsigned)p->format >= N_FORMATS)
            return err_set(e, ST_INPUT, "%s: part %d has an unknown format", name, i);
        const QuantFormat *f = quant_format(p->format);
        if ((unsigned)p->scale >= N_SCALE_TYPES || !quant_scale_fits(p->format, p->scale) ||
            p->group < 1)
            return err_set(e, ST_INPUT, "%s: part %d has scales that %s has not", name, i, f->name);
        int64_t block = p->format == FORMAT_MXFP4 ? 32 : f->unit > 2 ? f->unit : 1;
        if (cols % block)
            return err_set(e, ST_INPUT, "%s: %lld inputs are not whole %s blocks of %lld", name,
                           (long long)cols, f->name, (long long)block);
        /* bf16 is the widest that rests here, with its padding. */
        if (cols + ROW_ALIGN * 8 > PTRDIFF_MAX / 32 / n_mats / (p->rows + 64))
            return err_set(e, ST_MEMORY, "%s: %d x [%lld, %lld] is more than any memory holds",
                           name, n_mats, (long long)p->rows, (long long)cols);
    }
    return ST_OK;
}

/* Codes and scales of a part as they are stored. */
static void describe(Weight *w, int i, const WeightPart *from)
{
    CudaPart *p = &w->part[i];
    bool lookup = w->use == WEIGHT_LOOKUP;
    p->kind = lookup ? CUDA_BF16 : codes_of(from->format);
    p->rows = (int)from->rows;
    p->first_row = (int)w->rows;
    w->format[i] = from->format;
    w->group[i] = from->group < w->cols ? from->group : w->cols;
    w->scale[i] = from->scale;
    p->group = from->format == FORMAT_Q8_0 ? Q8_UNIT : (int)w->group[i];
    p->scale_type = p->kind == CUDA_BF16          ? SCALE_NONE
                    : from->format == FORMAT_Q8_0 ? SCALE_F16
                    : from->format != FORMAT_FP8  ? from->scale
                    : w->group[i] == w->cols      ? SCALE_NONE /* it is the row's */
                                                  : from->scale;
    p->n_groups = (int)((w->cols + p->group - 1) / p->group);
    w->row_bytes[i] = lookup ? 2 * w->cols : w->planes * code_bytes(p->kind, w->cols_padded);
    w->row_scale_bytes[i] = round_up((int64_t)p->n_groups * scale_bytes(p->scale_type), 4);
    w->rows += p->rows;
}

/* The codec that has p's codes and scales exactly, or N_SLAB_CODECS. */
static SlabCodec codec_of(const CudaPart *p)
{
    ScaleType s = p->scale_type;
    bool wide = s == SCALE_F32 || s == SCALE_BF16 || s == SCALE_F16;
    switch (p->kind) {
    case CUDA_BF16:
        return SLAB_BF16;
    case CUDA_E2M1:
        return s == SCALE_E8M0 && p->group % 32 == 0   ? SLAB_MXFP4
               : s == SCALE_E4M3 && p->group % 16 == 0 ? SLAB_NVFP4
                                                       : N_SLAB_CODECS;
    case CUDA_E4M3:
        return s == SCALE_NONE                         ? SLAB_E4M3
               : s == SCALE_E8M0 && p->group % 32 == 0 ? SLAB_MXFP8
               : wide && p->group % SLAB_K == 0        ? SLAB_BLOCK8
                                                       : N_SLAB_CODECS;
    case CUDA_INT4:
        return s == SCALE_BF16 && p->group % 32 == 0 ? SLAB_INT4 : N_SLAB_CODECS;
    case CUDA_INT8:
        return s == SCALE_F16 && p->group % 32 == 0 ? SLAB_INT8 : N_SLAB_CODECS;
    default:
        return N_SLAB_CODECS;
    }
}

/* One layout for all parts: slabs if rows can be read 16 bytes at a time and all codecs are one. */
static CudaLayout layout_of(const Backend *b, const Weight *w)
{
    SlabCodec codec = codec_of(&w->part[0]);
    if (w->use == WEIGHT_LOOKUP || !b->api->has_sm90a() || w->cols % 8 != 0 ||
        codec == N_SLAB_CODECS)
        return CUDA_ROWS;
    for (int i = 1; i < w->n_parts; i++)
        if (codec_of(&w->part[i]) != codec)
            return CUDA_ROWS;
    if (w->use != WEIGHT_GATED || w->n_parts == 1)
        return CUDA_SLABS;
    return w->n_parts == 2 && w->part[0].rows == w->part[1].rows ? CUDA_PAIRED : CUDA_ROWS;
}

/* Places one part behind *at bytes of the bank, which has no memory yet. */
static void lay_out(Weight *w, int i, CudaLayout layout, size_t *at)
{
    CudaPart *p = &w->part[i];
    p->layout = layout;
    p->half = i;
    w->codes_at[i] = w->scales_at[i] = *at;
    if (layout == CUDA_ROWS) {
        p->codes_row = w->row_bytes[i];
        p->codes_mat = p->codes_row * p->rows;
        p->scales_row = w->row_scale_bytes[i];
        p->scales_mat = p->scales_row * p->rows;
        *at += (size_t)round_up(p->codes_mat * w->n_mats, 256);
        w->scales_at[i] = *at;
        *at += (size_t)round_up(p->scales_mat * w->n_mats, 256);
    } else {
        int64_t rows = layout == CUDA_PAIRED ? SLAB_ROWS / 2 : SLAB_ROWS;
        p->codec = codec_of(p);
        p->codes_row = (w->cols + SLAB_K - 1) / SLAB_K * w->planes * slab_record_bytes(p->codec);
        p->codes_mat = (p->rows + rows - 1) / rows * p->codes_row;
        if (layout == CUDA_PAIRED && i == 1)
            w->codes_at[i] = w->codes_at[0];
        else
            *at += (size_t)round_up(p->codes_mat * w->n_mats, 256);
    }
    p->row_scale_mat = p->rows;
    w->row_scale_at[i] = *at;
    *at += w->use == WEIGHT_LOOKUP
               ? 0
               : (size_t)round_up((int64_t)sizeof(float) * p->rows * w->n_mats, 256);
}

Status cuda_weight_create(Backend *b, const char *name, WeightUse use, int n_mats,
                          const WeightPart *parts, int n_parts, int64_t cols, Weight **out, Err *e)
{
    TRY(check_shape(name, n_mats, parts, n_parts, cols, e));
    if (use == WEIGHT_LOOKUP && (n_mats != 1 || n_parts != 1))
        return err_set(e, ST_INPUT, "%s: rows are looked up in one matrix, not in %d x %d", name,
                       n_mats, n_parts);
    Weight *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ST_MEMORY, "out of memory: %s", name);
    snprintf(w->name, sizeof w->name, "%s", name);
    w->use = use;
    w->n_mats = n_mats;
    w->n_parts = n_parts;
    w->cols = cols;
    w->cols_padded = round_up(cols, CUDA_TILE_K);
    bool exact = use == WEIGHT_ROUTER;
    for (int i = 0; i < n_parts; i++)
        exact = exact && (parts[i].format == FORMAT_F32 || parts[i].format == FORMAT_F16);
    w->planes = exact ? ROUTER_PLANES : 1;
    size_t bytes = 0;
    for (int i = 0; i < n_parts; i++)
        describe(w, i, &parts[i]);
    CudaLayout layout = layout_of(b, w);
    for (int i = 0; i < n_parts; i++)
        lay_out(w, i, layout, &bytes);
    if (use == WEIGHT_CODED)
        bytes = cuda_fp8_lay_out(w);
    void *data;
    Status st = cuda_alloc(b, bytes, name, &data, e);
    if (st != ST_OK) {
        free(w);
        return st;
    }
    w->data = data;
    w->bytes = bytes;
    for (int i = 0; i < n_parts; i++) {
        CudaPart *p = &w->part[i];
        p->codes = w->data + w->codes_at[i];
        bool own = p->layout == CUDA_ROWS && p->scale_type != SCALE_NONE;
        p->scales = own ? w->data + w->scales_at[i] : NULL;
        p->row_scale = (const float *)(const void *)(w->data + w->row_scale_at[i]);
    }
    *out = w;
    cuda_staging_forget(b); /* other files may be loaded from here on */
    return ST_OK;
}

void cuda_weight_destroy(Backend *b, Weight *w)
{
    if (!w)
        return;
    cuda_release(b, w->data);
    free(w);
}

size_t cuda_weight_bytes(const Weight *w)
{
    return w->bytes;
}

/* --- values --- */

static bool scales_match(const Weight *w, int part, const QuantTensor *t)
{
    if (w->scale[part] == SCALE_NONE)
        return !t->scales;
    if (!t->scales || t->group < 1 || t->scale_rows < 1 || t->first_row < 0)
        return false;
    int64_t group = t->group < w->cols ? t->group : w->cols, own = w->group[part];
    bool type = t->scale_type == w->scale[part] || w->scale[part] == SCALE_F32;
    return type && (group % own == 0 || group == w->cols);
}

static Status check_set(const Weight *w, int mat, int part, const QuantTensor *t, Err *e)
{
    TRY(check_place(w->name, w->n_mats, w->n_parts, mat, part, e));
    const CudaPart *p = &w->part[part];
    TRY(check_tensor(w->name, mat, part, w->format[part], p->rows, w->cols, t, e));
    if (!scales_match(w, part, t))
        return err_set(e, ST_INPUT,
                       "%s: matrix %d, part %d has scales of other columns or another type than "
                       "the rest",
                       w->name, mat, part);
    return ST_OK;
}

static void warn_rounded(Backend *b, const Weight *w, FormatId format)
{
    if (b->warned || w->planes > 1 || (format != FORMAT_F32 && format != FORMAT_F16))
        return;
    b->warned = true;
    log_warn_once("%s: its %s values, and those of any other such weight but routers, are rounded "
                  "to bf16",
                  w->name, quant_format(format)->name);
}

int cuda_weight_checks(const Weight *w, int part, const QuantTensor *t)
{
    const CudaPart *p = &w->part[part];
    bool slabs = w->use != WEIGHT_CODED && p->layout != CUDA_ROWS;
    int seen = 0;
    if (t->data_file && (slabs ? rows_raw_codes(w, p, t) : rows_lie_so(w, part, t)))
        seen |= WEIGHT_CHECKS_CODES;
    if (t->scales_file && slabs && rows_raw_scales(p, t))
        seen |= WEIGHT_CHECKS_SCALES;
    return seen;
}

void cuda_weight_ahead(Backend *b, const Weight *w, int part, const QuantTensor *t)
{
    const CudaPart *p = &w->part[part];
    Err ignored; /* then nothing is read ahead */
    if (w->use != WEIGHT_CODED && p->layout != CUDA_ROWS) {
        cuda_slabs_ahead(b, w, part, t);
    } else if (t->data_file && rows_lie_so(w, part, t)) {
        UploadSpan span = rows_span(p, t, ROW_CODES, 0, p->rows);
        (void)cuda_spans_announce(b, &span, &ignored);
    }
}

/* Codes one row behind the other at `to`, filled up to row_bytes. */
static Status set_codes(Backend *b, RowJob *job, int part, int64_t row_bytes, uint8_t *to, Err *e)
{
    if (!rows_lie_so(job->w, part, job->t))
        return rows_fill(b, job, ROW_CODES, 0, job->p->rows, row_bytes, to, b->stream, e);
    UploadSpan span = rows_span(job->p, job->t, ROW_CODES, 0, job->p->rows);
    span.dst = to;
    return cuda_spans_send(b, &span, 1, b->stream, job->w->name, e);
}

static Status set_rows(Backend *b, RowJob *job, int mat, int part, float *whole, Err *e)
{
    const Weight *w = job->w;
    const CudaPart *p = job->p;
    if (w->use == WEIGHT_CODED)
        return cuda_fp8_set(b, job, mat, part, e);
    if (w->use != WEIGHT_LOOKUP)
        TRY(rows_fill(b, job, ROW_WHOLE_SCALES, 0, p->rows, (int64_t)sizeof(float),
                      (uint8_t *)whole, b->stream, e));
    TRY(set_codes(b, job, part, p->codes_row, w->data + w->codes_at[part] + mat * p->codes_mat, e));
    if (!p->scales)
        return ST_OK;
    return rows_fill(b, job, ROW_SCALES, 0, p->rows, p->scales_row,
                     w->data + w->scales_at[part] + mat * p->scales_mat, b->stream, e);
}

Status cuda_weight_set(Backend *b, Weight *w, int mat, int part, const QuantTensor *t, Err *e)
{
    RowJob job;
    TRY(check_set(w, mat, part, t, e));
    const CudaPart *p = &w->part[part];
    warn_rounded(b, w, t->format->id);
    TRY(rows_begin(b, w, part, t, &job, e));
    float *whole = (float *)(void *)(w->data + w->row_scale_at[part]) + mat * p->row_scale_mat;
    Status st = w->use != WEIGHT_CODED && p->layout != CUDA_ROWS
                    ? cuda_slabs_set(b, &job, mat, part, whole, e)
                    : set_rows(b, &job, mat, part, whole, e);
    rows_end(&job);
    return st;
}
