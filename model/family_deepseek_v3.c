/* model/family_deepseek_v3.c - DeepSeek-V3 and R1: latent attention, groups of experts chosen by
 * sigmoid scores with a correction bias, shared experts. Kimi K2 is the same model under another
 * name; Kimi K2.5 puts it into text_config, beside a vision tower. */
#include "model/config.h"
#include "model/family_common.h"

static const char *const understood[] = {"n_routed_experts",
                                         "num_experts",
                                         "num_local_experts",
                                         "num_experts_per_tok",
                                         "num_experts_per_token",
                                         "moe_intermediate_size",
                                         "intermediate_size",
                                         "n_shared_experts",
                                         "first_k_dense_replace",
                                         "moe_layer_freq",
                                         "n_group",
                                         "topk_group",
                                         "topk_method",
                                         "scoring_func",
                                         "norm_topk_prob",
                                         "routed_scaling_factor",
                                         "q_lora_rank",
                                         "kv_lora_rank",
                                         "qk_nope_head_dim",
                                         "qk_rope_head_dim",
                                         "qk_head_dim",
                                         "v_head_dim",
                                         "rope_interleave",
                                         "attention_bias",
                                         NULL};

/* Training's, but for the count of multi-token prediction layers, which are not run. */
static const char *const harmless[] = {
    "aux_loss_alpha",           "seq_aux", "ep_size", "pretraining_tp", "num_mtp_layers",
    "num_nextn_predict_layers", NULL};

static Status parse(const cJSON *c, Arch *a, Err *e)
{
    const CorrectedRouter defaults = {8, 4, 2.5};
    bool interleave = true;
    a->eps = a->eps > 0 ? a->eps : 1e-6f;
    TRY(config_bool(c, "rope_interleave", &interleave, e));
    a->rope.layout = interleave ? ROPE_INTERLEAVED : ROPE_HALF;
    TRY(family_parse_latent(c, a, e));
    TRY(family_parse_experts(c, 0, "moe_intermediate_size", a, e));
    TRY(family_parse_first_dense(c, 3, a, e));
    TRY(family_parse_shared(c, 1, a, e));
    return family_parse_corrected(c, &defaults, a, e);
}

#define NAMES                                                                                      \
    {                                                                                              \
        .layer = "layers.%d.", .router = "mlp.gate",                                               \
        .router_correction = "mlp.gate.e_score_correction_bias",                                   \
        .gate = "mlp.experts.%d.gate_proj", .up = "mlp.experts.%d.up_proj",                        \
        .down = "mlp.experts.%d.down_proj", .experts = "mlp.experts.",                             \
        .shared = "mlp.shared_experts."                                                            \
    }

const Family family_deepseek_v3 = {
    .model_type = "deepseek_v3",
    .understood = understood,
    .harmless = harmless,
    .parse = parse,
    .own_heads = true,
    .layout = EXPERTS_SINGLE,
    .names = NAMES,
};

const Family family_kimi_k2 = {
    .model_type = "kimi_k2",
    .understood = understood,
    .harmless = harmless,
    .parse = parse,
    .own_heads = true,
    .layout = EXPERTS_SINGLE,
    .names = NAMES,
};

static const char *const nothing[] = {NULL};

/* Images and videos are no input here. */
static const char *const vision[] = {"vision_config",
                                     "vision_config.*",
                                     "ignore_index",
                                     "media_placeholder_token_id",
                                     "use_unified_vision_chunk",
                                     "video_placeholder",
                                     NULL};

const Family family_kimi_k25 = {
    .model_type = "kimi_k25",
    .understood = nothing,
    .harmless = vision,
    .wrapper = true,
};
