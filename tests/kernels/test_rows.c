/* tests/kernels/test_rows.c - the ops that treat rows one by one, against double precision and
 * published vectors, and bit for bit across threads, instruction sets and numbers of rows. */
#include "tests/support/check.h"
#include "tests/support/kernel_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const BackendOps *ops;
static Err e;

/* Each backend's result must equal the first one's. */
static int same_as_first(const char *what, const TestBackend *t, int i, const float *got,
                         float *first, int64_t n)
{
    if (i == 0)
        memcpy(first, got, (size_t)n * sizeof *got);
    char name[600];
    snprintf(name, sizeof name, "%s, %s", what, t->name);
    return check_bits(name, got, first, n);
}

static int test_norm(const TestBackend *t, int n_backends)
{
    static const struct {
        int n_rows, n_groups, width, gap;
        NormKind kind;
    } cases[] = {{1, 1, 1, 0, NORM_LLAMA},     {3, 1, 7, 2, NORM_FP32},
                 {2, 3, 16, 5, NORM_LLAMA},    {5, 2, 65, 0, NORM_FP32},
                 {40, 1, 1027, 1, NORM_LLAMA}, {4, 1, 24, 0, NORM_ZERO_CENTRED},
                 {0, 1, 8, 0, NORM_LLAMA},     {7, 4, 31, 3, NORM_ZERO_CENTRED}};
    int failed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int width = cases[c].width, used = cases[c].n_groups * width;
        int64_t stride = used + cases[c].gap, n = cases[c].n_rows * stride;
        float *x = test_floats(n, c + 1), *w = test_floats(width, c + 50);
        float *y = test_alloc((size_t)n * sizeof *y), *first = test_alloc((size_t)n * sizeof *y);
        for (int i = 0; i < n_backends; i++) {
            memset(y, 0, (size_t)n * sizeof *y);
            failed += check_int("norm",
                                ops->norm(t[i].b, y, x, w, cases[c].n_rows, cases[c].n_groups,
                                          width, stride, 1e-6f, cases[c].kind, &e),
                                ST_OK);
            failed += same_as_first("norm", &t[i], i, y, first, n);
            for (int r = 0; r < cases[c].n_rows; r++)
                for (int j = 0; j < stride; j++) {
                    int64_t at = r * stride + j;
                    double sum = 0, want = 0; /* gaps stay as they were */
                    if (j < used) {
                        for (int k = 0; k < width; k++)
                            sum += pow(x[r * stride + j / width * width + k], 2);
                        double weight = (cases[c].kind == NORM_ZERO_CENTRED) + (double)w[j % width];
                        want = x[at] / sqrt(sum / width + 1e-6) * weight;
                    }
                    failed += check_near("norm", y[at], want, 1e-6 * (1 + fabs(want)));
                }
        }
        float *in_place = test_floats(n, c + 1);
        ops->norm(t[0].b, in_place, in_place, w, cases[c].n_rows, cases[c].n_groups, width, stride,
                  1e-6f, cases[c].kind, &e);
        for (int64_t at = 0; at < n; at++)
            if (at % stride < used)
                failed += check_near("norm in place", in_place[at], first[at], 0);
        free(x);
        free(w);
        free(y);
        free(first);
        free(in_place);
    }
    /* models.md 1.2 */
    static const float x[4] = {1, -2, 3, 0.5f}, one[4] = {1, 1, 1, 1}, zero[4] = {0};
    static const double want[4] = {0.5298129, -1.0596257, 1.5894386, 0.2649064};
    float y[4];
    for (int i = 0; i < n_backends; i++) {
        ops->norm(t[i].b, y, x, one, 1, 1, 4, 4, 1e-6f, NORM_LLAMA, &e);
        failed += check_close("norm vector", y, want, 4, 1e-7);
        ops->norm(t[i].b, y, x, zero, 1, 1, 4, 4, 1e-6f, NORM_ZERO_CENTRED, &e);
        failed += check_close("zero-centred vector", y, want, 4, 1e-7);
    }
    return failed;
}

