/* model/family_olmoe.c - OLMoE: multi-head attention with norms over the full width of q and k,
 * softmax then top-k with weights that do not sum to one. */
#include "model/config.h"
#include "model/family_common.h"
#include "model/rope.h"

static const char *const understood[] = {
    "num_experts",    "num_local_experts", "num_experts_per_tok", "intermediate_size",
    "norm_topk_prob", "clip_qkv",          "attention_bias",      NULL};
static const char *const harmless[] = {NULL};

static Status parse(const cJSON *c, Arch *a, Err *e)
{
    double clip = 0;
    bool bias = false;
    a->eps = a->eps > 0 ? a->eps : 1e-5f;
    a->qk_norm = QK_NORM_FULL;
    TRY(config_double(c, "clip_qkv", 1e-6, 1e9, &clip, e));
    a->clip_qkv = (float)clip;
    TRY(config_bool(c, "attention_bias", &bias, e));
    a->qkv_bias = a->o_bias = bias;
    TRY(family_parse_experts(c, 1, "intermediate_size", a, e));
    a->router.kind = ROUTER_SOFTMAX_TOPK;
    TRY(config_bool(c, "norm_topk_prob", &a->router.renormalize, e));
    return rope_parse(c, a->head_dim, a->max_positions, 1e4, &a->rope, e);
}

const Family family_olmoe = {
    .model_type = "olmoe",
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
