/* model/weights.c - reads one rank's shard out of the mapped files; see weights.h.
 *
 * Every matrix is repacked straight from the mapping into the backend's bank, one part of one
 * expert at a time, so loading needs no second copy of anything but vectors. What other ranks own
 * is never touched. */
#include "model/weights.h"

#include "model/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Loader {
    const Arch *arch;
    const Checkpoint *c;
    const Placement *placement;
    int rank, n_local; /* experts of this rank, per layer */
    Weights *w;
    int64_t *account; /* dense_bytes or expert_bytes: what is being loaded now */
    Err *e;
} Loader;

static FormatId format_of(const TensorEntry *t)
{
    return t->dtype == DTYPE_F32 ? FORMAT_F32 : t->dtype == DTYPE_F16 ? FORMAT_F16 : FORMAT_BF16;
}

static Status in_tensor(const Loader *l, const TensorEntry *t)
{
    return err_in(l->e, "%s: tensor \"%.200s\"", tensor_set_file(&l->c->files, t), t->name);
}

/* A stored matrix, whole. */
static QuantTensor matrix_of(const TensorEntry *t)
{
    return quant_plain(format_of(t), t->data, t->shape[0], t->shape[1]);
}

/* --- vectors --- */

/* n values of t from value first on, as float32. */
static void read_values(Loader *l, const TensorEntry *t, int64_t first, int64_t n, float *out)
{
    QuantTensor row = quant_plain(format_of(t), t->data, 1, first + n);
    row.format->decode(&row, 0, first, n, out);
    l->w->bytes_read += n * dtype_bytes(t->dtype);
}

/* Takes backend memory for n values and puts them there. */
static Status place_values(Loader *l, const char *what, const float *values, int64_t n, float **out)
{
    Weights *w = l->w;
    void *p = NULL;
    size_t bytes = (size_t)n * sizeof *values;
    TRY(w->ops->alloc(w->backend, bytes, what, &p, l->e));
    *out = p; /* weights_free takes care of it from here on */
    *l->account += (int64_t)bytes;
    return w->ops->upload(w->backend, p, values, bytes, l->e);
}

static int64_t n_values(const TensorEntry *t)
{
    return t->bytes / dtype_bytes(t->dtype);
}

/* Up to three tensors one after the other; *out stays NULL when the first is not there. */
static Status load_vector(Loader *l, const char *what, const TensorEntry *const *parts, int n_parts,
                          float **out)
{
    int64_t n = 0, at = 0;
    *out = NULL;
    if (!parts[0])
        return ST_OK;
    for (int i = 0; i < n_parts; i++)
        n += n_values(parts[i]);
    float *values = malloc((size_t)n * sizeof *values);
    if (!values)
        return err_set(l->e, ST_MEMORY, "not enough memory for %s", what);
    for (int i = 0; i < n_parts; i++) {
        read_values(l, parts[i], 0, n_values(parts[i]), values + at);
        at += n_values(parts[i]);
    }
    Status st = place_values(l, what, values, n, out);
    free(values);
    return st;
}

static Status load_one_vector(Loader *l, const char *what, const TensorEntry *t, float **out)
{
    return load_vector(l, what, &t, 1, out);
}

/* --- matrices --- */

static Status set_part(Loader *l, Weight *w, int mat, int part, const QuantTensor *q,
                       const TensorEntry *t)
{
    if (l->w->ops->weight_set(l->w->backend, w, mat, part, q, l->e) != ST_OK)
        return in_tensor(l, t);
    l->w->bytes_read += q->rows * quant_row_bytes(q->format, q->cols, q->group, q->scale_type);
    return ST_OK;
}

static Status create_bank(Loader *l, const char *name, WeightUse use, int n_mats,
                          const WeightPart *parts, int n_parts, int64_t cols, Weight **out)
{
    Weights *w = l->w;
    *out = NULL;
    TRY(w->ops->weight_create(w->backend, name, use, n_mats, parts, n_parts, cols, out, l->e));
    *l->account += (int64_t)w->ops->weight_bytes(*out);
    return ST_OK;
}

