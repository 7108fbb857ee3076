/* kernels/cpu/route_cpu.c - which experts a token goes to, and with what weights (models.md 3). */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

typedef struct RouteJob {
    Backend *b;
    int32_t *expert;
    float *weight;
    const float *logits, *correction; /* correction NULL: none */
    int n, rows_per_task;
    const RouterSpec *spec;
    atomic_int bad_row; /* the lowest row without weights, or n */
} RouteJob;

/* The best so far: going up through the candidates, only a strictly better one moves ahead, so that
 * ties stay with the lower index. */
static int offer(const float *key, int candidate, int32_t *best, int n, int most)
{
    if (n == most && !(key[candidate] > key[best[n - 1]]))
        return n;
    int at = n < most ? n++ : n - 1;
    for (; at > 0 && key[candidate] > key[best[at - 1]]; at--)
        best[at] = best[at - 1];
    best[at] = candidate;
    return n;
}

/* What a group is chosen by: its largest key, or the sum of its two largest ones. */
static float group_key(const float *key, int size, bool two)
{
    float first = -INFINITY, second = -INFINITY;
    for (int i = 0; i < size; i++)
        if (key[i] > first) {
            second = first;
            first = key[i];
        } else if (key[i] > second) {
            second = key[i];
        }
    return two && size > 1 ? first + second : first;
}

/* The top_k experts by key, best first, among those of the topk_group best groups. */
static void pick(const float *key, const RouterSpec *spec, int32_t *best)
{
    int size = spec->n_experts / spec->n_group, n = 0;
    bool kept[MAX_EXPERTS];
    memset(kept, spec->topk_group == spec->n_group, (size_t)spec->n_group);
    if (spec->topk_group < spec->n_group) {
        float score[MAX_EXPERTS];
        int32_t group[MAX_EXPERTS];
        for (int g = 0; g < spec->n_group; g++) {
            score[g] = group_key(key + g * size, size, spec->kind == ROUTER_SIGMOID);
            n = offer(score, g, group, n, spec->topk_group);
        }
        for (int i = 0; i < n; i++)
            kept[group[i]] = true;
        n = 0;
    }
    for (int g = 0; g < spec->n_group; g++)
        for (int i = g * size; kept[g] && i < (g + 1) * size; i++)
            n = offer(key, i, best, n, spec->top_k);
}

/* False when one is NaN, or the largest is infinite. */
static bool usable(const float *logits, int n)
{
    float top = -INFINITY;
    bool all_numbers = true;
    for (int i = 0; i < n; i++) {
        all_numbers &= !isnan(logits[i]);
        top = logits[i] > top ? logits[i] : top;
    }
    return all_numbers && isfinite(top);
}

/* Logits rather than probabilities decide: the order is the same, and rounding cannot make new
 * ties. */
static bool softmax_row(const RouteJob *job, const float *logits, int32_t *best, float *weight)
{
    const RouterSpec *spec = job->spec;
    float power[MAX_EXPERTS], total = 0, kept = 0, top = -INFINITY;
    for (int i = 0; i < spec->n_experts; i++)
        top = logits[i] > top ? logits[i] : top;
    pick(logits, spec, best);
    job->b->kernels->exp_row(power, logits, top, spec->n_experts);
    for (int i = 0; i < spec->n_experts; i++)
        total += power[i];
    for (int s = 0; s < spec->top_k; s++)
        kept += power[best[s]];
    float over = total;
    if (spec->kind == ROUTER_TOPK_SOFTMAX)
        over = kept;
    else if (spec->renormalize)
        over = kept + spec->renorm_eps * total;
    for (int s = 0; s < spec->top_k; s++)
        weight[s] = power[best[s]] / over * spec->scale;
    return over > 0;
}

static bool sigmoid_row(const RouteJob *job, const float *logits, int32_t *best, float *weight)
{
    const RouterSpec *spec = job->spec;
    float score[MAX_EXPERTS], key[MAX_EXPERTS], kept = 0;
    for (int i = 0; i < spec->n_experts; i++)
        score[i] = -logits[i];
    job->b->kernels->exp_row(score, score, 0.0f, spec->n_experts);
    for (int i = 0; i < spec->n_experts; i++) {
        score[i] = 1.0f / (1.0f + score[i]);
        key[i] = job->correction ? score[i] + job->correction[i] : score[i];
        if (!(key[i] < INFINITY))
            return false;
    }
    pick(key, spec, best);
    /* The scores themselves: the key minus the correction would have lost its low bits. */
    for (int s = 0; s < spec->top_k; s++)
        kept += score[best[s]];
    float over = spec->renormalize ? kept + spec->renorm_eps : 1.0f;
    for (int s = 0; s < spec->top_k; s++)
        weight[s] = score[best[s]] / over * spec->scale;
    return over > 0;
}

static bool route_row(const RouteJob *job, int row)
{
    const float *logits = job->logits + (int64_t)row * job->spec->n_experts;
    int32_t *best = job->expert + (int64_t)row * job->spec->top_k;
    float *weight = job->weight + (int64_t)row * job->spec->top_k;
    if (!usable(logits, job->spec->n_experts))
        return false;
    return job->spec->kind == ROUTER_SIGMOID ? sigmoid_row(job, logits, best, weight)
                                             : softmax_row(job, logits, best, weight);
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

Status cpu_route(Backend *b, int32_t *expert, float *weight, uint64_t *load, const float *logits,
                 const float *correction, int n, const int32_t *live, const RouterSpec *spec,
                 Err *e)
{
    TRY(check_router(spec, MAX_EXPERTS, e));
    for (int64_t i = live && *live < n ? (int64_t)*live * spec->top_k : (int64_t)n * spec->top_k;
         i < (int64_t)n * spec->top_k; i++) {
        expert[i] = -1;
        weight[i] = 0;
    }
    n = live && *live < n ? *live : n;
    RouteJob job = {.b = b,
                    .expert = expert,
                    .weight = weight,
                    .logits = logits,
                    .correction = correction,
                    .n = n,
                    .rows_per_task = cpu_rows_per_task(b, n),
                    .spec = spec,
                    .bad_row = n};
    /* An exponential and a comparison per expert weigh about eight plain values. */
    cpu_run(b, (n + job.rows_per_task - 1) / job.rows_per_task, 8 * (int64_t)n * spec->n_experts,
            route_task, &job);
    if (job.bad_row < n)
        return err_set(e, ST_INPUT,
                       "row %d: the router has no weights: a logit is not a finite number, or "
                       "all scores are 0",
                       job.bad_row);
    for (int64_t i = 0; i < (int64_t)n * spec->top_k; i++)
        load[expert[i]]++;
    return ST_OK;
}
