/* model/family_deepseek_v2.c - DeepSeek-V2 and V2-Lite: latent attention with or without low-rank
 * queries, softmax over all experts, chosen freely or within the groups of the best. */
#include "model/config.h"
#include "model/family_common.h"

#include <string.h>

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
                                         "attention_bias",
                                         "mlp_bias",
                                         NULL};
static const char *const harmless[] = {"aux_loss_alpha", "seq_aux", "ep_size", "pretraining_tp",
                                       NULL};

/* norm_topk_prob: the publisher's code then leaves routed_scaling_factor out, transformers does not
 * read the key, others do both. No published model sets it. */
static Status parse_router(const cJSON *c, Arch *a, Err *e)
{
    const char *method = "greedy";
    double scale = 1;
    TRY(config_only(c, "scoring_func", "softmax", e));
    TRY(config_refuse(c, "norm_topk_prob", "implementations of this model_type disagree on it", e));
    TRY(config_double(c, "routed_scaling_factor", 1e-6, 1e6, &scale, e));
    a->router.scale = (float)scale;
    TRY(config_string(c, "topk_method", &method, e));
    a->router.kind = ROUTER_SOFTMAX_TOPK;
    if (strcmp(method, "greedy") == 0)
        return ST_OK;
    if (strcmp(method, "group_limited_greedy") != 0)
        return err_set(e, ST_INPUT,
                       "topk_method \"%.60s\" is not supported (greedy and group_limited_greedy "
                       "are)",
                       method);
    a->router.kind = ROUTER_GROUP_MAX;
    return family_parse_groups(c, 1, 1, a, e);
}

static Status parse(const cJSON *c, Arch *a, Err *e)
{
    a->eps = a->eps > 0 ? a->eps : 1e-6f;
    a->rope.layout = ROPE_INTERLEAVED;
    TRY(family_parse_latent(c, a, e));
    TRY(config_refuse(c, "mlp_bias", "biases of the FFN are not implemented", e));
    TRY(family_parse_experts(c, 0, "moe_intermediate_size", a, e));
    TRY(family_parse_first_dense(c, 0, a, e));
    TRY(family_parse_shared(c, 2, a, e));
    return parse_router(c, a, e);
}

const Family family_deepseek_v2 = {
    .model_type = "deepseek_v2",
    .understood = understood,
    .harmless = harmless,
    .parse = parse,
    .own_heads = true,
    .layout = EXPERTS_SINGLE,
    .names = {.layer = "layers.%d.",
              .router = "mlp.gate",
              .gate = "mlp.experts.%d.gate_proj",
              .up = "mlp.experts.%d.up_proj",
              .down = "mlp.experts.%d.down_proj",
              .experts = "mlp.experts.",
              .shared = "mlp.shared_experts."},
};