static int test_rope(const TestBackend *t, int n_backends)
{
    static const struct {
        int n_rows, n_heads, head_dim, rotary, gap;
        RopeLayout layout;
    } cases[] = {{1, 1, 2, 2, 0, ROPE_HALF},        {3, 2, 6, 6, 1, ROPE_HALF},
                 {90, 3, 64, 64, 10, ROPE_HALF},    {4, 2, 80, 50, 0, ROPE_HALF},
                 {3, 2, 6, 4, 1, ROPE_INTERLEAVED}, {5, 1, 64, 34, 0, ROPE_INTERLEAVED}};
    enum { POSITIONS = 11 };
    int failed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int dim = cases[c].head_dim, rot = cases[c].rotary, half = rot / 2;
        int64_t stride = cases[c].n_heads * dim + cases[c].gap, n = cases[c].n_rows * stride;
        float *table = test_floats(POSITIONS * rot, 5), *x = test_floats(n, 6),
              *first = test_floats(n, 6);
        int32_t *position = test_alloc((size_t)cases[c].n_rows * sizeof *position);
        for (int r = 0; r < cases[c].n_rows; r++)
            position[r] = (r * 7 + 3) % POSITIONS;
        RopeSpec rope = {table, rot, cases[c].layout};
        for (int i = 0; i < n_backends; i++) {
            float *y = test_floats(n, 6);
            failed += check_int("rope",
                                ops->rope(t[i].b, y, cases[c].n_rows, stride, cases[c].n_heads, dim,
                                          position, &rope, &e),
                                ST_OK);
            failed += same_as_first("rope", &t[i], i, y, first, n);
            free(y);
        }
        for (int64_t at = 0; at < n; at++) {
            int64_t r = at / stride, in_row = at % stride, lane = in_row % dim;
            const float *cosine = table + position[r] * rot, *sine = cosine + half;
            double want = x[at];
            if (in_row < cases[c].n_heads * dim && lane < rot) {
                bool halves = cases[c].layout == ROPE_HALF;
                int64_t pair = halves ? lane % half : lane / 2, step = halves ? half : 1;
                bool second = halves ? lane >= half : lane % 2;
                want = second ? (double)x[at] * cosine[pair] + (double)x[at - step] * sine[pair]
                              : (double)x[at] * cosine[pair] - (double)x[at + step] * sine[pair];
            }
            failed += check_near("rope", first[at], want, 2e-7);
        }
        free(table);
        free(x);
        free(first);
        free(position);
    }
    /* models.md 2: d = 4, theta 1e4, position 3 */
    static const double want[2][4] = {{-1.4133525, 1.8791181, -2.8288575, 4.0581911},
                                      {-1.2722325, -1.8388650, 2.8786681, 4.0881866}};
    float table[4][4];
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 2; i++) {
            table[p][i] = (float)cos(p * pow(1e4, -i / 2.0));
            table[p][2 + i] = (float)sin(p * pow(1e4, -i / 2.0));
        }
    for (int i = 0; i < n_backends; i++)
        for (int layout = 0; layout < 2; layout++) {
            float v[4] = {1, 2, 3, 4};
            const int32_t position = 3;
            RopeSpec rope = {table[0], 4, layout ? ROPE_INTERLEAVED : ROPE_HALF};
            ops->rope(t[i].b, v, 1, 4, 1, 4, &position, &rope, &e);
            failed += check_close("rope vector", v, want[layout], 4, 1.2e-7);
        }
    return failed;
}

static int test_embed(const TestBackend *t, int n_backends)
{
    enum { VOCAB = 9, COLS = 256, N = 200 };
    int failed = 0;
    float *y = test_alloc(N * COLS * sizeof *y);
    int32_t ids[N];
    for (int i = 0; i < N; i++)
        ids[i] = i * 5 % VOCAB;
    for (FormatId f = 0; f < N_FORMATS; f++) {
        TestTensor table = test_tensor(f, VOCAB, COLS, 8), turned = table;
        if (f == FORMAT_BF16) { /* the same values, stored by columns */
            uint16_t *data = test_alloc(VOCAB * COLS * sizeof *data);
            for (int r = 0; r < VOCAB; r++)
                for (int k = 0; k < COLS; k++)
                    data[k * VOCAB + r] = float_to_bf16(table.value[r * COLS + k]);
            turned.t.data = turned.data = data;
            turned.t.row_bytes = 2;
            turned.t.unit_stride = 2 * VOCAB;
        }
        for (int i = 0; i < n_backends; i++)
            for (int scaled = 0; scaled < 2; scaled++) {
                float scale = scaled ? 1.7f : 1.0f;
                Weight *w =
                    test_weight(ops, t[i].b, WEIGHT_LOOKUP, 1, 1, scaled ? &table : &turned);
                failed += check_int("embed", ops->embed(t[i].b, y, w, ids, N, scale, &e), ST_OK);
                int wrong = 0;
                for (int r = 0; r < N; r++)
                    for (int k = 0; k < COLS; k++)
                        wrong += y[r * COLS + k] != table.value[ids[r] * COLS + k] * scale;
                failed += check_int(quant_format(f)->name, wrong, 0);
                ops->weight_destroy(t[i].b, w);
            }
        if (turned.data != table.data)
            free(turned.data);
        test_tensor_free(&table);
    }
    /* A scale per row, bf16, over a last group that is shorter; and what is refused. */
    TestTensor odd = test_scaled(FORMAT_FP8, (TestScales){SCALE_BF16, 50, 1}, VOCAB, 77, 9);
    Weight *w = test_weight(ops, t[0].b, WEIGHT_LOOKUP, 1, 1, &odd);
    failed += check_int("embed", ops->embed(t[0].b, y, w, ids, N, 1, &e), ST_OK);
    for (int r = 0; r < N; r++)
        failed += check_bits("fp8 by rows", y + r * 77, odd.value + ids[r] * 77, 77);
    ((uint8_t *)odd.data)[4 * 77 + 76] = 0xff;
    failed += check_int("NaN", ops->weight_set(t[0].b, w, 0, 0, &odd.t, &e), ST_INPUT);
    failed += check_has("NaN", e.text, "matrix 0, part 0, row 4: a code is 0x7F or 0xFF");
    ops->weight_destroy(t[0].b, w);
    test_tensor_free(&odd);
    free(y);
    return failed;
}

