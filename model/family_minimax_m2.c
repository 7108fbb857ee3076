/* model/family_minimax_m2.c - MiniMax-M2: GQA with norms over the full width of q and k, the first
 * lanes of each head rotated, experts chosen by sigmoid scores with a correction bias. */
#include "model/config.h"
#include "model/family_common.h"
#include "model/rope.h"

static const char *const understood[] = {"num_local_experts",   "num_experts",
                                         "num_experts_per_tok", "intermediate_size",
                                         "scoring_func",        "use_routing_bias",
                                         "use_qk_norm",         "qk_norm_type",
                                         "rotary_dim",          "partial_rotary_factor",
                                         "attn_type_list",      "layernorm_full_attention_beta",
                                         "layernorm_mlp_beta",  "shared_intermediate_size",
                                         "sliding_window",      NULL};

/* Multi-token prediction is not run, and what belongs to linear attention, shared experts and dense
 * layers means nothing in a model without them. */
static const char *const harmless[] = {"num_mtp_modules",
                                       "use_mtp",
                                       "mtp_transformer_layers",
                                       "layernorm_linear_attention_beta",
                                       "shared_moe_mode",
                                       "mlp_intermediate_size",
                                       NULL};

/* attn_type_list: 1 stands for full attention. */
static Status check_attention(const cJSON *c, Err *e)
{
    const cJSON *list = config_get(c, "attn_type_list");
    int layer = 0;
    if (list && !cJSON_IsArray(list))
        return err_set(e, ST_INPUT, "attn_type_list is not a list");
    for (const cJSON *v = list ? list->child : NULL; v; v = v->next, layer++)
        if (!cJSON_IsNumber(v) || v->valuedouble != 1)
            return err_set(e, ST_INPUT,
                           "attn_type_list: the attention of layer %d is not supported (1 is)",
                           layer);
    return config_refuse(c, "sliding_window", "windows of this model_type are not implemented", e);
}

/* Keys for which all published models have one value. */
static Status check_fixed(const cJSON *c, Err *e)
{
    static const char *const betas[] = {"layernorm_full_attention_beta", "layernorm_mlp_beta"};
    bool qk_norm = true, bias = true;
    TRY(config_only(c, "scoring_func", "sigmoid", e));
    TRY(config_only(c, "qk_norm_type", "per_layer", e));
    TRY(config_bool(c, "use_qk_norm", &qk_norm, e));
    TRY(config_bool(c, "use_routing_bias", &bias, e));
    if (!qk_norm || !bias)
        return err_set(e, ST_INPUT, "%s false is not supported",
                       qk_norm ? "use_routing_bias" : "use_qk_norm");
    for (int i = 0; i < 2; i++) {
        double beta = 1;
        TRY(config_double(c, betas[i], -1e9, 1e9, &beta, e));
        if (beta != 1)
            return err_set(e, ST_INPUT, "%s %g is not supported (1 is)", betas[i], beta);
    }
    return config_refuse(c, "shared_intermediate_size",
                         "shared experts of this model_type are not implemented", e);
}

/* rotary_dim counts lanes, partial_rotary_factor is their share of a head: where both are there,
 * they must agree. */
static Status parse_rope(const cJSON *c, Arch *a, Err *e)
{
    int lanes = 0;
    TRY(config_int(c, "rotary_dim", 2, a->head_dim, &lanes, e));
    a->rope.rotary_dim = lanes ? lanes : a->head_dim / 2;
    TRY(rope_parse(c, a->head_dim, a->max_positions, 5e6, &a->rope, e));
    if (lanes && lanes != a->rope.rotary_dim)
        return err_set(e, ST_INPUT, "rotary_dim is %d, but partial_rotary_factor makes it %d",
                       lanes, a->rope.rotary_dim);
    return ST_OK;
}

static Status parse(const cJSON *c, Arch *a, Err *e)
{
    a->eps = a->eps > 0 ? a->eps : 1e-6f;
    a->qk_norm = QK_NORM_FULL;
    TRY(check_attention(c, e));
    TRY(check_fixed(c, e));
    TRY(family_parse_experts(c, 1, "intermediate_size", a, e));
    a->router.kind = ROUTER_SIGMOID;
    a->router.renormalize = a->router_correction = true;
    return parse_rope(c, a, e);
}

const Family family_minimax_m2 = {
    .model_type = "minimax_m2",
    .understood = understood,
    .harmless = harmless,
    .parse = parse,
    .layout = EXPERTS_SINGLE,
    .names = {.layer = "layers.%d.",
              .router = "block_sparse_moe.gate",
              .router_correction = "block_sparse_moe.e_score_correction_bias",
              .gate = "block_sparse_moe.experts.%d.w1",
              .up = "block_sparse_moe.experts.%d.w3",
              .down = "block_sparse_moe.experts.%d.w2",
              .experts = "mlp.experts."},
};
