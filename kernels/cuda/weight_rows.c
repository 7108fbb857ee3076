/* kernels/cuda/weight_rows.c - see weight_rows.h. */
#include "kernels/cuda/weight_rows.h"

#include <stdlib.h>
#include <string.h>

enum { Q8_UNIT = 32 };

Status rows_begin(Backend *b, const Weight *w, int part, const QuantTensor *t, RowJob *out, Err *e)
{
    const CudaPart *p = &w->part[part];
    *out = (RowJob){.w = w, .p = p, .t = t};
    if (p->kind != CUDA_BF16 || t->format->id == FORMAT_BF16)
        return ST_OK;
    size_t n_threads = b->team ? (size_t)team_size(b->team) : 1;
    out->values = malloc(n_threads * (size_t)t->cols * sizeof *out->values);
    return out->values ? ST_OK : err_set(e, ST_MEMORY, "out of memory: a row of %s", w->name);
}

void rows_end(RowJob *job)
{
    free(job->values);
}

/* --- as they are stored --- */

static int lanes(const QuantTensor *t)
{
    return t->lanes > 1 ? t->lanes : 1;
}

bool rows_raw_codes(const Weight *w, const CudaPart *p, const QuantTensor *t)
{
    const QuantFormat *f = t->format;
    bool same = p->kind == CUDA_BF16 ? f->id == FORMAT_BF16 && w->planes == 1 : f->unit <= 2;
    return same && t->cols % f->unit == 0 && t->unit_stride == f->unit_bytes &&
           t->row_bytes == t->cols / f->unit * f->unit_bytes * lanes(t);
}

bool rows_raw_scales(const CudaPart *p, const QuantTensor *t)
{
    int n = scale_bytes(p->scale_type);
    return p->scale_type != SCALE_NONE && p->scale_type == t->scale_type && p->group == t->group &&
           t->scale_rows == 1 && t->scale_col_bytes == n &&
           t->scale_row_bytes == (int64_t)n * p->n_groups * lanes(t);
}

bool rows_lie_so(const Weight *w, int part, const QuantTensor *t)
{
    const CudaPart *p = &w->part[part];
    int64_t row = w->use == WEIGHT_CODED ? w->fp8.k_padded : p->codes_row;
    return rows_raw_codes(w, p, t) && t->row_bytes == row && t->lanes <= 1;
}

UploadSpan rows_span(const CudaPart *p, const QuantTensor *t, RowKind kind, int64_t first,
                     int64_t n)
{
    UploadSpan s = {0};
    if (kind == ROW_CODES) {
        s.src = t->data + first * t->row_bytes;
        s.file = t->data_file;
        s.bytes = (size_t)(n * t->row_bytes);
        s.finite = s.file ? finite_test(t->format->id) : NULL;
    } else {
        s.src = t->scales + (t->first_row + first) * t->scale_row_bytes;
        s.file = t->scales_file;
        s.bytes = (size_t)(n * t->scale_row_bytes);
        s.scales = s.file ? p->scale_type : SCALE_NONE;
    }
    s.src -= rows_lane_bytes(t, kind);
    return s;
}

int64_t rows_lane_bytes(const QuantTensor *t, RowKind kind)
{
    return t->lane * (kind == ROW_CODES ? t->row_bytes : t->scale_row_bytes) / lanes(t);
}

/* --- filled in --- */

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
    int64_t filled = units * (t->format->id == FORMAT_Q8_0 ? Q8_UNIT : t->format->unit_bytes);
    memset(out + filled, kind == CUDA_INT4 ? 0x88 : 0, (size_t)(bytes - filled));
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

float rows_whole_scale(const CudaPart *p, const QuantTensor *t, int64_t row)
{
    if (t->format->id == FORMAT_NVFP4)
        return t->global_divides ? 1.0f / t->global : t->global;
    if (t->format->id == FORMAT_FP8 && p->scale_type == SCALE_NONE)
        return quant_scale(t, row, 0);
    return 1.0f;
}

bool rows_share_scale(const CudaPart *p, const QuantTensor *t)
{
    return t->format->id != FORMAT_FP8 || p->scale_type != SCALE_NONE || t->scale_row_bytes == 0;
}

static void fill(void *ctx, int64_t row, int thread, uint8_t *out)
{
    const RowJob *job = ctx;
    const CudaPart *p = job->p;
    row += job->first;
    if (job->kind == ROW_SCALES) {
        scale_row(job->t, row, p, out);
    } else if (job->kind == ROW_WHOLE_SCALES) {
        float s = rows_whole_scale(p, job->t, row);
        memcpy(out, &s, sizeof s);
    } else if (p->kind == CUDA_BF16 && job->t->format->id != FORMAT_BF16) {
        memset(out, 0, (size_t)job->row_bytes);
        plain_row(job->t, row, job->w->planes, job->w->cols_padded,
                  job->values + thread * job->t->cols, (uint16_t *)(void *)out);
    } else {
        code_row(job->t, row, p->kind, job->row_bytes, out);
    }
}

Status rows_fill(Backend *b, RowJob *job, RowKind kind, int64_t first, int64_t n, int64_t row_bytes,
                 uint8_t *to, void *stream, Err *e)
{
    job->kind = kind;
    job->first = first;
    job->row_bytes = row_bytes;
    return cuda_upload_rows(b, to, n, row_bytes, fill, job, stream, job->w->name, e);
}
