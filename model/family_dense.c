/* model/family_dense.c - llama, qwen3 and mistral: models without experts, which run with data
 * parallelism alone. */
#include "model/config.h"
#include "model/family_common.h"
#include "model/rope.h"

#include <math.h>

static const char *const nothing[] = {NULL};

static const char *const llama_understood[] = {"intermediate_size", "attention_bias", "mlp_bias",
                                               NULL};
/* Slices of the same product. */
static const char *const llama_harmless[] = {"pretraining_tp", NULL};

static Status parse_llama(const cJSON *c, Arch *a, Err *e)
{
    bool bias = false;
    a->eps = a->eps > 0 ? a->eps : 1e-6f;
    TRY(config_bool(c, "attention_bias", &bias, e));
    a->qkv_bias = a->o_bias = bias;
    TRY(config_refuse(c, "mlp_bias", "biases of the FFN are not implemented", e));
    TRY(family_parse_dense(c, a, e));
    return rope_parse(c, a->head_dim, a->max_positions, 1e4, &a->rope, e);
}

const Family family_llama = {
    .model_type = "llama",
    .understood = llama_understood,
    .harmless = llama_harmless,
    .parse = parse_llama,
    .names = {.layer = "layers.%d."},
};

static const char *const qwen3_understood[] = {"intermediate_size",
                                               "attention_bias",
                                               "use_sliding_window",
                                               "sliding_window",
                                               "max_window_layers",
                                               "layer_types",
                                               NULL};

static Status parse_qwen3(const cJSON *c, Arch *a, Err *e)
{
    bool bias = false;
    a->eps = a->eps > 0 ? a->eps : 1e-6f;
    a->qk_norm = QK_NORM_HEAD;
    if (!config_get(c, "head_dim")) { /* not hidden_size / heads */
        a->head_dim = 128;
        a->attn_scale = (float)(1 / sqrt(128));
    }
    TRY(config_bool(c, "attention_bias", &bias, e));
    a->qkv_bias = a->o_bias = bias;
    TRY(family_parse_upper_windows(c, a, e));
    TRY(family_parse_dense(c, a, e));
    return rope_parse(c, a->head_dim, a->max_positions, 1e4, &a->rope, e);
}

const Family family_qwen3 = {
    .model_type = "qwen3",
    .understood = qwen3_understood,
    .harmless = nothing,
    .parse = parse_qwen3,
    .names = {.layer = "layers.%d."},
};

static const char *const mistral_understood[] = {"intermediate_size", "sliding_window", NULL};

static Status parse_mistral(const cJSON *c, Arch *a, Err *e)
{
    a->eps = a->eps > 0 ? a->eps : 1e-6f;
    TRY(family_parse_window(c, 4096, a, e));
    TRY(family_parse_dense(c, a, e));
    return rope_parse(c, a->head_dim, a->max_positions, 1e4, &a->rope, e);
}

const Family family_mistral = {
    .model_type = "mistral",
    .understood = mistral_understood,
    .harmless = nothing,
    .parse = parse_mistral,
    .names = {.layer = "layers.%d."},
};
