/* tests/gpu/test_cuda_rows.c - the row-wise operations, the codes of rows and the router of the CUDA
 * backend against the CPU's. */
#include "tests/support/check.h"
#include "tests/support/cuda_case.h"
#include "tests/support/kernel_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CudaCase on;

/* The same rows on both sides. */
typedef struct Rows {
    float *host;
    void *dev;
    int64_t n;
} Rows;

static Rows rows_of(int64_t n, uint64_t seed)
{
    float *x = cuda_case_floats(n, seed);
    return (Rows){x, cuda_case_rows(&on, x, n), n};
}

/* Compares, and frees both. */
static int rows_near(const char *name, Rows *r, double relative, double slack)
{
    float *got = cuda_case_read(&on, r->dev, r->n), *each = test_alloc((size_t)r->n * sizeof *each);
    for (int64_t i = 0; i < r->n; i++)
        each[i] = (float)slack;
    int failed = cuda_case_near(name, got, r->host, r->n, each, relative);
    on.cuda->release(on.dev, r->dev);
    free(got);
    free(each);
    free(r->host);
    return failed;
}

static void free_rows(Rows *r)
{
    on.cuda->release(on.dev, r->dev);
    free(r->host);
}

static int check_norms(void)
{
    static const struct {
        const char *name;
        int n_rows, n_groups, width;
        NormKind kind;
        double halves; /* how often a value is rounded */
    } cases[] = {
        {"llama", 5, 1, 700, NORM_LLAMA, 2},   {"llama, heads", 3, 4, 16, NORM_LLAMA, 2},
        {"fp32", 7, 1, 64, NORM_FP32, 1},      {"zero-centred", 2, 3, 33, NORM_ZERO_CENTRED, 1},
        {"one value", 1, 1, 1, NORM_LLAMA, 2}, {"wide", 2, 1, 7168, NORM_FP32, 1},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int width = cases[i].width, stride = cases[i].n_groups * width + 5;
        Rows x = rows_of((int64_t)cases[i].n_rows * stride, 3);
        float *weight = test_floats(width, 4);
        void *weight_dev = cuda_case_bytes(&on, weight, (size_t)width * sizeof *weight);
        Err e;
        cuda_case_must(on.cpu->norm(on.host, x.host, x.host, weight, cases[i].n_rows,
                                    cases[i].n_groups, width, stride, 1e-6f, cases[i].kind, &e),
                       &e);
        cuda_case_must(on.cuda->norm(on.dev, x.dev, x.dev, weight_dev, cases[i].n_rows,
                                     cases[i].n_groups, width, stride, 1e-6f, cases[i].kind, &e),
                       &e);
        failed += rows_near(cases[i].name, &x, cases[i].halves * 1.01 * BF16_HALF, 1e-30);
        on.cuda->release(on.dev, weight_dev);
        free(weight);
    }
    return failed;
}

static int check_rope(void)
{
    static const struct {
        const char *name;
        int n_heads, head_dim, rotary;
        RopeLayout layout;
    } cases[] = {{"half", 3, 64, 64, ROPE_HALF},
                 {"half, part", 2, 20, 10, ROPE_HALF},
                 {"interleaved", 5, 16, 16, ROPE_INTERLEAVED}};
    enum { ROWS = 6, POSITIONS = 40 };
    static const int32_t position[ROWS] = {0, 39, 7, 7, 1, 20};
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int stride = cases[i].n_heads * cases[i].head_dim + 8;
        Rows x = rows_of(ROWS * stride, 9);
        float *table = test_floats(POSITIONS * cases[i].rotary, 10);
        size_t bytes = (size_t)(POSITIONS * cases[i].rotary) * sizeof *table;
        void *table_dev = cuda_case_bytes(&on, table, bytes);
        RopeSpec here = {table, cases[i].rotary, cases[i].layout},
                 there = {table_dev, cases[i].rotary, cases[i].layout};
        Err e;
        cuda_case_must(on.cpu->rope(on.host, x.host, ROWS, stride, cases[i].n_heads,
                                    cases[i].head_dim, position, &here, &e),
                       &e);
        void *position_dev = cuda_case_bytes(&on, position, sizeof position);
        cuda_case_must(on.cuda->rope(on.dev, x.dev, ROWS, stride, cases[i].n_heads,
                                     cases[i].head_dim, position_dev, &there, &e),
                       &e);
        on.cuda->release(on.dev, position_dev);
        failed += rows_near(cases[i].name, &x, 1.01 * BF16_HALF, 1e-6);
        on.cuda->release(on.dev, table_dev);
        free(table);
    }
    return failed;
}

