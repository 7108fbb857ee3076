/* kernels/cpu/ffn_cpu.c - grouped experts: two passes over the pairs of all experts, one for
 * gate, up and the activation (or up alone and its square), one for down. A task is (expert,
 * block of panels, block of its rows). */
#include "kernels/cpu/cpu.h"

#include <assert.h>
#include <limits.h>

typedef struct FfnJob {
    Backend *b;
    float *y;
    const float *x, *x_up; /* x_up: NULL where it is x */
    const int32_t *row_of, *first;
    const FfnSpec *spec;
    float *inner; /* [n_pairs, inter]: what the first pass leaves for the second */
    int n_experts, block_panels;
    int64_t n_panels; /* of one expert, in this pass */
} FfnJob;

/* One task's share of an expert's rows and panels. */
typedef struct Share {
    int expert, pair, m; /* pairs pair .. pair+m-1 */
    int64_t first_panel;
    int n_panels;
} Share;

static int row_blocks_of(const FfnJob *job, int expert)
{
    int rows = job->first[expert + 1] - job->first[expert], most = job->b->kernels->block_rows;
    return (rows + most - 1) / most;
}

static Share share_of(const FfnJob *job, int task)
{
    const int *task_first = job->b->task_first;
    Share s = {.expert = cpu_find_group(task_first, job->n_experts, task)};
    int row_blocks = row_blocks_of(job, s.expert), at = task - task_first[s.expert];
    int64_t rows = job->first[s.expert + 1] - job->first[s.expert], row_block = at % row_blocks;
    int from = (int)(rows * row_block / row_blocks);
    s.pair = job->first[s.expert] + from;
    s.m = (int)(rows * (row_block + 1) / row_blocks) - from;
    s.first_panel = (int64_t)(at / row_blocks) * job->block_panels;
    int64_t rest = job->n_panels - s.first_panel;
    s.n_panels = rest < job->block_panels ? (int)rest : job->block_panels;
    return s;
}

static int64_t columns_of(const Share *s, int64_t total)
{
    int64_t rest = total - s->first_panel * PANEL, most = (int64_t)s->n_panels * PANEL;
    return rest < most ? rest : most;
}

static void rows_of(const FfnJob *job, const Share *s, const float *x, const float **rows)
{
    for (int i = 0; i < s->m; i++)
        rows[i] = x + (job->row_of ? job->row_of[s->pair + i] : s->pair + i) * job->spec->hidden;
}

/* Gate panels, then the up panels of the same outputs, into one block of c; the activation leaves
 * it. */
static void gate_up_task(void *ctx, int task, int thread)
{
    const FfnJob *job = ctx;
    const FfnSpec *spec = job->spec;
    const CpuKernels *kernels = job->b->kernels;
    Scratch *scratch = &job->b->scratch[thread];
    Share s = share_of(job, task);
    const float *rows[MAX_BLOCK_ROWS];
    rows_of(job, &s, job->x, rows);
    Panel panels[MAX_BLOCK_PANELS];
    cpu_weight_panels(spec->w13, s.expert, 0, s.first_panel, s.n_panels, panels);
    cpu_weight_panels(spec->w13, s.expert, 1, s.first_panel, s.n_panels, panels + s.n_panels);
    int64_t up = s.n_panels * PANEL, stride = 2 * up, column = s.first_panel * PANEL;
    if (!job->x_up) {
        kernels->gemm(scratch->c, stride, rows, s.m, panels, 2 * s.n_panels, spec->hidden, scratch);
    } else {
        kernels->gemm(scratch->c, stride, rows, s.m, panels, s.n_panels, spec->hidden, scratch);
        rows_of(job, &s, job->x_up, rows);
        kernels->gemm(scratch->c + up, stride, rows, s.m, panels + s.n_panels, s.n_panels,
                      spec->hidden, scratch);
    }
    const float *bias = spec->b13 ? spec->b13 + (int64_t)s.expert * 2 * spec->inter + column : NULL;
    kernels->store_gated(job->inner + s.pair * spec->inter + column, spec->inter, scratch->c,
                         stride, up, bias, bias ? bias + spec->inter : NULL, s.m,
                         columns_of(&s, spec->inter), &spec->act);
}

