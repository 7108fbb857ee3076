/* model/family_common.c - see family_common.h. */
#include "model/family_common.h"

#include "model/config.h"
#include "model/rope.h"

#include <limits.h>
#include <math.h>
#include <string.h>

enum { MAX_EXPERTS = 1 << 14, MAX_TOP_K = 256, MAX_INTER = 1 << 22, MAX_LANES = 1 << 13 };

/* --- feed-forward layers --- */

Status family_parse_experts(const cJSON *config, int min_experts, const char *inter_key, Arch *out,
                            Err *e)
{
    static const char *const n_keys[] = {"num_experts", "num_local_experts", "n_routed_experts",
                                         NULL};
    static const char *const k_keys[] = {"num_experts_per_tok", "num_experts_per_token",
                                         "experts_per_token", NULL};
    RouterSpec *r = &out->router;
    TRY(config_need_synonym(config, n_keys, min_experts, MAX_EXPERTS, &r->n_experts, e));
    if (r->n_experts == 0)
        return ST_OK;
    TRY(config_need_synonym(config, k_keys, 1, MAX_TOP_K, &r->top_k, e));
    return config_need_int(config, inter_key, 1, MAX_INTER, &out->moe_inter, e);
}

Status family_parse_dense(const cJSON *config, Arch *out, Err *e)
{
    for (int i = 0; i < out->n_layers; i++)
        out->layers[i].moe = false;
    return config_need_int(config, "intermediate_size", 1, MAX_INTER, &out->dense_inter, e);
}

/* The width of dense layers, where there are any; without experts nothing is routed. */
static Status finish_dense(const cJSON *config, Arch *out, Err *e)
{
    int n_dense = 0;
    for (int i = 0; i < out->n_layers; i++)
        n_dense += !out->layers[i].moe;
    if (n_dense > 0)
        TRY(config_need_int(config, "intermediate_size", 1, MAX_INTER, &out->dense_inter, e));
    if (n_dense == out->n_layers) {
        out->router.n_experts = out->router.top_k = 0;
        out->moe_inter = 0;
    }
    return ST_OK;
}

Status family_parse_sparsity(const cJSON *config, Arch *out, Err *e)
{
    int step = 1;
    const cJSON *dense = config_get(config, "mlp_only_layers");
    TRY(config_int(config, "decoder_sparse_step", 1, INT_MAX, &step, e));
    if (dense && !cJSON_IsArray(dense))
        return err_set(e, ST_INPUT, "mlp_only_layers is not a list");
    for (int i = 0; i < out->n_layers; i++)
        out->layers[i].moe = out->router.n_experts > 0 && (i + 1) % step == 0;
    for (const cJSON *v = dense ? dense->child : NULL; v; v = v->next) {
        if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble < out->n_layers) ||
            v->valuedouble != (int)v->valuedouble)
            return err_set(e, ST_INPUT,
                           "mlp_only_layers holds something that is not a layer, 0 to %d",
                           out->n_layers - 1);
        out->layers[(int)v->valuedouble].moe = false;
    }
    return finish_dense(config, out, e);
}

Status family_parse_first_dense(const cJSON *config, int n_first, Arch *out, Err *e)
{
    int step = 1;
    TRY(config_int(config, "first_k_dense_replace", 0, INT_MAX, &n_first, e));
    TRY(config_int(config, "moe_layer_freq", 1, INT_MAX, &step, e));
    for (int i = 0; i < out->n_layers; i++)
        out->layers[i].moe = i >= n_first && i % step == 0;
    return finish_dense(config, out, e);
}

Status family_parse_shared(const cJSON *config, int n_shared, Arch *out, Err *e)
{
    static const char key[] = "n_shared_experts";
    if (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(config, key)))
        n_shared = 0;
    TRY(config_int(config, key, 0, MAX_EXPERTS, &n_shared, e));
    if ((int64_t)n_shared * out->moe_inter > MAX_INTER)
        return err_set(e, ST_INPUT, "%s is %d: together they are wider than %d", key, n_shared,
                       MAX_INTER);
    out->shared_inter = n_shared * out->moe_inter;
    return ST_OK;
}

/* --- routers --- */

Status family_parse_groups(const cJSON *config, int n_group, int topk_group, Arch *out, Err *e)
{
    RouterSpec *r = &out->router;
    if (r->n_experts == 0)
        return ST_OK;
    TRY(config_int(config, "n_group", 1, MAX_EXPERTS, &n_group, e));
    TRY(config_int(config, "topk_group", 1, MAX_EXPERTS, &topk_group, e));
    r->n_group = n_group;
    r->topk_group = topk_group;
    if (r->n_experts % n_group != 0)
        return err_set(e, ST_INPUT, "n_group is %d, which does not divide %d experts", n_group,
                       r->n_experts);
    if (topk_group > n_group)
        return err_set(e, ST_INPUT, "topk_group is %d, but n_group is %d", topk_group, n_group);
    if (n_group > 1 && r->n_experts / n_group < 2)
        return err_set(e, ST_INPUT, "n_group is %d: groups of one expert are not supported",
                       n_group);
    if (r->top_k > topk_group * (r->n_experts / n_group))
        return err_set(e, ST_INPUT, "%d experts per token, but %d groups hold only %d", r->top_k,
                       topk_group, topk_group * (r->n_experts / n_group));
    return ST_OK;
}

