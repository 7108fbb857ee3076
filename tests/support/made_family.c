/* tests/support/made_family.c - see made_family.h. */
#include "tests/support/made_family.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define PROJ                                                                                       \
    {                                                                                              \
        "gate_proj", "up_proj", "down_proj"                                                        \
    }
#define W132                                                                                       \
    {                                                                                              \
        "w1", "w3", "w2"                                                                           \
    }
#define YARN(type, factor, rest)                                                                   \
    "  \"rope_scaling\": {\"" type "\": \"yarn\", \"factor\": " factor ", \"beta_fast\": 32.0, "   \
    "\"beta_slow\": 1.0, " rest ", \"original_max_position_embeddings\": 4096},\n"

static const MadeFamily families[] = {
    {.name = "qwen3_moe",
     .qk_norm = 1,
     .router = "mlp.gate.weight",
     .experts = "mlp.experts.",
     .proj = PROJ,
     .n_experts_key = "num_experts",
     .inter_key = "moe_intermediate_size",
     .config = "  \"norm_topk_prob\": true,\n  \"rope_theta\": 1000000.0,\n"},
    {.name = "mixtral",
     .router = "block_sparse_moe.gate.weight",
     .experts = "block_sparse_moe.experts.",
     .proj = W132,
     .n_experts_key = "num_local_experts",
     .inter_key = "intermediate_size",
     .config = "  \"rope_theta\": 1000000.0,\n"},
    {.name = "gpt_oss",
     .qkv_bias = true,
     .o_bias = true,
     .sinks = true,
     .router = "mlp.router.weight",
     .n_experts_key = "num_local_experts",
     .inter_key = "intermediate_size",
     .config = "  \"attention_bias\": true,\n  \"sliding_window\": 128,\n"
               "  \"swiglu_limit\": 7.0,\n  \"rope_theta\": 150000,\n" YARN("rope_type", "32.0",
                                                                            "\"truncate\": false")},
    {.name = "deepseek_v3",
     .latent = true,
     .first_dense = true,
     .router = "mlp.gate.weight",
     .correction = "mlp.gate.e_score_correction_bias",
     .experts = "mlp.experts.",
     .proj = PROJ,
     .shared = "mlp.shared_experts.",
     .n_experts_key = "n_routed_experts",
     .inter_key = "moe_intermediate_size",
     .config = "  \"routed_scaling_factor\": 2.5,\n  \"scoring_func\": \"sigmoid\",\n"
               "  \"topk_method\": \"noaux_tc\",\n  \"norm_topk_prob\": true,\n" YARN(
                   "type", "40", "\"mscale\": 1.0, \"mscale_all_dim\": 1.0")},
    {.name = "kimi_k2",
     .latent = true,
     .first_dense = true,
     .router = "mlp.gate.weight",
     .correction = "mlp.gate.e_score_correction_bias",
     .experts = "mlp.experts.",
     .proj = PROJ,
     .shared = "mlp.shared_experts.",
     .n_experts_key = "n_routed_experts",
     .inter_key = "moe_intermediate_size",
     .config = "  \"routed_scaling_factor\": 2.5,\n  \"scoring_func\": \"sigmoid\",\n"
               "  \"topk_method\": \"noaux_tc\",\n  \"norm_topk_prob\": true,\n" YARN(
                   "type", "40", "\"mscale\": 1.0, \"mscale_all_dim\": 1.0")},
    {.name = "deepseek_v2",
     .latent = true,
     .first_dense = true,
     .router = "mlp.gate.weight",
     .experts = "mlp.experts.",
     .proj = PROJ,
     .shared = "mlp.shared_experts.",
     .n_experts_key = "n_routed_experts",
     .inter_key = "moe_intermediate_size",
     .config = "  \"topk_method\": \"greedy\",\n"},
    {.name = "glm4_moe",
     .qkv_bias = true,
     .qk_norm = 1,
     .first_dense = true,
     .router = "mlp.gate.weight",
     .correction = "mlp.gate.e_score_correction_bias",
     .experts = "mlp.experts.",
     .proj = PROJ,
     .shared = "mlp.shared_experts.",
     .n_experts_key = "n_routed_experts",
     .inter_key = "moe_intermediate_size",
     .config = "  \"attention_bias\": true,\n  \"use_qk_norm\": true,\n"},
    {.name = "minimax_m2",
     .qk_norm = 2,
     .router = "block_sparse_moe.gate.weight",
     .correction = "block_sparse_moe.e_score_correction_bias",
     .experts = "block_sparse_moe.experts.",
     .proj = W132,
     .n_experts_key = "num_local_experts",
     .inter_key = "intermediate_size",
     .config = "  \"scoring_func\": \"sigmoid\",\n  \"use_routing_bias\": true,\n"},
    {.name = "qwen2_moe",
     .qkv_bias = true,
     .shared_gate = true,
     .router = "mlp.gate.weight",
     .experts = "mlp.experts.",
     .proj = PROJ,
     .shared = "mlp.shared_expert.",
     .n_experts_key = "num_experts",
     .inter_key = "moe_intermediate_size",
     .config = ""},
    {.name = "olmoe",
     .qk_norm = 2,
     .router = "mlp.gate.weight",
     .experts = "mlp.experts.",
     .proj = PROJ,
     .n_experts_key = "num_experts",
     .inter_key = "intermediate_size",
     .config = ""},
    {.name = "granitemoe",
     .router = "block_sparse_moe.router.layer.weight",
     .stack = {"block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"},
     .n_experts_key = "num_local_experts",
     .inter_key = "intermediate_size",
     .config = "  \"attention_multiplier\": 0.125,\n  \"logits_scaling\": 6.0,\n"},
    {.name = "llama",
     .no_experts = true,
     .config = "  \"rope_theta\": 500000.0,\n  \"rope_scaling\": {\"rope_type\": \"llama3\", "
               "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
               "\"original_max_position_embeddings\": 64},\n"},
    {.name = "qwen3", .no_experts = true, .qk_norm = 1, .config = ""},
    {.name = "mistral", .no_experts = true, .config = "  \"sliding_window\": null,\n"},
};

