/* model/family_glm4_moe.c - GLM-4.5 to 4.7: GQA with biases on q, k and v, half of each head
 * rotated, DeepSeek-V3's router and shared experts. */
#include "model/config.h"
#include "model/family_common.h"
#include "model/rope.h"

static const char *const understood[] = {
    "n_routed_experts",    "num_experts",           "num_local_experts",
    "num_experts_per_tok", "moe_intermediate_size", "intermediate_size",
    "n_shared_experts",    "first_k_dense_replace", "n_group",
    "topk_group",          "topk_method",           "scoring_func",
    "norm_topk_prob",      "routed_scaling_factor", "use_qk_norm",
    "attention_bias",      "partial_rotary_factor", NULL};
/* Multi-token prediction layers are not run. */
static const char *const harmless[] = {"num_nextn_predict_layers", "num_mtp_layers", NULL};

static Status parse(const cJSON *c, Arch *a, Err *e)
{
    const CorrectedRouter defaults = {1, 1, 1};
    bool qk_norm = false;
    a->eps = a->eps > 0 ? a->eps : 1e-5f;
    TRY(config_bool(c, "use_qk_norm", &qk_norm, e));
    a->qk_norm = qk_norm ? QK_NORM_HEAD : QK_NORM_NONE;
    TRY(config_bool(c, "attention_bias", &a->qkv_bias, e));
    TRY(family_parse_experts(c, 0, "moe_intermediate_size", a, e));
    TRY(family_parse_first_dense(c, 1, a, e));
    TRY(family_parse_shared(c, 1, a, e));
    TRY(family_parse_corrected(c, &defaults, a, e));
    a->rope.rotary_dim = a->head_dim / 2;
    return rope_parse(c, a->head_dim, a->max_positions, 1e4, &a->rope, e);
}

const Family family_glm4_moe = {
    .model_type = "glm4_moe",
    .understood = understood,
    .harmless = harmless,
    .parse = parse,
    .layout = EXPERTS_SINGLE,
    .names = {.layer = "layers.%d.",
              .router = "mlp.gate",
              .router_correction = "mlp.gate.e_score_correction_bias",
              .gate = "mlp.experts.%d.gate_proj",
              .up = "mlp.experts.%d.up_proj",
              .down = "mlp.experts.%d.down_proj",
              .experts = "mlp.experts.",
              .shared = "mlp.shared_experts."},
};
