/* tests/quant/test_decoded.c - every quantized tensor of the reference checkpoints, decoded,
 * against the hashes that come with them.
 *
 * Which tensors belong together is read off their names and types alone, in the simplest way
 * that works for these files; how the program itself finds out is tested with the recipes. */
#include "io/tensor_set.h"
#include "tests/support/check.h"
#include "tests/support/files.h"
#include "tests/support/quant_case.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const TensorEntry *find(const TensorSet *set, const char *stem, const char *suffix)
{
    char name[300];
    snprintf(name, sizeof name, "%s%s", stem, suffix);
    return tensor_set_find(set, name);
}

static const TensorEntry *find_any(const TensorSet *set, const char *stem,
                                   const char *const *suffix)
{
    const TensorEntry *t = NULL;
    for (int i = 0; !t && suffix[i]; i++)
        t = find(set, stem, suffix[i]);
    return t;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static ScaleType scale_type(TensorDtype d)
{
    return d == DTYPE_F32       ? SCALE_F32
           : d == DTYPE_BF16    ? SCALE_BF16
           : d == DTYPE_F8_E4M3 ? SCALE_E4M3
                                : SCALE_E8M0;
}

/* Dense scales [n_rows, n_cols] for matrices of 8-bit floats: one, one a row, blocks of 128, or
 * groups of a row. */
static void lay_scales(QuantTensor *t, const TensorEntry *s)
{
    int64_t n_rows = s->n_dims ? s->shape[0] : 1, n_cols = 1;
    for (int d = 1; d < s->n_dims; d++)
        n_cols *= s->shape[d];
    int bytes = scale_bytes(t->scale_type);
    t->scale_rows = n_rows == t->rows ? 1 : n_rows == 1 && n_cols == 1 ? t->rows : 128;
    t->group = n_cols == 1 ? t->cols : t->scale_rows == 128 ? 128 : t->cols / n_cols;
    t->scale_row_bytes = n_rows == 1 ? 0 : n_cols * bytes;
    t->scale_col_bytes = n_cols == 1 ? 0 : bytes;
}

/* How a module's tensors are to be read. False: not at all. */
static bool build(const TensorSet *set, const char *name, QuantTensor *out)
{
    static const char *const weights[] = {".weight", ".weight_packed", "", NULL};
    static const char *const scales[] = {".weight_scale", ".weight_scale_inv", "_weight_scale",
                                         NULL};
    static const char *const globals[] = {".weight_scale_2", "_weight_scale_2", NULL};
    char stem[256];
    snprintf(stem, sizeof stem, "%s", name);
    size_t len = strlen(stem);
    if (len > 7 && strcmp(stem + len - 7, ".weight") == 0)
        stem[len - 7] = 0;
    const TensorEntry *w = find_any(set, stem, weights), *s = find_any(set, stem, scales),
                      *global = find_any(set, stem, globals),
                      *shape = find(set, stem, ".weight_shape"),
                      *divisor = find(set, stem, ".weight_global_scale");
    if (!w)
        return false;
    QuantTensor t = {.data = w->data, .rows = w->shape[0], .scale_rows = 1, .group = 1};
    if (!s && w->n_dims == 3) { /* ggml's blocks */
        FormatId id = w->shape[2] == 34   ? FORMAT_Q8_0
                      : w->shape[2] == 74 ? FORMAT_IQ2_XS
                                          : FORMAT_IQ2_XXS;
        t.format = quant_format(id);
        t.cols = w->shape[1] * t.format->unit;
        t.row_bytes = w->shape[1] * t.format->unit_bytes;
        t.unit_stride = t.format->unit_bytes;
        *out = t;
        return w->shape[2] == t.format->unit_bytes;
    }
    if (!s)
        return false;
    t.scales = s->data;
    t.scale_type = scale_type(s->dtype);
    FormatId id = w->dtype == DTYPE_I32        ? FORMAT_INT4
                  : t.scale_type == SCALE_E8M0 ? w->dtype == DTYPE_U8 ? FORMAT_MXFP4 : FORMAT_MXFP8
                  : w->dtype == DTYPE_F8_E4M3  ? FORMAT_FP8
                                               : FORMAT_NVFP4;
    t.format = quant_format(id);
    if (global || divisor) {
        memcpy(&t.global, (global ? global : divisor)->data, sizeof t.global);
        t.global_divides = divisor != NULL;
    }
    if (w->n_dims == 3) { /* [experts, inputs, outputs]: the caller goes from expert to expert */
        t.rows = w->shape[2];
        t.cols = w->shape[1] * t.format->unit;
        t.row_bytes = 1;
        t.unit_stride = w->shape[2];
        t.group = s->n_dims ? t.cols / s->shape[1] : t.cols;
        t.scale_row_bytes = s->n_dims ? 1 : 0;
        t.scale_col_bytes = s->n_dims ? w->shape[2] : 0;
        *out = t;
        return true;
    }
    t.cols = w->shape[1] * t.format->unit;
    t.row_bytes = w->shape[1] * dtype_bytes(w->dtype);
    t.unit_stride = 1;
    if (shape) {
        int64_t logical[2];
        memcpy(logical, shape->data, sizeof logical);
        t.cols = logical[1];
    }
    lay_scales(&t, s);
    *out = t;
    return true;
}

/* As the hash was taken: row by row, or [experts, inputs, outputs]. NULL: memory is short. */
static float *decode_all(const TensorSet *set, const char *name, QuantTensor t, int64_t *n)
{
    const TensorEntry *w = tensor_set_find(set, name);
    bool stacked = w && w->n_dims == 3 && t.row_bytes == 1;
    int64_t experts = stacked ? w->shape[0] : 1, size = t.rows * t.cols;
    int64_t scales = stacked && t.scale_row_bytes ? t.rows * ceil_div(t.cols, t.group) : 0;
    float *out = malloc((size_t)(experts * size) * sizeof *out),
          *one = malloc((size_t)size * sizeof *one);
    *n = experts * size;
    for (int64_t e = 0; out && one && e < experts; e++) {
        if (!stacked) {
            quant_decode(&t, out);
            break;
        }
        quant_decode(&t, one);
        for (int64_t r = 0; r < t.rows; r++)
            for (int64_t c = 0; c < t.cols; c++)
                out[e * size + c * t.rows + r] = one[r * t.cols + c];
        t.data += size / t.format->unit;
        t.scales += scales;
    }
    free(one);
    return out;
}

static int check_directory(const char *dir, int *n_tensors)
{
    char path[4096];
    TestJson j;
    TensorSet set = {0};
    Err e;
    test_path(path, sizeof path, "%s/decoded.json", dir);
    if (!test_json_open(&j, path))
        return 1;
    int failed = 0;
    if (tensor_set_open(dir, &set, &e) != ST_OK)
        failed += check_str(dir, e.text, "a checkpoint");
    for (const JsonValue *m = failed ? NULL : j.value->child; m; m = m->next) {
        QuantTensor t;
        int64_t n = 0;
        float *values = build(&set, m->key, &t) ? decode_all(&set, m->key, t, &n) : NULL;
        if (!values)
            failed += check_true(m->key, false);
        else
            failed += check_sha256(m->key, values, 4 * n, m->text);
        free(values);
        ++*n_tensors;
    }
    tensor_set_close(&set);
    test_json_close(&j);
    if (failed)
        fprintf(stderr, "in %s\n", dir);
    return failed;
}

int main(void)
{
    const char *shared = test_shared();
    if (!shared)
        return test_skip("no reference data (SHARED)");
    char goldens[4096], path[4096];
    test_path(goldens, sizeof goldens, "%s/goldens", shared);
    DIR *d = opendir(goldens);
    if (!d)
        return test_skip("no goldens among the reference data");
    int failed = 0, n_dirs = 0, n_tensors = 0;
    for (struct dirent *entry = readdir(d); entry; entry = readdir(d)) {
        test_path(path, sizeof path, "%s/%s/decoded.json", goldens, entry->d_name);
        if (!file_exists(path))
            continue;
        test_path(path, sizeof path, "%s/%s", goldens, entry->d_name);
        failed += check_directory(path, &n_tensors);
        n_dirs++;
    }
    closedir(d);
    printf("%d tensors of %d checkpoints\n", n_tensors, n_dirs);
    failed += check_true("as many checkpoints as there were", n_dirs >= 30 && n_tensors >= 1400);
    return test_result(failed);
}