const MadeFamily *made_family(const char *name)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].name, name) == 0)
            return &families[i];
    return NULL;
}

static int64_t dense_width(const MadeSpec *s)
{
    return s->dense_inter ? s->dense_inter : 2 * (int64_t)s->inter;
}

static bool is_dense(const MadeFamily *f, const MadeSpec *s, int layer)
{
    return f->no_experts || (f->first_dense ? layer <= s->dense_layer : layer == s->dense_layer);
}

/* --- tensors --- */

/* Adds tensors; ok turns false when memory runs out, and is looked at once, at the end. */
typedef struct Maker {
    MadeModel *m;
    const MadeFamily *family;
    bool ok;
} Maker;

__attribute__((format(printf, 7, 8))) static MadeTensor *
add(Maker *k, int64_t d0, int64_t d1, int64_t d2, float mean, float std, const char *fmt, ...)
{
    char name[100], full[120];
    int64_t shape[] = {d0, d1, d2};
    const MadeSpec *s = &k->m->spec;
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    bool bare = s->no_prefix || strcmp(name, "lm_head.weight") == 0;
    snprintf(full, sizeof full, "%s%s", bare ? "" : "model.", name);
    MadeTensor *t = made_add(k->m, full, s->dtype, d2 ? 3 : d1 ? 2 : 1, shape, std);
    k->ok &= t != NULL;
    if (t)
        t->mean = mean;
    return t;
}

/* Codes [experts, rows, cols/32, 16] and scales [experts, rows, cols/32] of standard deviation std.
 */
