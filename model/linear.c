/* model/linear.c - see linear.h. */
#include "model/linear.h"

#include "model/kept.h"

#include <math.h>
#include <stdio.h>

static const char *file_of(const TensorSet *files, const TensorEntry *t)
{
    return tensor_set_file(files, t);
}

ScaleType linear_scale_type(const TensorEntry *t)
{
    switch (t->dtype) {
    case DTYPE_F32:
        return SCALE_F32;
    case DTYPE_BF16:
        return SCALE_BF16;
    case DTYPE_F16:
        return SCALE_F16;
    case DTYPE_F8_E4M3:
        return SCALE_E4M3;
    default:
        return SCALE_E8M0;
    }
}

/* Value number which of a float32, bfloat16 or binary16 tensor. */
static float value_at(const TensorEntry *t, int64_t which)
{
    return scale_value(linear_scale_type(t), t->data + which * dtype_bytes(t->dtype));
}

static Status positive(const TensorSet *files, const TensorEntry *t, int64_t which, float *out,
                       Err *e)
{
    TRY(kept_need(files, t, e));
    *out = value_at(t, which);
    if (!isfinite(*out) || *out <= 0)
        return err_set(e, ST_INPUT, "%s: tensor \"%.200s\": scale %g, expected a positive number",
                       file_of(files, t), t->name, *out);
    return ST_OK;
}

/* One value for all experts, or one for each. */
static Status expert_scalar(const TensorSet *files, const TensorEntry *t, int expert, float *out,
                            Err *e)
{
    return positive(files, t, t->bytes > dtype_bytes(t->dtype) ? expert : 0, out, e);
}

Status linear_view(const TensorSet *files, const LinearTensors *t, int expert, QuantTensor *out,
                   Err *e)
{
    TRY(kept_need(files, t->weight, e));
    if (t->scale)
        TRY(kept_need(files, t->scale, e));
    return linear_where(files, t, expert, out, e);
}

Status linear_where(const TensorSet *files, const LinearTensors *t, int expert, QuantTensor *out,
                    Err *e)
{
    *out = t->q;
    out->data += expert * t->expert_bytes;
    if (out->scales)
        out->scales += expert * t->expert_scale_bytes;
    if (t->global) {
        TRY(expert_scalar(files, t->global, expert, &out->global, e));
        out->global_divides = t->scheme->global_divides;
    }
    return ST_OK;
}

QuantTensor linear_rows(const QuantTensor *q, int64_t first, int64_t step, int64_t n)
{
    QuantTensor rows = quant_rows(q, first, n);
    rows.row_bytes *= step;
    if (step > 1 && rows.scales) {
        rows.scales += rows.first_row * rows.scale_row_bytes;
        rows.scale_row_bytes *= step;
        rows.first_row = 0;
    }
    return rows;
}

/* Where the scale of a view's row and group stands in the stored tensor, for a message. */
static Status bad_scale(const TensorSet *files, const LinearTensors *t, int expert, int64_t row,
                        int64_t group, float value, Err *e)
{
    const TensorEntry *s = t->scale;
    char at[64] = "";
    if (s->n_dims >= 3 && t->expert_bytes > 0)
        snprintf(at, sizeof at, " [%d, %lld, %lld]", expert, (long long)row, (long long)group);
    else if (s->bytes > dtype_bytes(s->dtype))
        snprintf(at, sizeof at, " [%lld, %lld]", (long long)row, (long long)group);
    if (t->q.scale_type == SCALE_E8M0)
        return err_set(e, ST_INPUT,
                       "%s: tensor \"%.200s\": scale%s is 255 (not a number), expected 0 to 254",
                       file_of(files, s), s->name, at);
    return err_set(e, ST_INPUT, "%s: tensor \"%.200s\": scale%s is %g, expected a %s number",
                   file_of(files, s), s->name, at, value,
                   t->q.scale_col_bytes || t->q.scale_row_bytes ? "finite, not negative"
                                                                : "positive");
}

Status linear_check_scales(const TensorSet *files, const LinearTensors *t, int expert,
                           const QuantTensor *view, int64_t first, int64_t step, Err *e)
{
    if (!view->scales)
        return ST_OK;
    bool single = view->scale_row_bytes == 0 && view->scale_col_bytes == 0;
    int64_t groups = view->scale_col_bytes == 0 ? 1 : (view->cols - 1) / view->group + 1;
    int64_t last = -1;
    for (int64_t r = 0; r < view->rows; r++) {
        int64_t scale_row = (view->first_row + r) / view->scale_rows;
        const uint8_t *p = view->scales + scale_row * view->scale_row_bytes;
        if (scale_row == last || (r > 0 && view->scale_row_bytes == 0))
            continue;
        last = scale_row;
        for (int64_t g = 0; g < groups; g++, p += view->scale_col_bytes) {
            float v = scale_value(view->scale_type, p);
            if (!(v >= 0) || v > 3.4028234e38f || signbit(v) || (single && v == 0))
                return bad_scale(files, t, expert, step > 1 ? first + step * r : scale_row, g, v,
                                 e);
        }
    }
    return ST_OK;
}

Status linear_input_scale(const TensorSet *files, const LinearTensors *t, int expert, float *out,
                          Err *e)
{
    if (!t->input)
        return err_set(e, ST_INPUT,
                       "%s: tensor \"%.200s\": has no %s, which %s needs where activations are "
                       "rounded as stored",
                       file_of(files, t->weight), t->weight->name,
                       t->scheme && t->scheme->input ? t->scheme->input : "input_scale",
                       t->scheme ? t->scheme->algo : "its format");
    TRY(expert_scalar(files, t->input, expert, out, e));
    if (t->scheme->global_divides)
        *out = 1.0f / *out;
    return ST_OK;
}

QuantTensor linear_plain(const TensorEntry *t, int64_t rows, int64_t cols)
{
    FormatId format = t->dtype == DTYPE_F32   ? FORMAT_F32
                      : t->dtype == DTYPE_F16 ? FORMAT_F16
                                              : FORMAT_BF16;
    return quant_plain(format, t->data, rows, cols);
}

Status linear_kv_scale(const TensorSet *files, const TensorEntry *t, float *out, Err *e)
{
    TRY(kept_need(files, t, e));
    if (value_at(t, 0) == -1.0f) {
        *out = 1.0f;
        return ST_OK;
    }
    return positive(files, t, 0, out, e);
}