static int test_sums(const TestBackend *t, int n_backends)
{
    static const struct {
        int n, top_k, width;
    } cases[] = {{1, 1, 1}, {3, 2, 37}, {50, 4, 300}, {0, 4, 8}};
    int failed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int n = cases[c].n, top_k = cases[c].top_k, width = cases[c].width, n_rows = n * top_k + 1;
        float *rows = test_floats((int64_t)n_rows * width, 1), *weight = test_floats(n * top_k, 2);
        float *y = test_alloc((size_t)(n * width) * sizeof *y),
              *first = test_alloc((size_t)(n * width) * sizeof *y);
        int32_t *slot = test_alloc((size_t)(n * top_k) * sizeof *slot);
        uint64_t seed = 3;
        for (int i = 0; i < n * top_k; i++) /* one in five was dropped */
            slot[i] =
                test_random(&seed) % 5 ? (int32_t)(test_random(&seed) % (unsigned)n_rows) : -1;
        for (int i = 0; i < n_backends; i++) {
            Backend *b = t[i].b;
            failed +=
                check_int("combine",
                          ops->combine(b, y, rows, slot, weight, NULL, n, top_k, width, &e), ST_OK);
            failed += same_as_first("combine", &t[i], i, y, first, n * width);
            for (int j = 0; j < n * width; j++) {
                float acc = 0;
                for (int s = 0; s < top_k; s++)
                    if (slot[j / width * top_k + s] >= 0)
                        acc = fmaf(weight[j / width * top_k + s],
                                   rows[slot[j / width * top_k + s] * width + j % width], acc);
                failed += check_near("combine", y[j], acc, 0);
                first[j] = acc + rows[j];
            }
            ops->combine(b, y, rows, slot, weight, rows, n, top_k, width, &e);
            failed += check_bits("combine with more", y, first, n * width);
            ops->combine(b, first, rows, slot, weight, NULL, n, top_k, width, &e);
            int32_t *from = test_alloc((size_t)n * sizeof *from);
            for (int r = 0; r < n; r++)
                from[r] = (r * 3 + 1) % n_rows;
            failed += check_int(
                "gather", ops->gather(b, y, rows, from, n, (size_t)width * sizeof *y, &e), ST_OK);
            for (int j = 0; j < n * width; j++)
                failed += check_near("gather", y[j], rows[from[j / width] * width + j % width], 0);
            free(from);
        }
        free(rows);
        free(weight);
        free(y);
        free(first);
        free(slot);
    }
    return failed;
}

