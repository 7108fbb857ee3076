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

/* The file of t, if that is where p is: scales may have been cast, a pack's tensors put back. */
static const FileMap *file_around(const TensorSet *files, const TensorEntry *t, const uint8_t *p)
{
    const FileMap *map = &files->parts[t->part].map;
    return map->data && p >= map->data && p < map->data + map->len ? map : NULL;
}

Status linear_where(const TensorSet *files, const LinearTensors *t, int expert, QuantTensor *out,
                    Err *e)
{
    *out = t->q;
    out->data_file = file_around(files, t->weight, out->data);
    out->scales_file = t->scale ? file_around(files, t->scale, out->scales) : NULL;
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
    if (step > 1) {
        rows.lanes = (int)step;
        rows.lane = (int)(first % step);
    }
    rows.row_bytes *= step;
    if (step > 1 && rows.scales) {
        rows.scales += rows.first_row * rows.scale_row_bytes;
        rows.scale_row_bytes *= step;
        rows.first_row = 0;
    }
    return rows;
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
