/* tests/gpu/test_cuda_goldens.c - whole models on the CUDA backend against the logits of float32
 * references: every reference checkpoint, with its weights alone and with every rounding of
 * activations and of the cache that it comes with.
 *
 * With weights alone: relative L2 of prompts 0 and 1 below 2e-2; of prompts 2 and 3 the median over
 * positions below 3e-2. Two things make jumps of roundings, whoever computes in bf16: a near-tie of
 * a router falls the other way, and a value on the boundary of two codes takes the other one, which
 * moves it by 2^-4 and more at once. So beside each figure stands that of the CPU backend which
 * rounds what it leaves between ops to bf16 and is exact otherwise. Where that one is beyond a limit
 * as well, the limit is twice its figure. Where values are rounded to codes, every prompt can jump:
 * there the root mean square over all prompts of the medians is held to 3e-2, or to one and a half
 * times that of bf16 alone.
 * Usage: test_cuda_goldens [NAME...]: those checkpoints only. */
#include "dist/comm.h"
#include "tests/support/bf16_twin.h"
#include "tests/support/check.h"
#include "tests/support/cuda_case.h"
#include "tests/support/golden_model.h"
#include "tests/support/kernel_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CudaCase on;
static BackendOps twin;

typedef struct Mode {
    const char *name, *entry;
    Precision precision;
} Mode;

static const Mode modes[] = {
    {"none", "logits", {.activations = ACTIVATIONS_NONE, .kv_given = true, .kv = KV_BF16}},
    {"stored", "stored", {.activations = ACTIVATIONS_STORED, .kv_given = true, .kv = KV_BF16}},
    {"kv_fp8", "kv_fp8", {.activations = ACTIVATIONS_NONE, .kv_given = true, .kv = KV_FP8}},
    {"per_token",
     "per_token_experts",
     {.activations = ACTIVATIONS_NONE, .per_token_experts = true, .kv_given = true, .kv = KV_BF16}},
};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Relative L2 over all positions, or the median of that of each. */
static double distance(const float *got, const float *want, int n, int vocab, bool median)
{
    double apart = 0, squares = 0, each[GOLDEN_ROWS];
    for (int r = 0; r < n; r++) {
        double d2 = 0, s2 = 0;
        for (int64_t i = (int64_t)r * vocab; i < (int64_t)(r + 1) * vocab; i++) {
            double d = (double)got[i] - (double)want[i];
            d2 += d * d;
            s2 += (double)want[i] * (double)want[i];
        }
        each[r] = sqrt(d2 / s2);
        apart += d2;
        squares += s2;
    }
    qsort(each, (size_t)n, sizeof *each, ascending);
    return median ? each[n / 2] : sqrt(apart / squares);
}

typedef struct Sums { /* of squares, over the prompts */
    double got, bf16;
} Sums;

/* One prompt against its reference; 1 when it is beyond its limit. coded: values are rounded to
 * codes, so that it is only added up. */
static int check_prompt(const GoldenModel *g, const Mode *mode, int k, const float *got,
                        const float *twins, int n, Sums *sums)
{
    size_t bytes = (size_t)n * (size_t)g->arch.vocab * sizeof(float);
    float *want = test_alloc(bytes);
    bool coded = mode != modes, median = coded || k >= 2;
    memcpy(want, golden_entry(g, mode->entry, k)->data, bytes);
    double d = distance(got, want, n, g->arch.vocab, median),
           bf16 = distance(twins, want, n, g->arch.vocab, median), limit = median ? 3e-2 : 2e-2;
    free(want);
    sums->got += d * d;
    sums->bf16 += bf16 * bf16;
    if (bf16 > limit)
        limit = 2 * bf16;
    bool good = coded || d < limit;
    printf(" %.4f/%.4f%s", d, bf16, good ? "" : "!");
    return !good;
}

static int check_mode(Comm *comm, const GoldenModel *g, const Mode *mode, const char *name)
{
    int failed = 0, n, k;
    int32_t ids[GOLDEN_ROWS];
    Sums sums = {0};
    if (!golden_entry(g, mode->entry, 0))
        return 0;
    Model *exact = golden_load(g, comm, &twin, on.host, &mode->precision),
          *there = golden_load(g, comm, on.cuda, on.dev, &mode->precision);
    printf("%-26s %-9s", name, mode->name);
    for (k = 0; (n = golden_ids(g, k, ids)) > 0; k++) {
        size_t bytes = (size_t)n * (size_t)g->arch.vocab * sizeof(float);
        float *got = test_alloc(bytes), *twins = test_alloc(bytes);
        golden_run(exact, ids, n, twins);
        golden_run(there, ids, n, got);
        failed += check_prompt(g, mode, k, got, twins, n, &sums);
        free(got);
        free(twins);
    }
    double got = sqrt(sums.got / k), bf16 = sqrt(sums.bf16 / k),
           limit = 1.5 * bf16 > 3e-2 ? 1.5 * bf16 : 3e-2;
    bool good = mode == modes || got < limit;
    printf("  all %.4f/%.4f%s\n", got, bf16, good ? "" : "!");
    model_destroy(exact);
    model_destroy(there);
    return failed + !good;
}

static int check_model(void *comm, const char *dir, const char *name)
{
    GoldenModel g;
    int failed = 0;
    golden_open(dir, &g);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        failed += check_mode(comm, &g, &modes[i], name);
    golden_close(&g);
    return failed;
}

int main(int argc, char **argv)
{
    Comm comm;
    Err e = {0};
    char folder[FILE_PATH_MAX];
    if (!test_shared())
        return test_skip("no reference data");
    int failed = cuda_case_open(&on);
    if (failed)
        return failed;
    twin = bf16_twin();
    cuda_case_must(comm_start(&argc, &argv, &comm, &e), &e);
    snprintf(folder, sizeof folder, "%s/goldens", test_shared());
    printf("distance of the CUDA backend / of bf16 activations alone, prompts 0 to 3\n");
    failed = golden_each(folder, argc - 1, argv + 1, check_model, &comm);
    comm_end(&comm);
    cuda_case_close(&on);
    return test_result(failed);
}