/* The sum of the residual stream, and its norm as norm gives it. */
static int test_add_norm(const TestBackend *t, int n_backends)
{
    enum { N = 7, WIDTH = 601 };
    static const NormKind kinds[] = {NORM_LLAMA, NORM_FP32, NORM_ZERO_CENTRED};
    float *delta = test_floats(N * WIDTH, 4), *before = test_floats(N * WIDTH, 5),
          *weight = test_floats(WIDTH, 6);
    float *y = test_alloc(N * WIDTH * sizeof *y), *want = test_alloc(N * WIDTH * sizeof *want);
    int failed = 0;
    for (int i = 0; i < 3 * n_backends; i++) {
        Backend *b = t[i / 3].b;
        NormKind kind = kinds[i % 3];
        float *h = test_floats(N * WIDTH, 5);
        failed += check_int(
            "add", ops->add_norm(b, y, h, delta, 0.22f, weight, N, WIDTH, 1e-6f, kind, &e), ST_OK);
        int wrong = 0;
        for (int j = 0; j < N * WIDTH; j++)
            wrong += h[j] != fmaf(0.22f, delta[j], before[j]);
        failed += check_int("sum", wrong, 0);
        ops->norm(b, want, h, weight, N, 1, WIDTH, WIDTH, 1e-6f, kind, &e);
        failed += check_bits("norm of the sum", y, want, N * WIDTH);
        failed += check_int(
            "alone", ops->add_norm(b, y, h, NULL, 0.22f, weight, N, WIDTH, 1e-6f, kind, &e), ST_OK);
        failed += check_bits("norm alone", y, want, N * WIDTH);
        free(h);
    }
    free(delta);
    free(before);
    free(weight);
    free(y);
    free(want);
    return failed;
}

static int test_gate_and_clamp(const TestBackend *t, int n_backends)
{
    static const struct {
        int n, width, gap;
    } cases[] = {{1, 1, 0}, {0, 5, 0}, {3, 37, 2}, {700, 64, 0}, {9, 8001, 7}};
    int failed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int n = cases[c].n, width = cases[c].width;
        int64_t stride = width + cases[c].gap, size = n * stride;
        float *x = test_floats(size, c), *gate = test_floats(n, c + 9);
        float *first = test_alloc((size_t)size * sizeof *first);
        static const float limits[] = {INFINITY, 0.25f, 8};
        for (int r = 0; r < n; r++)
            gate[r] = r == 0 ? -100.0f : r == 1 ? 100.0f : 9 * gate[r];
        for (int i = 0; i < n_backends; i++) {
            float *y = test_floats(size, c);
            failed += check_int("gate", ops->gate_rows(t[i].b, y, gate, n, width, &e), ST_OK);
            failed += same_as_first("gate", &t[i], i, y, first, (int64_t)n * width);
            for (int64_t j = 0; j < (int64_t)n * width; j++) {
                double want = x[j] / (1 + exp(-(double)gate[j / width]));
                failed += check_near("gate", y[j], want, 5e-7 * fabs(want) + 1e-37);
            }
            free(y);
        }
        for (size_t l = 0; l < sizeof limits / sizeof *limits; l++)
            for (int i = 0; i < n_backends; i++) {
                float *y = test_floats(size, c);
                if (size)
                    y[0] = NAN;
                failed += check_int("clamp", ops->clamp(t[i].b, y, n, stride, width, limits[l], &e),
                                    ST_OK);
                if (size)
                    failed += check_true("a clamped NaN", isnan(y[0]));
                int wrong = 0; /* gaps stay as they were */
                for (int64_t j = 1; j < size; j++)
                    wrong += y[j] != (j % stride < width ? fminf(fmaxf(x[j], -limits[l]), limits[l])
                                                         : x[j]);
                failed += check_int("clamp", wrong, 0);
                free(y);
            }
        free(x);
        free(gate);
        free(first);
    }
    return failed;
}

static int test_memory(Backend *b)
{
    int failed = 0;
    void *p = NULL;
    static const size_t sizes[] = {0, 1, 65, (size_t)3 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        failed += check_int("alloc", ops->alloc(b, sizes[i], "a test", &p, &e), ST_OK);
        failed += check_int("aligned", (int64_t)((uintptr_t)p % 64), 0);
        memset(p, 1, sizes[i]);
        ops->release(b, p);
    }
    failed += check_int("too much", ops->alloc(b, SIZE_MAX - 5, "all there is", &p, &e), ST_MEMORY);
    failed += check_has("too much", e.text, "for all there is");
    float a[3] = {1, 2, 3}, to[3];
    failed += check_int("upload", ops->upload(b, to, a, sizeof a, &e), ST_OK);
    failed += check_int("download", ops->download(b, a, to, sizeof a, &e), ST_OK);
    failed += check_near("there and back", a[2], 3, 0);
    failed += check_int("wait", ops->wait(b, &e), ST_OK);
    ops->destroy(NULL);
    return failed;
}