/* The residual stream stays float32, to the bit what the CPU has. */
static int check_add_norm(void)
{
    enum { ROWS = 5, WIDTH = 1027 };
    static const NormKind kinds[] = {NORM_LLAMA, NORM_FP32, NORM_ZERO_CENTRED};
    int failed = 0;
    for (int i = 0; i < 6; i++) {
        bool added = i % 2;
        NormKind kind = kinds[i / 2];
        float *h = test_floats(ROWS * WIDTH, 60), *weight = test_floats(WIDTH, 61);
        float *h_dev = cuda_case_bytes(&on, h, ROWS * WIDTH * sizeof *h),
              *weight_dev = cuda_case_bytes(&on, weight, WIDTH * sizeof *weight);
        Rows delta = rows_of(ROWS * WIDTH, 62), y = rows_of(ROWS * WIDTH, 63);
        Err e;
        cuda_case_must(on.cpu->add_norm(on.host, y.host, h, added ? delta.host : NULL, 0.22f,
                                        weight, ROWS, WIDTH, 1e-6f, kind, &e),
                       &e);
        cuda_case_must(on.cuda->add_norm(on.dev, y.dev, h_dev, added ? delta.dev : NULL, 0.22f,
                                         weight_dev, ROWS, WIDTH, 1e-6f, kind, &e),
                       &e);
        float *got = cuda_case_read_floats(&on, h_dev, ROWS * WIDTH);
        failed += check_bits("residual stream", got, h, ROWS * WIDTH);
        failed += rows_near("add_norm", &y, (kind == NORM_LLAMA ? 2.02 : 1.01) * BF16_HALF, 1e-30);
        free_rows(&delta);
        on.cuda->release(on.dev, h_dev);
        on.cuda->release(on.dev, weight_dev);
        free(h);
        free(weight);
        free(got);
    }
    return failed;
}

static int check_embed(void)
{
    enum { VOCAB = 50, COLS = 96, N = 7 };
    static const int32_t ids[N] = {0, 49, 3, 3, 12, 1, 48};
    int failed = 0;
    const FormatId formats[] = {FORMAT_BF16, FORMAT_Q8_0, FORMAT_MXFP4};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        TestTensor t = test_tensor(formats[i], VOCAB, COLS, 2);
        Weight *here = test_weight(on.cpu, on.host, WEIGHT_LOOKUP, 1, 1, &t),
               *there = test_weight(on.cuda, on.dev, WEIGHT_LOOKUP, 1, 1, &t);
        float *h = test_alloc(N * COLS * sizeof *h);
        void *h_dev = cuda_case_bytes(&on, h, N * COLS * sizeof *h),
             *ids_dev = cuda_case_bytes(&on, ids, sizeof ids);
        Err e;
        cuda_case_must(on.cpu->embed(on.host, h, here, ids, N, 12.0f, &e), &e);
        cuda_case_must(on.cuda->embed(on.dev, h_dev, there, ids_dev, N, 12.0f, &e), &e);
        float *got = cuda_case_read_floats(&on, h_dev, N * COLS);
        failed += cuda_case_near("embed", got, h, N * COLS, NULL, 1.01 * BF16_HALF);
        on.cuda->release(on.dev, h_dev);
        on.cuda->release(on.dev, ids_dev);
        free(h);
        free(got);
        on.cpu->weight_destroy(on.host, here);
        on.cuda->weight_destroy(on.dev, there);
        test_tensor_free(&t);
    }
    return failed;
}

