/* kernels/cpu/route_cpu.c - which experts a token goes to, and with what weights. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <stdatomic.h>

typedef struct RouteJob {
    Backend *b;
    int32_t *expert;
    float *weight;
    const float *logits;
    int n, rows_per_task;
    const RouterSpec *spec;
    atomic_int bad_row; /* the lowest row that has no softmax, or n */
} RouteJob;

/* Best first. Logits rather than probabilities decide: the order is the same, and rounding cannot
 * make new ties. Going up through the experts, only a strictly better one moves ahead, so that ties
 * stay with the lower index. False when the row holds NaN, or its largest value is infinite. */
static bool pick(const float *logits, int n_experts, int top_k, int32_t *best)
{
    int n = 0;
    bool all_numbers = true;
    for (int i = 0; i < n_experts; i++) {
        all_numbers &= !isnan(logits[i]);
        if (n == top_k && !(logits[i] > logits[best[n - 1]]))
            continue;
        int at = n < top_k ? n++ : n - 1;
        for (; at > 0 && logits[i] > logits[best[at - 1]]; at--)
            best[at] = best[at - 1];
        best[at] = i;
    }
    return all_numbers && isfinite(logits[best[0]]);
}

static bool route_row(const RouteJob *job, int row)
{
    const RouterSpec *spec = job->spec;
    const float *logits = job->logits + (int64_t)row * spec->n_experts;
    int32_t *best = job->expert + (int64_t)row * spec->top_k;
    float *weight = job->weight + (int64_t)row * spec->top_k, power[MAX_EXPERTS], total = 0,
          kept = 0;
    if (!pick(logits, spec->n_experts, spec->top_k, best))
        return false;
    job->b->kernels->exp_row(power, logits, logits[best[0]], spec->n_experts);
    for (int i = 0; i < spec->n_experts; i++)
        total += power[i];
    for (int s = 0; s < spec->top_k; s++)
        kept += power[best[s]];
    bool over_kept = spec->kind == ROUTER_TOPK_SOFTMAX || spec->renormalize;
    for (int s = 0; s < spec->top_k; s++)
        weight[s] = power[best[s]] / (over_kept ? kept : total) * spec->scale;
    return true;
}

static void route_task(void *ctx, int task, int thread)
{
    (void)thread;
    RouteJob *job = ctx;
    int from = task * job->rows_per_task;
    int to = job->n - from < job->rows_per_task ? job->n : from + job->rows_per_task;
    for (int row = from; row < to; row++) {
        if (route_row(job, row))
            continue;
        int lowest = atomic_load(&job->bad_row);
        while (row < lowest && !atomic_compare_exchange_weak(&job->bad_row, &lowest, row))
            ;
        return;
    }
}

Status cpu_route(Backend *b, int32_t *expert, float *weight, const void *logits,
                 const float *correction, int n, const RouterSpec *spec, Err *e)
{
    (void)correction;
    if (spec->n_experts < 1 || spec->n_experts > MAX_EXPERTS || spec->top_k < 1 ||
        spec->top_k > MAX_TOP_K || spec->top_k > spec->n_experts)
        return err_set(e, ST_INPUT, "router: top %d of %d experts; at most %d of %d are supported",
                       spec->top_k, spec->n_experts, MAX_TOP_K, MAX_EXPERTS);
    RouteJob job = {.b = b,
                    .expert = expert,
                    .weight = weight,
                    .logits = logits,
                    .n = n,
                    .rows_per_task = cpu_rows_per_task(b, n),
                    .spec = spec,
                    .bad_row = n};
    /* An exponential and a comparison per expert weigh about eight plain values. */
    cpu_run(b, (n + job.rows_per_task - 1) / job.rows_per_task, 8 * (int64_t)n * spec->n_experts,
            route_task, &job);
    if (job.bad_row < n)
        return err_set(e, ST_INPUT, "row %d: a router logit is not a finite number", job.bad_row);
    return ST_OK;
}
