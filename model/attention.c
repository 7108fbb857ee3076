/* model/attention.c - see attention.h. */
#include "model/attention.h"

#include "model/apply.h"

int attention_out_width(const Arch *a)
{
    return a->n_heads * (a->attn == ATTN_LATENT ? a->latent.v_dim : a->head_dim);
}

int attention_qkv_width(const Arch *a)
{
    if (a->attn == ATTN_LATENT)
        return a->n_heads * (a->latent.nope_dim + a->latent.rope_dim);
    return (a->n_heads + 2 * a->n_kv_heads) * a->head_dim;
}

const RoleList *attention_rows(const Model *m, int layer, RowRole role)
{
    const StepArrays *s = &m->arrays;
    return layer == m->arch->n_layers - 1 && !s->all_wanted
               ? &s->last[role]
               : &s->lists[m->kv.layer_group[layer]][role];
}

const AttnList *attention_written(const Model *m, int layer)
{
    return m->arrays.lists[m->kv.layer_group[layer]][ROWS_ALL].list;
}

void *attention_lane(const Model *m, void *rows, int64_t first)
{
    return (char *)rows + first * m->config.ops->act_bytes;
}

static Status norm_qk(Model *m, const LayerWeights *w, int n_rows, Err *e)
{
    const Arch *a = m->arch;
    const BackendOps *ops = m->config.ops;
    Backend *b = m->config.backend;
    int q_width = a->n_heads * a->head_dim, kv_width = a->n_kv_heads * a->head_dim,
        stride = q_width + 2 * kv_width;
    void *k = attention_lane(m, m->qkv, q_width);
    if (a->qk_norm == QK_NORM_HEAD) {
        TRY(ops->norm(b, m->qkv, m->qkv, w->q_norm, n_rows, a->n_heads, a->head_dim, stride, a->eps,
                      a->norm, e));
        TRY(ops->norm(b, k, k, w->k_norm, n_rows, a->n_kv_heads, a->head_dim, stride, a->eps,
                      a->norm, e));
    } else if (a->qk_norm == QK_NORM_FULL) {
        TRY(ops->norm(b, m->qkv, m->qkv, w->q_norm, n_rows, 1, q_width, stride, a->eps, a->norm,
                      e));
        TRY(ops->norm(b, k, k, w->k_norm, n_rows, 1, kv_width, stride, a->eps, a->norm, e));
    }
    return a->clip_qkv > 0 ? ops->clamp(b, m->qkv, n_rows, stride, stride, a->clip_qkv, e) : ST_OK;
}

Status attention_heads(Model *m, int n, int layer, Err *e)
{
    const Arch *a = m->arch;
    const BackendOps *ops = m->config.ops;
    Backend *b = m->config.backend;
    const LayerWeights *w = &m->weights.layers[layer];
    int64_t q_width = (int64_t)a->n_heads * a->head_dim,
            kv_width = (int64_t)a->n_kv_heads * a->head_dim;
    int64_t stride = q_width + 2 * kv_width;
    AttnSpec spec = {.n_heads = a->n_heads,
                     .n_kv_heads = a->n_kv_heads,
                     .head_dim = a->head_dim,
                     .scale = a->attn_scale,
                     .window = a->layers[layer].window,
                     .sinks = w->sinks,
                     .kv = w->kv};
    void *pool = kv_layer_pool(&m->kv, layer);
    OBSERVE(m, layer, attn_in, m->normed, n, a->hidden, a->hidden);
    TRY(apply_linear(m, m->qkv, m->normed, &w->qkv, n, e));
    TRY(norm_qk(m, w, n, e));
    TRY(ops->rope(b, m->qkv, n, stride, a->n_heads + a->n_kv_heads, a->head_dim, m->arrays.position,
                  &m->rope, e));
    OBSERVE(m, layer, key, attention_lane(m, m->qkv, q_width), n, kv_width, stride);
    OBSERVE(m, layer, value, attention_lane(m, m->qkv, q_width + kv_width), n, kv_width, stride);
    TRY(ops->kv_write(b, pool, attention_lane(m, m->qkv, q_width),
                      attention_lane(m, m->qkv, q_width + kv_width), stride,
                      attention_written(m, layer), &spec, e));
    const RoleList *rows = attention_rows(m, layer, ROWS_ALL);
    if (rows->n_seqs == 0)
        return ST_OK;
    return ops->attention(b, m->attn, m->qkv, stride, pool, rows->list, &spec, e);
}
