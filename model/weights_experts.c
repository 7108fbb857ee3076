/* model/weights_experts.c - the routed experts of a rank: seen where they lie, repacked one expert at
 * a time, with the activations that they share. */
#include "model/kept.h"
#include "model/weights_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One expert's matrices, seen where they lie. */
typedef struct ExpertView {
    const LinearTensors *from[3]; /* gate, up, down */
    QuantTensor q[3];
    int64_t first[3], step[3]; /* rows of the stored matrix that the view has */
} ExpertView;

/* where: linear_view, or linear_where where only shapes matter. */
static Status view_expert(Loader *l, const ExpertTensors *t, int i,
                          Status (*where)(const TensorSet *, const LinearTensors *, int,
                                          QuantTensor *, Err *),
                          ExpertView *out)
{
    const TensorSet *files = &l->c->files;
    *out = (ExpertView){.step = {1, 1, 1}};
    if (!t->stacked) {
        const LinearTensors *const from[] = {&t->gate[i], &t->up[i], &t->down[i]};
        for (int p = 0; p < 3; p++) {
            out->from[p] = from[p];
            TRY(where(files, from[p], 0, &out->q[p], l->e));
        }
        return ST_OK;
    }
    int64_t inter = l->arch->moe_inter;
    QuantTensor both;
    TRY(where(files, &t->gate_up, i, &both, l->e));
    out->from[0] = out->from[1] = &t->gate_up;
    out->from[2] = &t->stacked_down;
    out->first[1] = t->interleaved ? 1 : inter;
    out->step[0] = out->step[1] = t->interleaved ? 2 : 1;
    for (int p = 0; p < 2; p++)
        out->q[p] = linear_rows(&both, out->first[p], out->step[p], inter);
    return where(files, &t->stacked_down, i, &out->q[2], l->e);
}

/* Expert i's share of a stack. */
static void prefetch_slice(const Loader *l, const LinearTensors *t, int i)
{
    int64_t bytes = t->weight->bytes / t->weight->shape[0];
    loader_will_need(l, t->weight, i * bytes, bytes);
}

static void prefetch_expert(const Loader *l, const ExpertTensors *t, int i)
{
    if (t->stacked) {
        prefetch_slice(l, &t->gate_up, i);
        prefetch_slice(l, &t->stacked_down, i);
        return;
    }
    loader_prefetch(l, &t->gate[i]);
    loader_prefetch(l, &t->up[i]);
    loader_prefetch(l, &t->down[i]);
}

/* Backends may read so far ahead. */
enum { AHEAD_BYTES = 64 << 20 };

static int experts_ahead(const ExpertTensors *t)
{
    int64_t bytes = t->stacked
                        ? (t->gate_up.weight->bytes + t->stacked_down.weight->bytes) /
                              t->gate_up.weight->shape[0]
                        : t->gate->weight->bytes + t->up->weight->bytes + t->down->weight->bytes;
    return bytes < AHEAD_BYTES ? (int)(AHEAD_BYTES / (bytes + 1)) + 1 : 1;
}

/* --- activations of experts --- */

static const LinearTensors *projection(const ExpertTensors *t, int p, int i)
{
    if (t->stacked)
        return p < 2 ? &t->gate_up : &t->stacked_down;
    const LinearTensors *const banks[] = {t->gate, t->up, t->down};
    return &banks[p][i];
}

/* The largest input scale of this rank's experts over projections from .. end-1; 0: it has none.
 * Rows are rounded once, before they are dispatched, so all experts must share one (contract.md
 * 7). */
static Status largest_scale(Loader *l, const ExpertTensors *t, int from, int end, float *out)
{
    *out = 0;
    for (int k = 0; k < l->n_local; k++) {
        int expert = placement_expert(l->placement, l->rank, k);
        for (int p = from; p < end; p++) {
            const LinearTensors *lin = projection(t, p, expert);
            float scale;
            if (!lin->input && l->precision->fill_input_scales)
                continue;
            TRY(linear_input_scale(&l->c->files, lin, expert, &scale, l->e));
            *out = scale > *out ? scale : *out;
        }
    }
    return ST_OK;
}

static void count_missing(Loader *l, const ExpertTensors *t)
{
    int n = t->stacked ? 1 : l->arch->router.n_experts;
    for (int i = 0; i < n; i++)
        for (int p = t->stacked ? 1 : 0; p < 3; p++) {
            const LinearTensors *lin = projection(t, p, i);
            l->w->n_missing_input_scales += lin->scheme && lin->scheme->input && !lin->input;
        }
}

/* One side of the experts: the rows that reach them (projections 0 and 1), or the products before
 * the last matrix (2). */
