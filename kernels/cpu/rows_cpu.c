/* kernels/cpu/rows_cpu.c - the ops that treat rows one by one; large batches are spread over the
 * team by rows. */
#include "kernels/cpu/cpu.h"

#include <string.h>

typedef struct RowsJob {
    Backend *b;
    int n, rows_per_task;
    void (*row)(const struct RowsJob *job, int row);
    float *y, *sum;
    const float *x, *weight;
    const int32_t *index; /* ids, positions, slots or rows */
    int64_t width, stride;
    int n_groups, top_k;
    float scale, eps;   /* scale: or a limit */
    const float *delta; /* or plus */
    NormKind kind;
    const Weight *table;
    const RopeSpec *rope;
    const RowFormat *format;
    int64_t x_stride;
    uint8_t *coded; /* rows of coded_bytes, of codes or of any kind */
    const uint8_t *coded_in;
    int64_t coded_bytes;
} RowsJob;

static void rows_task(void *ctx, int task, int thread)
{
    (void)thread;
    const RowsJob *job = ctx;
    int from = task * job->rows_per_task;
    int to = job->n - from < job->rows_per_task ? job->n : from + job->rows_per_task;
    for (int row = from; row < to; row++)
        job->row(job, row);
}

static Status run_rows(RowsJob *job, int64_t values_per_row)
{
    job->rows_per_task = cpu_rows_per_task(job->b, job->n);
    cpu_run(job->b, (job->n + job->rows_per_task - 1) / job->rows_per_task, job->n * values_per_row,
            rows_task, job);
    return ST_OK;
}

static void embed_row(const RowsJob *job, int row)
{
    const Weight *w = job->table;
    QuantTensor t = cpu_weight_row(w, job->index[row]);
    float *y = job->y + row * w->cols;
    t.format->decode(&t, 0, 0, w->cols, y);
    if (job->scale != 1.0f)
        for (int64_t i = 0; i < w->cols; i++)
            y[i] *= job->scale;
}

Status cpu_embed(Backend *b, float *h, const Weight *table, const int32_t *ids, int n, float scale,
                 Err *e)
{
    (void)e;
    RowsJob job = {
        .b = b, .n = n, .row = embed_row, .y = h, .table = table, .index = ids, .scale = scale};
    return run_rows(&job, table->cols);
}

static void norm_groups(const RowsJob *job, int row)
{
    for (int g = 0; g < job->n_groups; g++) {
        int64_t at = row * job->stride + g * job->width;
        job->b->kernels->norm_row(job->y + at, job->x + at, job->weight, (int)job->width, job->eps,
                                  job->kind);
    }
}

Status cpu_norm(Backend *b, void *y, const void *x, const float *weight, int n_rows, int n_groups,
                int width, int64_t stride, float eps, NormKind kind, Err *e)
{
    (void)e;
    RowsJob job = {.b = b,
                   .n = n_rows,
                   .row = norm_groups,
                   .y = y,
                   .x = x,
                   .weight = weight,
                   .n_groups = n_groups,
                   .width = width,
                   .stride = stride,
                   .eps = eps,
                   .kind = kind};
    return run_rows(&job, (int64_t)n_groups * width);
}

static void add_norm_row(const RowsJob *job, int row)
{
    int64_t at = row * job->width;
    if (job->delta)
        job->b->kernels->add(job->sum + at, job->delta + at, job->scale, job->width);
    job->b->kernels->norm_row(job->y + at, job->sum + at, job->weight, (int)job->width, job->eps,
                              job->kind);
}

Status cpu_add_norm(Backend *b, void *y, float *h, const void *delta, float scale,
                    const float *weight, int n, int width, float eps, NormKind kind, Err *e)
{
    (void)e;
    RowsJob job = {.b = b,
                   .n = n,
                   .row = add_norm_row,
                   .y = y,
                   .sum = h,
                   .delta = delta,
                   .scale = scale,
                   .weight = weight,
                   .width = width,
                   .eps = eps,
                   .kind = kind};
    return run_rows(&job, 2 * (int64_t)width);
}

static void rope_heads(const RowsJob *job, int row)
{
    const RopeSpec *rope = job->rope;
    job->b->kernels->rope_row(job->y + row * job->stride, job->n_groups, (int)job->width,
                              rope->table + (int64_t)job->index[row] * rope->rotary_dim, rope);
}

Status cpu_rope(Backend *b, void *x, int n_rows, int64_t stride, int n_heads, int head_dim,
                const int32_t *position, const RopeSpec *rope, Err *e)
{
    (void)e;
    RowsJob job = {.b = b,
                   .n = n_rows,
                   .row = rope_heads,
                   .y = x,
                   .index = position,
                   .n_groups = n_heads,
                   .width = head_dim,
                   .stride = stride,
                   .rope = rope};
    return run_rows(&job, (int64_t)n_heads * head_dim);
}

