/* model/online.c - see online.h. */
#include "model/online.h"

#include "quant/encode.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 128, INT4_GROUP = 32 };

static const QuantScheme schemes[] = {
    [ONLINE_NVFP4] = {.format = FORMAT_NVFP4, .algo = "--quantize nvfp4", .rows = ROWS_NVFP4_TOKEN},
    [ONLINE_MXFP4] = {.format = FORMAT_MXFP4, .algo = "--quantize mxfp4"},
    [ONLINE_MXFP8] = {.format = FORMAT_MXFP8, .algo = "--quantize mxfp8", .rows = ROWS_MXFP8},
    [ONLINE_FP8_DYNAMIC] = {.format = FORMAT_FP8,
                            .algo = "--quantize fp8-dynamic",
                            .grid = GRID_CHANNEL,
                            .rows = ROWS_FP8_TOKEN},
    [ONLINE_FP8_BLOCK] = {.format = FORMAT_FP8,
                          .algo = "--quantize fp8-block",
                          .grid = GRID_BLOCK,
                          .block_rows = BLOCK,
                          .block_cols = BLOCK,
                          .rows = ROWS_FP8_GROUP},
    [ONLINE_INT4] = {.format = FORMAT_INT4, .algo = "--quantize int4", .grid = GRID_GROUP},
    [ONLINE_Q8_0] = {.format = FORMAT_Q8_0, .algo = "--quantize q8_0"},
};

/* How codes and scales of a matrix lie; rows share nothing but where scale_rows says so. */
typedef struct Shape {
    int multiple; /* of columns */
    int64_t group, scale_rows;
    ScaleType scale;
} Shape;

static Shape shape_of(OnlineFormat format, int64_t cols)
{
    switch (format) {
    case ONLINE_NVFP4:
        return (Shape){16, 16, 1, SCALE_E4M3};
    case ONLINE_MXFP4:
    case ONLINE_MXFP8:
        return (Shape){32, 32, 1, SCALE_E8M0};
    case ONLINE_FP8_BLOCK:
        return (Shape){1, BLOCK, BLOCK, SCALE_F32};
    case ONLINE_INT4:
        return (Shape){1, INT4_GROUP, 1, SCALE_BF16};
    case ONLINE_Q8_0:
        return (Shape){32, 1, 1, SCALE_NONE};
    default:
        return (Shape){1, cols, 1, SCALE_F32};
    }
}

const QuantScheme *online_scheme(OnlineFormat format)
{
    return format == ONLINE_NONE ? NULL : &schemes[format];
}

/* --- which --- */

typedef struct Marks {
    OnlineFormat format;
    const Checkpoint *c;
    Err *e;
} Marks;

static Status mark(const Marks *m, LinearTensors *t)
{
    if (!t->weight)
        return ST_OK;
    Shape s = shape_of(m->format, t->q.cols);
    if (t->q.cols % s.multiple)
        return err_set(m->e, ST_INPUT,
                       "%s: tensor \"%.200s\": %lld inputs, but %s needs a multiple of %d",
                       tensor_set_file(&m->c->files, t->weight), t->weight->name,
                       (long long)t->q.cols, schemes[m->format].algo, s.multiple);
    t->scheme = &schemes[m->format];
    return ST_OK;
}

static Status mark_all(const Marks *m, LinearTensors *const *all, size_t n)
{
    for (size_t i = 0; i < n; i++)
        TRY(mark(m, all[i]));
    return ST_OK;
}

static Status mark_experts(const Marks *m, const Arch *arch, ExpertTensors *t)
{
    if (t->stacked) {
        TRY(mark(m, &t->gate_up));
        return mark(m, &t->stacked_down);
    }
    for (int i = 0; i < arch->router.n_experts; i++) {
        LinearTensors *const all[] = {&t->gate[i], &t->up[i], &t->down[i]};
        TRY(mark_all(m, all, 3));
    }
    return ST_OK;
}

