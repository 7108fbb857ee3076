/* kernels/cpu/latent_absorbed.c - the absorbed form of latent attention, in runs of up to
 * ABSORB_ROWS rows: each head's queries become latent ones by a matrix product over all rows of the
 * run, all heads of a sequence attend to its latents as they lie in the cache, and each head's
 * latent outputs become values by another product. */
#include "kernels/cpu/latent.h"

#include <math.h>
#include <string.h>

/* Pieces from .. to-1 are the run's, n_rows rows of the step from row first. */
typedef struct Run {
    const LatentJob *job;
    int from, to, first, n_rows;
    /* Of a matrix product. */
    int row_blocks, panel_blocks, block_panels;
    /* Of attention. */
    int tiles_per_task;
} Run;

static size_t tile_floats(const LatentSpec *spec)
{
    return (size_t)PANEL *
           (size_t)(spec->latent_dim + spec->rope_dim + whole_panels(spec->latent_dim) + 2);
}

size_t latent_absorbed_thread_bytes(const LatentSpec *spec)
{
    return ABSORB_TILES * tile_floats(spec) * sizeof(float) + latent_decoded_bytes(KV_PAGE, spec);
}

/* The latent query or output of a row of the run, and a head. */
static float *latent_row(const Run *run, int row, int head)
{
    const LatentSpec *spec = run->job->spec;
    return run->job->rows + ((int64_t)row * spec->n_heads + head) * spec->latent_dim;
}

/* Where the run's row stands among the step's own rows. */
static int64_t step_row(const Run *run, int row)
{
    const LatentPieces *p = &run->job->pieces;
    int i = run->from + cpu_find_group(p->row + run->from, run->to - run->from, run->first + row);
    return run->job->seqs[p->seq[i]].row + p->query[i] + run->first + row - p->row[i];
}

/* One head's share of a matrix product: a block of rows and a block of panels of one part. */
typedef struct Share {
    int head, row, m;
    int64_t column, n_columns;
    int64_t stride; /* of the results in the scratch memory */
} Share;

static Share multiply(const Run *run, const Weight *w, int part, int task, const float **rows,
                      const float *(*input)(const Run *run, int row, int head), Scratch *scratch)
{
    const CpuKernels *kernels = run->job->b->kernels;
    const CpuPart *p = &w->part[part];
    int blocks = run->row_blocks * run->panel_blocks, at = task % blocks;
    /* Neighbouring tasks share panels. */
    int row_block = at % run->row_blocks, panel = at / run->row_blocks * run->block_panels;
    Share s = {.head = task / blocks,
               .row = (int)((int64_t)run->n_rows * row_block / run->row_blocks),
               .column = (int64_t)panel * PANEL};
    s.m = (int)((int64_t)run->n_rows * (row_block + 1) / run->row_blocks) - s.row;
    int n_panels =
        p->n_panels - panel < run->block_panels ? (int)p->n_panels - panel : run->block_panels;
    s.stride = (int64_t)n_panels * PANEL;
    s.n_columns = p->rows - s.column < s.stride ? p->rows - s.column : s.stride;
    for (int i = 0; i < s.m; i++)
        rows[i] = input(run, s.row + i, s.head);
    Panel panels[MAX_BLOCK_PANELS];
    cpu_weight_panels(w, s.head, part, panel, n_panels, panels);
    kernels->gemm(scratch->c, s.stride, rows, s.m, panels, n_panels, w->cols, scratch);
    return s;
}

static void run_product(Run *run, const Weight *w, int part,
                        void (*fn)(void *ctx, int task, int thread))
{
    const LatentJob *job = run->job;
    int n_heads = job->spec->n_heads, most = job->b->kernels->block_rows;
    int64_t n_panels = w->part[part].n_panels;
    run->row_blocks = (run->n_rows + most - 1) / most;
    run->block_panels =
        cpu_block_panels(job->b, n_panels, (int64_t)run->row_blocks * n_heads, MAX_BLOCK_PANELS);
    run->panel_blocks = (int)((n_panels + run->block_panels - 1) / run->block_panels);
    cpu_run(job->b, n_heads * run->row_blocks * run->panel_blocks,
            (int64_t)run->n_rows * n_heads * w->part[part].rows * w->cols, fn, run);
}

static const float *query_input(const Run *run, int row, int head)
{
    return run->job->q + step_row(run, row) * run->job->q_stride +
           head * latent_query_dim(run->job->spec);
}

