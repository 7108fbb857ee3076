/* model/weights.c - reads one rank's shard out of the mapped files; see weights.h.
 *
 * Every matrix is repacked straight from the mapping into the backend's bank, one part of one
 * expert at a time, so loading needs no second copy of anything but vectors. What other ranks own
 * is never touched. */
#include "model/weights_internal.h"

#include "model/kept.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOADING_PATIENCE_NS = 300000 };

static Status in_tensor(const Loader *l, const TensorEntry *t)
{
    return err_in(l->e, "%s: tensor \"%.200s\"", tensor_set_file(&l->c->files, t), t->name);
}

/* --- vectors --- */

/* Takes backend memory for n values and puts them there. */
Status loader_place_values(Loader *l, const char *what, const float *values, int64_t n, float **out)
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

/* All of t, as float32. */
static Status read_values(Loader *l, const TensorEntry *t, float *out)
{
    TRY(kept_need(&l->c->files, t, l->e));
    QuantTensor row = linear_plain(t, 1, n_values(t));
    row.format->decode(&row, 0, 0, n_values(t), out);
    l->w->bytes_read += t->bytes;
    return ST_OK;
}

/* A norm or bias that is no number makes every token one; -inf may stand for "never". */
static Status check_vector(Loader *l, const TensorEntry *t, const float *values)
{
    for (int64_t i = 0; i < n_values(t); i++)
        if (isnan(values[i]))
            return err_set(l->e, ST_INPUT, "%s: tensor \"%.200s\": value [%lld] is not a number",
                           tensor_set_file(&l->c->files, t), t->name, (long long)i);
    return ST_OK;
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
    Status st = ST_OK;
    for (int i = 0; i < n_parts; i++) {
        if (st == ST_OK)
            st = read_values(l, parts[i], values + at);
        at += n_values(parts[i]);
    }
    for (int i = n_parts - 1; i >= 0 && st == ST_OK; i--) {
        at -= n_values(parts[i]);
        st = check_vector(l, parts[i], values + at);
    }
    if (st == ST_OK)
        st = loader_place_values(l, what, values, n, out);
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
    if (l->keeper && !keeper_wants(l->keeper, w, mat, part, q, t))
        return ST_OK;
    if (l->w->ops->weight_set(l->w->backend, w, mat, part, q, l->e) != ST_OK)
        return in_tensor(l, t);
    l->w->bytes_read += q->rows * quant_row_bytes(q->format, q->cols, q->group, q->scale_type);
    return ST_OK;
}

static Status read_bank(Loader *l, const NewBank *want, Weight *w)
{
    const TensorSet *files = &l->c->files;
    const PackBank *bank = kept_bank(files, l->w->ops, l->w->backend, want->name);
    bool same = bank && bank->n_parts == want->n_parts && bank->n_mats == want->n_all;
    for (int i = 0; same && i < want->n_parts; i++)
        same = bank->part[i].format == (int64_t)want->parts[i].format &&
               bank->part[i].rows == want->parts[i].rows &&
               bank->part[i].group == want->parts[i].group &&
               bank->part[i].scale == (int64_t)want->parts[i].scale;
    if (!same)
        return err_set(l->e, ST_INPUT, "%s: %s: is not the bank that config.json asks for",
                       files->pack->path, want->name);
    l->w->bytes_read += (int64_t)l->w->ops->weight_bytes(w);
    return kept_restore(files, bank, l->w->ops, l->w->backend, w, want->mats, want->n_mats, l->e);
}

/* The new bank is empty, or whole where l->kept. */
Status loader_create_bank(Loader *l, const NewBank *bank, Weight **out)
{
    Weights *w = l->w;
    *out = NULL;
    TRY(w->ops->weight_create(w->backend, bank->name, bank->use, bank->n_mats, bank->parts,
                              bank->n_parts, bank->cols, out, l->e));
    *l->account += (int64_t)w->ops->weight_bytes(*out);
    if (l->keeper)
        return keeper_begin(l->keeper, bank, *out, l->e);
    return l->kept ? read_bank(l, bank, *out) : ST_OK;
}

