/* model/family_granitemoe.c - Granite 3 MoE: four multipliers, top-k then softmax, and experts that
 * lie stacked on disk. */
#include "model/config.h"
#include "model/family_common.h"
#include "model/rope.h"

static const char *const understood[] = {"num_local_experts",    "num_experts",
                                         "num_experts_per_tok",  "intermediate_size",
                                         "embedding_multiplier", "residual_multiplier",
                                         "logits_scaling",       "attention_multiplier",
                                         "attention_bias",       NULL};
static const char *const harmless[] = {NULL};

static Status parse_multiplier(const cJSON *c, const char *key, float *out, Err *e)
{
    double value = 1;
    TRY(config_double(c, key, 1e-9, 1e9, &value, e));
    *out = (float)value;
    return ST_OK;
}

/* attention_multiplier stands in place of head_dim^-0.5, not beside it; logits are divided. */
static Status parse(const cJSON *c, Arch *a, Err *e)
{
    double divisor = 1;
    bool bias = false;
    a->eps = a->eps > 0 ? a->eps : 1e-6f;
    TRY(parse_multiplier(c, "embedding_multiplier", &a->embed_scale, e));
    TRY(parse_multiplier(c, "residual_multiplier", &a->residual_scale, e));
    TRY(parse_multiplier(c, "attention_multiplier", &a->attn_scale, e));
    TRY(config_double(c, "logits_scaling", 1e-9, 1e9, &divisor, e));
    a->logits_scale = (float)(1 / divisor);
    TRY(config_bool(c, "attention_bias", &bias, e));
    a->qkv_bias = a->o_bias = bias;
    TRY(family_parse_experts(c, 1, "intermediate_size", a, e));
    a->router.kind = ROUTER_TOPK_SOFTMAX;
    return rope_parse(c, a->head_dim, a->max_positions, 1e4, &a->rope, e);
}

const Family family_granitemoe = {
    .model_type = "granitemoe",
    .understood = understood,
    .harmless = harmless,
    .parse = parse,
    .layout = EXPERTS_STACKED,
    .names = {.layer = "layers.%d.",
              .router = "block_sparse_moe.router.layer",
              .stacked_gate_up = "block_sparse_moe.input_linear.weight",
              .stacked_down = "block_sparse_moe.output_linear.weight"},
};