static void absorb_task(void *ctx, int task, int thread)
{
    const Run *run = ctx;
    const LatentJob *job = run->job;
    Scratch *scratch = &job->b->scratch[thread];
    const float *rows[MAX_BLOCK_ROWS];
    Share s = multiply(run, job->w->absorb, 0, task, rows, query_input, scratch);
    job->b->kernels->store_rows(latent_row(run, s.row, s.head) + s.column,
                                (int64_t)job->spec->n_heads * job->spec->latent_dim, scratch->c,
                                s.stride, NULL, s.m, s.n_columns);
}

static const float *output_input(const Run *run, int row, int head)
{
    return latent_row(run, row, head);
}

static void values_task(void *ctx, int task, int thread)
{
    const Run *run = ctx;
    const LatentJob *job = run->job;
    Scratch *scratch = &job->b->scratch[thread];
    const float *rows[MAX_BLOCK_ROWS];
    Share s = multiply(run, job->w->up, 1, task, rows, output_input, scratch);
    for (int i = 0; i < s.m; i++)
        job->b->kernels->store_rows(job->out + step_row(run, s.row + i) * job->out_stride +
                                        (int64_t)s.head * job->spec->v_dim + s.column,
                                    0, scratch->c + i * s.stride, s.stride, NULL, 1, s.n_columns);
}

static int tiles_of(const Run *run, int piece)
{
    const LatentPieces *p = &run->job->pieces;
    int64_t lanes = (int64_t)(p->row[piece + 1] - p->row[piece]) * run->job->spec->n_heads;
    return (int)((lanes + PANEL - 1) / PANEL);
}

/* A task's tiles. Lane i of tile t is row (t * PANEL + i) / n_heads of the piece, and a head. */
typedef struct Tiles {
    const Run *run;
    const AttnSeq *seq;
    int row;      /* the piece's first, in the run */
    int position; /* of that row */
    int n_lanes;  /* of the piece */
    int first, n;
    float *q, *o, *max, *sum;
    float *decoded; /* a page */
    int q_dim, o_stride;
} Tiles;

static int lanes_of(const Tiles *x, int t)
{
    int rest = x->n_lanes - (x->first + t) * PANEL;
    return rest < PANEL ? rest : PANEL;
}

static void load_tile(const Tiles *x, int t)
{
    const LatentSpec *spec = x->run->job->spec;
    float *to = x->q + (int64_t)t * x->q_dim * PANEL;
    if (lanes_of(x, t) < PANEL)
        memset(to, 0, (size_t)x->q_dim * PANEL * sizeof *to);
    for (int i = 0; i < lanes_of(x, t); i++) {
        int lane = (x->first + t) * PANEL + i, row = x->row + lane / spec->n_heads;
        int head = lane % spec->n_heads;
        const float *latent = latent_row(x->run, row, head);
        const float *rope = query_input(x->run, row, head) + spec->nope_dim;
        for (int k = 0; k < spec->latent_dim; k++)
            to[k * PANEL + i] = latent[k];
        for (int k = 0; k < spec->rope_dim; k++)
            to[(spec->latent_dim + k) * PANEL + i] = rope[k];
    }
    memset(x->o + (int64_t)t * PANEL * x->o_stride, 0,
           (size_t)PANEL * (size_t)x->o_stride * sizeof *x->o);
    for (int i = t * PANEL; i < (t + 1) * PANEL; i++) {
        x->max[i] = -INFINITY;
        x->sum[i] = 0;
    }
}

static void attend(const Tiles *x, int t, int page, const float *latents, bool ask)
{
    const LatentJob *job = x->run->job;
    int n = lanes_of(x, t), seen[PANEL], most = 0;
    for (int i = 0; i < n; i++) {
        int lane = (x->first + t) * PANEL + i;
        seen[i] = latent_seen(x->position + lane / job->spec->n_heads, page);
        seen[i] = seen[i] > 0 ? seen[i] : 0;
        most = seen[i] > most ? seen[i] : most;
    }
    if (most == 0)
        return;
    LatentTile at = {.q = x->q + (int64_t)t * x->q_dim * PANEL,
                     .keys = latents,
                     .rope = latents + job->rope_at,
                     .key_stride = job->page_stride,
                     .rope_stride = job->page_stride,
                     .key_dims = job->spec->latent_dim,
                     .rope_dims = job->spec->rope_dim,
                     .values = latents,
                     .value_stride = job->page_stride,
                     .value_groups = x->o_stride / PANEL,
                     .scale = job->spec->scale,
                     .next = ask ? latent_page(job, x->seq, page + 1) : NULL,
                     .next_bytes = (int64_t)job->page_bytes,
                     .n_rows = n,
                     .seen = seen,
                     .o = x->o + (int64_t)t * PANEL * x->o_stride,
                     .o_stride = x->o_stride,
                     .max = x->max + t * PANEL,
                     .sum = x->sum + t * PANEL};
    job->b->kernels->latent_tile(&at);
}