/* The bank has all its values: a keeper takes it away. */
Status loader_finish_bank(Loader *l, Weight **w)
{
    if (!l->keeper)
        return ST_OK;
    Status st = keeper_take(l->keeper, *w, l->e);
    l->w->ops->weight_destroy(l->w->backend, *w);
    *w = NULL;
    return st;
}

/* --- activations --- */

/* As declared; in native mode only what the tensor cores take as it is, which are FP8 rows. */
RowScheme loader_rows_in_use(const Precision *p, RowScheme declared)
{
    bool fp8 =
        declared == ROWS_FP8_STATIC || declared == ROWS_FP8_TOKEN || declared == ROWS_FP8_GROUP;
    bool used =
        p->activations == ACTIVATIONS_STORED || (p->activations == ACTIVATIONS_NATIVE && fp8);
    return used ? declared : ROWS_AS_THEY_ARE;
}

/* What the inputs of a module are rounded to. Scales that the mode does not use may be missing. */
static Status rows_of(Loader *l, const LinearTensors *t, RowFormat *out)
{
    const QuantScheme *s = t->scheme;
    *out = (RowFormat){0};
    if (!s)
        return ST_OK;
    bool lacks = s->input && !t->input;
    l->w->n_missing_input_scales += lacks;
    if (loader_rows_in_use(l->precision, s->rows) == ROWS_AS_THEY_ARE)
        return ST_OK;
    out->scheme = s->rows;
    out->power_of_two = s->rows_power_of_two;
    int multiple = row_format_multiple(s->rows);
    if (t->q.cols % multiple)
        return err_set(
            l->e, ST_INPUT,
            "%s: tensor \"%.200s\": %lld inputs, but rounding them as %s needs multiples "
            "of %d",
            tensor_set_file(&l->c->files, t->weight), t->weight->name, (long long)t->q.cols,
            row_scheme_name(s->rows), multiple);
    return s->input ? linear_input_scale(&l->c->files, t, 0, &out->input_scale, l->e) : ST_OK;
}

WeightUse loader_use_of(const Loader *l, WeightUse use, const WeightPart *parts, int n_parts,
                        int64_t cols, const RowFormat *rows)
{
    const BackendOps *ops = l->w->ops;
    bool coded = ops->takes_codes && rows->scheme != ROWS_AS_THEY_ARE &&
                 ops->takes_codes(l->w->backend, parts, n_parts, cols, rows);
    return coded ? WEIGHT_CODED : use;
}

/* --- weights that are quantized on their way --- */

bool loader_is_online(const Loader *l, const LinearTensors *t)
{
    return t->scheme && t->scheme == online_scheme(l->online.format);
}

WeightPart loader_part_of(const Loader *l, const LinearTensors *t, const QuantTensor *view)
{
    return loader_is_online(l, t) ? online_part(l->online.format, view) : weight_part(view);
}

/* All parts of one matrix of a bank, from views of plain weights. */
Status loader_set_online(Loader *l, Weight *w, int mat, const LinearTensors *const *from,
                         const QuantTensor *views, int n)
{
    float amax = 0;
    for (int i = 0; i < n; i++)
        if (online_share(&l->online, &views[i], &amax, l->e) != ST_OK)
            return in_tensor(l, from[i]->weight);
    for (int i = 0; i < n; i++) {
        QuantTensor coded;
        if (online_encode(&l->online, &views[i], amax, &coded, l->e) != ST_OK ||
            l->w->ops->weight_set(l->w->backend, w, mat, i, &coded, l->e) != ST_OK)
            return in_tensor(l, from[i]->weight);
        l->w->bytes_read += views[i].rows * views[i].cols * views[i].format->unit_bytes;
    }
    return ST_OK;
}