static int check_sums(void)
{
    enum { ROWS = 9, WIDTH = 130, TOP_K = 3, FROM = 20 };
    int32_t slot[ROWS * TOP_K], row[ROWS];
    float *weight = test_floats(ROWS * TOP_K, 1);
    for (int i = 0; i < ROWS * TOP_K; i++)
        slot[i] = i % 4 == 3 ? -1 : i * 7 % FROM;
    for (int i = 0; i < ROWS; i++)
        row[i] = i * 11 % FROM;
    Rows from = rows_of(FROM * WIDTH, 2), y = rows_of(ROWS * WIDTH, 3),
         z = rows_of(ROWS * WIDTH, 4), more = rows_of(ROWS * WIDTH, 5),
         plain = rows_of(ROWS * WIDTH, 3), g = rows_of(ROWS * WIDTH, 6),
         c = rows_of(ROWS * WIDTH, 7);
    Rows gate = rows_of(ROWS, 8);
    int32_t *slot_dev = cuda_case_bytes(&on, slot, sizeof slot),
            *row_dev = cuda_case_bytes(&on, row, sizeof row);
    float *weight_dev = cuda_case_bytes(&on, weight, ROWS * TOP_K * sizeof *weight);
    Err e;
    cuda_case_must(on.cpu->combine(on.host, y.host, from.host, slot, weight, more.host, ROWS, TOP_K,
                                   WIDTH, &e),
                   &e);
    cuda_case_must(on.cuda->combine(on.dev, y.dev, from.dev, slot_dev, weight_dev, more.dev, ROWS,
                                    TOP_K, WIDTH, &e),
                   &e);
    cuda_case_must(
        on.cpu->combine(on.host, plain.host, from.host, slot, weight, NULL, ROWS, TOP_K, WIDTH, &e),
        &e);
    cuda_case_must(on.cuda->combine(on.dev, plain.dev, from.dev, slot_dev, weight_dev, NULL, ROWS,
                                    TOP_K, WIDTH, &e),
                   &e);
    cuda_case_must(on.cpu->gather(on.host, z.host, from.host, row, ROWS, WIDTH * sizeof(float), &e),
                   &e);
    cuda_case_must(on.cuda->gather(on.dev, z.dev, from.dev, row_dev, ROWS, WIDTH * 2, &e), &e);
    cuda_case_must(on.cpu->gate_rows(on.host, g.host, gate.host, ROWS, WIDTH, &e), &e);
    cuda_case_must(on.cuda->gate_rows(on.dev, g.dev, gate.dev, ROWS, WIDTH, &e), &e);
    cuda_case_must(on.cpu->clamp(on.host, c.host, ROWS - 1, WIDTH, WIDTH - 3, 0.5f, &e), &e);
    cuda_case_must(on.cuda->clamp(on.dev, c.dev, ROWS - 1, WIDTH, WIDTH - 3, 0.5f, &e), &e);
    int failed = rows_near("combine with more", &y, 1.01 * BF16_HALF, 1e-6);
    failed += rows_near("combine", &plain, 1.01 * BF16_HALF, 1e-6);
    failed += rows_near("gather", &z, 0, 0);
    failed += rows_near("gate_rows", &g, 1.01 * BF16_HALF, 1e-30);
    failed += rows_near("clamp", &c, 0, 0);
    free_rows(&from);
    free_rows(&gate);
    free_rows(&more);
    on.cuda->release(on.dev, slot_dev);
    on.cuda->release(on.dev, row_dev);
    on.cuda->release(on.dev, weight_dev);
    free(weight);
    return failed;
}

/* --- codes of rows: the CPU's bits --- */