/* The latent outputs take the place of the latent queries. */
static void store_tile(const Tiles *x, int t)
{
    const LatentSpec *spec = x->run->job->spec;
    for (int i = 0; i < lanes_of(x, t); i++) {
        int lane = (x->first + t) * PANEL + i;
        float *to = latent_row(x->run, x->row + lane / spec->n_heads, lane % spec->n_heads);
        const float *from = x->o + (int64_t)(t * PANEL + i) * x->o_stride;
        for (int k = 0; k < spec->latent_dim; k++)
            to[k] = from[k] / x->sum[t * PANEL + i];
    }
}

static int tasks_of(const Run *run, int piece)
{
    return (tiles_of(run, piece) + run->tiles_per_task - 1) / run->tiles_per_task;
}

static void attend_task(void *ctx, int task, int thread)
{
    const Run *run = ctx;
    const LatentJob *job = run->job;
    const LatentSpec *spec = job->spec;
    const LatentPieces *p = &job->pieces;
    int piece = run->from + cpu_find_group(p->task + run->from, run->to - run->from, task);
    int n_tasks = tasks_of(run, piece), at = task - p->task[piece];
    int64_t tiles = tiles_of(run, piece);
    const AttnSeq *s = &job->seqs[p->seq[piece]];
    Tiles x = {.run = run,
               .seq = s,
               .row = p->row[piece] - run->first,
               .position = s->pos + p->query[piece],
               .n_lanes = (p->row[piece + 1] - p->row[piece]) * spec->n_heads,
               .first = (int)(tiles * at / n_tasks),
               .q_dim = spec->latent_dim + spec->rope_dim,
               .o_stride = whole_panels(spec->latent_dim)};
    x.n = (int)(tiles * (at + 1) / n_tasks) - x.first;
    x.o = (float *)(void *)(job->threads + (size_t)thread * job->thread_bytes);
    x.q = x.o + (int64_t)x.n * PANEL * x.o_stride;
    x.max = x.q + (int64_t)x.n * PANEL * x.q_dim;
    x.sum = x.max + x.n * PANEL;
    x.decoded = x.sum + x.n * PANEL;
    for (int t = 0; t < x.n; t++)
        load_tile(&x, t);
    int end = (x.first + x.n) * PANEL < x.n_lanes ? (x.first + x.n) * PANEL : x.n_lanes;
    int last = x.position + (end - 1) / spec->n_heads;
    for (int page = 0; page <= last / KV_PAGE; page++) {
        const float *latents = latent_rows(job, s, page, latent_seen(last, page), x.decoded);
        for (int t = 0; t < x.n; t++)
            attend(&x, t, page, latents, t == 0 && page < last / KV_PAGE);
    }
    for (int t = 0; t < x.n; t++)
        store_tile(&x, t);
}

/* As many tiles per task as leave several tasks to every thread. */
static void run_attention(Run *run)
{
    const LatentJob *job = run->job;
    LatentPieces p = job->pieces;
    int64_t keys = 0;
    for (run->tiles_per_task = ABSORB_TILES;; run->tiles_per_task /= 2) {
        int n_tasks = 0;
        keys = 0;
        for (int i = run->from; i < run->to; i++) {
            p.task[i] = n_tasks;
            n_tasks += tasks_of(run, i);
            keys += job->seqs[p.seq[i]].pos + p.query[i] + 1;
        }
        p.task[run->to] = n_tasks;
        if (run->tiles_per_task == 1 || n_tasks >= 4 * job->b->n_threads)
            break;
    }
    cpu_run(job->b, p.task[run->to], keys * job->spec->n_heads * job->spec->latent_dim, attend_task,
            run);
}

/* Pieces end where runs end. */
static void cut(LatentJob *job)
{
    int n = 0;
    for (int i = 0; i < job->n_seqs; i++)
        for (int query = 0, take; query < job->seqs[i].n_rows; query += take, n += take) {
            int most = ABSORB_ROWS - n % ABSORB_ROWS, rest = job->seqs[i].n_rows - query;
            take = rest < most ? rest : most;
            latent_piece_add(&job->pieces, i, query, take);
        }
}

void latent_absorbed(LatentJob *job)
{
    cut(job);
    const LatentPieces *p = &job->pieces;
    for (int from = 0, to; from < p->n; from = to) {
        for (to = from + 1; to < p->n && p->row[to] % ABSORB_ROWS != 0;)
            to++;
        Run run = {.job = job,
                   .from = from,
                   .to = to,
                   .first = p->row[from],
                   .n_rows = p->row[to] - p->row[from]};
        run_product(&run, job->w->absorb, 0, absorb_task);
        run_attention(&run);
        run_product(&run, job->w->up, 1, values_task);
    }
}