static Status expert_rows(Loader *l, const ExpertTensors *t, int from, int end, RowFormat *out)
{
    const LinearTensors *first = projection(t, from, 0);
    const QuantScheme *s = first->scheme;
    *out = (RowFormat){0};
    if (l->precision->per_token_experts) {
        if (!s || s->rows != ROWS_NVFP4_STATIC)
            return err_set(l->e, ST_INPUT,
                           "%s: tensor \"%.200s\": --activation-override nvfp4_per_token needs "
                           "experts in NVFP4 with quantized activations (W4A4), these are %s",
                           tensor_set_file(&l->c->files, first->weight), first->weight->name,
                           s ? s->algo : "unquantized");
        out->scheme = ROWS_NVFP4_TOKEN;
        return ST_OK;
    }
    if (!s || loader_rows_in_use(l->precision, s->rows) == ROWS_AS_THEY_ARE)
        return ST_OK;
    for (int p = from; p < end; p++)
        if (!projection(t, p, 0)->scheme || projection(t, p, 0)->scheme->rows != s->rows)
            return err_set(l->e, ST_INPUT,
                           "%s: tensor \"%.200s\": gate and up of an expert declare different "
                           "activations, but its rows are rounded once",
                           tensor_set_file(&l->c->files, first->weight), first->weight->name);
    out->scheme = s->rows;
    out->power_of_two = s->rows_power_of_two;
    if (first->q.cols % row_format_multiple(s->rows))
        return err_set(
            l->e, ST_INPUT,
            "%s: tensor \"%.200s\": %lld inputs, but rounding them as %s needs multiples "
            "of %d",
            tensor_set_file(&l->c->files, first->weight), first->weight->name,
            (long long)first->q.cols, row_scheme_name(s->rows), row_format_multiple(s->rows));
    return s->input ? largest_scale(l, t, from, end, &out->input_scale) : ST_OK;
}

typedef struct BiasJob {
    const Loader *l;
    QuantTensor gate_up, down; /* a row for each expert */
    float *b13, *b2;
    int64_t inter, hidden;
} BiasJob;

static void bias_task(void *ctx, int k, int thread)
{
    const BiasJob *j = ctx;
    int expert = placement_expert(j->l->placement, j->l->rank, k);
    (void)thread;
    for (int half = 0; half < 2; half++) {
        QuantTensor one = j->gate_up;
        one.data += half * one.unit_stride;
        one.unit_stride *= 2;
        one.format->decode(&one, expert, 0, j->inter, j->b13 + (2 * k + half) * j->inter);
    }
    j->down.format->decode(&j->down, expert, 0, j->hidden, j->b2 + k * j->hidden);
}

/* Biases of this rank's experts, gate and up drawn apart. */
static Status load_expert_biases(Loader *l, const ExpertTensors *t, FfnSpec *spec)
{
    int64_t inter = spec->inter, hidden = spec->hidden;
    int n_all = l->arch->router.n_experts;
    float *placed;
    Status st = ST_OK;
    TRY(kept_need(&l->c->files, t->gate_up_bias, l->e));
    TRY(kept_need(&l->c->files, t->down_bias, l->e));
    BiasJob job = {.l = l,
                   .gate_up = linear_plain(t->gate_up_bias, n_all, 2 * inter),
                   .down = linear_plain(t->down_bias, n_all, hidden),
                   .b13 = malloc((size_t)(l->n_local * 2 * inter) * sizeof *job.b13),
                   .b2 = malloc((size_t)(l->n_local * hidden) * sizeof *job.b2),
                   .inter = inter,
                   .hidden = hidden};
    if (!job.b13 || !job.b2) {
        st = err_set(l->e, ST_MEMORY, "not enough memory for the biases of %d experts", l->n_local);
        goto fail;
    }
    team_run(l->online.team, l->n_local, bias_task, &job);
    l->w->bytes_read += l->n_local * (2 * inter * dtype_bytes(t->gate_up_bias->dtype) +
                                      hidden * dtype_bytes(t->down_bias->dtype));
    TRY_GOTO(loader_place_values(l, "expert biases", job.b13, l->n_local * 2 * inter, &placed));
    spec->b13 = placed;
    TRY_GOTO(loader_place_values(l, "expert biases", job.b2, l->n_local * hidden, &placed));
    spec->b2 = placed;
fail:
    free(job.b13);
    free(job.b2);
    return st;
}

static void drop_expert(Loader *l, const ExpertTensors *t, const ExpertView *v)
{
    for (int p = 0; p < 3 && !t->stacked; p++)
        kept_drop(&l->c->files, v->from[p]->weight);
}