/* --- linear layers --- */

/* weight_set found a code or a scale that is no finite number: the message becomes that of the check
 * which says where. Another message stays. */
static Status tell_where(Loader *l, int checked, const LinearTensors *t, const QuantTensor *view,
                         int expert, int64_t first, int64_t step)
{
    const TensorSet *files = &l->c->files;
    Err other = *l->e;
    if (checked & WEIGHT_CHECKS_CODES)
        TRY(linear_check_codes(files, t, expert, l->online.team, l->e));
    /* Rows that take turns are looked at together. */
    for (int64_t lane = 0; lane < step && (checked & WEIGHT_CHECKS_SCALES); lane++) {
        QuantTensor one = *view;
        if (step > 1)
            one.scales += (lane - first) * view->scale_row_bytes / step;
        TRY(linear_check_scales(files, t, expert, &one, step > 1 ? lane : first, step,
                                l->online.team, l->e));
    }
    *l->e = other;
    return other.code;
}

Status loader_set_view(Loader *l, Weight *w, int mat, int part, const LinearTensors *t,
                       const QuantTensor *view, int expert, int64_t first, int64_t step)
{
    const TensorSet *files = &l->c->files;
    const BackendOps *ops = l->w->ops;
    if (l->keeper && !keeper_reads(l->keeper, w))
        return set_part(l, w, mat, part, view, t->weight);
    int checked = ops->weight_checks ? ops->weight_checks(w, part, view) : 0;
    TRY(linear_check_shape(files, t, l->e));
    if (!(checked & WEIGHT_CHECKS_CODES) &&
        first == 0) /* gate and up in one are looked at together */
        TRY(linear_check_codes(files, t, expert, l->online.team, l->e));
    if (!(checked & WEIGHT_CHECKS_SCALES))
        TRY(linear_check_scales(files, t, expert, view, first, step, l->online.team, l->e));
    Status st = set_part(l, w, mat, part, view, t->weight);
    return st == ST_INPUT && checked ? tell_where(l, checked, t, view, expert, first, step) : st;
}

void loader_announce(const Loader *l, const Weight *w, int part, const LinearTensors *t,
                     const QuantTensor *view)
{
    const BackendOps *ops = l->w->ops;
    if (ops->weight_ahead && !loader_is_online(l, t))
        ops->weight_ahead(l->w->backend, w, part, view);
}

void loader_prefetch(const Loader *l, const LinearTensors *t)
{
    loader_will_need(l, t->weight, 0, t->weight->bytes);
}

typedef struct Wanted {
    const uint8_t *data;
    int64_t bytes;
} Wanted;

enum { WANTED_SLICE = 2 << 20 };

static void want_slice(void *ctx, int task, int thread)
{
    const Wanted *w = ctx;
    int64_t at = (int64_t)task * WANTED_SLICE, n = w->bytes - at;
    (void)thread;
    file_will_need(w->data + at, (size_t)(n < WANTED_SLICE ? n : WANTED_SLICE));
}

/* Looking up all pages takes time too, so that is shared out, and where the last byte is in memory the
 * rest is taken to be. */
void loader_will_need(const Loader *l, const TensorEntry *t, int64_t first, int64_t bytes)
{
    Wanted w = {t->data + first, bytes};
    if (bytes == 0 || file_map_is_here(&l->c->files.parts[t->part].map, w.data + bytes - 1))
        return;
    team_run(l->online.team, (int)((bytes + WANTED_SLICE - 1) / WANTED_SLICE), want_slice, &w);
}

