/* tests/kernels/test_route.c - routing against the vectors of models.md section 3 and a
 * double-precision oracle; ties and NaN; and the exponential underneath, over its whole range. */
#include "kernels/cpu/cpu.h"
#include "tests/support/check.h"
#include "tests/support/kernel_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const BackendOps *ops;
static Err e;

static int test_vectors(Backend *b)
{
    static const float logits[8] = {0.3f, -1.2f, 2.0f, 0.7f, 1.9f, -0.4f, 0.0f, 1.1f};
    static const struct {
        const char *name;
        RouterSpec spec;
        double want[3];
    } cases[] = {
        {"R1", {ROUTER_SOFTMAX_TOPK, 8, 3, false, 1}, {0.3296590, 0.2982878, 0.1340293}},
        {"R1 renormalised",
         {ROUTER_SOFTMAX_TOPK, 8, 3, true, 1},
         {0.4326369, 0.3914661, 0.1758970}},
        {"R2", {ROUTER_TOPK_SOFTMAX, 8, 3, false, 1}, {0.4326369, 0.3914661, 0.1758970}},
        {"R1 scaled", {ROUTER_SOFTMAX_TOPK, 8, 3, false, 16}, {5.2745436, 4.7726044, 2.1444694}},
    };
    int failed = 0, want[3] = {2, 4, 7};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int32_t expert[3];
        float weight[3];
        failed += check_int(cases[c].name,
                            ops->route(b, expert, weight, logits, 1, &cases[c].spec, &e), ST_OK);
        for (int s = 0; s < 3; s++)
            failed += check_int(cases[c].name, expert[s], want[s]);
        failed += check_close(cases[c].name, weight, cases[c].want, 3, 1.2e-7);
    }
    return failed;
}

/* Values on a coarse grid, so that ties are common. */
static int test_batches(const TestBackend *t, int n_backends)
{
    static const struct {
        int n, n_experts, top_k;
        RouterKind kind;
    } cases[] = {{1, 1, 1, ROUTER_TOPK_SOFTMAX},     {0, 8, 2, ROUTER_SOFTMAX_TOPK},
                 {33, 16, 4, ROUTER_SOFTMAX_TOPK},   {500, 128, 8, ROUTER_TOPK_SOFTMAX},
                 {9, 1024, 32, ROUTER_SOFTMAX_TOPK}, {40, 5, 5, ROUTER_TOPK_SOFTMAX}};
    int failed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int n = cases[c].n, n_experts = cases[c].n_experts, top_k = cases[c].top_k;
        float *logits = test_floats((int64_t)n * n_experts, c),
              *weight = test_alloc((size_t)(n * top_k) * 4);
        float *first = test_alloc((size_t)(n * top_k) * 4);
        int32_t *expert = test_alloc((size_t)(n * top_k) * 4);
        for (int i = 0; i < n * n_experts; i++)
            logits[i] = floorf(logits[i] * 40) / 8 - 60;
        RouterSpec spec = {cases[c].kind, n_experts, top_k, c % 2 == 0, 1};
        for (int i = 0; i < n_backends; i++) {
            failed +=
                check_int("route", ops->route(t[i].b, expert, weight, logits, n, &spec, &e), ST_OK);
            if (i == 0)
                memcpy(first, weight, (size_t)(n * top_k) * 4);
            failed += check_bits(t[i].name, weight, first, n * top_k);
            for (int r = 0; r < n; r++) {
                const float *row = logits + r * n_experts;
                bool taken[1024] = {false};
                double total = 0, kept = 0;
                for (int j = 0; j < n_experts; j++)
                    total += exp(row[j]);
                for (int s = 0; s < top_k; s++) {
                    int best = -1;
                    for (int j = 0; j < n_experts; j++)
                        if (!taken[j] && (best < 0 || row[j] > row[best]))
                            best = j;
                    failed += check_int("expert", expert[r * top_k + s], best);
                    taken[best] = true;
                    kept += exp(row[best]);
                }
                double over = spec.kind == ROUTER_TOPK_SOFTMAX || spec.renormalize ? kept : total;
                for (int s = 0; s < top_k; s++) {
                    double want = exp(row[expert[r * top_k + s]]) / over;
                    failed += check_near("weight", weight[r * top_k + s], want, 1e-6 * want);
                }
            }
        }
        free(logits);
        free(weight);
        free(first);
        free(expert);
    }
    return failed;
}