/* One matrix of up to MAX_PARTS stored ones, stacked on the output side. */
static Status load_matrix(Loader *l, const char *name, WeightUse use,
                          const TensorEntry *const *tensors, int n_parts, Weight **out)
{
    WeightPart parts[MAX_PARTS];
    for (int i = 0; i < n_parts; i++) {
        file_will_need(tensors[i]->data, (size_t)tensors[i]->bytes);
        parts[i] = (WeightPart){format_of(tensors[i]), tensors[i]->shape[0], 1, SCALE_NONE};
    }
    TRY(create_bank(l, name, use, 1, parts, n_parts, tensors[0]->shape[1], out));
    for (int i = 0; i < n_parts; i++) {
        QuantTensor q = matrix_of(tensors[i]);
        TRY(set_part(l, *out, 0, i, &q, tensors[i]));
    }
    return ST_OK;
}

/* --- experts --- */

/* One expert's matrices, seen where they lie, and what to blame for each. */
typedef struct ExpertView {
    QuantTensor gate, up, down;
    const TensorEntry *gate_from, *up_from, *down_from;
} ExpertView;

/* Rows first, first + step, ... of expert i in a stack of plain matrices [E, rows, cols]. */
static QuantTensor stack_rows(const TensorEntry *t, int i, int64_t first, int64_t n)
{
    int64_t rows = t->shape[1], cols = t->shape[2], size = dtype_bytes(t->dtype);
    return quant_plain(format_of(t), t->data + (i * rows + first) * cols * size, n, cols);
}

/* The same of a stack stored as [E, cols, all rows]: row r of the view is column first + step * r
 * of the file. */
static QuantTensor stack_columns(const TensorEntry *t, int i, int64_t first, int64_t step,
                                 int64_t n)
{
    int64_t cols = t->shape[1], all = t->shape[2], size = dtype_bytes(t->dtype);
    QuantTensor q = quant_plain(format_of(t), t->data + (i * cols * all + first) * size, n, cols);
    q.row_bytes = step * size;
    q.unit_stride = all * size;
    return q;
}

/* Rows first, first + step, ... of expert i in [E, rows, blocks, 16] with scales [E, rows, blocks].
 */
static QuantTensor stack_mxfp4(const TensorEntry *codes, const TensorEntry *scales, int i,
                               int64_t first, int64_t step, int64_t n)
{
    int64_t rows = codes->shape[1], blocks = codes->shape[2], at = i * rows + first;
    return (QuantTensor){.format = quant_format(FORMAT_MXFP4),
                         .rows = n,
                         .cols = 32 * blocks,
                         .data = codes->data + at * blocks * 16,
                         .row_bytes = step * blocks * 16,
                         .unit_stride = 1,
                         .scales = scales->data + at * blocks,
                         .scale_type = SCALE_E8M0,
                         .group = 32,
                         .scale_rows = 1,
                         .scale_row_bytes = step * blocks,
                         .scale_col_bytes = 1};
}

static ExpertView view_expert(const ExpertTensors *t, int i, int64_t inter, int64_t hidden)
{
    ExpertView v = {.gate_from = t->gate_up, .up_from = t->gate_up, .down_from = t->stacked_down};
    switch (t->storage) {
    case STORED_SINGLE:
        v.gate_from = t->gate[i];
        v.up_from = t->up[i];
        v.down_from = t->down[i];
        v.gate = matrix_of(t->gate[i]);
        v.up = matrix_of(t->up[i]);
        v.down = matrix_of(t->down[i]);
        break;
    case STORED_STACKED:
        v.gate = stack_rows(t->gate_up, i, 0, inter);
        v.up = stack_rows(t->gate_up, i, inter, inter);
        v.down = stack_rows(t->stacked_down, i, 0, hidden);
        break;
    case STORED_TRANSPOSED:
        v.gate = stack_columns(t->gate_up, i, 0, 2, inter);
        v.up = stack_columns(t->gate_up, i, 1, 2, inter);
        v.down = stack_columns(t->stacked_down, i, 0, 1, hidden);
        break;
    case STORED_MXFP4:
        v.gate = stack_mxfp4(t->gate_up, t->gate_up_scales, i, 0, 2, inter);
        v.up = stack_mxfp4(t->gate_up, t->gate_up_scales, i, 1, 2, inter);
        v.down = stack_mxfp4(t->stacked_down, t->down_scales, i, 0, 1, hidden);
        break;
    }
    return v;
}