/* Each row must become what the reference makes of it alone; gaps stay as they were. */
static int test_formats(const TestBackend *t, int n_backends)
{
    static const struct {
        int n, width, x_gap, y_gap;
        RowFormat format;
    } cases[] = {{3, 7, 2, 0, {ROWS_AS_THEY_ARE, 0, false}},
                 {5, 45, 0, 3, {ROWS_FP8_STATIC, 0.01f, false}},
                 {700, 65, 1, 1, {ROWS_FP8_TOKEN, 0, false}},
                 {4, 300, 0, 0, {ROWS_FP8_GROUP, 0, true}},
                 {9, 8001, 0, 1, {ROWS_FP8_GROUP, 0, false}},
                 {33, 48, 0, 0, {ROWS_NVFP4_STATIC, 0.002f, false}},
                 {130, 512, 16, 0, {ROWS_NVFP4_TOKEN, 0, false}},
                 {1, 96, 0, 5, {ROWS_MXFP8, 0, false}},
                 {0, 32, 0, 0, {ROWS_MXFP8, 0, false}}};
    int failed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const RowFormat *f = &cases[c].format;
        int n = cases[c].n, width = cases[c].width;
        int64_t x_stride = width + cases[c].x_gap, y_stride = width + cases[c].y_gap;
        int64_t bytes = row_encoded_bytes(f->scheme, width);
        float *x = test_floats(n * x_stride, c + 1), *want = test_floats(n * y_stride, c + 2);
        float *dense = test_alloc((size_t)(n * width) * sizeof *dense);
        uint8_t *coded = test_alloc((size_t)(n * bytes)),
                *want_coded = test_alloc((size_t)(n * bytes));
        for (int r = 0; r < n; r++) {
            memcpy(dense + r * width, x + r * x_stride, (size_t)width * sizeof *x);
            row_round(f, x + r * x_stride, width, want + r * y_stride);
            row_encode(f, x + r * x_stride, width, want_coded + r * bytes);
        }
        for (int i = 0; i < n_backends; i++) {
            const char *name = row_scheme_name(f->scheme);
            float *y = test_floats(n * y_stride, c + 2);
            failed += check_int(
                name, ops->round_rows(t[i].b, y, y_stride, x, x_stride, n, width, f, &e), ST_OK);
            failed += check_bits(name, y, want, n * y_stride);
            failed +=
                check_int(name, ops->encode_rows(t[i].b, coded, dense, n, width, f, &e), ST_OK);
            failed += check_int(name, memcmp(coded, want_coded, (size_t)(n * bytes)), 0);
            float *back = test_alloc((size_t)(n * width) * sizeof *back);
            failed +=
                check_int(name, ops->decode_rows(t[i].b, back, coded, n, width, f, &e), ST_OK);
            for (int r = 0; r < n; r++)
                failed += check_bits(name, back + r * width, want + r * y_stride, width);
            memcpy(back, dense, (size_t)(n * width) * sizeof *back); /* in place */
            ops->round_rows(t[i].b, back, width, back, width, n, width, f, &e);
            for (int r = 0; r < n; r++)
                failed += check_bits(name, back + r * width, want + r * y_stride, width);
            free(y);
            free(back);
        }
        free(x);
        free(want);
        free(dense);
        free(coded);
        free(want_coded);
    }
    float x[40] = {0};
    RowFormat nvfp4 = {ROWS_NVFP4_TOKEN, 0, false}, mxfp8 = {ROWS_MXFP8, 0, false};
    failed +=
        check_int("odd width", ops->round_rows(t[0].b, x, 40, x, 40, 1, 40, &nvfp4, &e), ST_INPUT);
    failed += check_has("odd width", e.text, "nvfp4 per token: not a multiple of 16");
    failed += check_int("odd width", ops->encode_rows(t[0].b, x, x, 1, 40, &mxfp8, &e), ST_INPUT);
    failed += check_int("odd width", ops->decode_rows(t[0].b, x, x, 1, 40, &mxfp8, &e), ST_INPUT);
    return failed;
}

int main(void)
{
    ops = backend_find("cpu");
    TestBackend backends[MAX_TEST_BACKENDS];
    int n = test_backends(ops, backends);
    int failed = test_norm(backends, n) + test_rope(backends, n) + test_embed(backends, n) +
                 test_sums(backends, n) + test_add_norm(backends, n) +
                 test_gate_and_clamp(backends, n) + test_formats(backends, n) +
                 test_memory(backends[0].b);
    test_backends_free(ops, backends, n);
    return test_result(failed);
}
