/* model/family_qwen3_moe.c - Qwen3 MoE: GQA with a norm over each head of q and k, softmax then
 * top-k. */
#include "model/config.h"
#include "model/family_common.h"
#include "model/rope.h"

static const char *const understood[] = {"num_experts",         "num_local_experts",
                                         "num_experts_per_tok", "moe_intermediate_size",
                                         "intermediate_size",   "norm_topk_prob",
                                         "decoder_sparse_step", "mlp_only_layers",
                                         "attention_bias",      "qkv_bias",
                                         "use_qk_norm",         "use_sliding_window",
                                         "layer_types",         NULL};

/* The window keys mean nothing while use_sliding_window is false. */
static const char *const harmless[] = {"sliding_window", "max_window_layers", NULL};

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
    TRY(family_parse_experts(c, 0, "moe_intermediate_size", a, e));
    a->router.kind = ROUTER_SOFTMAX_TOPK;
    TRY(config_bool(c, "norm_topk_prob", &a->router.renormalize, e));
    TRY(family_parse_sparsity(c, a, e));
    return rope_parse(c, a->head_dim, a->max_positions, 1e4, &a->rope, e);
}

const Family family_qwen3_moe = {
    .model_type = "qwen3_moe",
    .understood = understood,
    .harmless = harmless,
    .parse = parse,
    .layout = EXPERTS_SINGLE,
    .names = {.layer = "layers.%d.",
              .router = "mlp.gate",
              .gate = "mlp.experts.%d.gate_proj",
              .up = "mlp.experts.%d.up_proj",
              .down = "mlp.experts.%d.down_proj",
              .experts = "mlp.experts."},
};