/* Expert i's share of a stack. */
static const uint8_t *slice_of(const TensorEntry *t, int i, size_t *bytes)
{
    *bytes = (size_t)(t->bytes / t->shape[0]);
    return t->data + (size_t)i * *bytes;
}

static void prefetch_expert(const ExpertTensors *t, int i)
{
    if (t->storage == STORED_SINGLE) {
        const TensorEntry *all[] = {t->gate[i], t->up[i], t->down[i]};
        for (int k = 0; k < 3; k++)
            file_will_need(all[k]->data, (size_t)all[k]->bytes);
        return;
    }
    const TensorEntry *all[] = {t->gate_up, t->stacked_down};
    for (int k = 0; k < 2; k++) {
        size_t bytes;
        const uint8_t *at = slice_of(all[k], i, &bytes);
        file_will_need(at, bytes);
    }
}

/* E8M0 has one code for NaN; a block with it would spoil every row that meets the expert. */
static Status check_scales(Loader *l, const TensorEntry *t, int i)
{
    size_t bytes;
    const uint8_t *at = slice_of(t, i, &bytes), *nan = memchr(at, 255, bytes);
    if (!nan)
        return ST_OK;
    int64_t offset = nan - at;
    return err_set(
        l->e, ST_INPUT,
        "%s: tensor \"%.200s\": scale [%d, %lld, %lld] is 255 (not a number), expected 0 to "
        "254",
        tensor_set_file(&l->c->files, t), t->name, i, (long long)(offset / t->shape[2]),
        (long long)(offset % t->shape[2]));
}

/* Biases of this rank's experts, gate and up drawn apart. */
static Status load_expert_biases(Loader *l, const ExpertTensors *t, FfnSpec *spec)
{
    int64_t inter = spec->inter, hidden = spec->hidden;
    float *b13 = NULL, *b2 = NULL, *mixed = NULL, *placed;
    Status st = ST_OK;
    b13 = malloc((size_t)(l->n_local * 2 * inter) * sizeof *b13);
    b2 = malloc((size_t)(l->n_local * hidden) * sizeof *b2);
    mixed = malloc((size_t)(2 * inter) * sizeof *mixed);
    if (!b13 || !b2 || !mixed) {
        st = err_set(l->e, ST_MEMORY, "not enough memory for the biases of %d experts", l->n_local);
        goto fail;
    }
    for (int k = 0; k < l->n_local; k++) {
        int expert = placement_expert(l->placement, l->rank, k);
        float *gate = b13 + 2 * inter * k, *up = gate + inter;
        read_values(l, t->gate_up_bias, 2 * inter * expert, 2 * inter, mixed);
        for (int64_t r = 0; r < inter; r++) {
            gate[r] = mixed[2 * r];
            up[r] = mixed[2 * r + 1];
        }
        read_values(l, t->down_bias, hidden * expert, hidden, b2 + hidden * k);
    }
    TRY_GOTO(place_values(l, "expert biases", b13, l->n_local * 2 * inter, &placed));
    spec->b13 = placed;
    TRY_GOTO(place_values(l, "expert biases", b2, l->n_local * hidden, &placed));
    spec->b2 = placed;
fail:
    free(b13);
    free(b2);
    free(mixed);
    return st;
}

