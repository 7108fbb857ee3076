/* model/linear_check.c - the codes of a matrix: all of them numbers; see linear.h.
 *
 * Loading reads every byte anyway, and a NaN in one weight makes every row that meets it one, so
 * that looking once is cheap. */
#include "model/linear.h"

#include "model/kept.h"

#include <stdio.h>
#include <string.h>

/* An element of size bytes is not finite where (bits & mask) + add carries into top. */
typedef struct NotFinite {
    int size;
    uint64_t mask, add, top;
} NotFinite;

static const NotFinite in_e4m3 = {1, 0x7f, 0x01, 0x80}, in_bf16 = {2, 0x7f80, 0x0080, 0x8000},
                       in_f16 = {2, 0x7c00, 0x0400, 0x8000},
                       in_f32 = {4, 0x7f800000, 0x00800000, 0x80000000};

/* The pattern in every element of a word. */
static uint64_t everywhere(uint64_t pattern, int size)
{
    for (int bits = 8 * size; bits < 64; bits *= 2)
        pattern |= pattern << bits;
    return pattern;
}

/* The first element that is not finite of n, or -1. */
static int64_t find_not_finite(const NotFinite *f, const uint8_t *p, int64_t n)
{
    uint64_t mask = everywhere(f->mask, f->size), add = everywhere(f->add, f->size),
             top = everywhere(f->top, f->size);
    int64_t per_word = 8 / f->size, i = 0;
    for (; i + per_word <= n; i += per_word) {
        uint64_t word;
        memcpy(&word, p + i * f->size, sizeof word);
        if (((word & mask) + add) & top)
            break;
    }
    for (; i < n; i++) {
        uint64_t bits = 0;
        memcpy(&bits, p + i * f->size, (size_t)f->size);
        if (((bits & f->mask) + f->add) & f->top)
            return i;
    }
    return -1;
}

/* "[3, 0, 17]": where element number at of a tensor stands; "" in a scalar. */
static void index_text(const TensorEntry *t, int64_t at, char *out, size_t size)
{
    int64_t index[TENSOR_MAX_DIMS];
    size_t len = 0;
    for (int d = t->n_dims - 1; d >= 0; d--) {
        index[d] = at % t->shape[d];
        at /= t->shape[d];
    }
    *out = 0;
    for (int d = 0; d < t->n_dims && len < size; d++)
        len +=
            (size_t)snprintf(out + len, size - len, "%s%lld", d ? ", " : "[", (long long)index[d]);
    if (t->n_dims > 0 && len < size)
        snprintf(out + len, size - len, "]");
}

static Status bad_code(const TensorSet *files, const TensorEntry *t, int64_t at, const char *what,
                       Err *e)
{
    char where[160];
    index_text(t, at, where, sizeof where);
    return err_set(e, ST_INPUT, "%s: tensor \"%.200s\": %s %s is not a finite number",
                   tensor_set_file(files, t), t->name, what, where);
}

/* Blocks of a codec begin with their scale, in binary16. */
static Status check_blocks(const TensorSet *files, const TensorEntry *t, int unit_bytes, Err *e)
{
    for (int64_t at = 0; at < t->bytes; at += unit_bytes)
        if (find_not_finite(&in_f16, t->data + at, 1) == 0)
            return bad_code(files, t, at, "the scale of the block at", e);
    return ST_OK;
}

static int64_t integer_at(const TensorEntry *t, int i)
{
    int64_t wide;
    int32_t narrow;
    if (t->dtype == DTYPE_I64) {
        memcpy(&wide, t->data + 8 * i, sizeof wide);
        return wide;
    }
    memcpy(&narrow, t->data + 4 * i, sizeof narrow);
    return narrow;
}

static Status check_shape(const TensorSet *files, const LinearTensors *t, Err *e)
{
    const TensorEntry *s = t->shape;
    if (!s || (integer_at(s, 0) == t->q.rows && integer_at(s, 1) == t->q.cols))
        return ST_OK;
    return err_set(e, ST_INPUT, "%s: tensor \"%.200s\": says [%lld, %lld], expected [%lld, %lld]",
                   tensor_set_file(files, s), s->name, (long long)integer_at(s, 0),
                   (long long)integer_at(s, 1), (long long)t->q.rows, (long long)t->q.cols);
}

Status linear_check_codes(const TensorSet *files, const LinearTensors *t, int expert, Err *e)
{
    TRY(kept_need(files, t->weight, e));
    if (t->shape)
        TRY(kept_need(files, t->shape, e));
    TRY(check_shape(files, t, e));
    const TensorEntry *w = t->weight;
    const NotFinite *f = NULL;
    switch (t->q.format->id) {
    case FORMAT_FP8:
    case FORMAT_MXFP8:
        f = &in_e4m3;
        break;
    case FORMAT_BF16:
        f = &in_bf16;
        break;
    case FORMAT_F16:
        f = &in_f16;
        break;
    case FORMAT_F32:
        f = &in_f32;
        break;
    case FORMAT_Q8_0:
    case FORMAT_IQ2_XS:
    case FORMAT_IQ2_XXS:
        return check_blocks(files, w, t->q.format->unit_bytes, e);
    default: /* all 16 codes are numbers */
        return ST_OK;
    }
    int64_t bytes = t->expert_bytes ? t->expert_bytes : w->bytes;
    int64_t first = expert * t->expert_bytes / f->size;
    int64_t at = find_not_finite(f, w->data + expert * t->expert_bytes, bytes / f->size);
    return at < 0 ? ST_OK : bad_code(files, w, first + at, "value", e);
}
