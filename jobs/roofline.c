/* jobs/roofline.c - see roofline.h. */
#include "jobs/roofline.h"

#include <math.h>
#include <stdlib.h>

const char *const roof_op_names[N_ROOF_OPS] = {"projections", "attention", "router",
                                               "experts",     "dense",     "head"};

/* --- a step --- */

/* Queries at positions pos .. pos+n-1 and the keys that they see. */
static double visible_pairs(int pos, int n, int window)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += window > 0 && pos + i + 1 > window ? window : pos + i + 1;
    return sum;
}

StepShape roof_step(const RoofModel *m, const Step *step)
{
    int last = m->windows[m->layers[m->n_layers - 2].window];
    StepShape s = {.n_rows = step->n_rows};
    for (int i = 0; i < step->n_seqs; i++) {
        const StepSeq *q = &step->seqs[i];
        int generated = q->pos >= q->n_prompt;
        s.n_wanted += q->n_wanted;
        s.last_pairs[generated] +=
            visible_pairs(q->pos + q->n_rows - q->n_wanted, q->n_wanted, last);
        for (int w = 0; w < m->n_windows; w++) {
            int window = m->windows[w];
            int first = window > 0 && q->pos + 1 > window ? q->pos + 1 - window : 0;
            s.pairs[w][generated] += visible_pairs(q->pos, q->n_rows, window);
            s.kv_rows[w][generated] += q->pos + q->n_rows - first;
        }
    }
    return s;
}

/* --- floors --- */

static void count(Roofline *sum, RoofOp op, bool fp8, RoofCount c, const BackendCeilings *limits)
{
    RoofCount *to = &sum->op[op];
    double peak = fp8 && limits->fp8_flops > 0 ? limits->fp8_flops : limits->flops;
    double bytes = c.weight_bytes + c.kv_bytes + c.row_bytes;
    double memory_s = limits->memory_bytes_s > 0 ? bytes / limits->memory_bytes_s : 0;
    double products_s = peak > 0 ? c.flops / peak : 0;
    to->flops += c.flops;
    to->weight_bytes += c.weight_bytes;
    to->kv_bytes += c.kv_bytes;
    to->row_bytes += c.row_bytes;
    to->floor_s += memory_s > products_s ? memory_s : products_s;
}

static void add_experts(Roofline *sum, const RoofModel *m, const RoofLayer *l, const StepShape *s,
                        const BackendCeilings *limits)
{
    double rows = l->last ? s->n_wanted : s->n_rows, tokens = rows * m->n_ranks, distinct = 0;
    double pairs = tokens * m->top_k * m->pair_share;
    for (int i = 0; i < m->n_local; i++)
        distinct += 1 - pow(1 - l->chosen[i], tokens);
    /* Rows in, products between the matrices out and in, results out; then read for the weighted sum,
     * and its rows out. */
    double values = 2 * rows * m->hidden + 2 * pairs * (m->expert_inner + m->hidden);
    RoofCount c = {.flops = pairs * m->expert_flops,
                   .weight_bytes = distinct * m->expert_bytes,
                   .row_bytes = values * m->act_bytes};
    count(sum, ROOF_EXPERTS, m->expert_fp8, c, limits);
}

void roof_add(Roofline *sum, const RoofModel *m, const StepShape *s, const BackendCeilings *limits)
{
    if (s->n_rows == 0)
        return;
    for (int i = 0; i < m->n_layers; i++) {
        const RoofLayer *l = &m->layers[i];
        for (int k = 0; k < l->n_matrices; k++) {
            const RoofMatrix *w = &l->matrix[k];
            double rows = w->wanted ? s->n_wanted : s->n_rows;
            RoofCount c = {.flops = 2 * rows * w->inputs * w->outputs,
                           .weight_bytes = rows > 0 ? w->bytes : 0,
                           .row_bytes = rows * (w->inputs + w->outputs) * m->act_bytes};
            count(sum, w->op, w->fp8, c, limits);
        }
        if (l->window >= 0) {
            const double *pairs = l->last ? s->last_pairs : s->pairs[l->window];
            const double *kv = s->kv_rows[l->window];
            double rows = l->last ? s->n_wanted : s->n_rows;
            RoofCount c = {.flops = pairs[0] * l->pair_flops[0] + pairs[1] * l->pair_flops[1] +
                                    kv[0] * l->kv_row_flops[0] + kv[1] * l->kv_row_flops[1],
                           .weight_bytes = l->attention_bytes,
                           .kv_bytes = (kv[0] + kv[1]) * m->kv_row_bytes,
                           .row_bytes = 2 * rows * m->attention_width * m->act_bytes};
            count(sum, ROOF_ATTENTION, false, c, limits);
        }
        if (l->moe && m->n_local > 0)
            add_experts(sum, m, l, s, limits);
    }
}

