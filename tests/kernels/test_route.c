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
    static const float bias[8] = {0, 0.9f, -0.5f, 0.1f, -0.6f, 0.8f, 0.2f, -0.1f};
    static const float lower[8] = {-1, -0.1f, -1.5f, -0.9f, -1.6f, -0.2f, -0.8f, -1.1f};
    static const struct {
        const char *name;
        RouterSpec spec;
        const float *correction;
        int expert[3];
        double want[3];
    } cases[] = {
        {"R1",
         {ROUTER_SOFTMAX_TOPK, 8, 3, 1, 1, false, 0, 1},
         NULL,
         {2, 4, 7},
         {0.3296590, 0.2982878, 0.1340293}},
        {"R1 renormalised",
         {ROUTER_SOFTMAX_TOPK, 8, 3, 1, 1, true, 0, 1},
         NULL,
         {2, 4, 7},
         {0.4326369, 0.3914661, 0.1758970}},
        {"R2",
         {ROUTER_TOPK_SOFTMAX, 8, 3, 1, 1, false, 0, 1},
         NULL,
         {2, 4, 7},
         {0.4326369, 0.3914661, 0.1758970}},
        {"R1 scaled",
         {ROUTER_SOFTMAX_TOPK, 8, 3, 1, 1, false, 0, 16},
         NULL,
         {2, 4, 7},
         {5.2745436, 4.7726044, 2.1444694}},
        {"R3",
         {ROUTER_GROUP_MAX, 8, 3, 4, 2, false, 0, 16},
         NULL,
         {2, 4, 3},
         {5.2745436, 4.7726044, 1.4374808}},
        {"R3 with all groups",
         {ROUTER_GROUP_MAX, 8, 3, 4, 4, false, 0, 16},
         NULL,
         {2, 4, 7},
         {5.2745436, 4.7726044, 2.1444694}},
        {"R4",
         {ROUTER_SIGMOID, 8, 3, 4, 2, true, 1e-20f, 2.5f},
         bias,
         {5, 1, 0},
         {0.8310602, 0.4793519, 1.1895879}},
        {"R4 with a correction below 0", /* masked experts must not win with 0 */
         {ROUTER_SIGMOID, 8, 3, 4, 2, true, 1e-20f, 2.5f},
         lower,
         {5, 1, 0},
         {0.8310602, 0.4793519, 1.1895879}},
        {"R5",
         {ROUTER_SIGMOID, 8, 3, 1, 1, true, 0, 1},
         bias,
         {5, 1, 3},
         {0.3084704, 0.1779244, 0.5136053}},
    };
    int failed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int32_t expert[3];
        float weight[3];
        uint64_t load[16] = {0};
        failed += check_int(cases[c].name,
                            ops->route(b, expert, weight, load, logits, cases[c].correction, 1,
                                       NULL, &cases[c].spec, &e),
                            ST_OK);
        for (int s = 0; s < 3; s++)
            failed += check_int(cases[c].name, expert[s], cases[c].expert[s]);
        failed += check_close(cases[c].name, weight, cases[c].want, 3, 1.2e-7);
    }
    return failed;
}

/* The rules of models.md in double: an expert's key decides, its score is what it weighs. */
typedef struct Oracle {
    double key[MAX_EXPERTS], score[MAX_EXPERTS];
    bool open[MAX_EXPERTS]; /* its group stays, and it was not chosen yet */
} Oracle;

static double top_of(const double *key, const bool *open, int n, int *which)
{
    *which = -1;
    for (int i = 0; i < n; i++)
        if (open[i] && (*which < 0 || key[i] > key[*which]))
            *which = i;
    return *which < 0 ? 0 : key[*which];
}

static void keep_groups(Oracle *o, const RouterSpec *spec)
{
    int size = spec->n_experts / spec->n_group, at;
    double best[MAX_EXPERTS];
    bool open[MAX_EXPERTS];
    for (int g = 0; g < spec->n_group; g++) {
        bool member[MAX_EXPERTS];
        memset(member, 1, sizeof member);
        best[g] = top_of(o->key + g * size, member, size, &at);
        if (spec->kind == ROUTER_SIGMOID) {
            member[at] = false;
            best[g] += top_of(o->key + g * size, member, size, &at);
        }
        open[g] = true;
    }
    memset(o->open, 0, sizeof o->open);
    for (int i = 0; i < spec->topk_group; i++) {
        top_of(best, open, spec->n_group, &at);
        open[at] = false;
        memset(o->open + at * size, 1, (size_t)size);
    }
}

