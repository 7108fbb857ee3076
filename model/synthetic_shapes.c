/* model/synthetic_shapes.c - published models as tables: their sizes, their configuration, and the
 * tensors that their checkpoints hold. */
#include "model/synthetic_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef enum ShapeFamily { SHAPE_GPT_OSS, SHAPE_QWEN3_MOE, SHAPE_DEEPSEEK_V3 } ShapeFamily;

typedef struct Sizes {
    const char *name;
    ShapeFamily family;
    int hidden, inter, experts, top_k, layers, vocab, heads, kv_heads, head_dim;
    bool fp8; /* in blocks of 128 x 128; otherwise bf16, and gpt-oss's experts MXFP4 */
    int q_lora, kv_lora, nope, rope, v_dim;
    int n_shared, n_group, topk_group;
    int n_dense, dense_inter; /* the first layers are dense */
} Sizes;

static const Sizes all_sizes[] = {
    {"gpt-oss-20b", SHAPE_GPT_OSS, 2880, 2880, 32, 4, 24, 201088, 64, 8, 64, .fp8 = false},
    {"gpt-oss-120b", SHAPE_GPT_OSS, 2880, 2880, 128, 4, 36, 201088, 64, 8, 64, .fp8 = false},
    {"qwen3-30b-a3b", SHAPE_QWEN3_MOE, 2048, 768, 128, 8, 48, 151936, 32, 4, 128, .fp8 = false},
    {"qwen3-30b-a3b-fp8", SHAPE_QWEN3_MOE, 2048, 768, 128, 8, 48, 151936, 32, 4, 128, .fp8 = true},
    /* What a rank of 8 holds of DeepSeek-V3: every token meets 8 of its experts, which is the load that
     * tokens of all 8 ranks bring. */
    {"deepseek-v3-ep32",
     SHAPE_DEEPSEEK_V3,
     7168,
     2048,
     32,
     8,
     61,
     129280,
     128,
     128,
     0,
     .fp8 = true,
     .q_lora = 1536,
     .kv_lora = 512,
     .nope = 128,
     .rope = 64,
     .v_dim = 128,
     .n_shared = 1,
     .n_group = 8,
     .topk_group = 4,
     .n_dense = 3,
     .dense_inter = 18432},
    /* For tests: a second on one core. */
    {"tiny-gpt-oss", SHAPE_GPT_OSS, 64, 32, 8, 2, 2, 256, 4, 2, 16, .fp8 = false},
    {"tiny-qwen3-moe", SHAPE_QWEN3_MOE, 64, 32, 8, 2, 2, 256, 4, 2, 16, .fp8 = false},
    {"tiny-deepseek-v3",
     SHAPE_DEEPSEEK_V3,
     64,
     32,
     8,
     2,
     3,
     256,
     4,
     4,
     0,
     .fp8 = true,
     .q_lora = 32,
     .kv_lora = 32,
     .nope = 16,
     .rope = 16,
     .v_dim = 16,
     .n_shared = 1,
     .n_group = 4,
     .topk_group = 2,
     .n_dense = 1,
     .dense_inter = 96},
};

enum { N_SHAPES = sizeof all_sizes / sizeof *all_sizes };

const char *synthetic_shape(int i)
{
    return i >= 0 && i < N_SHAPES ? all_sizes[i].name : NULL;
}

/* --- tensors --- */

typedef struct Lister {
    Synthetic *s;
    const Sizes *z;
    float branch; /* scales what adds to the residual stream: 1 / sqrt(2 * layers) */
} Lister;

#define SHAPE(...)                                                                                 \
    (int)(sizeof(int64_t[]){__VA_ARGS__} / sizeof(int64_t)), (const int64_t[])                     \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

__attribute__((format(printf, 7, 8))) static void add(Lister *l, SyntheticKind kind, float mean,
                                                      float std, int n_dims, const int64_t *shape,
                                                      const char *fmt, ...)
{
    char name[128];
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    synthetic_add(l->s, kind, mean, std, n_dims, shape, name);
}

static float per_input(int64_t n_inputs)
{
    return (float)(1 / sqrt((double)n_inputs));
}

static void add_norm(Lister *l, int n, const char *name, int64_t width)
{
    add(l, SYNTHETIC_BF16, 1, 0.1f, SHAPE(width), "model.layers.%d.%s.weight", n, name);
}

static void add_bias(Lister *l, int n, const char *name, int64_t width)
{
    add(l, SYNTHETIC_BF16, 0, 0.02f, SHAPE(width), "model.layers.%d.%s", n, name);
}

/* A linear layer of a layer; in FP8 codes of standard deviation 64 and what scales them. */
static void add_linear(Lister *l, int n, const char *name, int64_t outputs, int64_t inputs,
                       float scale)
{
    enum { SIDE = 128 };
    const float code_std = 64;
    float std = scale * per_input(inputs);
    if (!l->z->fp8) {
        add(l, SYNTHETIC_BF16, 0, std, SHAPE(outputs, inputs), "model.layers.%d.%s.weight", n,
            name);
        return;
    }
    add(l, SYNTHETIC_E4M3, 0, code_std, SHAPE(outputs, inputs), "model.layers.%d.%s.weight", n,
        name);
    add(l, SYNTHETIC_F32, std / code_std, 0.05f * std / code_std,
        SHAPE((outputs + SIDE - 1) / SIDE, (inputs + SIDE - 1) / SIDE),
        "model.layers.%d.%s.weight_scale_inv", n, name);
}