static int check_code(const char *name, RowFormat f, int width, float size)
{
    enum { ROWS = 6 };
    int failed = 0;
    int64_t bytes = row_encoded_bytes(f.scheme, width), n = (int64_t)ROWS * width;
    float *x = cuda_case_floats(n, 17), *want = test_alloc((size_t)n * sizeof *want);
    uint8_t *coded = test_alloc((size_t)(ROWS * bytes)), *got = test_alloc((size_t)(ROWS * bytes));
    Err e;
    for (int64_t i = 0; i < n; i++) { /* rows of zeros, of one value, of all sizes */
        int row = (int)(i / width);
        x[i] *= row == 1 ? 0 : row == 2 && i % width ? 0 : row == 3 ? size * 1000 : size;
        x[i] = bf16_to_float(float_to_bf16(x[i]));
    }
    for (int r = 0; r < ROWS; r++) {
        row_encode(&f, x + r * width, width, coded + r * bytes);
        row_decode(&f, coded + r * bytes, width, want + r * width);
    }
    for (int64_t i = 0; i < n; i++)
        want[i] = bf16_to_float(float_to_bf16(want[i]));
    void *x_dev = cuda_case_rows(&on, x, n),
         *coded_dev = cuda_case_bytes(&on, got, (size_t)(ROWS * bytes));
    cuda_case_must(on.cuda->encode_rows(on.dev, coded_dev, x_dev, ROWS, width, &f, &e), &e);
    cuda_case_must(on.cuda->download(on.dev, got, coded_dev, (size_t)(ROWS * bytes), &e), &e);
    for (int64_t i = 0; i < ROWS * bytes; i++)
        if (got[i] != coded[i]) {
            fprintf(stderr, "%s: byte %lld of %lld is %02x, want %02x\n", name, (long long)i,
                    (long long)bytes, got[i], coded[i]);
            failed++;
            break;
        }
    cuda_case_must(on.cuda->round_rows(on.dev, x_dev, width, x_dev, width, ROWS, width, &f, &e),
                   &e);
    float *rounded = cuda_case_read(&on, x_dev, n);
    failed += check_bits(name, rounded, want, n);
    cuda_case_must(on.cuda->decode_rows(on.dev, x_dev, coded_dev, ROWS, width, &f, &e), &e);
    float *decoded = cuda_case_read(&on, x_dev, n);
    failed += check_bits(name, decoded, want, n);
    on.cuda->release(on.dev, x_dev);
    on.cuda->release(on.dev, coded_dev);
    free(x);
    free(want);
    free(coded);
    free(got);
    free(rounded);
    free(decoded);
    return failed;
}

static int check_codes(void)
{
    int failed = 0;
    for (RowScheme s = ROWS_FP8_STATIC; s < N_ROW_SCHEMES; s++)
        for (int power = 0; power <= (s == ROWS_FP8_GROUP); power++) {
            RowFormat f = {s, 0.0173f, power};
            bool whole = row_format_multiple(s) > 1;
            failed += check_code(row_scheme_name(s), f, 288, 1);
            failed += check_code(row_scheme_name(s), f, whole ? 32 : 13, 1e-3f);
            failed += check_code(row_scheme_name(s), f, whole ? 96 : 131, 1e4f);
        }
    Err e;
    RowFormat f = {ROWS_NVFP4_TOKEN, 0, false};
    failed += check_int("half a group", on.cuda->encode_rows(on.dev, NULL, NULL, 1, 24, &f, &e),
                        ST_INPUT);
    return failed;
}

/* --- the router --- */