static Status fill_linear(Loader *l, const LinearTensors *const *tensors, int n_parts, Weight *w)
{
    QuantTensor views[MAX_PARTS];
    for (int i = 0; i < n_parts; i++) {
        TRY(linear_view(&l->c->files, tensors[i], 0, &views[i], l->e));
        loader_announce(l, w, i, tensors[i], &views[i]);
    }
    if (loader_is_online(l, tensors[0]))
        TRY(loader_set_online(l, w, 0, tensors, views, n_parts));
    for (int i = 0; i < n_parts && !loader_is_online(l, tensors[0]); i++)
        TRY(loader_set_view(l, w, 0, i, tensors[i], &views[i], 0, 0, 1));
    for (int i = 0; i < n_parts; i++)
        kept_drop(&l->c->files, tensors[i]->weight);
    return ST_OK;
}

/* One matrix of up to MAX_PARTS stored ones, stacked on the output side. codes: whether
 * apply_linear or ffn will meet it, which can multiply codes where all parts read the same rows. */
static Status load_linear(Loader *l, const char *name, WeightUse use, bool codes,
                          const LinearTensors *const *tensors, int n_parts, Linear *out)
{
    WeightPart parts[MAX_PARTS];
    *out = (Linear){.n_parts = n_parts, .cols = (int)tensors[0]->q.cols};
    for (int i = 0; i < n_parts; i++) {
        if (!l->kept)
            loader_prefetch(l, tensors[i]);
        parts[i] = loader_part_of(l, tensors[i], &tensors[i]->q);
        TRY(rows_of(l, tensors[i], &out->rows[i]));
        codes = codes && row_format_same(&out->rows[i], &out->rows[0]);
    }
    if (codes)
        use = loader_use_of(l, use, parts, n_parts, out->cols, &out->rows[0]);
    out->coded = use == WEIGHT_CODED;
    static const int only = 0;
    NewBank bank = {name, use, &only, 1, 1, false, parts, n_parts, tensors[0]->q.cols};
    TRY(loader_create_bank(l, &bank, &out->w));
    if (!l->kept)
        TRY(fill_linear(l, tensors, n_parts, out->w));
    return loader_finish_bank(l, &out->w);
}

/* --- layers --- */

/* A FFN that every token goes through: a dense layer, or shared experts. rows [2]: of gate, up. */
static Status load_ffn(Loader *l, int layer, const char *what, const FfnTensors *t, int64_t inter,
                       FfnSpec *spec, RowFormat *rows)
{
    const LinearTensors *gate_up[] = {&t->gate, &t->up}, *down = &t->down;
    char name[64];
    Linear linear;
    spec->inter = inter;
    snprintf(name, sizeof name, "layers.%d.%s.gate_up", layer, what);
    Status st = load_linear(l, name, WEIGHT_GATED, true, gate_up, 2, &linear);
    spec->w13 = linear.w;
    rows[0] = linear.rows[0];
    rows[1] = linear.rows[1];
    spec->rows = linear.coded ? rows[0] : (RowFormat){0};
    TRY(st);
    snprintf(name, sizeof name, "layers.%d.%s.down", layer, what);
    st = load_linear(l, name, WEIGHT_MATMUL, true, &down, 1, &linear);
    spec->w2 = linear.w;
    spec->inner = linear.rows[0];
    return st;
}

static Status load_layer_linear(Loader *l, int layer, const char *what, const LinearTensors *t,
                                Linear *out)
{
    char name[64];
    snprintf(name, sizeof name, "layers.%d.%s", layer, what);
    return load_linear(l, name, WEIGHT_MATMUL, true, &t, 1, out);
}

static Status load_router(Loader *l, int layer, const LinearTensors *t, Linear *out)
{
    char name[64];
    snprintf(name, sizeof name, "layers.%d.router", layer);
    return load_linear(l, name, WEIGHT_ROUTER, false, &t, 1, out);
}