static void add_ffn(Lister *l, int n, const char *prefix, int64_t inter)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    int64_t h = l->z->hidden;
    for (int p = 0; p < 3; p++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s", prefix, names[p]);
        add_linear(l, n, name, p == 2 ? h : inter, p == 2 ? inter : h, p == 2 ? l->branch : 1);
    }
}

static void add_heads(Lister *l, int n)
{
    const Sizes *z = l->z;
    int64_t h = z->hidden, q = (int64_t)z->heads * z->head_dim,
            kv = (int64_t)z->kv_heads * z->head_dim;
    add_linear(l, n, "self_attn.q_proj", q, h, 1);
    add_linear(l, n, "self_attn.k_proj", kv, h, 1);
    add_linear(l, n, "self_attn.v_proj", kv, h, 1);
    add_linear(l, n, "self_attn.o_proj", h, q, l->branch);
    if (z->family == SHAPE_QWEN3_MOE) {
        add_norm(l, n, "self_attn.q_norm", z->head_dim);
        add_norm(l, n, "self_attn.k_norm", z->head_dim);
        return;
    }
    add_bias(l, n, "self_attn.q_proj.bias", q);
    add_bias(l, n, "self_attn.k_proj.bias", kv);
    add_bias(l, n, "self_attn.v_proj.bias", kv);
    add_bias(l, n, "self_attn.o_proj.bias", h);
    add_bias(l, n, "self_attn.sinks", z->heads);
}

static void add_latent(Lister *l, int n)
{
    const Sizes *z = l->z;
    int64_t h = z->hidden, heads = z->heads;
    add_linear(l, n, "self_attn.q_a_proj", z->q_lora, h, 1);
    add_norm(l, n, "self_attn.q_a_layernorm", z->q_lora);
    add_linear(l, n, "self_attn.q_b_proj", heads * (z->nope + z->rope), z->q_lora, 1);
    add_linear(l, n, "self_attn.kv_a_proj_with_mqa", z->kv_lora + z->rope, h, 1);
    add_norm(l, n, "self_attn.kv_a_layernorm", z->kv_lora);
    add_linear(l, n, "self_attn.kv_b_proj", heads * (z->nope + z->v_dim), z->kv_lora, 1);
    add_linear(l, n, "self_attn.o_proj", h, heads * z->v_dim, l->branch);
}

/* Blocks of 32 codes and a scale each; uniform codes have a root mean square of 2.93. */
static void add_mxfp4(Lister *l, int n, const char *what, int64_t rows, int64_t cols, float scale)
{
    float middle = (float)(127 + lround(log2((double)(scale * per_input(cols)) / 2.93)));
    int64_t experts = l->z->experts;
    add(l, SYNTHETIC_CODES, 0, 0, SHAPE(experts, rows, cols / 32, 16),
        "model.layers.%d.mlp.experts.%s_blocks", n, what);
    add(l, SYNTHETIC_POWERS, middle, 0, SHAPE(experts, rows, cols / 32),
        "model.layers.%d.mlp.experts.%s_scales", n, what);
    add(l, SYNTHETIC_BF16, 0, 0.02f, SHAPE(experts, rows), "model.layers.%d.mlp.experts.%s_bias", n,
        what);
}

static void add_sparse(Lister *l, int n)
{
    const Sizes *z = l->z;
    int64_t h = z->hidden, inter = z->inter;
    const char *router = z->family == SHAPE_GPT_OSS ? "router" : "gate";
    add(l, SYNTHETIC_BF16, 0, 2 * per_input(h), SHAPE(z->experts, h),
        "model.layers.%d.mlp.%s.weight", n, router);
    if (z->family == SHAPE_GPT_OSS) {
        add_bias(l, n, "mlp.router.bias", z->experts);
        add_mxfp4(l, n, "gate_up_proj", 2 * inter, h, 1);
        add_mxfp4(l, n, "down_proj", h, inter, l->branch);
        return;
    }
    if (z->family == SHAPE_DEEPSEEK_V3)
        add(l, SYNTHETIC_F32, 0, 0.02f, SHAPE(z->experts),
            "model.layers.%d.mlp.gate.e_score_correction_bias", n);
    if (z->n_shared)
        add_ffn(l, n, "mlp.shared_experts.", z->n_shared * inter);
    for (int x = 0; x < z->experts; x++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "mlp.experts.%d.", x);
        add_ffn(l, n, prefix, inter);
    }
}

/* --- config.json --- */