static int check_route(const char *name, const RouterSpec *spec, bool corrected, bool ties)
{
    enum { ROWS = 37 };
    int n = ROWS * spec->top_k, failed = 0;
    float *logits = test_floats(ROWS * spec->n_experts, 41),
          *correction = test_floats(spec->n_experts, 42);
    for (int i = 0; i < ROWS * spec->n_experts; i++)
        logits[i] = ties ? floorf(logits[i] * 3) : logits[i] * 4;
    for (int i = 0; i < spec->n_experts; i++)
        correction[i] = ties ? 0 : correction[i] * 0.1f;
    int32_t *expert = test_alloc((size_t)n * sizeof *expert),
            *got = test_alloc((size_t)n * sizeof *got);
    float *weight = test_alloc((size_t)n * sizeof *weight),
          *share = test_alloc((size_t)n * sizeof *share);
    void *logits_dev =
             cuda_case_bytes(&on, logits, (size_t)(ROWS * spec->n_experts) * sizeof *logits),
         *correction_dev =
             cuda_case_bytes(&on, correction, (size_t)spec->n_experts * sizeof *correction);
    enum { LIVE = ROWS - 4 };
    static const int32_t n_live = LIVE;
    size_t load_bytes = (size_t)spec->n_experts * sizeof(uint64_t);
    uint64_t *load = test_alloc(load_bytes), *counted = test_alloc(load_bytes);
    memset(load, 0, load_bytes);
    int32_t *got_dev = cuda_case_bytes(&on, got, (size_t)n * sizeof *got),
            *live_dev = cuda_case_bytes(&on, &n_live, sizeof n_live);
    float *share_dev = cuda_case_bytes(&on, share, (size_t)n * sizeof *share);
    uint64_t *load_dev = cuda_case_bytes(&on, load, load_bytes);
    Err e;
    for (int padded = 0; padded < 2; padded++) {
        cuda_case_must(on.cpu->route(on.host, expert, weight, load, logits,
                                     corrected ? correction : NULL, ROWS, padded ? &n_live : NULL,
                                     spec, &e),
                       &e);
        cuda_case_must(on.cuda->route(on.dev, got_dev, share_dev, load_dev, logits_dev,
                                      corrected ? correction_dev : NULL, ROWS,
                                      padded ? live_dev : NULL, spec, &e),
                       &e);
        cuda_case_must(on.cuda->wait(on.dev, &e), &e);
        on.cuda->download(on.dev, got, got_dev, (size_t)n * sizeof *got, &e);
        on.cuda->download(on.dev, share, share_dev, (size_t)n * sizeof *share, &e);
        for (int i = 0; i < n && !failed; i++)
            failed += check_int(name, got[i], expert[i]);
        failed += cuda_case_near(name, share, weight, n, NULL, 1e-5);
        failed += check_int(name, padded ? got[n - 1] : 0, padded ? -1 : 0);
    }
    on.cuda->download(on.dev, counted, load_dev, load_bytes, &e);
    failed += check_int(name, memcmp(counted, load, load_bytes), 0);
    /* Row 5 has no weights; the one that is padding does not matter. */
    logits[5 * spec->n_experts + spec->n_experts - 1] = NAN;
    logits[(ROWS - 1) * spec->n_experts] = NAN;
    cuda_case_must(on.cuda->upload(on.dev, logits_dev, logits,
                                   (size_t)(ROWS * spec->n_experts) * sizeof *logits, &e),
                   &e);
    cuda_case_must(on.cuda->route(on.dev, got_dev, share_dev, load_dev, logits_dev, NULL, ROWS,
                                  live_dev, spec, &e),
                   &e);
    failed += check_int(name, on.cuda->wait(on.dev, &e), ST_INPUT);
    failed += check_has(name, e.text, "row 5");
    failed += check_int(name, on.cuda->wait(on.dev, &e), ST_OK);
    on.cuda->release(on.dev, got_dev);
    on.cuda->release(on.dev, live_dev);
    on.cuda->release(on.dev, share_dev);
    on.cuda->release(on.dev, load_dev);
    free(load);
    free(counted);
    on.cuda->release(on.dev, logits_dev);
    on.cuda->release(on.dev, correction_dev);
    free(logits);
    free(correction);
    free(expert);
    free(got);
    free(weight);
    free(share);
    return failed;
}

static int check_routes(void)
{
    static const struct {
        const char *name;
        RouterSpec spec;
        bool corrected, ties;
    } cases[] = {
        {"softmax, top k", {ROUTER_SOFTMAX_TOPK, 60, 4, 1, 1, false, 0, 1}, false, false},
        {"renormalized", {ROUTER_SOFTMAX_TOPK, 128, 8, 1, 1, true, 0, 1}, false, false},
        {"top k, softmax", {ROUTER_TOPK_SOFTMAX, 32, 4, 1, 1, true, 0, 1}, false, false},
        {"all of them", {ROUTER_TOPK_SOFTMAX, 3, 3, 1, 1, true, 0, 1}, false, false},
        {"groups by maximum", {ROUTER_GROUP_MAX, 64, 6, 8, 3, false, 0, 16}, false, false},
        {"sigmoid", {ROUTER_SIGMOID, 256, 8, 8, 4, true, 1e-20f, 2.5f}, true, false},
        {"sigmoid, no groups", {ROUTER_SIGMOID, 40, 8, 1, 1, true, 0, 1}, true, false},
        {"ties", {ROUTER_SOFTMAX_TOPK, 100, 8, 1, 1, true, 0, 1}, false, true},
        {"ties in groups", {ROUTER_SIGMOID, 64, 8, 8, 2, true, 1e-20f, 1}, true, true},
        {"many", {ROUTER_SOFTMAX_TOPK, 1024, 32, 1, 1, true, 0, 1}, false, false},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        failed += check_route(cases[i].name, &cases[i].spec, cases[i].corrected, cases[i].ties);
    return failed;
}

int main(void)
{
    int failed = cuda_case_open(&on);
    if (failed)
        return failed;
    failed += check_norms();
    failed += check_rope();
    failed += check_add_norm() + check_embed();
    failed += check_sums();
    failed += check_codes();
    failed += check_routes();
    cuda_case_close(&on);
    return test_result(failed);
}
