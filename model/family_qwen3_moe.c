/* model/family_qwen3_moe.c - Qwen3 MoE: GQA with a norm over each head of q and k, softmax then
 * top-k. */
#include "model/config.h"
#include "model/family_common.h"
#include "model/rope.h"

#include <limits.h>

static const char *const understood[] = {"num_experts",           "num_local_experts",
                                         "num_experts_per_tok",   "moe_intermediate_size",
                                         "intermediate_size",     "norm_topk_prob",
                                         "decoder_sparse_step",   "mlp_only_layers",
                                         "attention_bias",        "qkv_bias",
                                         "use_qk_norm",           "use_sliding_window",
                                         "layer_types",           "quantization_config",
                                         "quantization_config.*", NULL};

/* The window keys mean nothing while use_sliding_window is false. */
static const char *const harmless[] = {"sliding_window", "max_window_layers", NULL};

/* A layer is sparse unless mlp_only_layers lists it or decoder_sparse_step skips it. */
static Status parse_sparsity(const cJSON *c, Arch *a, Err *e)
{
    int step = 1, n_dense = 0;
    const cJSON *dense = config_get(c, "mlp_only_layers");
    TRY(config_int(c, "decoder_sparse_step", 1, INT_MAX, &step, e));
    if (dense && !cJSON_IsArray(dense))
        return err_set(e, ST_INPUT, "mlp_only_layers is not a list");
    for (int i = 0; i < a->n_layers; i++)
        a->layers[i].moe = a->router.n_experts > 0 && (i + 1) % step == 0;
    for (const cJSON *v = dense ? dense->child : NULL; v; v = v->next) {
        if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble < a->n_layers) ||
            v->valuedouble != (int)v->valuedouble)
            return err_set(e, ST_INPUT,
                           "mlp_only_layers holds something that is not a layer, 0 to %d",
                           a->n_layers - 1);
        a->layers[(int)v->valuedouble].moe = false;
    }
    for (int i = 0; i < a->n_layers; i++)
        n_dense += !a->layers[i].moe;
    if (n_dense > 0)
        TRY(config_need_int(c, "intermediate_size", 1, 1 << 22, &a->dense_inter, e));
    if (n_dense == a->n_layers) {
        a->router.n_experts = a->router.top_k = 0;
        a->moe_inter = 0;
    }
    return ST_OK;
}

static Status parse(const cJSON *c, Arch *a, Err *e)
{
    bool bias = false, given, qk_norm = true;
    a->eps = a->eps > 0 ? a->eps : 1e-6f;
    a->qk_norm = QK_NORM_HEAD;
    TRY(config_bool(c, "attention_bias", &bias, e));
    a->qkv_bias = a->o_bias = bias;
    TRY(config_refuse(c, "qkv_bias", "attention_bias is what this model_type reads", e));
    TRY(config_bool(c, "use_qk_norm", &qk_norm, e));
    if (!qk_norm)
        return err_set(e, ST_INPUT,
                       "use_qk_norm false is not supported: this model_type always norms");
    TRY(config_refuse(c, "use_sliding_window", "windows of this model_type are not implemented",
                      e));
    TRY(family_parse_layer_types(c, 0, a, &given, e));
    TRY(family_check_quantization(c, NULL, e));
    TRY(family_parse_experts(c, 0, "moe_intermediate_size", a, e));
    a->router.kind = ROUTER_SOFTMAX_TOPK;
    TRY(config_bool(c, "norm_topk_prob", &a->router.renormalize, e));
    TRY(parse_sparsity(c, a, e));
    return rope_parse(c, a->head_dim, a->max_positions, 1e4, &a->rope, e);
}

const Family family_qwen3_moe = {
    .model_type = "qwen3_moe",
    .understood = understood,
    .harmless = harmless,
    .parse = parse,
    .layout = EXPERTS_SINGLE,
    .names = {.layer = "layers.%d.",
              .router = "mlp.gate.weight",
              .gate = "mlp.experts.%d.gate_proj.weight",
              .up = "mlp.experts.%d.up_proj.weight",
              .down = "mlp.experts.%d.down_proj.weight",
              .experts = "mlp.experts."},
};