Status online_mark(OnlineFormat format, bool experts_only, const Arch *arch, Checkpoint *c, Err *e)
{
    if (format == ONLINE_NONE)
        return ST_OK;
    Marks m = {format, c, e};
    bool any = false;
    if (strcmp(recipe_name(c->recipe), "none") != 0)
        return err_set(e, ST_INPUT, "%s: the checkpoint is quantized already (%s)",
                       schemes[format].algo, recipe_name(c->recipe));
    for (int i = 0; i < c->n_layers; i++) {
        LayerTensors *t = &c->layers[i];
        any |= arch->layers[i].moe;
        if (arch->layers[i].moe)
            TRY(mark_experts(&m, arch, &t->experts));
        LinearTensors *const dense[] = {&t->q,           &t->k,         &t->v,
                                        &t->o,           &t->q_a,       &t->kv_a,
                                        &t->dense.gate,  &t->dense.up,  &t->dense.down,
                                        &t->shared.gate, &t->shared.up, &t->shared.down};
        if (!experts_only)
            TRY(mark_all(&m, dense, sizeof dense / sizeof *dense));
    }
    if (experts_only && !any)
        return err_set(e, ST_INPUT, "--quantize-experts-only: %s has no experts", arch->model_type);
    return ST_OK;
}

WeightPart online_part(OnlineFormat format, const QuantTensor *view)
{
    Shape s = shape_of(format, view->cols);
    return (WeightPart){schemes[format].format, view->rows, s.group, s.scale, s.scale_rows};
}

/* --- how --- */

static Status grow(void **p, size_t *have, size_t want, Err *e)
{
    if (want <= *have)
        return ST_OK;
    free(*p);
    *have = 0;
    *p = malloc(want);
    if (!*p)
        return err_set(e, ST_MEMORY, "not enough memory for %zu bytes of a matrix", want);
    *have = want;
    return ST_OK;
}

void online_end(OnlineEncoder *o)
{
    free(o->rows);
    free(o->largest);
    free(o->codes);
    free(o->scales);
    *o = (OnlineEncoder){.format = o->format, .team = o->team};
}

typedef struct EncodeJob {
    const OnlineEncoder *o;
    const QuantTensor *view;
    Shape shape;
    int64_t rows_per_task;
    int64_t code_bytes, scale_bytes; /* of a row; of a row of scales */
    float amax;
    atomic_bool bad;
} EncodeJob;

/* Decodes the task's rows; how many. */
static int64_t take_rows(EncodeJob *job, int task, int thread, float **rows)
{
    const QuantTensor *v = job->view;
    int64_t first = task * job->rows_per_task, n = v->rows - first;
    n = n < job->rows_per_task ? n : job->rows_per_task;
    *rows = job->o->rows + thread * job->rows_per_task * v->cols;
    for (int64_t r = 0; r < n; r++)
        v->format->decode(v, first + r, 0, v->cols, *rows + r * v->cols);
    return n;
}

static void amax_task(void *ctx, int task, int thread)
{
    EncodeJob *job = ctx;
    float *rows;
    int64_t n = take_rows(job, task, thread, &rows);
    job->o->largest[task] = encode_amax(rows, n * job->view->cols);
}

static void encode_task(void *ctx, int task, int thread)
{
    EncodeJob *job = ctx;
    FormatId source = job->view->format->id;
    float *w, factor, unused;
    int64_t n = take_rows(job, task, thread, &w), cols = job->view->cols;
    int64_t first = task * job->rows_per_task;
    uint8_t *codes = job->o->codes + first * job->code_bytes;
    uint8_t *scales = job->o->scales + first / job->shape.scale_rows * job->scale_bytes;
    if (!isfinite(encode_amax(w, n * cols))) {
        atomic_store(&job->bad, true);
        return;
    }
    switch (job->o->format) {
    case ONLINE_NVFP4:
        encode_nvfp4_online_scale(job->amax, &factor, &unused);
        encode_nvfp4_online(w, n, cols, source, factor, codes, scales);
        break;
    case ONLINE_MXFP4:
        encode_mxfp4(w, n, cols, codes, scales);
        break;
    case ONLINE_MXFP8:
        encode_mxfp8(w, n, cols, codes, scales);
        break;
    case ONLINE_FP8_BLOCK:
        encode_fp8_block(w, n, cols, BLOCK, codes, (float *)(void *)scales);
        break;
    case ONLINE_INT4:
        encode_int4(w, n, cols, INT4_GROUP, source, codes, (uint16_t *)(void *)scales);
        break;
    case ONLINE_Q8_0:
        encode_q8_0(w, n, cols, codes);
        break;
    default:
        encode_fp8_channel(w, n, cols, codes, (float *)(void *)scales);
    }
}