static void combine_slots(const RowsJob *job, int row)
{
    int64_t at = (int64_t)row * job->top_k;
    job->b->kernels->combine_row(job->y + row * job->width, job->x, job->index + at,
                                 job->weight + at, job->top_k, job->width);
    if (job->delta)
        job->b->kernels->add(job->y + row * job->width, job->delta + row * job->width, 1.0f,
                             job->width);
}

Status cpu_combine(Backend *b, void *y, const void *rows, const int32_t *slot, const float *weight,
                   const void *plus, int n, int top_k, int width, Err *e)
{
    (void)e;
    RowsJob job = {.b = b,
                   .n = n,
                   .row = combine_slots,
                   .y = y,
                   .x = rows,
                   .index = slot,
                   .weight = weight,
                   .delta = plus,
                   .top_k = top_k,
                   .width = width};
    return run_rows(&job, (int64_t)top_k * width);
}

static void gather_row(const RowsJob *job, int row)
{
    memcpy(job->coded + row * job->coded_bytes, job->coded_in + job->index[row] * job->coded_bytes,
           (size_t)job->coded_bytes);
}

Status cpu_gather(Backend *b, void *y, const void *x, const int32_t *row, int n, size_t row_bytes,
                  Err *e)
{
    (void)e;
    RowsJob job = {.b = b,
                   .n = n,
                   .row = gather_row,
                   .coded = y,
                   .coded_in = x,
                   .index = row,
                   .coded_bytes = (int64_t)row_bytes};
    return run_rows(&job, job.coded_bytes / (int64_t)sizeof(float));
}

static void gate_one(const RowsJob *job, int row)
{
    job->b->kernels->gate_row(job->y + row * job->width, job->x[row], job->width);
}

Status cpu_gate_rows(Backend *b, void *y, const void *gate, int n, int width, Err *e)
{
    (void)e;
    RowsJob job = {.b = b, .n = n, .row = gate_one, .y = y, .x = gate, .width = width};
    return run_rows(&job, width);
}

static void clamp_one(const RowsJob *job, int row)
{
    job->b->kernels->clamp_row(job->y + row * job->stride, job->scale, job->width);
}

Status cpu_clamp(Backend *b, void *x, int n_rows, int64_t stride, int width, float limit, Err *e)
{
    (void)e;
    RowsJob job = {.b = b,
                   .n = n_rows,
                   .row = clamp_one,
                   .y = x,
                   .width = width,
                   .stride = stride,
                   .scale = limit};
    return run_rows(&job, width);
}

static void round_one(const RowsJob *job, int row)
{
    row_round(job->format, job->x + row * job->x_stride, job->width, job->y + row * job->stride);
}

Status cpu_round_rows(Backend *b, void *y, int64_t y_stride, const void *x, int64_t x_stride, int n,
                      int width, const RowFormat *format, Err *e)
{
    TRY(check_row_format(format, width, e));
    if (format->scheme == ROWS_AS_THEY_ARE && x == y && x_stride == y_stride)
        return ST_OK;
    RowsJob job = {.b = b,
                   .n = n,
                   .row = round_one,
                   .y = y,
                   .x = x,
                   .width = width,
                   .stride = y_stride,
                   .x_stride = x_stride,
                   .format = format};
    return run_rows(&job, width);
}

static void encode_one(const RowsJob *job, int row)
{
    row_encode(job->format, job->x + row * job->width, job->width,
               job->coded + row * job->coded_bytes);
}

Status cpu_encode_rows(Backend *b, void *coded, const void *x, int n, int width,
                       const RowFormat *format, Err *e)
{
    TRY(check_row_format(format, width, e));
    RowsJob job = {.b = b,
                   .n = n,
                   .row = encode_one,
                   .x = x,
                   .width = width,
                   .format = format,
                   .coded = coded,
                   .coded_bytes = row_encoded_bytes(format->scheme, width)};
    return run_rows(&job, width);
}

static void decode_one(const RowsJob *job, int row)
{
    row_decode(job->format, job->coded_in + row * job->coded_bytes, job->width,
               job->y + row * job->width);
}

Status cpu_decode_rows(Backend *b, void *x, const void *coded, int n, int width,
                       const RowFormat *format, Err *e)
{
    TRY(check_row_format(format, width, e));
    RowsJob job = {.b = b,
                   .n = n,
                   .row = decode_one,
                   .y = x,
                   .width = width,
                   .format = format,
                   .coded_in = coded,
                   .coded_bytes = row_encoded_bytes(format->scheme, width)};
    return run_rows(&job, width);
}