static Status set_expert(Loader *l, const ExpertTensors *t, Weight *w13, Weight *w2, int k,
                         int expert)
{
    ExpertView v = view_expert(t, expert, l->arch->moe_inter, l->arch->hidden);
    if (t->storage == STORED_MXFP4) {
        TRY(check_scales(l, t->gate_up_scales, expert));
        TRY(check_scales(l, t->down_scales, expert));
    }
    TRY(set_part(l, w13, k, 0, &v.gate, v.gate_from));
    TRY(set_part(l, w13, k, 1, &v.up, v.up_from));
    return set_part(l, w2, k, 0, &v.down, v.down_from);
}

static Status load_experts(Loader *l, int layer, const ExpertTensors *t, FfnSpec *spec)
{
    const Arch *a = l->arch;
    char name[64];
    Weight *w13, *w2;
    if (l->n_local == 0)
        return ST_OK;
    ExpertView v = view_expert(t, 0, a->moe_inter, a->hidden);
    WeightPart gate_up[] = {weight_part(&v.gate), weight_part(&v.up)};
    WeightPart down = weight_part(&v.down);
    snprintf(name, sizeof name, "layers.%d.experts.gate_up", layer);
    TRY(create_bank(l, name, WEIGHT_MATMUL, l->n_local, gate_up, 2, a->hidden, &w13));
    spec->w13 = w13;
    snprintf(name, sizeof name, "layers.%d.experts.down", layer);
    TRY(create_bank(l, name, WEIGHT_MATMUL, l->n_local, &down, 1, a->moe_inter, &w2));
    spec->w2 = w2;
    for (int k = 0; k < l->n_local; k++) {
        if (k + 1 < l->n_local)
            prefetch_expert(t, placement_expert(l->placement, l->rank, k + 1));
        TRY(set_expert(l, t, w13, w2, k, placement_expert(l->placement, l->rank, k)));
    }
    return a->expert_bias ? load_expert_biases(l, t, spec) : ST_OK;
}

/* --- layers --- */

/* A FFN that every token goes through: a dense layer, or shared experts. */
static Status load_ffn(Loader *l, int layer, const char *what, const FfnTensors *t, int64_t inter,
                       FfnSpec *spec)
{
    const TensorEntry *gate_up[] = {t->gate, t->up};
    char name[64];
    Weight *w = NULL;
    spec->inter = inter;
    snprintf(name, sizeof name, "layers.%d.%s.gate_up", layer, what);
    Status st = load_matrix(l, name, WEIGHT_MATMUL, gate_up, 2, &w);
    spec->w13 = w;
    TRY(st);
    snprintf(name, sizeof name, "layers.%d.%s.down", layer, what);
    st = load_matrix(l, name, WEIGHT_MATMUL, &t->down, 1, &w);
    spec->w2 = w;
    return st;
}

static Status load_layer_matrix(Loader *l, int layer, const char *what, const TensorEntry *t,
                                Weight **out)
{
    char name[64];
    snprintf(name, sizeof name, "layers.%d.%s", layer, what);
    return load_matrix(l, name, WEIGHT_MATMUL, &t, 1, out);
}

static Status load_heads(Loader *l, int layer, const LayerTensors *t, LayerWeights *out)
{
    const TensorEntry *qkv[] = {t->q, t->k, t->v}, *bias[] = {t->q_bias, t->k_bias, t->v_bias};
    char name[64];
    snprintf(name, sizeof name, "layers.%d.qkv", layer);
    TRY(load_matrix(l, name, WEIGHT_MATMUL, qkv, 3, &out->qkv));
    TRY(load_vector(l, "biases", bias, 3, &out->qkv_bias));
    TRY(load_one_vector(l, "norms", t->q_norm, &out->q_norm));
    TRY(load_one_vector(l, "norms", t->k_norm, &out->k_norm));
    return load_one_vector(l, "sinks", t->sinks, &out->sinks);
}