static Status load_heads(Loader *l, int layer, const LayerTensors *t, LayerWeights *out)
{
    const LinearTensors *qkv[] = {&t->q, &t->k, &t->v};
    const TensorEntry *bias[] = {t->q_bias, t->k_bias, t->v_bias};
    char name[64];
    snprintf(name, sizeof name, "layers.%d.qkv", layer);
    TRY(load_linear(l, name, WEIGHT_MATMUL, true, qkv, 3, &out->qkv));
    TRY(load_vector(l, "biases", bias, 3, &out->qkv.bias));
    TRY(load_one_vector(l, "norms", t->q_norm, &out->q_norm));
    TRY(load_one_vector(l, "norms", t->k_norm, &out->k_norm));
    return load_one_vector(l, "sinks", t->sinks, &out->sinks);
}

static Status view_latent_up(Loader *l, const LinearTensors *t, QuantTensor *out)
{
    if (l->kept)
        return linear_where(&l->c->files, t, 0, out, l->e);
    loader_prefetch(l, t);
    TRY(linear_view(&l->c->files, t, 0, out, l->e));
    TRY(linear_check_codes(&l->c->files, t, 0, l->online.team, l->e));
    return linear_check_scales(&l->c->files, t, 0, out, 0, 1, l->online.team, l->e);
}

/* One head of all: into latent_up, and its k_nope rows turned into latent_absorb. decoded: room for
 * these rows, where they are quantized. */
static Status set_head(Loader *l, int head, const LinearTensors *t, const QuantTensor *all,
                       float *decoded, LayerWeights *out)
{
    const LatentSpec *s = &l->arch->latent;
    int64_t first = head * (s->nope_dim + s->v_dim);
    QuantTensor k = quant_rows(all, first, s->nope_dim);
    QuantTensor v = quant_rows(all, first + s->nope_dim, s->v_dim);
    QuantTensor turned = k;
    if (decoded) {
        quant_decode(&k, decoded);
        turned = quant_plain(FORMAT_F32, decoded, s->nope_dim, s->latent_dim);
    }
    int64_t row_bytes = turned.row_bytes;
    turned.row_bytes = turned.unit_stride;
    turned.unit_stride = row_bytes;
    turned.rows = s->latent_dim;
    turned.cols = s->nope_dim;
    TRY(set_part(l, out->latent_up, head, 0, &k, t->weight));
    TRY(set_part(l, out->latent_up, head, 1, &v, t->weight));
    return set_part(l, out->latent_absorb, head, 0, &turned, t->weight);
}

/* kv_b_proj twice: as it is, a matrix per head, and its k_nope rows with inputs and outputs
 * exchanged. Quantized, only the first keeps its format: scales do not turn with the matrix, so the
 * second holds the decoded values. */
static Status load_latent_up(Loader *l, int layer, const LinearTensors *t, LayerWeights *out)
{
    const LatentSpec *s = &l->arch->latent;
    QuantTensor all;
    float *decoded = NULL;
    Status st = ST_OK;
    int *heads = NULL;
    char name[64];
    TRY(view_latent_up(l, t, &all));
    TRY(rows_of(l, t, &out->latent_rounding));
    WeightPart up[] = {weight_part(&all), weight_part(&all)}, absorb = weight_part(&all);
    up[0].rows = s->nope_dim;
    up[1].rows = s->v_dim;
    absorb.rows = s->latent_dim;
    if (t->scheme) {
        absorb = (WeightPart){FORMAT_F32, s->latent_dim, 1, SCALE_NONE, 1};
        decoded = malloc((size_t)(s->nope_dim * s->latent_dim) * sizeof *decoded);
    }
    heads = malloc((size_t)s->n_heads * sizeof *heads);
    if (!heads || (t->scheme && !decoded)) {
        st = err_set(l->e, ST_MEMORY, "not enough memory for a head of kv_b_proj");
        goto fail;
    }
    for (int h = 0; h < s->n_heads; h++)
        heads[h] = h;
    snprintf(name, sizeof name, "layers.%d.latent_up", layer);
    NewBank bank = {name, WEIGHT_MATMUL, heads, s->n_heads, s->n_heads, false, up,
                    2,    s->latent_dim};
    TRY_GOTO(loader_create_bank(l, &bank, &out->latent_up));
    snprintf(name, sizeof name, "layers.%d.latent_absorb", layer);
    bank.parts = &absorb;
    bank.n_parts = 1;
    bank.cols = s->nope_dim;
    TRY_GOTO(loader_create_bank(l, &bank, &out->latent_absorb));
    for (int h = 0; h < s->n_heads && !l->kept; h++)
        TRY_GOTO(set_head(l, h, t, &all, decoded, out));
    kept_drop(&l->c->files, t->weight);
    TRY_GOTO(loader_finish_bank(l, &out->latent_up));
    TRY_GOTO(loader_finish_bank(l, &out->latent_absorb));
fail:
    free(heads);
    free(decoded);
    return st;
}