static int check_row(const char *name, const RouterSpec *spec, const float *logits,
                     const float *correction, const int32_t *expert, const float *weight)
{
    Oracle o;
    double total = 0, kept = spec->renorm_eps;
    int failed = 0;
    for (int j = 0; j < spec->n_experts; j++) {
        bool sigmoid = spec->kind == ROUTER_SIGMOID;
        o.score[j] = sigmoid ? 1 / (1 + exp(-logits[j])) : exp(logits[j]);
        o.key[j] = sigmoid ? o.score[j] + (correction ? correction[j] : 0) : logits[j];
        total += o.score[j];
    }
    keep_groups(&o, spec);
    for (int s = 0; s < spec->top_k; s++) {
        int best;
        top_of(o.key, o.open, spec->n_experts, &best);
        failed += check_int(name, expert[s], best);
        o.open[best] = false;
        kept += o.score[best];
    }
    double over = spec->kind == ROUTER_TOPK_SOFTMAX || spec->renormalize ? kept
                  : spec->kind == ROUTER_SIGMOID                         ? 1
                                                                         : total;
    for (int s = 0; s < spec->top_k; s++) {
        double want = o.score[expert[s]] / over * spec->scale;
        failed += check_near(name, weight[s], want, 1e-6 * want);
    }
    return failed;
}

/* Values on a coarse grid, so that ties are common, and other keys and sums of two differ by more
 * than they round. */
static int test_batches(const TestBackend *t, int n_backends)
{
    static const struct {
        const char *name;
        int n;
        bool correction;
        RouterSpec spec;
    } cases[] = {
        {"one expert", 1, false, {ROUTER_TOPK_SOFTMAX, 1, 1, 1, 1, false, 0, 1}},
        {"no rows", 0, false, {ROUTER_SOFTMAX_TOPK, 8, 2, 1, 1, false, 0, 1}},
        {"R1", 33, false, {ROUTER_SOFTMAX_TOPK, 16, 4, 1, 1, false, 0, 1}},
        {"R2", 500, false, {ROUTER_TOPK_SOFTMAX, 128, 8, 1, 1, false, 0, 1}},
        {"R1, the most", 9, false, {ROUTER_SOFTMAX_TOPK, 1024, 32, 1, 1, true, 0, 1}},
        {"R2, all", 40, false, {ROUTER_TOPK_SOFTMAX, 5, 5, 1, 1, false, 0, 1}},
        {"R3", 200, false, {ROUTER_GROUP_MAX, 160, 6, 8, 3, false, 0, 16}},
        {"R3, odd", 50, false, {ROUTER_GROUP_MAX, 15, 3, 5, 1, true, 0, 1}},
        {"R3, groups of one", 50, false, {ROUTER_GROUP_MAX, 7, 3, 7, 3, false, 0, 1}},
        {"R4", 200, true, {ROUTER_SIGMOID, 256, 8, 8, 4, true, 1e-20f, 2.5f}},
        {"R4, odd", 100, true, {ROUTER_SIGMOID, 21, 6, 3, 2, true, 1e-20f, 1}},
        {"R4, groups of one", 50, true, {ROUTER_SIGMOID, 9, 4, 9, 4, true, 1e-20f, 1}},
        {"R4, kept as they are", 50, true, {ROUTER_SIGMOID, 12, 3, 4, 3, false, 0, 3}},
        {"R5", 77, true, {ROUTER_SIGMOID, 256, 8, 1, 1, true, 0, 1}},
        {"R5 without correction", 77, false, {ROUTER_SIGMOID, 30, 8, 1, 1, true, 0, 1}},
    };
    int failed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const RouterSpec *spec = &cases[c].spec;
        int n = cases[c].n, n_experts = spec->n_experts, top_k = spec->top_k;
        bool sigmoid = spec->kind == ROUTER_SIGMOID;
        float *logits = test_floats((int64_t)n * n_experts, c);
        float *correction = cases[c].correction ? test_floats(n_experts, c + 100) : NULL;
        float *weight = test_alloc((size_t)(n * top_k) * 4);
        float *first = test_alloc((size_t)(n * top_k) * 4);
        int32_t *expert = test_alloc((size_t)(n * top_k) * 4);
        uint64_t *load = calloc((size_t)n_experts, sizeof *load);
        if (!load)
            return failed + check_true("memory for loads", false);
        for (int i = 0; i < n * n_experts; i++)
            logits[i] = floorf(logits[i] * 40) / 8 - (sigmoid ? 0 : 60);
        for (int j = 0; correction && j < n_experts; j++)
            correction[j] = floorf(correction[j] * 4) / 4;
        for (int i = 0; i < n_backends; i++) {
            failed += check_int(
                "route",
                ops->route(t[i].b, expert, weight, load, logits, correction, n, NULL, spec, &e),
                ST_OK);
            if (i == 0)
                memcpy(first, weight, (size_t)(n * top_k) * 4);
            failed += check_bits(t[i].name, weight, first, n * top_k);
            for (int r = 0; r < n; r++)
                failed += check_row(cases[c].name, spec, logits + r * n_experts, correction,
                                    expert + r * top_k, weight + r * top_k);
        }
        free(logits);
        free(correction);
        free(weight);
        free(first);
        free(expert);
        free(load);
    }
    return failed;
}