static void add_mxfp4(Maker *k, int layer, const char *what, int64_t rows, int64_t cols, float std)
{
    const MadeSpec *s = &k->m->spec;
    int64_t shape[] = {s->experts, rows, cols / 32, 16};
    char name[120];
    const char *prefix = s->no_prefix ? "" : "model.";
    snprintf(name, sizeof name, "%slayers.%d.mlp.experts.%s_blocks", prefix, layer, what);
    MadeTensor *t = made_add(k->m, name, DTYPE_U8, 4, shape, 0);
    k->ok &= t != NULL;
    if (t)
        t->kind = MADE_CODES;
    snprintf(name, sizeof name, "%slayers.%d.mlp.experts.%s_scales", prefix, layer, what);
    t = made_add(k->m, name, DTYPE_U8, 3, shape, 0);
    k->ok &= t != NULL;
    if (t) {
        t->kind = MADE_SCALES;
        /* Uniform codes have a root mean square of 2.93. */
        t->middle = (uint8_t)(127 + (int)lround(log2(std / 2.93)));
    }
}

static float per_input(int64_t n_inputs)
{
    return (float)(1 / sqrt((double)n_inputs));
}

static void add_matrix(Maker *k, int n, const char *name, int64_t outputs, int64_t inputs)
{
    add(k, outputs, inputs, 0, 0, per_input(inputs), "layers.%d.%s", n, name);
}

static void add_norm(Maker *k, int n, const char *name, int64_t width)
{
    add(k, width, 0, 0, 1, 0.1f, "layers.%d.%s", n, name);
}

static void add_bias(Maker *k, int n, const char *name, int64_t width)
{
    add(k, width, 0, 0, 0, 0.1f, "layers.%d.%s", n, name);
}

static void add_latent(Maker *k, int n)
{
    const MadeSpec *s = &k->m->spec;
    int64_t heads = s->heads, q = heads * (s->nope + s->rope);
    if (s->q_lora) {
        add_matrix(k, n, "self_attn.q_a_proj.weight", s->q_lora, s->hidden);
        add_norm(k, n, "self_attn.q_a_layernorm.weight", s->q_lora);
        add_matrix(k, n, "self_attn.q_b_proj.weight", q, s->q_lora);
    } else {
        add_matrix(k, n, "self_attn.q_proj.weight", q, s->hidden);
    }
    add_matrix(k, n, "self_attn.kv_a_proj_with_mqa.weight", s->kv_lora + s->rope, s->hidden);
    add_norm(k, n, "self_attn.kv_a_layernorm.weight", s->kv_lora);
    add_matrix(k, n, "self_attn.kv_b_proj.weight", heads * (s->nope + s->v_dim), s->kv_lora);
    add_matrix(k, n, "self_attn.o_proj.weight", s->hidden, heads * s->v_dim);
}

static void add_heads(Maker *k, int n)
{
    const MadeSpec *s = &k->m->spec;
    const MadeFamily *f = k->family;
    int64_t h = s->hidden, d = s->head_dim, q = s->heads * d, kv = s->kv_heads * d;
    add_matrix(k, n, "self_attn.q_proj.weight", q, h);
    add_matrix(k, n, "self_attn.k_proj.weight", kv, h);
    add_matrix(k, n, "self_attn.v_proj.weight", kv, h);
    add_matrix(k, n, "self_attn.o_proj.weight", h, q);
    if (f->qkv_bias) {
        add_bias(k, n, "self_attn.q_proj.bias", q);
        add_bias(k, n, "self_attn.k_proj.bias", kv);
        add_bias(k, n, "self_attn.v_proj.bias", kv);
    }
    if (f->o_bias)
        add_bias(k, n, "self_attn.o_proj.bias", h);
    if (f->sinks)
        add(k, s->heads, 0, 0, 0, 1, "layers.%d.self_attn.sinks", n);
    if (f->qk_norm) {
        add_norm(k, n, "self_attn.q_norm.weight", f->qk_norm == 1 ? d : q);
        add_norm(k, n, "self_attn.k_norm.weight", f->qk_norm == 1 ? d : kv);
    }
}

/* A FFN of the names PREFIX gate_proj.weight. */
static void add_ffn(Maker *k, int n, const char *prefix, int64_t inter)
{
    int64_t h = k->m->spec.hidden;
    add(k, inter, h, 0, 0, per_input(h), "layers.%d.%sgate_proj.weight", n, prefix);
    add(k, inter, h, 0, 0, per_input(h), "layers.%d.%sup_proj.weight", n, prefix);
    add(k, h, inter, 0, 0, per_input(inter), "layers.%d.%sdown_proj.weight", n, prefix);
}

