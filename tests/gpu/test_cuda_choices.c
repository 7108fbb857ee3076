/* tests/gpu/test_cuda_choices.c - whole models on the CUDA backend with the CPU backend's choices of
 * experts: what near-ties of a router do to logits is taken out, and what is left is rounding. Every
 * reference checkpoint, every prompt: relative L2 to the reference's logits below 2e-2. Along the
 * reference's greedy tokens the best token is that of the CPU wherever its lead there is above
 * MARGIN; with the backend's own choices too, but for MOST_TURNED positions of a checkpoint.
 * Usage: test_cuda_choices [NAME...]: those checkpoints only. */
#include "dist/comm.h"
#include "tests/support/check.h"
#include "tests/support/cuda_case.h"
#include "tests/support/golden_model.h"
#include "tests/support/kernel_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CHOICES = 1 << 20, MOST_TURNED = 1 };

static const double limit = 2e-2;
static const float MARGIN = 0.25f;
static CudaCase on;
static BackendOps recording, imposing;
static int32_t *choices; /* of the CPU's steps, in the order of its calls */
static int n_recorded, n_imposed, n_changed;
static bool own_choices;

static Status record(Backend *b, int32_t *expert, float *weight, uint64_t *load,
                     const float *logits, const float *correction, int n, const int32_t *live,
                     const RouterSpec *spec, Err *e)
{
    TRY(on.cpu->route(b, expert, weight, load, logits, correction, n, live, spec, e));
    if (n_recorded + n * spec->top_k > MOST_CHOICES)
        return err_set(e, ST_INPUT, "more choices than this test holds");
    memcpy(choices + n_recorded, expert, (size_t)(n * spec->top_k) * sizeof *expert);
    n_recorded += n * spec->top_k;
    return ST_OK;
}

/* The weights of given choices, from this backend's own logits. */
static void weigh(const float *logits, const int32_t *expert, float *weight, const RouterSpec *spec)
{
    double top = -INFINITY, total = 0, kept = 0, score[32];
    bool sigmoid = spec->kind == ROUTER_SIGMOID;
    for (int i = 0; i < spec->n_experts; i++)
        top = fmax(top, (double)logits[i]);
    for (int i = 0; i < spec->n_experts; i++)
        total += exp((double)logits[i] - top);
    for (int s = 0; s < spec->top_k; s++) {
        double l = (double)logits[expert[s]];
        score[s] = sigmoid ? 1 / (1 + exp(-l)) : exp(l - top);
        kept += score[s];
    }
    double over = sigmoid ? 1 : total;
    if (spec->kind == ROUTER_TOPK_SOFTMAX || spec->renormalize)
        over = kept;
    for (int s = 0; s < spec->top_k; s++)
        weight[s] = (float)(score[s] / over * (double)spec->scale);
}

static Status impose(Backend *b, int32_t *expert, float *weight, uint64_t *load,
                     const float *logits, const float *correction, int n, const int32_t *live,
                     const RouterSpec *spec, Err *e)
{
    if (own_choices)
        return on.cuda->route(b, expert, weight, load, logits, correction, n, live, spec, e);
    size_t pairs = (size_t)n * (size_t)spec->top_k;
    int32_t *got = test_alloc(pairs * sizeof *got);
    float *share = test_alloc(pairs * sizeof *share);
    TRY(on.cuda->route(b, expert, weight, load, logits, correction, n, live, spec, e));
    float *values = cuda_case_read_floats(&on, logits, (int64_t)n * spec->n_experts);
    TRY(on.cuda->download(b, got, expert, pairs * sizeof *got, e));
    TRY(on.cuda->download(b, share, weight, pairs * sizeof *share, e));
    for (int r = 0; r < n; r++) {
        const int32_t *want = choices + n_imposed + r * spec->top_k;
        int32_t *chosen = got + r * spec->top_k;
        bool same = memcmp(chosen, want, (size_t)spec->top_k * sizeof *chosen) == 0;
        n_changed += !same;
        memcpy(chosen, want, (size_t)spec->top_k * sizeof *chosen);
        float own[32];
        weigh(values + r * spec->n_experts, chosen, own, spec);
        for (int s = 0; s < spec->top_k;
             s++) { /* where nothing changed, this test's formula agrees */
            float *mine = &share[r * spec->top_k + s];
            if (same && fabsf(own[s] - *mine) > 1e-4f * fabsf(own[s]))
                return err_set(e, ST_INPUT, "weight %g of a choice, expected %g", (double)*mine,
                               (double)own[s]);
            *mine = own[s];
        }
    }
    TRY(on.cuda->upload(b, expert, got, pairs * sizeof *got, e));
    TRY(on.cuda->upload(b, weight, share, pairs * sizeof *share, e));
    n_imposed += n * spec->top_k;
    free(values);
    free(got);
    free(share);
    return ST_OK;
}

