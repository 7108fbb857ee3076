/* model/attention_latent.c - multi-head latent attention (models.md 6.7): queries through a
 * low-rank pair, one latent row per position in the cache, the two forms by a position's role. */
#include "model/apply.h"
#include "model/attention.h"

static Status queries(Model *m, int layer, int n, Err *e)
{
    const Arch *a = m->arch;
    const BackendOps *ops = m->config.ops;
    Backend *b = m->config.backend;
    const LayerWeights *w = &m->weights.layers[layer];
    int head = a->latent.nope_dim + a->latent.rope_dim;
    const void *x = m->normed;
    if (a->q_lora > 0) {
        TRY(apply_linear(m, m->q_low, m->normed, &w->q_a, n, e));
        TRY(ops->norm(b, m->q_low, m->q_low, w->q_a_norm, n, 1, a->q_lora, a->q_lora,
                      a->latent_norm_eps, a->norm, e));
        x = m->q_low;
        OBSERVE(m, layer, q_low, m->q_low, n, a->q_lora, a->q_lora);
    }
    TRY(apply_linear(m, m->qkv, x, &w->q, n, e));
    return ops->rope(b, attention_lane(m, m->qkv, a->latent.nope_dim), n,
                     (int64_t)a->n_heads * head, a->n_heads, head, m->arrays.position, &m->rope, e);
}

static Status latents(Model *m, int layer, int n, Err *e)
{
    const Arch *a = m->arch;
    const BackendOps *ops = m->config.ops;
    Backend *b = m->config.backend;
    const LayerWeights *w = &m->weights.layers[layer];
    int width = a->latent.latent_dim + a->latent.rope_dim;
    TRY(apply_linear(m, m->latent_rows, m->normed, &w->kv_a, n, e));
    TRY(ops->norm(b, m->latent_rows, m->latent_rows, w->kv_a_norm, n, 1, a->latent.latent_dim,
                  width, a->latent_norm_eps, a->norm, e));
    OBSERVE(m, layer, latent, m->latent_rows, n, a->latent.latent_dim, width);
    OBSERVE(m, layer, key, m->latent_rows, n, a->latent.latent_dim, width);
    /* Once, before both uses of kv_b_proj: the cache holds what it reads. */
    if (w->latent_rounding.scheme != ROWS_AS_THEY_ARE)
        TRY(ops->round_rows(b, m->latent_rows, width, m->latent_rows, width, n,
                            a->latent.latent_dim, &w->latent_rounding, e));
    return ops->rope(b, attention_lane(m, m->latent_rows, a->latent.latent_dim), n, width, 1,
                     a->latent.rope_dim, m->arrays.position, &m->rope, e);
}

Status attention_latent(Model *m, int n, int layer, Err *e)
{
    const Arch *a = m->arch;
    const BackendOps *ops = m->config.ops;
    Backend *b = m->config.backend;
    const LayerWeights *w = &m->weights.layers[layer];
    LatentWeights bank = {w->latent_up, w->latent_absorb};
    LatentSpec spec = a->latent;
    spec.scale = a->attn_scale;
    spec.kv = w->kv;
    void *pool = kv_layer_pool(&m->kv, layer);
    int width = spec.latent_dim + spec.rope_dim;
    OBSERVE(m, layer, attn_in, m->normed, n, a->hidden, a->hidden);
    TRY(queries(m, layer, n, e));
    TRY(latents(m, layer, n, e));
    TRY(ops->latent_write(b, pool, m->latent_rows, width, attention_written(m, layer), &spec, e));
    const RoleList *prompt = attention_rows(m, layer, ROWS_PROMPT),
                   *generated = attention_rows(m, layer, ROWS_GENERATED);
    if (prompt->n_seqs > 0)
        TRY(ops->latent_attention(b, m->attn, m->qkv, pool, prompt->list, &spec, &bank,
                                  LATENT_EXPANDED, m->scratch, e));
    if (generated->n_seqs > 0)
        TRY(ops->latent_attention(b, m->attn, m->qkv, pool, generated->list, &spec, &bank,
                                  LATENT_ABSORBED, m->scratch, e));
    return ST_OK;
}