/* kv_b_proj twice: as it is, a matrix per head, and its k_nope rows with inputs and outputs
 * exchanged. */
static Status load_latent_up(Loader *l, int layer, const TensorEntry *t, LayerWeights *out)
{
    const LatentSpec *s = &l->arch->latent;
    FormatId format = format_of(t);
    int64_t size = dtype_bytes(t->dtype), row = s->latent_dim * size, head = s->nope_dim + s->v_dim;
    const WeightPart up[] = {{format, s->nope_dim, 1, SCALE_NONE},
                             {format, s->v_dim, 1, SCALE_NONE}};
    const WeightPart absorb = {format, s->latent_dim, 1, SCALE_NONE};
    char name[64];
    file_will_need(t->data, (size_t)t->bytes);
    snprintf(name, sizeof name, "layers.%d.latent_up", layer);
    TRY(create_bank(l, name, WEIGHT_MATMUL, s->n_heads, up, 2, s->latent_dim, &out->latent_up));
    snprintf(name, sizeof name, "layers.%d.latent_absorb", layer);
    TRY(create_bank(l, name, WEIGHT_MATMUL, s->n_heads, &absorb, 1, s->nope_dim,
                    &out->latent_absorb));
    for (int h = 0; h < s->n_heads; h++) {
        const uint8_t *at = t->data + h * head * row;
        QuantTensor k = quant_plain(format, at, s->nope_dim, s->latent_dim);
        QuantTensor v = quant_plain(format, at + s->nope_dim * row, s->v_dim, s->latent_dim);
        QuantTensor turned = quant_plain(format, at, s->latent_dim, s->nope_dim);
        turned.row_bytes = size;
        turned.unit_stride = row;
        TRY(set_part(l, out->latent_up, h, 0, &k, t));
        TRY(set_part(l, out->latent_up, h, 1, &v, t));
        TRY(set_part(l, out->latent_absorb, h, 0, &turned, t));
    }
    return ST_OK;
}

static Status load_latent(Loader *l, int layer, const LayerTensors *t, LayerWeights *out)
{
    if (t->q_a)
        TRY(load_layer_matrix(l, layer, "q_a", t->q_a, &out->q_a));
    TRY(load_one_vector(l, "norms", t->q_a_norm, &out->q_a_norm));
    TRY(load_layer_matrix(l, layer, "q", t->q, &out->q));
    TRY(load_layer_matrix(l, layer, "kv_a", t->kv_a, &out->kv_a));
    TRY(load_one_vector(l, "norms", t->kv_a_norm, &out->kv_a_norm));
    return load_latent_up(l, layer, t->kv_b, out);
}

static Status load_attention(Loader *l, int layer, const LayerTensors *t, LayerWeights *out)
{
    TRY(load_one_vector(l, "norms", t->attn_norm, &out->attn_norm));
    TRY(load_one_vector(l, "norms", t->ffn_norm, &out->ffn_norm));
    if (l->arch->attn == ATTN_LATENT)
        TRY(load_latent(l, layer, t, out));
    else
        TRY(load_heads(l, layer, t, out));
    TRY(load_layer_matrix(l, layer, "o", t->o, &out->o));
    return load_one_vector(l, "biases", t->o_bias, &out->o_bias);
}

static Status load_layer(Loader *l, int layer, const LayerTensors *t, LayerWeights *out)
{
    const Arch *a = l->arch;
    l->account = &l->w->dense_bytes;
    TRY(load_attention(l, layer, t, out));
    out->experts = out->dense = out->shared = (FfnSpec){.hidden = a->hidden, .act = a->act};
    if (!a->layers[layer].moe)
        return load_ffn(l, layer, "mlp", &t->dense, a->dense_inter, &out->dense);
    TRY(load_layer_matrix(l, layer, "router", t->router, &out->router));
    TRY(load_one_vector(l, "biases", t->router_bias, &out->router_bias));
    TRY(load_one_vector(l, "biases", t->router_correction, &out->router_correction));
    if (a->shared_inter > 0)
        TRY(load_ffn(l, layer, "shared", &t->shared, a->shared_inter, &out->shared));
    if (a->shared_gate)
        TRY(load_layer_matrix(l, layer, "shared_gate", t->shared_gate, &out->shared_gate));
    out->experts.inter = a->moe_inter;
    l->account = &l->w->expert_bytes;
    return load_experts(l, layer, &t->experts, &out->experts);
}