static int best_of(const float *logits, int vocab)
{
    int best = 0;
    for (int v = 1; v < vocab; v++)
        best = logits[v] > logits[best] ? v : best;
    return best;
}

/* Rows in which want's best leads by more than MARGIN; turned: those of them where got has another. */
static int count_leads(const float *want, const float *got, int n, int vocab, int *turned)
{
    int leads = 0;
    *turned = 0;
    for (int r = 0; r < n; r++, want += vocab, got += vocab) {
        int best = best_of(want, vocab), near = 0;
        for (int v = 0; v < vocab; v++)
            near += want[best] - want[v] <= MARGIN;
        leads += near == 1;
        *turned += near == 1 && best_of(got, vocab) != best;
    }
    return leads;
}

static int check_greedy(const GoldenModel *g, Model *here, Model *there)
{
    const TensorEntry *t = golden_entry(g, "greedy", 1);
    int n = t ? (int)t->shape[0] : 0, turned, turned_alone;
    int32_t ids[GOLDEN_ROWS];
    if (n < 1 || n > GOLDEN_ROWS)
        return check_true("greedy tokens", false);
    memcpy(ids, t->data, (size_t)n * sizeof *ids);
    size_t bytes = (size_t)n * (size_t)g->arch.vocab * sizeof(float);
    float *want = test_alloc(bytes), *got = test_alloc(bytes);
    n_recorded = n_imposed = n_changed = 0;
    golden_run(here, ids, n, want);
    golden_run(there, ids, n, got);
    int leads = count_leads(want, got, n, g->arch.vocab, &turned);
    own_choices = true;
    golden_run(there, ids, n, got);
    own_choices = false;
    count_leads(want, got, n, g->arch.vocab, &turned_alone);
    printf("; of %d greedy tokens %d lead, %d differ (%d)", n, leads, turned, turned_alone);
    free(want);
    free(got);
    return check_int("greedy tokens that differ", turned, 0) +
           check_true("greedy tokens that differ with own choices", turned_alone <= MOST_TURNED);
}

static int check_model(void *comm, const char *dir, const char *name)
{
    const Precision none = {.activations = ACTIVATIONS_NONE};
    GoldenModel g;
    int failed = 0, n;
    int32_t ids[GOLDEN_ROWS];
    golden_open(dir, &g);
    Model *here = golden_load(&g, comm, &recording, on.host, &none),
          *there = golden_load(&g, comm, &imposing, on.dev, &none);
    printf("%s:", name);
    for (int k = 0; (n = golden_ids(&g, k, ids)) > 0; k++) {
        int64_t n_values = (int64_t)n * g.arch.vocab;
        float *got = test_alloc((size_t)n_values * sizeof *got),
              *want = test_alloc((size_t)n_values * sizeof *want);
        n_recorded = n_imposed = n_changed = 0;
        golden_run(here, ids, n, got);
        golden_run(there, ids, n, got);
        failed += check_int("choices of every layer and row", n_imposed, n_recorded);
        memcpy(want, golden_entry(&g, "logits", k)->data, (size_t)n_values * sizeof *want);
        double apart = 0, squares = 0;
        for (int64_t i = 0; i < n_values; i++) {
            double d = (double)got[i] - (double)want[i];
            apart += d * d;
            squares += (double)want[i] * (double)want[i];
        }
        double l2 = sqrt(apart / squares);
        printf(" %.4f (%d)", l2, n_changed);
        failed += check_true(name, l2 < limit);
        free(got);
        free(want);
    }
    failed += check_greedy(&g, here, there);
    printf("\n");
    model_destroy(here);
    model_destroy(there);
    golden_close(&g);
    return failed;
}

int main(int argc, char **argv)
{
    Comm comm;
    Err e = {0};
    if (!test_shared())
        return test_skip("no reference data");
    int failed = cuda_case_open(&on);
    if (failed)
        return failed;
    recording = *on.cpu;
    recording.route = record;
    imposing = *on.cuda;
    imposing.route = impose;
    choices = test_alloc(MOST_CHOICES * sizeof *choices);
    cuda_case_must(comm_start(&argc, &argv, &comm, &e), &e);
    char folder[FILE_PATH_MAX];
    snprintf(folder, sizeof folder, "%s/goldens", test_shared());
    printf("relative L2 of each prompt (rows and layers whose choice was changed); best tokens "
           "(with own "
           "choices)\n");
    failed = golden_each(folder, argc - 1, argv + 1, check_model, &comm);
    comm_end(&comm);
    free(choices);
    cuda_case_close(&on);
    return test_result(failed);
}
