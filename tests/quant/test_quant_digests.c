/* tests/quant/test_quant_digests.c - a trained model quantized here decodes to what
 * nvidia-modelopt's exports of it decode to, tensor by tensor, in eight formats. */
#include "io/tensor_set.h"
#include "quant/encode.h"
#include "tests/support/check.h"
#include "tests/support/files.h"
#include "tests/support/quant_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 17 }; /* values of a matrix */

typedef struct Work {
    float w[MOST], other[MOST], out[MOST], scales[MOST / 32];
    uint8_t codes[MOST], bytes[MOST / 16];
} Work;

static bool read_matrix(const TensorSet *set, const char *name, float *out, int64_t *rows,
                        int64_t *cols)
{
    const TensorEntry *t = tensor_set_find(set, name);
    if (!t || t->n_dims != 2 || t->dtype != DTYPE_BF16 || t->shape[0] * t->shape[1] > MOST)
        return false;
    *rows = t->shape[0];
    *cols = t->shape[1];
    QuantTensor plain = quant_plain(FORMAT_BF16, t->data, *rows, *cols);
    quant_decode(&plain, out);
    return true;
}

/* The largest magnitude of name's matrix and of those whose names have another of the words in
 * place of its own; of its own alone where it has none. */
static float shared_amax(const TensorSet *set, const char *name, const char *const *words, Work *x,
                         int64_t n)
{
    float amax = encode_amax(x->w, n);
    for (int own = 0; words[own]; own++) {
        const char *at = strstr(name, words[own]);
        for (int i = 0; at && words[i]; i++) {
            char other[300];
            int64_t rows, cols;
            snprintf(other, sizeof other, "%.*s%s%s", (int)(at - name), name, words[i],
                     at + strlen(words[own]));
            float a = read_matrix(set, other, x->other, &rows, &cols)
                          ? encode_amax(x->other, rows * cols)
                          : 0;
            amax = a > amax ? a : amax;
        }
    }
    return amax;
}

static const char *const gate_up[] = {"gate_proj", "up_proj", NULL};
static const char *const qkv[] = {"q_proj", "k_proj", "v_proj", NULL};

/* x->w [rows, cols] into the format of the export and back to x->out. */
static bool round_trip(const TensorSet *set, const char *export, const char *name, int64_t rows,
                       int64_t cols, Work *x)
{
    bool attention = strstr(name, "self_attn") != NULL;
    QuantTensor t = {.rows = rows,
                     .cols = cols,
                     .data = x->codes,
                     .unit_stride = 1,
                     .scales = (const uint8_t *)x->scales,
                     .scale_type = SCALE_F32,
                     .group = cols,
                     .scale_rows = 1};
    FormatId id = FORMAT_FP8;
    if (strcmp(export, "fp8") == 0 || (strcmp(export, "mixed") == 0 && attention)) {
        x->scales[0] = encode_scale(shared_amax(set, name, gate_up, x, rows * cols), 448.0f);
        encode_fp8(x->w, rows * cols, FORMAT_BF16, x->scales[0], x->codes);
    } else if (strcmp(export, "fp8_pcpt") == 0) {
        encode_fp8_channel(x->w, rows, cols, x->codes, x->scales);
        t.scale_row_bytes = 4;
    } else if (strcmp(export, "fp8_pb_wo") == 0) {
        encode_fp8_block(x->w, rows, cols, 128, x->codes, x->scales);
        t.group = t.scale_rows = 128;
        t.scale_col_bytes = 4;
        t.scale_row_bytes = (cols + 127) / 128 * 4;
    } else {
        t.scales = x->bytes;
        t.scale_col_bytes = 1;
        t.group = 32;
        if (strcmp(export, "mxfp8") == 0) {
            id = FORMAT_MXFP8;
            t.scale_type = SCALE_E8M0;
            encode_mxfp8(x->w, rows, cols, x->codes, x->bytes);
        } else if (strcmp(export, "mxfp4") == 0) {
            id = FORMAT_MXFP4;
            t.scale_type = SCALE_E8M0;
            encode_mxfp4(x->w, rows, cols, x->codes, x->bytes);
        } else if (strstr(export, "nvfp4") || strcmp(export, "mixed") == 0) {
            id = FORMAT_NVFP4;
            t.scale_type = SCALE_E4M3;
            t.group = 16;
            float amax = shared_amax(set, name, attention ? qkv : gate_up, x, rows * cols);
            t.global = encode_scale(amax, 2688.0f);
            encode_nvfp4(x->w, rows, cols, 16, t.global, x->codes, x->bytes);
        } else {
            return false;
        }
        t.scale_row_bytes = cols / t.group;
    }
    t.format = quant_format(id);
    t.row_bytes = encode_row_bytes(id, cols);
    quant_decode(&t, x->out);
    return true;
}

int main(void)
{
    const char *shared = test_shared();
    if (!shared)
        return test_skip("no reference data (SHARED)");
    char path[4096], dir[4096];
    test_path(path, sizeof path, "%s/models/quant_digests.json", shared);
    test_path(dir, sizeof dir, "%s/models/storyteller-qwen3_moe", shared);
    if (!file_exists(path))
        return test_skip("no models/quant_digests.json among the reference data");
    TestJson j = {0};
    TensorSet set = {0};
    Err e;
    Work *x = calloc(1, sizeof *x);
    int failed = !x || !test_json_open(&j, path), exports = 0, tensors = 0;
    if (!failed && tensor_set_open(dir, &set, &e) != ST_OK)
        failed += check_str(dir, e.text, "a checkpoint");
    for (const JsonValue *m = failed ? NULL : j.value->child; m; m = m->next, exports++)
        for (const JsonValue *row = m->child; row; row = row->next, tensors++) {
            char name[400];
            int64_t rows, cols;
            snprintf(name, sizeof name, "%s: %s", m->key, row->key);
            if (!read_matrix(&set, row->key, x->w, &rows, &cols) ||
                !round_trip(&set, m->key, row->key, rows, cols, x)) {
                failed += check_true(name, false);
                continue;
            }
            failed += check_sha256(name, x->out, 4 * rows * cols, row->text);
        }
    printf("%d tensors in %d exports\n", tensors, exports);
    failed += check_int("exports", exports, 8) + check_true("tensors", tensors > 1600);
    tensor_set_close(&set);
    test_json_close(&j);
    free(x);
    return test_result(failed);
}