/* The first pass of an FFN without gates. */
static void up_task(void *ctx, int task, int thread)
{
    const FfnJob *job = ctx;
    const FfnSpec *spec = job->spec;
    const CpuKernels *kernels = job->b->kernels;
    Scratch *scratch = &job->b->scratch[thread];
    Share s = share_of(job, task);
    const float *rows[MAX_BLOCK_ROWS];
    rows_of(job, &s, job->x_up ? job->x_up : job->x, rows);
    Panel panels[MAX_BLOCK_PANELS];
    cpu_weight_panels(spec->w13, s.expert, 0, s.first_panel, s.n_panels, panels);
    int64_t stride = s.n_panels * PANEL, column = s.first_panel * PANEL;
    kernels->gemm(scratch->c, stride, rows, s.m, panels, s.n_panels, spec->hidden, scratch);
    kernels->store_relu2(job->inner + s.pair * spec->inter + column, spec->inter, scratch->c,
                         stride,
                         spec->b13 ? spec->b13 + (int64_t)s.expert * spec->inter + column : NULL,
                         s.m, columns_of(&s, spec->inter));
}

static void down_task(void *ctx, int task, int thread)
{
    const FfnJob *job = ctx;
    const FfnSpec *spec = job->spec;
    const CpuKernels *kernels = job->b->kernels;
    Scratch *scratch = &job->b->scratch[thread];
    Share s = share_of(job, task);
    const float *rows[MAX_BLOCK_ROWS];
    for (int i = 0; i < s.m; i++)
        rows[i] = job->inner + (s.pair + i) * spec->inter;
    Panel panels[MAX_BLOCK_PANELS];
    cpu_weight_panels(spec->w2, s.expert, 0, s.first_panel, s.n_panels, panels);
    int64_t stride = s.n_panels * PANEL, column = s.first_panel * PANEL;
    kernels->gemm(scratch->c, stride, rows, s.m, panels, s.n_panels, spec->inter, scratch);
    kernels->store_rows(job->y + s.pair * spec->hidden + column, spec->hidden, scratch->c, stride,
                        spec->b2 ? spec->b2 + (int64_t)s.expert * spec->hidden + column : NULL, s.m,
                        columns_of(&s, spec->hidden));
}

static Status run_pass(FfnJob *job, int64_t n_panels, int most_panels, int64_t values,
                       void (*fn)(void *ctx, int task, int thread), Err *e)
{
    int *task_first = job->b->task_first;
    int64_t row_blocks = 0, n_tasks = 0;
    for (int i = 0; i < job->n_experts; i++)
        row_blocks += row_blocks_of(job, i);
    job->n_panels = n_panels;
    job->block_panels = cpu_block_panels(job->b, n_panels, row_blocks, most_panels);
    for (int i = 0; i < job->n_experts; i++) {
        task_first[i] = (int)n_tasks;
        n_tasks += (n_panels + job->block_panels - 1) / job->block_panels * row_blocks_of(job, i);
        if (n_tasks > INT_MAX)
            return err_set(e, ST_INPUT, "%s: too many rows for one step", job->spec->w13->name);
    }
    task_first[job->n_experts] = (int)n_tasks;
    cpu_run(job->b, (int)n_tasks, values, fn, job);
    return ST_OK;
}

size_t cpu_ffn_scratch_bytes(const Backend *b, int max_pairs, int64_t inter)
{
    (void)b;
    return (size_t)max_pairs * (size_t)inter * sizeof(float);
}

Status cpu_ffn(Backend *b, void *y, const void *x, const void *x_up, const int32_t *row_of,
               const int32_t *first, int n_experts, int max_pairs, const FfnSpec *spec,
               void *scratch, Err *e)
{
    const int32_t all[2] = {0, max_pairs};
    bool gated = spec->act.kind != ACT_RELU2;
    assert(spec->w13->n_parts == (gated ? 2 : 1) && spec->w13->cols == spec->hidden &&
           spec->w13->part[0].rows == spec->inter && spec->w2->cols == spec->inter &&
           n_experts <= spec->w13->n_mats && n_experts <= spec->w2->n_mats);
    first = first ? first : all;
    if (n_experts > MAX_GROUPS)
        return err_set(e, ST_INPUT, "%s: %d experts on one rank, at most %d", spec->w13->name,
                       n_experts, MAX_GROUPS);
    FfnJob job = {.b = b,
                  .y = y,
                  .x = x,
                  .x_up = x_up,
                  .row_of = row_of,
                  .first = first,
                  .spec = spec,
                  .inner = scratch,
                  .n_experts = n_experts};
    int64_t values = (int64_t)first[n_experts] * spec->hidden * spec->inter;
    TRY(run_pass(&job, spec->w13->part[0].n_panels, gated ? MAX_BLOCK_PANELS / 2 : MAX_BLOCK_PANELS,
                 values, gated ? gate_up_task : up_task, e));
    if (spec->inner.scheme != ROWS_AS_THEY_ARE) {
        TRY(cpu_round_rows(b, scratch, spec->inter, scratch, spec->inter, first[n_experts],
                           (int)spec->inter, &spec->inner, e));
    }
    return run_pass(&job, spec->w2->part[0].n_panels, MAX_BLOCK_PANELS, values, down_task, e);
}
