/* kernels/cuda/weight_cuda.c - banks of weight matrices: codes and scales as they are stored, rows
 * filled up to whole tiles, so that kernels read them in 16-byte pieces.
 *
 * What the tensor cores take as it is keeps its bits: bf16. What has no kernel of its own becomes
 * bf16 while loading: float16, float32 and the IQ2 formats. A router's float32 is kept, as three
 * bf16 matrices whose sum it is: products are exact and sums are float32. Scales that hold for a
 * whole row (FP8 per tensor or row, the tensor's scale of NVFP4) are applied to the float32 sums. */
#include "io/log.h"
#include "kernels/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Lays out one part behind *at bytes of the bank, which has no memory yet. */
static void lay_out(Weight *w, int i, const WeightPart *from, size_t *at)
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
    p->codes_row = lookup ? 2 * w->cols : w->planes * code_bytes(p->kind, w->cols_padded);
    p->codes_mat = p->codes_row * p->rows;
    p->scales_row = round_up((int64_t)p->n_groups * scale_bytes(p->scale_type), 4);
    p->scales_mat = p->scales_row * p->rows;
    p->row_scale_mat = p->rows;
    w->codes_at[i] = *at;
    *at += (size_t)round_up(p->codes_mat * w->n_mats, 256);
    w->scales_at[i] = *at;
    *at += (size_t)round_up(p->scales_mat * w->n_mats, 256);
    w->row_scale_at[i] = *at;
    *at += lookup ? 0 : (size_t)round_up((int64_t)sizeof(float) * p->rows * w->n_mats, 256);
    w->rows += p->rows;
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
        lay_out(w, i, &parts[i], &bytes);
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
        p->scales = p->scale_type == SCALE_NONE ? NULL : w->data + w->scales_at[i];
        p->row_scale = (const float *)(const void *)(w->data + w->row_scale_at[i]);
    }
    *out = w;
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

/* row as bf16 in planes that lie plane values apart. */
static void plain_row(const QuantTensor *t, int64_t row, int planes, int64_t plane, float *values,
                      uint16_t *out)
{
    t->format->decode(t, row, 0, t->cols, values);
    for (int64_t i = 0; i < t->cols; i++) {
        float rest = values[i];
        for (int p = 0; p < planes; p++) {
            uint16_t bits = float_to_bf16(rest);
            out[p * plane + i] = bits;
            rest -= bf16_to_float(bits);
        }
    }
}

static void code_row(const QuantTensor *t, int64_t row, CudaCodes kind, int64_t bytes, uint8_t *out)
{
    const uint8_t *from = t->data + row * t->row_bytes;
    int64_t units = (t->cols + t->format->unit - 1) / t->format->unit;
    memset(out, kind == CUDA_INT4 ? 0x88 : 0, (size_t)bytes);
    if (t->format->id == FORMAT_Q8_0) {
        for (int64_t u = 0; u < units; u++)
            memcpy(out + u * Q8_UNIT, from + u * t->unit_stride + 2, Q8_UNIT);
    } else if (t->unit_stride == t->format->unit_bytes) {
        memcpy(out, from, (size_t)(units * t->format->unit_bytes));
    } else {
        for (int64_t u = 0, n = t->format->unit_bytes; u < units; u++)
            memcpy(out + u * n, from + u * t->unit_stride, (size_t)n);
    }
    if ((kind == CUDA_E2M1 || kind == CUDA_INT4) && t->cols % 2)
        out[units - 1] = (uint8_t)((out[units - 1] & 0x0fU) | (kind == CUDA_INT4 ? 0x80U : 0));
}

/* The scales of a row, in the bank's groups and type; its own may be of more columns, or of
 * another type where the bank has float32. */
static void scale_row(const QuantTensor *t, int64_t row, const CudaPart *p, uint8_t *out)
{
    int n = scale_bytes(p->scale_type);
    if (t->scales && p->scale_type == t->scale_type && p->group == t->group &&
        t->scale_col_bytes == n) {
        memcpy(out, t->scales + (t->first_row + row) / t->scale_rows * t->scale_row_bytes,
               (size_t)n * (size_t)p->n_groups);
        return;
    }
    for (int g = 0; g < p->n_groups; g++, out += n) {
        if (t->format->id == FORMAT_Q8_0) {
            memcpy(out, t->data + row * t->row_bytes + g * t->unit_stride, (size_t)n);
            continue;
        }
        const uint8_t *from = t->scales +
                              (t->first_row + row) / t->scale_rows * t->scale_row_bytes +
                              (int64_t)g * p->group / t->group * t->scale_col_bytes;
        if (p->scale_type == t->scale_type) {
            memcpy(out, from, (size_t)n);
        } else {
            float v = scale_value(t->scale_type, from);
            memcpy(out, &v, sizeof v);
        }
    }
}