static Status set_expert(Loader *l, const ExpertTensors *t, Weight *w13, Weight *w2, int k,
                         int expert)
{
    Weight *const banks[] = {w13, w13, w2};
    ExpertView v;
    TRY(view_expert(l, t, expert, linear_view, &v));
    if (loader_is_online(l, v.from[0])) {
        TRY(loader_set_online(l, w13, k, v.from, v.q, 2));
        TRY(loader_set_online(l, w2, k, v.from + 2, v.q + 2, 1));
        drop_expert(l, t, &v);
        return ST_OK;
    }
    for (int p = 0; p < 3; p++)
        TRY(loader_set_view(l, banks[p], k, p == 1, v.from[p], &v.q[p], expert, v.first[p],
                            v.step[p]));
    drop_expert(l, t, &v);
    return ST_OK;
}

/* All that set_expert will read, unless it is put back from a pack first. */
static Status announce_experts(Loader *l, const ExpertTensors *t, const Weight *w13,
                               const Weight *w2, const int *mats)
{
    const Weight *const banks[] = {w13, w13, w2};
    ExpertView v;
    for (int k = 0; k < l->n_local && !l->c->files.pack; k++) {
        TRY(view_expert(l, t, mats[k], linear_view, &v));
        for (int p = 0; p < 3; p++)
            loader_announce(l, banks[p], p == 1, v.from[p], &v.q[p]);
    }
    return ST_OK;
}

/* mats: this rank's experts. Without any, only what spec says of their rows is filled in, which those
 * of other ranks need. */
static Status fill_experts(Loader *l, int layer, const ExpertTensors *t, const int *mats,
                           const RowFormat *rows, FfnSpec *spec)
{
    const Arch *a = l->arch;
    int n = l->n_local, n_all = a->router.n_experts;
    char name[64];
    Weight *w13 = NULL, *w2 = NULL;
    ExpertView v;
    Status st = ST_OK;
    TRY(view_expert(l, t, 0, linear_where, &v));
    WeightPart gate_up[] = {loader_part_of(l, v.from[0], &v.q[0]),
                            loader_part_of(l, v.from[1], &v.q[1])};
    WeightPart down = loader_part_of(l, v.from[2], &v.q[2]);
    WeightUse first = loader_use_of(l, WEIGHT_GATED, gate_up, 2, a->hidden, rows),
              second = loader_use_of(l, WEIGHT_MATMUL, &down, 1, a->moe_inter, &spec->inner);
    if (first == WEIGHT_CODED)
        spec->rows = *rows;
    if (n == 0)
        return ST_OK;
    snprintf(name, sizeof name, "layers.%d.experts.gate_up", layer);
    NewBank bank = {name, first, mats, n, n_all, true, gate_up, 2, a->hidden};
    TRY_GOTO(loader_create_bank(l, &bank, &w13));
    snprintf(name, sizeof name, "layers.%d.experts.down", layer);
    bank = (NewBank){name, second, mats, n, n_all, true, &down, 1, a->moe_inter};
    TRY_GOTO(loader_create_bank(l, &bank, &w2));
    TRY_GOTO(announce_experts(l, t, w13, w2, mats));
    int ahead = experts_ahead(t);
    for (int k = 0; k < ahead && k < n && !l->kept; k++)
        prefetch_expert(l, t, mats[k]);
    for (int k = 0; k < n && !l->kept; k++) {
        if (k + ahead < n)
            prefetch_expert(l, t, mats[k + ahead]);
        TRY_GOTO(set_expert(l, t, w13, w2, k, mats[k]));
    }
    if (t->stacked) {
        kept_drop(&l->c->files, t->gate_up.weight);
        kept_drop(&l->c->files, t->stacked_down.weight);
    }
    TRY_GOTO(loader_finish_bank(l, &w13));
    TRY_GOTO(loader_finish_bank(l, &w2));
fail:
    spec->w13 = w13;
    spec->w2 = w2;
    return st;
}

Status loader_experts(Loader *l, int layer, const ExpertTensors *t, LayerWeights *out)
{
    const Arch *a = l->arch;
    FfnSpec *spec = &out->experts;
    count_missing(l, t);
    TRY(expert_rows(l, t, 0, 2, &out->expert_rows));
    TRY(expert_rows(l, t, 2, 3, &spec->inner));
    int *mats = malloc((size_t)(l->n_local + 1) * sizeof *mats);
    if (!mats)
        return err_set(l->e, ST_MEMORY, "not enough memory for a list of experts");
    for (int k = 0; k < l->n_local; k++)
        mats[k] = placement_expert(l->placement, l->rank, k);
    Status st = fill_experts(l, layer, t, mats, &out->expert_rows, spec);
    free(mats);
    TRY(st);
    return a->expert_bias && l->n_local > 0 ? load_expert_biases(l, t, spec) : ST_OK;
}
