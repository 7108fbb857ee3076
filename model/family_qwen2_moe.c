/* model/family_qwen2_moe.c - Qwen1.5 and Qwen2 MoE: GQA with biases on q, k and v, softmax then
 * top-k, and a shared expert behind a gate of its own. */
#include "model/config.h"
#include "model/family_common.h"
#include "model/rope.h"

static const char *const understood[] = {"num_experts",
                                         "num_local_experts",
                                         "num_experts_per_tok",
                                         "moe_intermediate_size",
                                         "intermediate_size",
                                         "shared_expert_intermediate_size",
                                         "norm_topk_prob",
                                         "decoder_sparse_step",
                                         "mlp_only_layers",
                                         "qkv_bias",
                                         "use_sliding_window",
                                         "sliding_window",
                                         "max_window_layers",
                                         "layer_types",
                                         NULL};
static const char *const harmless[] = {NULL};

static Status parse(const cJSON *c, Arch *a, Err *e)
{
    int shared = 5632;
    a->eps = a->eps > 0 ? a->eps : 1e-6f;
    a->qkv_bias = true;
    TRY(config_bool(c, "qkv_bias", &a->qkv_bias, e));
    TRY(family_parse_upper_windows(c, a, e));
    TRY(family_parse_experts(c, 0, "moe_intermediate_size", a, e));
    a->router.kind = ROUTER_SOFTMAX_TOPK;
    TRY(config_bool(c, "norm_topk_prob", &a->router.renormalize, e));
    TRY(family_parse_sparsity(c, a, e));
    TRY(config_int(c, "shared_expert_intermediate_size", 1, 1 << 22, &shared, e));
    a->shared_inter = a->router.n_experts > 0 ? shared : 0;
    a->shared_gate = a->shared_inter > 0;
    return rope_parse(c, a->head_dim, a->max_positions, 1e4, &a->rope, e);
}

const Family family_qwen2_moe = {
    .model_type = "qwen2_moe",
    .understood = understood,
    .harmless = harmless,
    .parse = parse,
    .layout = EXPERTS_SINGLE,
    .names = {.layer = "layers.%d.",
              .router = "mlp.gate",
              .gate = "mlp.experts.%d.gate_proj",
              .up = "mlp.experts.%d.up_proj",
              .down = "mlp.experts.%d.down_proj",
              .experts = "mlp.experts.",
              .shared = "mlp.shared_expert.",
              .shared_gate = "mlp.shared_expert_gate"},
};