/* Few rows at a time, so that they stay in cache between decoder and encoder. */
static Status begin(OnlineEncoder *o, const QuantTensor *view, EncodeJob *job, int *n_tasks, Err *e)
{
    int n_threads = o->team ? team_size(o->team) : 1;
    Shape s = shape_of(o->format, view->cols);
    *job = (EncodeJob){.o = o,
                       .view = view,
                       .shape = s,
                       .rows_per_task = s.scale_rows > 1 ? s.scale_rows : 8,
                       .code_bytes = encode_row_bytes(schemes[o->format].format, view->cols)};
    if (s.scale != SCALE_NONE)
        job->scale_bytes = (view->cols + s.group - 1) / s.group * scale_bytes(s.scale);
    atomic_init(&job->bad, false);
    *n_tasks = (int)((view->rows + job->rows_per_task - 1) / job->rows_per_task);
    return grow((void **)&o->rows, &o->rows_bytes,
                (size_t)(n_threads * job->rows_per_task * view->cols) * sizeof *o->rows, e);
}

static Status not_finite(const OnlineEncoder *o, Err *e)
{
    return err_set(e, ST_INPUT, "a weight is infinite or not a number, which %s cannot take",
                   schemes[o->format].algo);
}

Status online_share(OnlineEncoder *o, const QuantTensor *view, float *amax, Err *e)
{
    if (o->format != ONLINE_NVFP4)
        return ST_OK;
    EncodeJob job;
    int n_tasks;
    TRY(begin(o, view, &job, &n_tasks, e));
    TRY(grow((void **)&o->largest, &o->largest_bytes, (size_t)n_tasks * sizeof *o->largest, e));
    team_run(o->team, n_tasks, amax_task, &job);
    for (int t = 0; t < n_tasks; t++) {
        if (!isfinite(o->largest[t]))
            return not_finite(o, e);
        *amax = o->largest[t] > *amax ? o->largest[t] : *amax;
    }
    return ST_OK;
}

Status online_encode(OnlineEncoder *o, const QuantTensor *view, float amax, QuantTensor *out,
                     Err *e)
{
    EncodeJob job;
    int n_tasks;
    TRY(begin(o, view, &job, &n_tasks, e));
    job.amax = amax;
    int64_t scale_rows = (view->rows + job.shape.scale_rows - 1) / job.shape.scale_rows;
    TRY(grow((void **)&o->codes, &o->codes_bytes, (size_t)(view->rows * job.code_bytes), e));
    TRY(grow((void **)&o->scales, &o->scales_bytes, (size_t)(scale_rows * job.scale_bytes), e));
    team_run(o->team, n_tasks, encode_task, &job);
    if (atomic_load(&job.bad))
        return not_finite(o, e);
    const QuantFormat *f = quant_format(schemes[o->format].format);
    *out = (QuantTensor){.format = f,
                         .rows = view->rows,
                         .cols = view->cols,
                         .data = o->codes,
                         .row_bytes = job.code_bytes,
                         .unit_stride = f->unit_bytes,
                         .scales = job.shape.scale == SCALE_NONE ? NULL : o->scales,
                         .scale_type = job.shape.scale,
                         .group = job.shape.group,
                         .scale_rows = job.shape.scale_rows,
                         .scale_row_bytes = job.scale_bytes,
                         .scale_col_bytes =
                             job.shape.group < view->cols ? scale_bytes(job.shape.scale) : 0};
    if (o->format == ONLINE_NVFP4) {
        float factor;
        encode_nvfp4_online_scale(amax, &factor, &out->global);
    }
    return ST_OK;
}