static void put_family(const Sizes *z, StrBuf *b)
{
    static const char yarn[] = "\"beta_fast\": 32.0, \"beta_slow\": 1.0, "
                               "\"original_max_position_embeddings\": 4096";
    switch (z->family) {
    case SHAPE_GPT_OSS:
        strbuf_fmt(b,
                   "\"model_type\": \"gpt_oss\", \"num_local_experts\": %d, "
                   "\"intermediate_size\": %d, \"attention_bias\": true, \"sliding_window\": 128, "
                   "\"swiglu_limit\": 7.0, \"rope_theta\": 150000, \"rope_scaling\": "
                   "{\"rope_type\": \"yarn\", \"factor\": 32.0, \"truncate\": false, %s}, "
                   "\"quantization_config\": {\"quant_method\": \"mxfp4\"}, ",
                   z->experts, z->inter, yarn);
        break;
    case SHAPE_QWEN3_MOE:
        strbuf_fmt(b,
                   "\"model_type\": \"qwen3_moe\", \"num_experts\": %d, "
                   "\"moe_intermediate_size\": %d, \"norm_topk_prob\": true, "
                   "\"rope_theta\": 1000000.0, ",
                   z->experts, z->inter);
        break;
    case SHAPE_DEEPSEEK_V3:
        strbuf_fmt(b,
                   "\"model_type\": \"deepseek_v3\", \"n_routed_experts\": %d, "
                   "\"moe_intermediate_size\": %d, \"intermediate_size\": %d, "
                   "\"first_k_dense_replace\": %d, \"n_shared_experts\": %d, \"n_group\": %d, "
                   "\"topk_group\": %d, \"q_lora_rank\": %d, \"kv_lora_rank\": %d, "
                   "\"qk_nope_head_dim\": %d, \"qk_rope_head_dim\": %d, \"v_head_dim\": %d, ",
                   z->experts, z->inter, z->dense_inter, z->n_dense, z->n_shared, z->n_group,
                   z->topk_group, z->q_lora, z->kv_lora, z->nope, z->rope, z->v_dim);
        strbuf_fmt(b,
                   "\"routed_scaling_factor\": 2.5, \"scoring_func\": \"sigmoid\", "
                   "\"topk_method\": \"noaux_tc\", \"norm_topk_prob\": true, \"rope_scaling\": "
                   "{\"type\": \"yarn\", \"factor\": 40, \"mscale\": 1.0, \"mscale_all_dim\": 1.0, "
                   "%s}, ",
                   yarn);
        break;
    }
    if (z->fp8)
        strbuf_str(b, "\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", "
                      "\"activation_scheme\": \"dynamic\", \"weight_block_size\": [128, 128]}, ");
    if (z->head_dim)
        strbuf_fmt(b, "\"head_dim\": %d, ", z->head_dim);
}

static void put_config(const Sizes *z, int n_layers, StrBuf *b)
{
    strbuf_str(b, "{");
    put_family(z, b);
    strbuf_fmt(b,
               "\"hidden_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": %d, "
               "\"num_key_value_heads\": %d, \"num_experts_per_tok\": %d, \"vocab_size\": %d, "
               "\"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-05, "
               "\"tie_word_embeddings\": false, \"bos_token_id\": 0, \"eos_token_id\": 1, "
               "\"hidden_act\": \"silu\"}\n",
               z->hidden, n_layers, z->heads, z->kv_heads, z->top_k, z->vocab);
}

static Status find_sizes(const char *shape, const Sizes **out, Err *e)
{
    char names[512] = "";
    for (int i = 0; i < N_SHAPES; i++) {
        *out = &all_sizes[i];
        if (strcmp((*out)->name, shape) == 0)
            return ST_OK;
        size_t len = strlen(names);
        snprintf(names + len, sizeof names - len, "%s%s", i ? ", " : "", (*out)->name);
    }
    return err_set(e, ST_USAGE, "--shape %.100s: expected one of %s", shape, names);
}

Status synthetic_list(Synthetic *s, const char *shape, int n_layers, Err *e)
{
    Lister l = {.s = s};
    TRY(find_sizes(shape, &l.z, e));
    const Sizes *z = l.z;
    if (n_layers == 0)
        n_layers = z->layers;
    if (n_layers <= z->n_dense)
        return err_set(e, ST_USAGE, "%s: %d layers, but its first %d have no experts", shape,
                       n_layers, z->n_dense);
    s->shape = z->name;
    l.branch = (float)(1 / sqrt(2.0 * n_layers));
    put_config(z, n_layers, &s->config);
    add(&l, SYNTHETIC_BF16, 0, 1, SHAPE(z->vocab, z->hidden), "model.embed_tokens.weight");
    for (int n = 0; n < n_layers; n++) {
        add_norm(&l, n, "input_layernorm", z->hidden);
        if (z->family == SHAPE_DEEPSEEK_V3)
            add_latent(&l, n);
        else
            add_heads(&l, n);
        add_norm(&l, n, "post_attention_layernorm", z->hidden);
        if (n < z->n_dense)
            add_ffn(&l, n, "mlp.", z->dense_inter);
        else
            add_sparse(&l, n);
    }
    add(&l, SYNTHETIC_BF16, 1, 0.1f, SHAPE(z->hidden), "model.norm.weight");
    add(&l, SYNTHETIC_BF16, 0, per_input(z->hidden), SHAPE(z->vocab, z->hidden), "lm_head.weight");
    return ST_OK;
}