static int test_refusals(Backend *b)
{
    enum { N = 50, E = 4 };
    int failed = 0;
    float logits[N][E] = {{0}}, weight[N * 2];
    uint64_t load[E] = {0};
    int32_t expert[N * 2];
    RouterSpec spec = {ROUTER_TOPK_SOFTMAX, E, 2, 1, 1, false, 0, 1};
    logits[7][3] = -INFINITY; /* never chosen, but no error */
    failed += check_int(
        "-inf", ops->route(b, expert, weight, load, logits[0], NULL, N, NULL, &spec, &e), ST_OK);
    logits[41][2] = NAN;
    logits[23][0] = INFINITY;
    failed += check_int(
        "NaN", ops->route(b, expert, weight, load, logits[0], NULL, N, NULL, &spec, &e), ST_INPUT);
    failed += check_has("lowest row", e.text, "row 23:");
    logits[23][0] = 0;
    failed += check_int(
        "NaN", ops->route(b, expert, weight, load, logits[0], NULL, N, NULL, &spec, &e), ST_INPUT);
    failed += check_has("NaN", e.text, "row 41:");
    static const float low[E] = {-200, -200, -150, -90};
    static const float bad[E] = {0, NAN, 0, 0};
    RouterSpec sigmoid = {ROUTER_SIGMOID, E, 2, 1, 1, true, 0, 1};
    failed += check_int(
        "all 0", ops->route(b, expert, weight, load, low, NULL, 1, NULL, &sigmoid, &e), ST_INPUT);
    failed += check_has("all 0", e.text, "row 0:");
    sigmoid.renorm_eps = 1e-20f;
    failed += check_int(
        "all 0, eps", ops->route(b, expert, weight, load, low, NULL, 1, NULL, &sigmoid, &e), ST_OK);
    failed += check_near("all 0, eps", weight[0], 0, 0);
    failed +=
        check_int("NaN correction",
                  ops->route(b, expert, weight, load, low, bad, 1, NULL, &sigmoid, &e), ST_INPUT);
    static const RouterSpec wrong[] = {
        {ROUTER_SIGMOID, E, 2, 3, 1, true, 0, 1},
        {ROUTER_SIGMOID, E, 2, 2, 3, true, 0, 1},
        {ROUTER_SIGMOID, E, 2, 0, 0, true, 0, 1},
        {ROUTER_GROUP_MAX, E, 2, 2, 0, true, 0, 1},
        {ROUTER_GROUP_MAX, E, 2, 4, 1, true, 0, 1},
        {ROUTER_SOFTMAX_TOPK, E, 2, 2, 1, true, 0, 1},
        {ROUTER_TOPK_SOFTMAX, E, 2, 4, 3, true, 0, 1},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        failed += check_int(
            "groups", ops->route(b, expert, weight, load, logits[0], NULL, 1, NULL, &wrong[i], &e),
            ST_INPUT);
    spec.top_k = 5;
    failed += check_int("more than there are",
                        ops->route(b, expert, weight, load, logits[0], NULL, 1, NULL, &spec, &e),
                        ST_INPUT);
    spec.n_experts = 2000;
    failed += check_int("too many",
                        ops->route(b, expert, weight, load, logits[0], NULL, 1, NULL, &spec, &e),
                        ST_INPUT);
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