RoofCount roof_total(const Roofline *r)
{
    RoofCount sum = {0};
    for (int i = 0; i < N_ROOF_OPS; i++) {
        sum.flops += r->op[i].flops;
        sum.weight_bytes += r->op[i].weight_bytes;
        sum.kv_bytes += r->op[i].kv_bytes;
        sum.row_bytes += r->op[i].row_bytes;
        sum.floor_s += r->op[i].floor_s;
    }
    return sum;
}

/* --- a model --- */

static bool is_fp8(RowScheme rows)
{
    return rows == ROWS_FP8_STATIC || rows == ROWS_FP8_TOKEN || rows == ROWS_FP8_GROUP;
}

static void add_matrix(const Model *m, RoofLayer *l, RoofOp op, const Weight *w, double inputs,
                       double outputs, RowScheme rows)
{
    if (!w)
        return;
    l->matrix[l->n_matrices++] = (RoofMatrix){.op = op,
                                              .inputs = inputs,
                                              .outputs = outputs,
                                              .bytes = (double)m->config.ops->weight_bytes(w),
                                              .fp8 = is_fp8(rows) && !m->config.ops->host_memory,
                                              .wanted = l->last && op != ROOF_PROJECTIONS};
}

static void add_linear(const Model *m, RoofLayer *l, RoofOp op, const Linear *linear,
                       double outputs)
{
    add_matrix(m, l, op, linear->w, linear->cols, outputs, linear->rows[0].scheme);
}

static void add_ffn(const Model *m, RoofLayer *l, const FfnSpec *spec, RowScheme rows)
{
    double hidden = m->arch->hidden, inter = (double)spec->inter;
    add_matrix(m, l, ROOF_DENSE, spec->w13, hidden, 2 * inter, rows);
    add_matrix(m, l, ROOF_DENSE, spec->w2, inter, hidden, spec->inner.scheme);
}

/* Latents: prompt rows in the expanded form, whose keys and values are made from every cached
 * position; generated ones in the absorbed form, whose queries and outputs pass through kv_b_proj. */
static void latent_layer(const Model *m, const LayerWeights *w, RoofLayer *l)
{
    const Arch *a = m->arch;
    const LatentSpec *s = &a->latent;
    double heads = a->n_heads, nope = s->nope_dim, rope = s->rope_dim, v = s->v_dim,
           latent = s->latent_dim;
    add_linear(m, l, ROOF_PROJECTIONS, &w->q_a, a->q_lora);
    add_linear(m, l, ROOF_PROJECTIONS, &w->q, heads * (nope + rope));
    add_linear(m, l, ROOF_PROJECTIONS, &w->kv_a, latent + rope);
    add_linear(m, l, ROOF_PROJECTIONS, &w->o, a->hidden);
    l->matrix[l->n_matrices - 1].wanted = l->last;
    l->pair_flops[0] = 2 * heads * (nope + rope + v);
    l->kv_row_flops[0] = 2 * heads * (nope + v) * latent;
    l->pair_flops[1] = 2 * heads * (2 * latent + rope);
    l->attention_bytes = (double)m->config.ops->weight_bytes(w->latent_up);
}

static void heads_layer(const Model *m, const LayerWeights *w, RoofLayer *l)
{
    const Arch *a = m->arch;
    double q = (double)a->n_heads * a->head_dim, kv = (double)a->n_kv_heads * a->head_dim;
    add_linear(m, l, ROOF_PROJECTIONS, &w->qkv, q + 2 * kv);
    add_linear(m, l, ROOF_PROJECTIONS, &w->o, a->hidden);
    l->matrix[l->n_matrices - 1].wanted = l->last;
    l->pair_flops[0] = l->pair_flops[1] = 4 * q;
}