static void add_oss_experts(Maker *k, int n)
{
    const MadeSpec *s = &k->m->spec;
    int64_t h = s->hidden, i = s->inter, e = s->experts;
    add_bias(k, n, "mlp.router.bias", e);
    if (s->mxfp4) {
        add_mxfp4(k, n, "gate_up_proj", 2 * i, h, per_input(h));
        add_mxfp4(k, n, "down_proj", h, i, per_input(i));
    } else {
        add(k, e, h, 2 * i, 0, per_input(h), "layers.%d.mlp.experts.gate_up_proj", n);
        add(k, e, i, h, 0, per_input(i), "layers.%d.mlp.experts.down_proj", n);
    }
    add(k, e, 2 * i, 0, 0, 0.1f, "layers.%d.mlp.experts.gate_up_proj_bias", n);
    add(k, e, h, 0, 0, 0.1f, "layers.%d.mlp.experts.down_proj_bias", n);
}

static void add_experts(Maker *k, int n)
{
    const MadeSpec *s = &k->m->spec;
    const MadeFamily *f = k->family;
    int64_t h = s->hidden, i = s->inter, e = s->experts;
    if (s->stacked || f->stack[0]) {
        add(k, e, 2 * i, h, 0, per_input(h), "layers.%d.%s", n,
            f->stack[0] ? f->stack[0] : "mlp.experts.gate_up_proj");
        add(k, e, h, i, 0, per_input(i), "layers.%d.%s", n,
            f->stack[1] ? f->stack[1] : "mlp.experts.down_proj");
        return;
    }
    for (int x = 0; x < s->experts; x++) {
        const char *const *proj = f->proj;
        add(k, i, h, 0, 0, per_input(h), "layers.%d.%s%d.%s.weight", n, f->experts, x, proj[0]);
        add(k, i, h, 0, 0, per_input(h), "layers.%d.%s%d.%s.weight", n, f->experts, x, proj[1]);
        add(k, h, i, 0, 0, per_input(i), "layers.%d.%s%d.%s.weight", n, f->experts, x, proj[2]);
    }
}

static void add_sparse(Maker *k, int n)
{
    const MadeSpec *s = &k->m->spec;
    const MadeFamily *f = k->family;
    bool renamed = s->stacked && strcmp(f->name, "mixtral") == 0;
    add(k, s->experts, s->hidden, 0, 0, 2 * per_input(s->hidden), "layers.%d.%s", n,
        renamed ? "mlp.gate.weight" : f->router);
    if (f->correction) {
        /* As large as published ones are: without their signs nothing else would show. */
        MadeTensor *t = add(k, s->experts, 0, 0, -0.5f, 0.2f, "layers.%d.%s", n, f->correction);
        if (t) {
            t->bytes = t->bytes / dtype_bytes(t->dtype) * dtype_bytes(DTYPE_F32);
            t->dtype = DTYPE_F32;
        }
    }
    if (f->shared && s->n_shared)
        add_ffn(k, n, f->shared, (int64_t)s->n_shared * s->inter);
    if (f->shared_gate)
        add_matrix(k, n, "mlp.shared_expert_gate.weight", 1, s->hidden);
    if (strcmp(f->name, "gpt_oss") == 0)
        add_oss_experts(k, n);
    else
        add_experts(k, n);
}