static float whole_row_scale(const QuantTensor *t, int64_t row, const CudaPart *p)
{
    if (t->format->id == FORMAT_NVFP4)
        return t->global_divides ? 1.0f / t->global : t->global;
    if (t->format->id == FORMAT_FP8 && p->scale_type == SCALE_NONE)
        return quant_scale(t, row, 0);
    return 1.0f;
}

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
    if (mat < 0 || mat >= w->n_mats || part < 0 || part >= w->n_parts)
        return err_set(e, ST_INPUT, "%s: has no matrix %d, part %d", w->name, mat, part);
    const CudaPart *p = &w->part[part];
    if (t->format->id != w->format[part] || t->rows != p->rows || t->cols != w->cols)
        return err_set(e, ST_INPUT,
                       "%s: matrix %d, part %d is %s [%lld, %lld], expected %s [%lld, %lld]",
                       w->name, mat, part, t->format->name, (long long)t->rows, (long long)t->cols,
                       quant_format(w->format[part])->name, (long long)p->rows, (long long)w->cols);
    if (!scales_match(w, part, t))
        return err_set(e, ST_INPUT,
                       "%s: matrix %d, part %d has scales of other columns or another type than "
                       "the rest",
                       w->name, mat, part);
    return ST_OK;
}

typedef struct FillJob {
    const Weight *w;
    const CudaPart *p;
    const QuantTensor *t;
    int kind;
    float *values; /* [threads, cols] */
} FillJob;

enum { FILL_CODES, FILL_SCALES, FILL_ROW_SCALES, N_FILLS };

static void fill(void *ctx, int64_t row, int thread, uint8_t *out)
{
    const FillJob *job = ctx;
    const CudaPart *p = job->p;
    if (job->kind == FILL_SCALES) {
        scale_row(job->t, row, p, out);
    } else if (job->kind == FILL_ROW_SCALES) {
        float s = whole_row_scale(job->t, row, p);
        memcpy(out, &s, sizeof s);
    } else if (p->kind == CUDA_BF16 && job->t->format->id != FORMAT_BF16) {
        memset(out, 0, (size_t)p->codes_row);
        plain_row(job->t, row, job->w->planes, job->w->cols_padded,
                  job->values + thread * job->t->cols, (uint16_t *)(void *)out);
    } else {
        code_row(job->t, row, p->kind, p->codes_row, out);
    }
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

Status cuda_weight_set(Backend *b, Weight *w, int mat, int part, const QuantTensor *t, Err *e)
{
    TRY(check_set(w, mat, part, t, e));
    const CudaPart *p = &w->part[part];
    FillJob job = {.w = w, .p = p, .t = t};
    warn_rounded(b, w, t->format->id);
    if (p->kind == CUDA_BF16 && t->format->id != FORMAT_BF16) {
        size_t n_threads = b->team ? (size_t)team_size(b->team) : 1;
        job.values = malloc(n_threads * (size_t)t->cols * sizeof *job.values);
        if (!job.values)
            return err_set(e, ST_MEMORY, "out of memory: a row of %s", w->name);
    }
    const int64_t row_bytes[N_FILLS] = {p->codes_row, p->scales ? p->scales_row : 0,
                                        w->use == WEIGHT_LOOKUP ? 0 : (int64_t)sizeof(float)};
    uint8_t *const to[N_FILLS] = {w->data + w->codes_at[part] + mat * p->codes_mat,
                                  w->data + w->scales_at[part] + mat * p->scales_mat,
                                  w->data + w->row_scale_at[part] +
                                      mat * p->row_scale_mat * (int64_t)sizeof(float)};
    Status st = ST_OK;
    for (job.kind = 0; job.kind < N_FILLS && st == ST_OK; job.kind++)
        st =
            cuda_upload_rows(b, to[job.kind], p->rows, row_bytes[job.kind], fill, &job, w->name, e);
    free(job.values);
    return st;
}
