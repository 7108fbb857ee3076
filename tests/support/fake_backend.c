/* tests/support/fake_backend.c - see fake_backend.h. */
#include "tests/support/fake_backend.h"

#include <stdlib.h>
#include <string.h>

struct Backend {
    int live; /* allocations and weights not given back */
};

struct Weight {
    int n_mats, n_parts;
    WeightPart parts[MAX_PARTS];
    int64_t rows, cols;
    float *values; /* [n_mats, rows, cols] */
};

static Status fake_alloc(Backend *b, size_t bytes, const char *what, void **out, Err *e)
{
    *out = malloc(bytes ? bytes : 1);
    if (!*out)
        return err_set(e, ST_MEMORY, "not enough memory for %s", what);
    b->live++;
    return ST_OK;
}

static void fake_release(Backend *b, void *p)
{
    b->live -= p != NULL;
    free(p);
}

static Status fake_upload(Backend *b, void *dst, const void *src, size_t bytes, Err *e)
{
    (void)b;
    (void)e;
    memcpy(dst, src, bytes);
    return ST_OK;
}

static Status fake_weight_create(Backend *b, const char *name, WeightUse use, int n_mats,
                                 const WeightPart *parts, int n_parts, int64_t cols, Weight **out,
                                 Err *e)
{
    (void)use;
    Weight *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ST_MEMORY, "not enough memory for %s", name);
    w->n_mats = n_mats;
    w->n_parts = n_parts;
    w->cols = cols;
    for (int i = 0; i < n_parts; i++) {
        w->parts[i] = parts[i];
        w->rows += parts[i].rows;
    }
    w->values = calloc((size_t)(n_mats * w->rows * cols) + 1, sizeof *w->values);
    if (!w->values) {
        free(w);
        return err_set(e, ST_MEMORY, "not enough memory for %s", name);
    }
    b->live++;
    *out = w;
    return ST_OK;
}

static Status fake_weight_set(Backend *b, Weight *w, int mat, int part, const QuantTensor *t,
                              Err *e)
{
    (void)b;
    int64_t first = 0;
    for (int i = 0; i < part; i++)
        first += w->parts[i].rows;
    if (mat >= w->n_mats || part >= w->n_parts || t->format->id != w->parts[part].format ||
        t->rows != w->parts[part].rows || t->cols != w->cols)
        return err_set(e, ST_INPUT, "part %d of matrix %d does not fit its bank", part, mat);
    for (int64_t r = 0; r < t->rows; r++)
        t->format->decode(t, r, 0, t->cols, w->values + (mat * w->rows + first + r) * w->cols);
    return ST_OK;
}

static void fake_weight_destroy(Backend *b, Weight *w)
{
    if (!w)
        return;
    b->live--;
    free(w->values);
    free(w);
}

static size_t fake_weight_bytes(const Weight *w)
{
    return (size_t)(w->n_mats * w->rows * w->cols) * sizeof *w->values;
}

const BackendOps fake_backend = {
    .name = "fake",
    .act_bytes = 4,
    .alloc = fake_alloc,
    .release = fake_release,
    .upload = fake_upload,
    .weight_create = fake_weight_create,
    .weight_set = fake_weight_set,
    .weight_destroy = fake_weight_destroy,
    .weight_bytes = fake_weight_bytes,
};

Status fake_backend_create(Backend **out, Err *e)
{
    *out = calloc(1, sizeof **out);
    return *out ? ST_OK : err_set(e, ST_MEMORY, "not enough memory for a backend");
}

int fake_backend_destroy(Backend *b)
{
    int live = b ? b->live : 0;
    free(b);
    return live;
}

int fake_weight_mats(const Weight *w)
{
    return w->n_mats;
}

int64_t fake_weight_rows(const Weight *w)
{
    return w->rows;
}

int64_t fake_weight_cols(const Weight *w)
{
    return w->cols;
}

const float *fake_weight_row(const Weight *w, int mat, int64_t row)
{
    return w->values + (mat * w->rows + row) * w->cols;
}