static int test_refusals(Backend *b)
{
    enum { N = 50, E = 4 };
    int failed = 0;
    float logits[N][E] = {{0}}, weight[N * 2];
    int32_t expert[N * 2];
    RouterSpec spec = {ROUTER_TOPK_SOFTMAX, E, 2, false, 1};
    logits[7][3] = -INFINITY; /* never chosen, but no error */
    failed += check_int("-inf", ops->route(b, expert, weight, logits, N, &spec, &e), ST_OK);
    logits[41][2] = NAN;
    logits[23][0] = INFINITY;
    failed += check_int("NaN", ops->route(b, expert, weight, logits, N, &spec, &e), ST_INPUT);
    failed += check_has("lowest row", e.text, "row 23:");
    logits[23][0] = 0;
    failed += check_int("NaN", ops->route(b, expert, weight, logits, N, &spec, &e), ST_INPUT);
    failed += check_has("NaN", e.text, "row 41:");
    spec.top_k = 5;
    failed += check_int("more than there are", ops->route(b, expert, weight, logits, 1, &spec, &e),
                        ST_INPUT);
    spec.n_experts = 2000;
    failed += check_int("too many", ops->route(b, expert, weight, logits, 1, &spec, &e), ST_INPUT);
    return failed;
}

static int test_exp(void)
{
    int failed = 0;
    const CpuKernels *levels[] = {&cpu_kernels_scalar, &cpu_kernels_avx2, &cpu_kernels_avx512};
    enum { N = 20011 };
    float *x = test_alloc(N * sizeof *x), *y = test_alloc(N * sizeof *y),
          *first = test_alloc(N * sizeof *y);
    for (int i = 0; i < N; i++)
        x[i] = -110.0f + 0.01f * (float)i;
    const float special[] = {0.0f,    -0.0f,   -INFINITY, INFINITY, 88.722839f, 88.7229f,
                             -103.9f, -104.1f, 1e30f,     -1e30f,   NAN};
    memcpy(x, special, sizeof special);
    for (int level = 0; level <= (int)isa_best(); level++) {
        levels[level]->exp_row(y, x, 0.0f, N);
        if (level == 0)
            memcpy(first, y, N * sizeof *y);
        for (int i = 0; i < N; i++) {
            if (isnan(x[i])) { /* which NaN is the processor's choice */
                failed += check_true("e^NaN", isnan(y[i]));
                continue;
            }
            failed += check_bits("exp", y + i, first + i, 1);
            double want = exp(x[i]),
                   ulp = fmax(want, 0x1p-126) * 0x1p-23; /* at least half an ulp */
            if (x[i] > 88.3763f) /* 127.5 ln 2: the exponent leaves its range */
                failed += check_true("overflow", isinf(y[i]));
            else if (x[i] < -87.6832f)
                failed += check_near("underflow", y[i], 0, 0);
            else
                failed += check_near("exp", y[i], want, ulp);
        }
    }
    free(x);
    free(y);
    free(first);
    return failed;
}

int main(void)
{
    ops = backend_find("cpu");
    TestBackend backends[MAX_TEST_BACKENDS];
    int n = test_backends(ops, backends);
    int failed = test_batches(backends, n) + test_exp();
    for (int i = 0; i < n; i++)
        failed += test_vectors(backends[i].b) + test_refusals(backends[i].b);
    test_backends_free(ops, backends, n);
    return test_result(failed);
}