static Status load_latent(Loader *l, int layer, const LayerTensors *t, LayerWeights *out)
{
    if (t->q_a.weight)
        TRY(load_layer_linear(l, layer, "q_a", &t->q_a, &out->q_a));
    TRY(load_one_vector(l, "norms", t->q_a_norm, &out->q_a_norm));
    TRY(load_layer_linear(l, layer, "q", &t->q, &out->q));
    TRY(load_layer_linear(l, layer, "kv_a", &t->kv_a, &out->kv_a));
    TRY(load_one_vector(l, "norms", t->kv_a_norm, &out->kv_a_norm));
    return load_latent_up(l, layer, &t->kv_b, out);
}

/* Scales of the cache, which only a quantized one uses. */
static Status load_kv_format(Loader *l, const LayerTensors *t, KvFormat *out)
{
    *out = (KvFormat){l->precision->kv, 1, 1};
    if (out->dtype != KV_FP8 && out->dtype != KV_NVFP4)
        return ST_OK;
    l->w->n_missing_kv_scales += !t->k_scale;
    if (t->k_scale)
        TRY(linear_kv_scale(&l->c->files, t->k_scale, &out->k_scale, l->e));
    if (t->v_scale)
        TRY(linear_kv_scale(&l->c->files, t->v_scale, &out->v_scale, l->e));
    return ST_OK;
}

static Status load_attention(Loader *l, int layer, const LayerTensors *t, LayerWeights *out)
{
    TRY(load_one_vector(l, "norms", t->attn_norm, &out->attn_norm));
    TRY(load_one_vector(l, "norms", t->ffn_norm, &out->ffn_norm));
    if (l->arch->attn == ATTN_LATENT)
        TRY(load_latent(l, layer, t, out));
    else
        TRY(load_heads(l, layer, t, out));
    TRY(load_kv_format(l, t, &out->kv));
    TRY(load_layer_linear(l, layer, "o", &t->o, &out->o));
    return load_one_vector(l, "biases", t->o_bias, &out->o.bias);
}

static Status load_layer(Loader *l, int layer, const LayerTensors *t, LayerWeights *out)
{
    const Arch *a = l->arch;
    l->account = &l->w->dense_bytes;
    TRY(load_attention(l, layer, t, out));
    out->experts = out->dense = out->shared = (FfnSpec){.hidden = a->hidden, .act = a->act};
    if (!a->layers[layer].moe)
        return load_ffn(l, layer, "mlp", &t->dense, a->dense_inter, &out->dense, out->dense_rows);
    TRY(load_router(l, layer, &t->router, &out->router));
    TRY(load_one_vector(l, "biases", t->router_bias, &out->router.bias));
    TRY(load_one_vector(l, "biases", t->router_correction, &out->router_correction));
    if (a->shared_inter > 0)
        TRY(load_ffn(l, layer, "shared", &t->shared, a->shared_inter, &out->shared,
                     out->shared_rows));
    if (a->shared_gate)
        TRY(load_layer_linear(l, layer, "shared_gate", &t->shared_gate, &out->shared_gate));
    out->experts.inter = a->moe_inter;
    l->account = &l->w->expert_bytes;
    return loader_experts(l, layer, &t->experts, out);
}