Status made_create(const MadeSpec *spec, MadeModel *out, Err *e)
{
    *out = (MadeModel){.spec = *spec};
    Maker k = {out, made_family(spec->family), true};
    if (!k.family)
        return err_set(e, ST_USAGE, "no made models of family %s", spec->family);
    add(&k, spec->vocab, spec->hidden, 0, 0, spec->tied ? per_input(spec->hidden) : 1,
        "embed_tokens.weight");
    for (int n = 0; n < spec->layers; n++) {
        add_norm(&k, n, "input_layernorm.weight", spec->hidden);
        add_norm(&k, n, "post_attention_layernorm.weight", spec->hidden);
        if (k.family->latent)
            add_latent(&k, n);
        else
            add_heads(&k, n);
        if (is_dense(k.family, spec, n))
            add_ffn(&k, n, "mlp.", dense_width(spec));
        else
            add_sparse(&k, n);
    }
    add(&k, spec->hidden, 0, 0, 1, 0.1f, "norm.weight");
    if (!spec->tied)
        add(&k, spec->vocab, spec->hidden, 0, 0, per_input(spec->hidden), "lm_head.weight");
    if (!k.ok) {
        made_free(out);
        return err_set(e, ST_MEMORY, "not enough memory for a list of tensors");
    }
    return ST_OK;
}

/* --- config.json --- */

static void put_attention(const MadeFamily *f, const MadeSpec *s, StrBuf *b)
{
    if (!f->latent) {
        strbuf_fmt(b, "  \"num_key_value_heads\": %d,\n  \"head_dim\": %d,\n", s->kv_heads,
                   s->head_dim);
        return;
    }
    if (s->q_lora)
        strbuf_fmt(b, "  \"q_lora_rank\": %d,\n", s->q_lora);
    else
        strbuf_str(b, "  \"q_lora_rank\": null,\n");
    strbuf_fmt(b,
               "  \"kv_lora_rank\": %d,\n  \"qk_nope_head_dim\": %d,\n"
               "  \"qk_rope_head_dim\": %d,\n  \"v_head_dim\": %d,\n",
               s->kv_lora, s->nope, s->rope, s->v_dim);
}

static void put_experts(const MadeFamily *f, const MadeSpec *s, StrBuf *b)
{
    bool wide = f->no_experts || s->dense_layer >= 0;
    if (!f->no_experts)
        strbuf_fmt(b, "  \"num_experts_per_tok\": %d,\n  \"%s\": %d,\n  \"%s\": %d,\n", s->top_k,
                   f->n_experts_key, s->experts, f->inter_key, s->inter);
    if (wide)
        strbuf_fmt(b, "  \"intermediate_size\": %lld,\n", (long long)dense_width(s));
    if (f->first_dense)
        strbuf_fmt(b, "  \"first_k_dense_replace\": %d,\n  \"n_shared_experts\": %d,\n",
                   s->dense_layer + 1, s->n_shared);
    else if (!f->no_experts && s->dense_layer >= 0)
        strbuf_fmt(b, "  \"mlp_only_layers\": [%d],\n", s->dense_layer);
    if (f->shared_gate)
        strbuf_fmt(b, "  \"shared_expert_intermediate_size\": %d,\n", s->n_shared * s->inter);
    if (f->first_dense)
        strbuf_fmt(b, "  \"n_group\": %d,\n  \"topk_group\": %d,\n", s->n_group ? s->n_group : 1,
                   s->topk_group ? s->topk_group : 1);
}

void made_config(const MadeSpec *s, StrBuf *out)
{
    const MadeFamily *f = made_family(s->family);
    strbuf_fmt(out,
               "{\n  \"model_type\": \"%s\",\n  \"hidden_size\": %d,\n"
               "  \"num_hidden_layers\": %d,\n  \"num_attention_heads\": %d,\n"
               "  \"vocab_size\": %d,\n  \"max_position_embeddings\": 4096,\n"
               "  \"rms_norm_eps\": 1e-05,\n  \"tie_word_embeddings\": %s,\n"
               "  \"bos_token_id\": 0,\n  \"eos_token_id\": 1,\n",
               s->family, s->hidden, s->layers, s->heads, s->vocab, s->tied ? "true" : "false");
    put_attention(f, s, out);
    put_experts(f, s, out);
    strbuf_str(out, f->config);
    if (s->mxfp4)
        strbuf_str(out, "  \"quantization_config\": {\"quant_method\": \"mxfp4\"},\n");
    strbuf_str(out, "  \"hidden_act\": \"silu\"\n}\n");
}