Status family_parse_corrected(const cJSON *config, const CorrectedRouter *defaults, Arch *out,
                              Err *e)
{
    double scale = defaults->scale;
    RouterSpec *r = &out->router;
    TRY(config_only(config, "scoring_func", "sigmoid", e));
    TRY(config_only(config, "topk_method", "noaux_tc", e));
    r->kind = ROUTER_SIGMOID;
    r->renormalize = true;
    TRY(config_bool(config, "norm_topk_prob", &r->renormalize, e));
    r->renorm_eps = 1e-20f;
    TRY(config_double(config, "routed_scaling_factor", 1e-6, 1e6, &scale, e));
    r->scale = (float)scale;
    out->router_correction = r->n_experts > 0;
    return family_parse_groups(config, defaults->n_group, defaults->topk_group, out, e);
}

/* --- attention --- */

Status family_parse_layer_types(const cJSON *config, int window, Arch *out, bool *given, Err *e)
{
    const cJSON *list = config_get(config, "layer_types");
    int i = 0;
    *given = list != NULL;
    if (!list)
        return ST_OK;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != out->n_layers)
        return err_set(e, ST_INPUT, "layer_types is not a list of num_hidden_layers = %d names",
                       out->n_layers);
    for (const cJSON *v = list->child; v; v = v->next, i++) {
        const char *name = cJSON_IsString(v) ? v->valuestring : "";
        bool sliding = strcmp(name, "sliding_attention") == 0;
        if (!sliding && strcmp(name, "full_attention") != 0)
            return err_set(e, ST_INPUT, "layer_types: \"%.60s\" of layer %d is not supported", name,
                           i);
        if (sliding && window == 0)
            return err_set(e, ST_INPUT,
                           "layer_types: layer %d slides, but sliding_window is not set", i);
        out->layers[i].window = sliding ? window : 0;
    }
    return ST_OK;
}

static void set_windows(Arch *out, int first, int window)
{
    for (int i = first; i < out->n_layers; i++)
        out->layers[i].window = window;
}

Status family_parse_upper_windows(const cJSON *config, Arch *out, Err *e)
{
    bool slides = false, given;
    int window = 0, first = 28;
    TRY(config_bool(config, "use_sliding_window", &slides, e));
    if (slides) {
        window = 4096;
        TRY(config_int(config, "sliding_window", 1, INT_MAX, &window, e));
        TRY(config_int(config, "max_window_layers", 0, INT_MAX, &first, e));
    }
    TRY(family_parse_layer_types(config, window, out, &given, e));
    if (slides && !given)
        set_windows(out, first, window);
    return ST_OK;
}

Status family_parse_window(const cJSON *config, int window, Arch *out, Err *e)
{
    static const char key[] = "sliding_window";
    if (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(config, key)))
        window = 0;
    TRY(config_int(config, key, 1, INT_MAX, &window, e));
    set_windows(out, 0, window);
    return ST_OK;
}

Status family_parse_latent(const cJSON *config, Arch *out, Err *e)
{
    LatentSpec *s = &out->latent;
    int head = 0;
    out->attn = ATTN_LATENT;
    s->n_heads = out->n_heads;
    TRY(config_int(config, "q_lora_rank", 1, MAX_INTER, &out->q_lora, e));
    TRY(config_need_int(config, "kv_lora_rank", 1, MAX_INTER, &s->latent_dim, e));
    TRY(config_need_int(config, "qk_nope_head_dim", 1, MAX_LANES, &s->nope_dim, e));
    TRY(config_need_int(config, "qk_rope_head_dim", 1, MAX_LANES, &s->rope_dim, e));
    TRY(config_need_int(config, "v_head_dim", 1, MAX_LANES, &s->v_dim, e));
    out->head_dim = head = s->nope_dim + s->rope_dim;
    TRY(config_int(config, "qk_head_dim", 1, INT_MAX, &head, e));
    if (head != out->head_dim)
        return err_set(e, ST_INPUT,
                       "qk_head_dim is %d, but qk_nope_head_dim and qk_rope_head_dim add up to %d",
                       head, out->head_dim);
    TRY(config_refuse(config, "attention_bias", "latent attention with biases is not implemented",
                      e));
    out->n_kv_heads = 1;
    /* Of these norms the reference does not read rms_norm_eps. */
    out->latent_norm_eps = 1e-6f;
    TRY(rope_parse(config, s->rope_dim, out->max_positions, 1e4, &out->rope, e));
    if (out->rope.rotary_dim != s->rope_dim)
        return err_set(e, ST_INPUT, "partial_rotary_factor is not supported for latent attention");
    out->attn_scale = (float)(out->rope.latent_gain * out->rope.latent_gain / sqrt(out->head_dim));
    s->scale = out->attn_scale;
    return ST_OK;
}
