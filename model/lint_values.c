/* model/lint_values.c - the values of one module: what loading refuses, too, and what is possible
 * but hardly meant. */
#include "model/lint_internal.h"

#include "io/digest.h"
#include "model/kept.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Trained weights are of order 0.01 to 1; outliers of trained models stay below 100. */
static const float LARGEST_WEIGHT = 1000, LEAST_LARGEST_WEIGHT = 1e-6f;
static const float LARGEST_INPUT_SCALE = 1000, LEAST_INPUT_SCALE = 1e-8f;
/* The least normal number, which E8M0 byte 1 stands for: a scale of 0 in a format without one. */
static const float LEAST_SCALE = 1.1754944e-38f;

/* What is wrong comes as an Err, whose text is complete. */
static bool failed(Status st, const Err *e, StrBuf *out)
{
    if (st != ST_OK)
        lint_add(out, LINT_ERROR, "%s", e->text);
    return st != ST_OK;
}

/* Whether columns first .. first+n-1 of a row have a code that is not 0. */
static bool has_codes(const QuantTensor *q, int64_t row, int64_t first, int64_t n)
{
    for (int64_t k = first; k < first + n; k++) {
        uint8_t byte = q->data[row * q->row_bytes + k / q->format->unit * q->unit_stride];
        uint8_t nibble = k & 1 ? byte >> 4 : byte & 15;
        switch (q->format->id) {
        case FORMAT_NVFP4:
        case FORMAT_MXFP4:
            if (nibble & 7)
                return true;
            break;
        case FORMAT_INT4:
            if (nibble != 8)
                return true;
            break;
        default:
            if (byte & 0x7f)
                return true;
        }
    }
    return false;
}

/* Scales that make nothing of codes that are something: a scale that was never written. */
static void check_zero_scales(const Checkpoint *c, const Module *m, const QuantTensor *q,
                              StrBuf *out)
{
    int64_t n = 0, row = 0, group = 0;
    for (int64_t r = 0; r < q->rows; r++)
        for (int64_t k = 0; k < q->cols; k += q->group) {
            int64_t len = q->cols - k < q->group ? q->cols - k : q->group;
            const uint8_t *p = q->scales + (q->first_row + r) / q->scale_rows * q->scale_row_bytes +
                               k / q->group * q->scale_col_bytes;
            if (scale_value(q->scale_type, p) >= LEAST_SCALE || !has_codes(q, r, k, len))
                continue;
            if (n++ == 0) {
                row = r;
                group = k / q->group;
            }
        }
    if (n)
        lint_tensor(out, LINT_WARNING, c, m->t->scale,
                    "%lld scales are 0 where the codes are not, first in row %lld, group %lld",
                    (long long)n, (long long)row, (long long)group);
}

static float largest_weight(const QuantTensor *q, float *row)
{
    float most = 0;
    for (int64_t r = 0; r < q->rows; r++) {
        q->format->decode(q, r, 0, q->cols, row);
        for (int64_t k = 0; k < q->cols; k++)
            most = fabsf(row[k]) > most ? fabsf(row[k]) : most;
    }
    return most;
}

static void check_size(const Checkpoint *c, const Module *m, float most, StrBuf *out)
{
    if (most == 0)
        lint_tensor(out, LINT_WARNING, c, m->t->weight, "all weights are 0");
    else if (most > LARGEST_WEIGHT || most < LEAST_LARGEST_WEIGHT)
        lint_tensor(out, LINT_WARNING, c, m->t->weight,
                    "the largest weight is %.3g, expected %g to %g", most, LEAST_LARGEST_WEIGHT,
                    LARGEST_WEIGHT);
}

/* One expert of a stack, or all there is. Returns whether its weights can be decoded. */
static bool check_values(const Checkpoint *c, const Module *m, int expert, StrBuf *out,
                         QuantTensor *view)
{
    Err e;
    bool bad = failed(linear_check_codes(&c->files, m->t, expert, NULL, &e), &e, out);
    if (failed(linear_view(&c->files, m->t, expert, view, &e), &e, out))
        return false;
    if (failed(linear_check_scales(&c->files, m->t, expert, view, 0, 1, NULL, &e), &e, out))
        return false;
    return !bad;
}

static void check_input(const Checkpoint *c, const Module *m, StrBuf *out)
{
    const LinearTensors *t = m->t;
    float scale;
    Err e;
    if (!t->scheme || !t->scheme->input)
        return;
    if (!t->input) {
        lint_tensor(out, LINT_WARNING, c, t->weight, "has no %s, which activations as stored need",
                    t->scheme->input);
        return;
    }
    bool each = m->n_stack && t->input->bytes > dtype_bytes(t->input->dtype);
    for (int x = 0; x < (each ? m->n_stack : 1); x++) {
        if (failed(linear_input_scale(&c->files, t, x, &scale, &e), &e, out))
            return;
        if (scale > LARGEST_INPUT_SCALE || scale < LEAST_INPUT_SCALE)
            lint_tensor(out, LINT_WARNING, c, t->input,
                        "activations would be scaled by %.3g, expected %g to %g", scale,
                        LEAST_INPUT_SCALE, LARGEST_INPUT_SCALE);
    }
}

/* 0 where every byte is the same: such tensors say of each other only that they are empty. */
static uint32_t crc_of(const TensorEntry *t)
{
    if (t->bytes < 2 || memcmp(t->data, t->data + 1, (size_t)t->bytes - 1) == 0)
        return 0;
    uint32_t crc = crc32_of(0, t->data, (size_t)t->bytes);
    return crc ? crc : 1;
}

void lint_module(const Checkpoint *c, const Module *m, StrBuf *out, uint32_t *crc)
{
    float most = 0, *row = malloc((size_t)m->t->q.cols * sizeof *row);
    bool sound = true;
    Err e;
    if (!row) {
        out->failed = true;
        return;
    }
    for (int x = 0; x < (m->n_stack ? m->n_stack : 1); x++) {
        QuantTensor view;
        if (!check_values(c, m, x, out, &view)) {
            sound = false;
            continue;
        }
        if (view.scales)
            check_zero_scales(c, m, &view, out);
        float here = largest_weight(&view, row);
        most = here > most ? here : most;
    }
    if (sound)
        check_size(c, m, most, out);
    check_input(c, m, out);
    *crc = failed(kept_need(&c->files, m->t->weight, &e), &e, out) ? 0 : crc_of(m->t->weight);
    kept_drop(&c->files, m->t->weight);
    free(row);
}

void lint_vector(const Checkpoint *c, const TensorEntry *t, StrBuf *out)
{
    int size = dtype_bytes(t->dtype);
    QuantTensor q = linear_plain(t, 1, t->bytes / size);
    Err e;
    if (failed(kept_need(&c->files, t, &e), &e, out))
        return;
    for (int64_t i = 0; i < q.cols; i++) {
        float v;
        q.format->decode(&q, 0, i, 1, &v);
        if (isnan(v)) {
            lint_tensor(out, LINT_ERROR, c, t, "value [%lld] is not a number", (long long)i);
            return;
        }
    }
}
