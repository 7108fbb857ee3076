/* model/family_gpt_oss.c - gpt-oss: sinks, a window on every other layer, yarn, biases everywhere,
 * top-k then softmax, and a clamped activation with interleaved gate and up. */
#include "model/config.h"
#include "model/family_common.h"
#include "model/rope.h"

#include <limits.h>

static const char *const understood[] = {
    "num_local_experts",     "num_experts",       "num_experts_per_tok", "experts_per_token",
    "num_experts_per_token", "intermediate_size", "attention_bias",      "sliding_window",
    "layer_types",           "swiglu_limit",      "swiglu_alpha",        NULL};

/* initial_context_length repeats original_max_position_embeddings of rope_scaling. */
static const char *const harmless[] = {"initial_context_length", NULL};

static Status parse_windows(const cJSON *c, Arch *a, Err *e)
{
    int window = 128;
    bool given;
    TRY(config_int(c, "sliding_window", 1, INT_MAX, &window, e));
    TRY(family_parse_layer_types(c, window, a, &given, e));
    for (int i = 0; i < a->n_layers && !given; i++)
        a->layers[i].window = i % 2 == 0 ? window : 0;
    return ST_OK;
}

static Status parse(const cJSON *c, Arch *a, Err *e)
{
    bool bias = true;
    double limit = 7, alpha = 1.702;
    a->eps = a->eps > 0 ? a->eps : 1e-5f;
    a->norm = NORM_FP32;
    a->sinks = a->router_bias = a->expert_bias = true;
    TRY(config_bool(c, "attention_bias", &bias, e));
    a->qkv_bias = a->o_bias = bias;
    TRY(parse_windows(c, a, e));
    TRY(config_double(c, "swiglu_limit", 1e-6, 1e9, &limit, e));
    TRY(config_double(c, "swiglu_alpha", 1e-6, 1e9, &alpha, e));
    a->act = (ActSpec){.alpha = (float)alpha, .beta = 1, .limit = (float)limit};
    TRY(family_parse_experts(c, 1, "intermediate_size", a, e));
    a->router.kind = ROUTER_TOPK_SOFTMAX;
    return rope_parse(c, a->head_dim, a->max_positions, 150000, &a->rope, e);
}

const Family family_gpt_oss = {
    .model_type = "gpt_oss",
    .understood = understood,
    .harmless = harmless,
    .parse = parse,
    .layout = EXPERTS_GPT_OSS,
    .names = {.layer = "layers.%d.",
              .router = "mlp.router",
              .router_bias = "mlp.router.bias",
              .experts = "mlp.experts."},
};