static Status load_all(Loader *l)
{
    Weights *w = l->w;
    const Checkpoint *c = l->c;
    l->account = &w->dense_bytes;
    const LinearTensors *embed = &c->embed, *head = &c->head;
    Linear table;
    Status st = load_linear(l, "embedding", WEIGHT_LOOKUP, false, &embed, 1, &table);
    w->embed = table.w;
    TRY(st);
    TRY(load_one_vector(l, "norms", c->final_norm, &w->final_norm));
    for (int i = 0; i < w->n_layers; i++)
        TRY(load_layer(l, i, &c->layers[i], &w->layers[i]));
    l->account = &w->dense_bytes;
    return load_linear(l, "head", WEIGHT_MATMUL, false, &head, 1, &w->head);
}

Status weights_load(const WeightsConfig *config, Weights *out, Err *e)
{
    return weights_load_for(config, NULL, out, e);
}

Status weights_load_for(const WeightsConfig *config, BankKeeper *keeper, Weights *out, Err *e)
{
    const Arch *arch = config->arch;
    const Precision *precision = config->precision;
    const BackendOps *ops = config->ops;
    Checkpoint c = {0};
    Loader l = {.arch = arch,
                .c = &c,
                .precision = precision,
                .placement = config->placement,
                .rank = config->rank,
                .w = out,
                .keeper = keeper,
                .online = {.format = precision->quantize, .team = config->team},
                .e = e};
    Status st;
    *out = (Weights){.ops = config->ops, .backend = config->backend};
    if (arch->router.n_experts > 0)
        l.n_local = config->placement->n_local[config->rank];
    TRY_GOTO(config->synthetic ? checkpoint_open_synthetic(config->synthetic, arch, &c, e)
                               : checkpoint_open(config->dir, arch, &c, e));
    TRY_GOTO(online_mark(precision->quantize, precision->quantize_experts_only, arch, &c, e));
    checkpoint_warn_of_recipe(&c);
    checkpoint_check_tied(&c);
    l.kept = c.files.pack && ops->weight_layout && !keeper && precision->quantize == ONLINE_NONE &&
             strcmp(ops->weight_layout(config->backend), c.files.pack->layout) == 0;
    if (keeper)
        keeper_files(keeper, &c.files);
    out->layers = calloc((size_t)arch->n_layers, sizeof *out->layers);
    if (!out->layers) {
        st = err_set(e, ST_MEMORY, "not enough memory for %d layers", arch->n_layers);
        goto fail;
    }
    out->n_layers = arch->n_layers;
    /* Many short runs of the team, one after the other. */
    team_patience(config->team, LOADING_PATIENCE_NS);
    TRY_GOTO(load_all(&l));
    team_patience(config->team, 0);
    online_end(&l.online);
    checkpoint_close(&c);
    return ST_OK;
fail:
    team_patience(config->team, 0);
    online_end(&l.online);
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

static void free_linear(Weights *w, const Linear *l)
{
    free_matrix(w, l->w);
    free_vector(w, l->bias);
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
    const float *vectors[] = {
        layer->attn_norm, layer->ffn_norm, layer->q_norm,    layer->k_norm,
        layer->sinks,     layer->q_a_norm, layer->kv_a_norm, layer->router_correction};
    const Linear *linears[] = {&layer->qkv,  &layer->o,      &layer->q_a,        &layer->q,
                               &layer->kv_a, &layer->router, &layer->shared_gate};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        free_vector(w, vectors[i]);
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++)
        free_linear(w, linears[i]);
    free_matrix(w, layer->latent_up);
    free_matrix(w, layer->latent_absorb);
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
    free_linear(w, &w->head);
    free_vector(w, w->final_norm);
    *w = (Weights){0};
}