static Status load_all(Loader *l)
{
    Weights *w = l->w;
    const Checkpoint *c = l->c;
    l->account = &w->dense_bytes;
    TRY(load_matrix(l, "embedding", WEIGHT_LOOKUP, &c->embed, 1, &w->embed));
    TRY(load_one_vector(l, "norms", c->final_norm, &w->final_norm));
    for (int i = 0; i < w->n_layers; i++)
        TRY(load_layer(l, i, &c->layers[i], &w->layers[i]));
    l->account = &w->dense_bytes;
    return load_matrix(l, "head", WEIGHT_MATMUL, &c->head, 1, &w->head);
}

Status weights_load(const char *dir, const Arch *arch, const Placement *placement, int rank,
                    const BackendOps *ops, Backend *backend, Weights *out, Err *e)
{
    Checkpoint c = {0};
    Loader l = {.arch = arch, .c = &c, .placement = placement, .rank = rank, .w = out, .e = e};
    Status st;
    *out = (Weights){.ops = ops, .backend = backend};
    if (arch->router.n_experts > 0)
        l.n_local = placement->n_local[rank];
    TRY_GOTO(checkpoint_open(dir, arch, &c, e));
    checkpoint_check_tied(&c);
    out->layers = calloc((size_t)arch->n_layers, sizeof *out->layers);
    if (!out->layers) {
        st = err_set(e, ST_MEMORY, "not enough memory for %d layers", arch->n_layers);
        goto fail;
    }
    out->n_layers = arch->n_layers;
    TRY_GOTO(load_all(&l));
    checkpoint_close(&c);
    return ST_OK;
fail:
    checkpoint_close(&c);
    weights_free(out);
    return st;
}

/* --- the end --- */

static void free_vector(Weights *w, const float *v)
{
    if (v)
        w->ops->release(w->backend, (void *)(uintptr_t)v);
}

static void free_matrix(Weights *w, const Weight *m)
{
    w->ops->weight_destroy(w->backend, (Weight *)(uintptr_t)m);
}

static void free_ffn(Weights *w, const FfnSpec *spec)
{
    free_matrix(w, spec->w13);
    free_matrix(w, spec->w2);
    free_vector(w, spec->b13);
    free_vector(w, spec->b2);
}

static void free_layer(Weights *w, const LayerWeights *layer)
{
    const float *vectors[] = {layer->attn_norm, layer->ffn_norm,    layer->qkv_bias,
                              layer->q_norm,    layer->k_norm,      layer->o_bias,
                              layer->sinks,     layer->router_bias, layer->router_correction,
                              layer->q_a_norm,  layer->kv_a_norm};
    const Weight *matrices[] = {
        layer->qkv,  layer->o,         layer->router,        layer->q_a,        layer->q,
        layer->kv_a, layer->latent_up, layer->latent_absorb, layer->shared_gate};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        free_vector(w, vectors[i]);
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
        free_matrix(w, matrices[i]);
    free_ffn(w, &layer->experts);
    free_ffn(w, &layer->dense);
    free_ffn(w, &layer->shared);
}

void weights_free(Weights *w)
{
    if (!w->ops)
        return;
    for (int i = 0; i < w->n_layers; i++)
        free_layer(w, &w->layers[i]);
    free(w->layers);
    free_matrix(w, w->embed);
    free_matrix(w, w->head);
    free_vector(w, w->final_norm);
    *w = (Weights){0};
}