static int window_of(RoofModel *r, int window)
{
    for (int i = 0; i < r->n_windows; i++)
        if (r->windows[i] == window)
            return i;
    if (r->n_windows == MAX_KV_GROUPS)
        return 0;
    r->windows[r->n_windows] = window;
    return r->n_windows++;
}

static void fill_layer(RoofModel *r, const Model *m, int n)
{
    const Arch *a = m->arch;
    const LayerWeights *w = &m->weights.layers[n];
    RoofLayer *l = &r->layers[n];
    l->window = window_of(r, a->layers[n].window);
    l->last = n == a->n_layers - 1;
    if (a->attn == ATTN_LATENT)
        latent_layer(m, w, l);
    else
        heads_layer(m, w, l);
    l->moe = a->layers[n].moe;
    if (!l->moe) {
        add_ffn(m, l, &w->dense, w->dense_rows[0].scheme);
        return;
    }
    add_linear(m, l, ROOF_ROUTER, &w->router, a->router.n_experts);
    add_ffn(m, l, &w->shared, w->shared_rows[0].scheme);
    l->chosen = r->chosen + (size_t)n * (size_t)r->n_local;
    if (r->n_local > 0 && w->experts.w13) {
        const BackendOps *ops = m->config.ops;
        r->expert_bytes =
            ((double)ops->weight_bytes(w->experts.w13) + (double)ops->weight_bytes(w->experts.w2)) /
            r->n_local;
        r->expert_fp8 = is_fp8(w->expert_rows.scheme) && !ops->host_memory;
    }
}

Status roof_model_create(RoofModel *out, const Model *m, const int64_t *load, int64_t tokens,
                         Err *e)
{
    const Arch *a = m->arch;
    const BackendOps *ops = m->config.ops;
    int n_experts = a->router.n_experts, rank = m->comm->rank;
    bool latent = a->attn == ATTN_LATENT;
    *out = (RoofModel){.n_layers = a->n_layers + 1,
                       .n_ranks = m->comm->size,
                       .top_k = a->router.top_k,
                       .act_bytes = ops->act_bytes,
                       .hidden = a->hidden,
                       .attention_width =
                           (double)a->n_heads * (latent ? a->latent.v_dim : a->head_dim),
                       .expert_flops = 6.0 * a->hidden * a->moe_inter,
                       .expert_inner = a->moe_inter};
    KvDtype kv = m->config.precision.kv;
    size_t page = latent ? ops->latent_page_bytes(m->config.backend, a->latent.latent_dim,
                                                  a->latent.rope_dim, kv)
                         : ops->kv_page_bytes(m->config.backend, a->n_kv_heads, a->head_dim, kv);
    out->kv_row_bytes = (double)page / KV_PAGE;
    if (n_experts > 0) {
        out->n_local = m->placement.n_local[rank];
        out->pair_share = (double)out->n_local / n_experts;
    }
    out->layers = calloc((size_t)out->n_layers, sizeof *out->layers);
    out->chosen = calloc((size_t)a->n_layers * (size_t)out->n_local + 1, sizeof *out->chosen);
    if (!out->layers || !out->chosen) {
        roof_model_free(out);
        return err_set(e, ST_MEMORY, "out of memory: counts of operations");
    }
    for (int n = 0; n < a->n_layers; n++) {
        for (int i = 0; i < out->n_local; i++) {
            int expert = placement_expert(&m->placement, rank, i);
            out->chosen[n * out->n_local + i] =
                load && tokens > 0 ? (double)load[n * n_experts + expert] / (double)tokens
                                   : (double)out->top_k / n_experts;
        }
        fill_layer(out, m, n);
    }
    RoofLayer *head = &out->layers[a->n_layers];
    head->window = -1;
    add_linear(m, head, ROOF_HEAD, &m->weights.head, a->vocab);
    head->matrix[0].wanted = true;
    return ST_OK;
}

void roof_model_free(RoofModel *r)
{
    free(r->layers);
    free(r->chosen);
    *r = (RoofModel){0};
}
