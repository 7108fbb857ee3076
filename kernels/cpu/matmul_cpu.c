/* kernels/cpu/matmul_cpu.c - y = x W^T + bias as tasks of (block of panels) x (block of rows). */
#include "kernels/cpu/cpu.h"

typedef struct MatmulJob {
    Backend *b;
    float *y;
    const float *x, *bias;
    const Weight *w;
    int n, row_blocks, block_panels, only; /* only: a part, or ALL_PARTS */
    int part_first[MAX_PARTS + 1];         /* the first panel block of each part */
} MatmulJob;

int cpu_block_panels(const Backend *b, int64_t n_panels, int64_t n_row_blocks, int most)
{
    int panels = most;
    while (panels > 4 &&
           (n_panels + panels - 1) / panels * n_row_blocks < 4 * (int64_t)b->n_threads)
        panels /= 2;
    return panels;
}

static void matmul_task(void *ctx, int task, int thread)
{
    const MatmulJob *job = ctx;
    const Weight *w = job->w;
    const CpuKernels *kernels = job->b->kernels;
    Scratch *scratch = &job->b->scratch[thread];
    /* Neighbouring tasks share panels, which are the larger side, rather than rows. */
    int block = task / job->row_blocks, row_block = task % job->row_blocks;
    int part =
        job->only == ALL_PARTS ? cpu_find_group(job->part_first, w->n_parts, block) : job->only;
    const CpuPart *p = &w->part[part];
    int64_t first = (int64_t)(block - job->part_first[part]) * job->block_panels;
    int n_panels =
        p->n_panels - first < job->block_panels ? (int)(p->n_panels - first) : job->block_panels;
    int from = (int)((int64_t)job->n * row_block / job->row_blocks);
    int m = (int)((int64_t)job->n * (row_block + 1) / job->row_blocks) - from;

    const float *rows[MAX_BLOCK_ROWS];
    for (int i = 0; i < m; i++)
        rows[i] = job->x + (from + i) * w->cols;
    Panel panels[MAX_BLOCK_PANELS];
    cpu_weight_panels(w, 0, part, first, n_panels, panels);
    int64_t stride = n_panels * PANEL, column = p->first_row + first * PANEL;
    int64_t n_columns = p->rows - first * PANEL < stride ? p->rows - first * PANEL : stride;
    kernels->gemm(scratch->c, stride, rows, m, panels, n_panels, w->cols, scratch);
    kernels->store_rows(job->y + from * w->rows + column, w->rows, scratch->c, stride,
                        job->bias ? job->bias + column : NULL, m, n_columns);
}

Status cpu_matmul(Backend *b, void *y, const void *x, const Weight *w, int part, const float *bias,
                  int n, Err *e)
{
    (void)e;
    MatmulJob job = {.b = b, .y = y, .x = x, .bias = bias, .w = w, .n = n, .only = part};
    int64_t n_panels = 0, rows = 0;
    for (int i = 0; i < w->n_parts; i++)
        if (part == ALL_PARTS || part == i) {
            n_panels += w->part[i].n_panels;
            rows += w->part[i].rows;
        }
    job.row_blocks = (n + b->kernels->block_rows - 1) / b->kernels->block_rows;
    job.block_panels = cpu_block_panels(b, n_panels, job.row_blocks, MAX_BLOCK_PANELS);
    for (int i = 0; i < w->n_parts; i++) {
        int64_t panels = part == ALL_PARTS || part == i ? w->part[i].n_panels : 0;
        job.part_first[i + 1] =
            job.part_first[i] + (int)((panels + job.block_panels - 1) / job.block_panels);
    }
    cpu_run(b, job.part_first[w->n_parts] * job.row_blocks, (int64_t)n * w->cols * rows,
            matmul_task, &job);
    return ST_OK;
}

Status cpu_matmul_float(Backend *b, float *y, const void *x, const Weight *w, const float *bias,
                        int n, Err *e)
{
    return cpu_matmul(b, y, x, w, ALL_PARTS, bias, n, e);
}
