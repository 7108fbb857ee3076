/* tests/model/test_families.c - the families beyond those of test_arch.c: reference and published
 * configurations and their variants, each written out on one line; and what is refused by name. */
#include "model/arch.h"
#include "model/family.h"
#include "tests/support/check.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* --- an architecture as one line --- */

typedef struct Line {
    char text[1000];
    size_t len;
} Line;

__attribute__((format(printf, 2, 3))) static void put(Line *l, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(l->text + l->len, sizeof l->text - l->len, fmt, args);
    va_end(args);
    if (n > 0 && l->len + (size_t)n < sizeof l->text)
        l->len += (size_t)n;
}

static void put_attention(Line *l, const Arch *a)
{
    static const char *const norms[] = {"", " norm per head", " norm full"};
    if (a->attn == ATTN_LATENT)
        put(l, "latent q%d kv%d %d+%d v%d eps %g", a->q_lora, a->latent.latent_dim,
            a->latent.nope_dim, a->latent.rope_dim, a->latent.v_dim, (double)a->latent_norm_eps);
    else
        put(l, "heads %d/%d x %d", a->n_heads, a->n_kv_heads, a->head_dim);
    put(l, "%s%s%s", norms[a->qk_norm], a->qkv_bias ? " qkv bias" : "", a->o_bias ? " o bias" : "");
    if (a->clip_qkv > 0)
        put(l, " clip %g", (double)a->clip_qkv);
    put(l, " scale %.6g rope %s%d af %.6g;", (double)a->attn_scale,
        a->rope.layout == ROPE_INTERLEAVED ? "interleaved " : "", a->rope.rotary_dim,
        a->rope.attention_factor);
}

static void put_router(Line *l, const Arch *a)
{
    static const char *const kinds[] = {"softmax", "top-k", "group max", "sigmoid"};
    const RouterSpec *r = &a->router;
    if (r->n_experts == 0)
        return;
    put(l, " %s %d of %d x %d", kinds[r->kind], r->top_k, r->n_experts, a->moe_inter);
    if (r->n_group > 1)
        put(l, " groups %d of %d", r->topk_group, r->n_group);
    if (r->renormalize)
        put(l, " renorm %g", (double)r->renorm_eps);
    put(l, "%s%s", a->router_correction ? " correction" : "", a->router_bias ? " bias" : "");
    if (r->scale != 1)
        put(l, " by %g", (double)r->scale);
    if (a->shared_inter > 0)
        put(l, " shared %d%s", a->shared_inter, a->shared_gate ? " gated" : "");
    put(l, ";");
}

/* Which layers are dense, and which slide: "dense 0-2 of 5", "window 7 of 3-4". */
static void put_layers(Line *l, const Arch *a)
{
    put(l, " layers %d", a->n_layers);
    if (a->dense_inter > 0)
        put(l, " dense %d of", a->dense_inter);
    for (int i = 0; i < a->n_layers; i++)
        if (!a->layers[i].moe &&
            (i == 0 || a->layers[i - 1].moe || i + 1 == a->n_layers || a->layers[i + 1].moe))
            put(l, " %d", i);
    for (int i = 0; i < a->n_layers; i++)
        if (a->layers[i].window)
            put(l, " window %d of %d", a->layers[i].window, i);
}

static void describe(const Arch *a, Line *l)
{
    *l = (Line){0};
    put(l, "%s %d, %d eps %g%s: ", a->family->model_type, a->hidden, a->vocab, (double)a->eps,
        a->tied ? " tied" : "");
    put_attention(l, a);
    put_router(l, a);
    put_layers(l, a);
    if (a->embed_scale != 1 || a->residual_scale != 1 || a->logits_scale != 1)
        put(l, "; multipliers %g %g %.6g", (double)a->embed_scale, (double)a->residual_scale,
            (double)a->logits_scale);
    if (a->norm != NORM_LLAMA || !isinf(a->act.limit) || a->act.alpha != 1 || a->act.beta != 0)
        put(l, "; another norm or activation");
}

/* --- reference checkpoints --- */

static const struct {
    const char *dir, *want;
} references[] = {
    {"deepseek_v3-bf16",
     "deepseek_v3 128, 512 eps 1e-06: latent q64 kv32 32+16 v32 eps 1e-06 scale 0.270468 rope "
     "interleaved 16 af 1; sigmoid 4 of 16 x 128 groups 2 of 4 renorm 1e-20 correction by 2.5 "
     "shared 128; layers 3 dense 256 of 0"},
    {"deepseek_v2-bf16",
     "deepseek_v2 128, 512 eps 1e-06: latent q0 kv32 32+16 v32 eps 1e-06 scale 0.144338 rope "
     "interleaved 16 af 1; softmax 2 of 8 x 64 shared 128; layers 3 dense 256 of 0"},
    {"glm4_moe-bf16",
     "glm4_moe 128, 512 eps 1e-05: heads 4/2 x 32 norm per head qkv bias scale 0.176777 rope 16 af "
     "1; sigmoid 2 of 8 x 64 renorm 1e-20 correction shared 64; layers 3 dense 256 of 0"},
    {"minimax_m2-bf16",
     "minimax_m2 128, 512 eps 1e-06: heads 4/2 x 32 norm full scale 0.176777 rope 16 af 1; sigmoid "
     "2 of 8 x 64 renorm 0 correction; layers 2"},
    {"qwen2_moe-bf16",
     "qwen2_moe 128, 512 eps 1e-06: heads 4/4 x 32 qkv bias scale 0.176777 rope 32 af 1; softmax 4 "
     "of 8 x 64 shared 192 gated; layers 2"},
    {"olmoe-bf16", "olmoe 128, 512 eps 1e-05: heads 4/4 x 32 norm full scale 0.176777 rope 32 af "
                   "1; softmax 8 of 16 x 64; layers 2"},
    {"granitemoe-bf16",
     "granitemoe 128, 512 eps 1e-06 tied: heads 4/2 x 32 scale 0.015625 rope 32 af 1; top-k 4 of 8 "
     "x 64; layers 2; multipliers 12 0.22 0.166667"},
    {"llama-bf16", "llama 128, 512 eps 1e-05: heads 4/2 x 32 scale 0.176777 rope 32 af 1; layers 2 "
                   "dense 256 of 0 1"},
    {"qwen3-bf16", "qwen3 128, 512 eps 1e-06: heads 4/2 x 64 norm per head scale 0.125 rope 64 af "
                   "1; layers 2 dense 256 of 0 1"},
};

static int check_references(const char *shared)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof references / sizeof *references; i++) {
        char dir[1000];
        Line line;
        Arch a;
        GenerationDefaults gen;
        Err e = {0};
        snprintf(dir, sizeof dir, "%s/goldens/%s", shared, references[i].dir);
        if (arch_load(dir, NULL, 0, &a, &gen, &e) != ST_OK) {
            failed += check_str(references[i].dir, e.text, "");
            continue;
        }
        describe(&a, &line);
        failed += check_str(references[i].dir, line.text, references[i].want);
        failed += check_true(references[i].dir, a.n_eos == 1 && a.eos[0] == 1 && a.bos == 0);
        arch_free(&a);
    }
    return failed;
}

/* --- published configurations and variants --- */

#define SIZES                                                                                      \
    "\"hidden_size\": 60, \"num_hidden_layers\": 5, \"num_attention_heads\": 6, "                  \
    "\"vocab_size\": 100, \"max_position_embeddings\": 128"
#define MLA                                                                                        \
    ", \"kv_lora_rank\": 24, \"qk_nope_head_dim\": 10, \"qk_rope_head_dim\": 6, "                  \
    "\"v_head_dim\": 14"
#define EXPERTS                                                                                    \
    ", \"n_routed_experts\": 12, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 20, "      \
    "\"intermediate_size\": 50"
#define V3 "\"model_type\": \"deepseek_v3\", " SIZES MLA EXPERTS ", \"q_lora_rank\": 30"
#define V2 "\"model_type\": \"deepseek_v2\", " SIZES MLA EXPERTS ", \"q_lora_rank\": null"
#define GROUPS ", \"n_group\": 4, \"topk_group\": 2"
#define GLM "\"model_type\": \"glm4_moe\", " SIZES EXPERTS
#define M2                                                                                         \
    "\"model_type\": \"minimax_m2\", " SIZES ", \"num_local_experts\": 8, "                        \
    "\"num_experts_per_tok\": 3, \"intermediate_size\": 20, \"head_dim\": 24"
#define QWEN2                                                                                      \
    "\"model_type\": \"qwen2_moe\", " SIZES ", \"num_experts\": 8, \"num_experts_per_tok\": 2, "   \
    "\"moe_intermediate_size\": 20, \"intermediate_size\": 50, "                                   \
    "\"shared_expert_intermediate_size\": 30"
#define OLMOE                                                                                      \
    "\"model_type\": \"olmoe\", " SIZES ", \"num_experts\": 8, \"num_experts_per_tok\": 2, "       \
    "\"intermediate_size\": 20"
#define GRANITE                                                                                    \
    "\"model_type\": \"granitemoe\", " SIZES ", \"num_local_experts\": 8, "                        \
    "\"num_experts_per_tok\": 2, \"intermediate_size\": 20"
#define DENSE(type) "\"model_type\": \"" type "\", " SIZES ", \"intermediate_size\": 50"

#define V3_PUBLISHED                                                                               \
    ", \"attention_bias\": false, \"attention_dropout\": 0.0, \"aux_loss_alpha\": 0.001, "         \
    "\"auto_map\": {\"AutoConfig\": \"configuration_deepseek.DeepseekV3Config\"}, "                \
    "\"ep_size\": 1, \"hidden_act\": \"silu\", \"initializer_range\": 0.02, "                      \
    "\"moe_layer_freq\": 1, \"norm_topk_prob\": true, \"pretraining_tp\": 1, \"q_lora_rank\": "    \
    "1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, "           \
    "\"v_head_dim\": 128, \"rms_norm_eps\": 1e-06, \"scoring_func\": \"sigmoid\", \"seq_aux\": "   \
    "true, \"topk_method\": \"noaux_tc\", \"tie_word_embeddings\": false, \"use_cache\": true, "   \
    "\"n_shared_experts\": 1, \"moe_intermediate_size\": 2048, \"intermediate_size\": 18432, "     \
    "\"hidden_size\": 7168, \"num_hidden_layers\": 61, \"num_experts_per_tok\": 8"
#define KIMI                                                                                       \
    "\"model_type\": \"kimi_k2\", \"vocab_size\": 163840, \"num_attention_heads\": 64, "           \
    "\"num_key_value_heads\": 64, \"n_routed_experts\": 384, \"n_group\": 1, \"topk_group\": 1, "  \
    "\"first_k_dense_replace\": 1, \"routed_scaling_factor\": 2.827, \"rope_theta\": 50000.0, "    \
    "\"num_nextn_predict_layers\": 0" V3_PUBLISHED
#define KIMI_ROPE(factor, fast)                                                                    \
    ", \"rope_scaling\": {\"beta_fast\": " fast ", \"beta_slow\": 1.0, \"factor\": " factor ", "   \
    "\"mscale\": 1.0, \"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 4096, "       \
    "\"type\": \"yarn\"}"
#define KIMI_LINE(scale)                                                                           \
    "kimi_k2 7168, 163840 eps 1e-06: latent q1536 kv512 128+64 v128 eps 1e-06 scale " scale        \
    " rope interleaved 64 af 1; sigmoid 8 of 384 x 2048 renorm 1e-20 correction by 2.827 shared "  \
    "2048; layers 61 dense 18432 of 0"

static const struct {
    const char *name, *body, *want;
} accepted[] = {
    {"DeepSeek-V3",
     "\"model_type\": \"deepseek_v3\", \"architectures\": [\"DeepseekV3ForCausalLM\"], "
     "\"vocab_size\": 129280, \"num_attention_heads\": 128, \"num_key_value_heads\": 128, "
     "\"n_routed_experts\": 256, \"n_group\": 8, \"topk_group\": 4, \"first_k_dense_replace\": 3, "
     "\"routed_scaling_factor\": 2.5, \"num_nextn_predict_layers\": 1, \"rope_theta\": 10000, "
     "\"bos_token_id\": 0, \"eos_token_id\": 1, \"max_position_embeddings\": 163840, "
     "\"rope_scaling\": {\"beta_fast\": 32, \"beta_slow\": 1, \"factor\": 40, \"mscale\": 1.0, "
     "\"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 4096, \"type\": "
     "\"yarn\"}" V3_PUBLISHED,
     "deepseek_v3 7168, 129280 eps 1e-06: latent q1536 kv512 128+64 v128 eps 1e-06 scale 0.135234 "
     "rope interleaved 64 af 1; sigmoid 8 of 256 x 2048 groups 4 of 8 renorm 1e-20 correction by "
     "2.5 shared 2048; layers 61 dense 18432 of 0 2"},
    {"Kimi-K2-Instruct", KIMI ", \"max_position_embeddings\": 131072" KIMI_ROPE("32.0", "1.0"),
     KIMI_LINE("0.130861")},
    {"Kimi-K2-Thinking", KIMI ", \"max_position_embeddings\": 262144" KIMI_ROPE("64.0", "32.0"),
     KIMI_LINE("0.14468")},
    {"Kimi-K2.5",
     "\"model_type\": \"kimi_k25\", \"architectures\": [\"KimiK25ForConditionalGeneration\"], "
     "\"media_placeholder_token_id\": 163605, \"ignore_index\": -100, \"pad_token_id\": 163839, "
     "\"tie_word_embeddings\": false, \"vision_config\": {\"vt_num_hidden_layers\": 27}, "
     "\"eos_token_id\": 163585, \"text_config\": {" KIMI
     ", \"temperature\": 1.0, \"top_k\": 50, \"num_beams\": 1, "
     "\"max_position_embeddings\": 262144" KIMI_ROPE("64.0", "32.0") "}",
     KIMI_LINE("0.14468")},
    {"DeepSeek-V2",
     "\"model_type\": \"deepseek_v2\", \"attention_bias\": false, \"aux_loss_alpha\": 0.001, "
     "\"ep_size\": 1, \"first_k_dense_replace\": 1, \"hidden_size\": 5120, "
     "\"intermediate_size\": 12288, \"kv_lora_rank\": 512, \"max_position_embeddings\": 163840, "
     "\"moe_intermediate_size\": 1536, \"moe_layer_freq\": 1, \"n_group\": 8, "
     "\"n_routed_experts\": 160, \"n_shared_experts\": 2, \"norm_topk_prob\": false, "
     "\"num_attention_heads\": 128, \"num_experts_per_tok\": 6, \"num_hidden_layers\": 60, "
     "\"num_key_value_heads\": 128, \"pretraining_tp\": 1, \"q_lora_rank\": 1536, "
     "\"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"rms_norm_eps\": 1e-06, "
     "\"rope_scaling\": {\"beta_fast\": 32, \"beta_slow\": 1, \"factor\": 40, \"mscale\": 1.0, "
     "\"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 4096, \"type\": \"yarn\"}, "
     "\"routed_scaling_factor\": 16.0, \"scoring_func\": \"softmax\", \"seq_aux\": true, "
     "\"topk_group\": 3, \"topk_method\": \"group_limited_greedy\", \"v_head_dim\": 128, "
     "\"vocab_size\": 102400",
     "deepseek_v2 5120, 102400 eps 1e-06: latent q1536 kv512 128+64 v128 eps 1e-06 scale 0.135234 "
     "rope interleaved 64 af 1; group max 6 of 160 x 1536 groups 3 of 8 by 16 shared 3072; layers "
     "60 dense 12288 of 0"},
    {"DeepSeek-V2-Lite",
     "\"model_type\": \"deepseek_v2\", \"first_k_dense_replace\": 1, \"hidden_size\": 2048, "
     "\"intermediate_size\": 10944, \"kv_lora_rank\": 512, \"max_position_embeddings\": 163840, "
     "\"moe_intermediate_size\": 1408, \"moe_layer_freq\": 1, \"n_group\": 1, "
     "\"n_routed_experts\": 64, \"n_shared_experts\": 2, \"norm_topk_prob\": false, "
     "\"num_attention_heads\": 16, \"num_experts_per_tok\": 6, \"num_hidden_layers\": 27, "
     "\"num_key_value_heads\": 16, \"q_lora_rank\": null, \"qk_nope_head_dim\": 128, "
     "\"qk_rope_head_dim\": 64, \"rope_scaling\": {\"beta_fast\": 32, \"beta_slow\": 1, "
     "\"factor\": 40, \"mscale\": 0.707, \"mscale_all_dim\": 0.707, "
     "\"original_max_position_embeddings\": 4096, \"type\": \"yarn\"}, \"scoring_func\": "
     "\"softmax\", \"topk_group\": 1, \"topk_method\": \"greedy\", \"v_head_dim\": 128, "
     "\"vocab_size\": 102400",
     "deepseek_v2 2048, 102400 eps 1e-06: latent q0 kv512 128+64 v128 eps 1e-06 scale 0.114721 "
     "rope interleaved 64 af 1; softmax 6 of 64 x 1408 shared 2816; layers 27 dense 10944 of 0"},
    {"GLM-4.5-Air",
     "\"model_type\": \"glm4_moe\", \"attention_bias\": true, \"head_dim\": 128, "
     "\"first_k_dense_replace\": 1, \"hidden_size\": 4096, \"intermediate_size\": 10944, "
     "\"max_position_embeddings\": 131072, \"moe_intermediate_size\": 1408, \"n_group\": 1, "
     "\"n_routed_experts\": 128, \"n_shared_experts\": 1, \"norm_topk_prob\": true, "
     "\"num_attention_heads\": 96, \"num_experts_per_tok\": 8, \"num_hidden_layers\": 46, "
     "\"num_key_value_heads\": 8, \"num_nextn_predict_layers\": 1, \"partial_rotary_factor\": 0.5, "
     "\"rms_norm_eps\": 1e-05, \"rope_scaling\": null, \"rope_theta\": 1000000, "
     "\"routed_scaling_factor\": 1.0, \"topk_group\": 1, \"use_qk_norm\": false, "
     "\"vocab_size\": 151552, \"eos_token_id\": [151329, 151336, 151338]",
     "glm4_moe 4096, 151552 eps 1e-05: heads 96/8 x 128 qkv bias scale 0.0883883 rope 64 af 1; "
     "sigmoid 8 of 128 x 1408 renorm 1e-20 correction shared 1408; layers 46 dense 10944 of 0"},
    {"MiniMax-M2",
     "\"model_type\": \"minimax_m2\", \"attn_type_list\": [1, 1, 1], \"head_dim\": 128, "
     "\"hidden_size\": 3072, \"intermediate_size\": 1536, \"layernorm_full_attention_beta\": 1.0, "
     "\"layernorm_linear_attention_beta\": 1.0, \"layernorm_mlp_beta\": 1.0, "
     "\"max_position_embeddings\": 196608, \"mlp_intermediate_size\": 8192, "
     "\"mtp_transformer_layers\": 1, \"num_attention_heads\": 48, \"num_experts_per_tok\": 8, "
     "\"num_hidden_layers\": 62, \"num_key_value_heads\": 8, \"num_local_experts\": 256, "
     "\"num_mtp_modules\": 3, \"qk_norm_type\": \"per_layer\", \"rope_theta\": 5000000, "
     "\"rotary_dim\": 64, \"scoring_func\": \"sigmoid\", \"shared_intermediate_size\": 0, "
     "\"shared_moe_mode\": \"sigmoid\", \"sliding_window\": null, \"use_mtp\": true, "
     "\"use_qk_norm\": true, \"use_routing_bias\": true, \"vocab_size\": 200064",
     "minimax_m2 3072, 200064 eps 1e-06: heads 48/8 x 128 norm full scale 0.0883883 rope 64 af 1; "
     "sigmoid 8 of 256 x 1536 renorm 0 correction; layers 62"},
    {"Qwen1.5-MoE-A2.7B",
     "\"model_type\": \"qwen2_moe\", \"decoder_sparse_step\": 1, \"hidden_size\": 2048, "
     "\"intermediate_size\": 5632, \"max_position_embeddings\": 8192, \"max_window_layers\": 21, "
     "\"moe_intermediate_size\": 1408, \"norm_topk_prob\": false, \"num_attention_heads\": 16, "
     "\"num_experts\": 60, \"num_experts_per_tok\": 4, \"num_hidden_layers\": 24, "
     "\"num_key_value_heads\": 16, \"rope_theta\": 1000000.0, "
     "\"shared_expert_intermediate_size\": 5632, \"sliding_window\": 32768, "
     "\"use_sliding_window\": false, \"vocab_size\": 151936",
     "qwen2_moe 2048, 151936 eps 1e-06: heads 16/16 x 128 qkv bias scale 0.0883883 rope 128 af 1; "
     "softmax 4 of 60 x 1408 shared 5632 gated; layers 24"},
    {"OLMoE-1B-7B",
     "\"model_type\": \"olmoe\", \"attention_bias\": false, \"clip_qkv\": null, \"hidden_size\": "
     "2048, \"intermediate_size\": 1024, \"max_position_embeddings\": 4096, \"norm_topk_prob\": "
     "false, \"num_attention_heads\": 16, \"num_experts\": 64, \"num_experts_per_tok\": 8, "
     "\"num_hidden_layers\": 16, \"num_key_value_heads\": 16, \"vocab_size\": 50304",
     "olmoe 2048, 50304 eps 1e-05: heads 16/16 x 128 norm full scale 0.0883883 rope 128 af 1; "
     "softmax 8 of 64 x 1024; layers 16"},
    {"granite-3.0-1b-a400m",
     "\"model_type\": \"granitemoe\", \"attention_bias\": false, \"attention_multiplier\": "
     "0.015625, \"embedding_multiplier\": 12.0, \"hidden_size\": 1024, \"intermediate_size\": 512, "
     "\"logits_scaling\": 6.0, \"max_position_embeddings\": 4096, \"num_attention_heads\": 16, "
     "\"num_experts_per_tok\": 8, \"num_hidden_layers\": 24, \"num_key_value_heads\": 8, "
     "\"num_local_experts\": 32, \"residual_multiplier\": 0.22, \"rms_norm_eps\": 1e-06, "
     "\"tie_word_embeddings\": true, \"vocab_size\": 49155",
     "granitemoe 1024, 49155 eps 1e-06 tied: heads 16/8 x 64 scale 0.015625 rope 64 af 1; top-k 8 "
     "of 32 x 512; layers 24; multipliers 12 0.22 0.166667"},
    {"Llama-3.1-8B",
     "\"model_type\": \"llama\", \"attention_bias\": false, \"hidden_size\": 4096, "
     "\"intermediate_size\": 14336, \"max_position_embeddings\": 131072, \"mlp_bias\": false, "
     "\"num_attention_heads\": 32, \"num_hidden_layers\": 32, \"num_key_value_heads\": 8, "
     "\"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, \"rope_scaling\": {\"factor\": 8.0, "
     "\"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0, \"original_max_position_embeddings\": "
     "8192, \"rope_type\": \"llama3\"}, \"rope_theta\": 500000.0, \"vocab_size\": 128256",
     "llama 4096, 128256 eps 1e-05: heads 32/8 x 128 scale 0.0883883 rope 128 af 1; layers 32 "
     "dense 14336 of 0 31"},
    {"Qwen3-0.6B",
     "\"model_type\": \"qwen3\", \"attention_bias\": false, \"head_dim\": 128, \"hidden_size\": "
     "1024, \"intermediate_size\": 3072, \"max_position_embeddings\": 40960, "
     "\"max_window_layers\": 28, \"num_attention_heads\": 16, \"num_hidden_layers\": 28, "
     "\"num_key_value_heads\": 8, \"rope_theta\": 1000000, \"sliding_window\": null, "
     "\"tie_word_embeddings\": true, \"use_sliding_window\": false, \"vocab_size\": 151936",
     "qwen3 1024, 151936 eps 1e-06 tied: heads 16/8 x 128 norm per head scale 0.0883883 rope 128 "
     "af 1; layers 28 dense 3072 of 0 27"},
    {"Mistral-7B-v0.3",
     "\"model_type\": \"mistral\", \"hidden_size\": 4096, \"intermediate_size\": 14336, "
     "\"max_position_embeddings\": 32768, \"num_attention_heads\": 32, \"num_hidden_layers\": 32, "
     "\"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-05, \"rope_theta\": 1000000.0, "
     "\"sliding_window\": null, \"vocab_size\": 32768",
     "mistral 4096, 32768 eps 1e-05: heads 32/8 x 128 scale 0.0883883 rope 128 af 1; layers 32 "
     "dense 14336 of 0 31"},

    {"V3, half layout, sparse every other layer, no shared experts",
     V3 GROUPS ", \"rope_interleave\": false, \"first_k_dense_replace\": 1, \"moe_layer_freq\": 2, "
               "\"n_shared_experts\": null, \"norm_topk_prob\": false, \"qk_head_dim\": 16, "
               "\"rms_norm_eps\": 1e-5",
     "deepseek_v3 60, 100 eps 1e-05: latent q30 kv24 10+6 v14 eps 1e-06 scale 0.25 rope 6 af 1; "
     "sigmoid 4 of 12 x 20 groups 2 of 4 correction by 2.5; layers 5 dense 50 of 0 1 3"},
    {"V3 without low-rank queries",
     "\"model_type\": \"deepseek_v3\", " SIZES MLA EXPERTS GROUPS ", \"n_shared_experts\": 3",
     "deepseek_v3 60, 100 eps 1e-06: latent q0 kv24 10+6 v14 eps 1e-06 scale 0.25 rope interleaved "
     "6 af 1; sigmoid 4 of 12 x 20 groups 2 of 4 renorm 1e-20 correction by 2.5 shared 60; layers "
     "5 dense 50 of 0 2"},
    {"V3, heads that do not divide the width, yarn with another mscale, new key style",
     "\"model_type\": \"deepseek_v3\", \"hidden_size\": 61, \"num_hidden_layers\": 1, "
     "\"num_attention_heads\": 6, \"vocab_size\": 100, \"max_position_embeddings\": 128, "
     "\"q_lora_rank\": 30, \"first_k_dense_replace\": 0, \"num_local_experts\": 12, "
     "\"num_experts_per_tok\": 4, \"moe_intermediate_size\": 20, \"rope_parameters\": "
     "{\"rope_type\": \"yarn\", \"factor\": 40, \"mscale\": 1.0, \"mscale_all_dim\": 0.707, "
     "\"original_max_position_embeddings\": 64, \"rope_theta\": 1e5}" MLA GROUPS,
     "deepseek_v3 61, 100 eps 1e-06: latent q30 kv24 10+6 v14 eps 1e-06 scale 0.397407 rope "
     "interleaved 6 af 1.08573; sigmoid 4 of 12 x 20 groups 2 of 4 renorm 1e-20 correction by 2.5 "
     "shared 20; layers 1"},
    {"V3 of dense layers only", V3 ", \"first_k_dense_replace\": 5",
     "deepseek_v3 60, 100 eps 1e-06: latent q30 kv24 10+6 v14 eps 1e-06 scale 0.25 rope "
     "interleaved 6 af 1; layers 5 dense 50 of 0 4"},
    {"V2 with groups and queries of low rank",
     "\"model_type\": \"deepseek_v2\", " SIZES MLA EXPERTS GROUPS
     ", \"q_lora_rank\": 30, \"topk_method\": \"group_limited_greedy\"",
     "deepseek_v2 60, 100 eps 1e-06: latent q30 kv24 10+6 v14 eps 1e-06 scale 0.25 rope "
     "interleaved 6 af 1; group max 4 of 12 x 20 groups 2 of 4 shared 40; layers 5"},
    {"V2, groups that greedy does not read", V2 GROUPS ", \"topk_method\": \"greedy\"",
     "deepseek_v2 60, 100 eps 1e-06: latent q0 kv24 10+6 v14 eps 1e-06 scale 0.25 rope interleaved "
     "6 af 1; softmax 4 of 12 x 20 shared 40; layers 5"},
    {"GLM with groups, norms and another share of lanes",
     GLM GROUPS ", \"use_qk_norm\": true, \"head_dim\": 24, \"partial_rotary_factor\": 0.25, "
                "\"routed_scaling_factor\": 2.5, \"n_shared_experts\": 2, "
                "\"first_k_dense_replace\": 3",
     "glm4_moe 60, 100 eps 1e-05: heads 6/6 x 24 norm per head scale 0.204124 rope 6 af 1; sigmoid "
     "4 of 12 x 20 groups 2 of 4 renorm 1e-20 correction by 2.5 shared 40; layers 5 dense 50 of 0 "
     "2"},
    {"GLM's defaults", GLM ", \"head_dim\": 24",
     "glm4_moe 60, 100 eps 1e-05: heads 6/6 x 24 scale 0.204124 rope 12 af 1; sigmoid 4 of 12 x 20 "
     "renorm 1e-20 correction shared 20; layers 5 dense 50 of 0"},
    {"MiniMax, lanes counted", M2 ", \"rotary_dim\": 10, \"num_key_value_heads\": 2",
     "minimax_m2 60, 100 eps 1e-06: heads 6/2 x 24 norm full scale 0.204124 rope 10 af 1; sigmoid "
     "3 of 8 x 20 renorm 0 correction; layers 5"},
    {"MiniMax, new key style",
     M2 ", \"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.25}",
     "minimax_m2 60, 100 eps 1e-06: heads 6/6 x 24 norm full scale 0.204124 rope 6 af 1; sigmoid 3 "
     "of 8 x 20 renorm 0 correction; layers 5"},
    {"Qwen2, windows of the upper layers, sparse every other layer",
     QWEN2 ", \"use_sliding_window\": true, \"sliding_window\": 7, \"max_window_layers\": 3, "
           "\"decoder_sparse_step\": 2, \"qkv_bias\": false, \"norm_topk_prob\": true",
     "qwen2_moe 60, 100 eps 1e-06: heads 6/6 x 10 scale 0.316228 rope 10 af 1; softmax 2 of 8 x 20 "
     "renorm 0 shared 30 gated; layers 5 dense 50 of 0 2 4 window 7 of 3 window 7 of 4"},
    {"Qwen2, windows by layer_types",
     QWEN2 ", \"use_sliding_window\": true, \"sliding_window\": 7, \"layer_types\": "
           "[\"sliding_attention\", \"full_attention\", \"full_attention\", \"full_attention\", "
           "\"full_attention\"]",
     "qwen2_moe 60, 100 eps 1e-06: heads 6/6 x 10 qkv bias scale 0.316228 rope 10 af 1; softmax 2 "
     "of 8 x 20 shared 30 gated; layers 5 window 7 of 0"},
    {"Qwen2 without experts", QWEN2 ", \"mlp_only_layers\": [0, 1, 2, 3, 4]",
     "qwen2_moe 60, 100 eps 1e-06: heads 6/6 x 10 qkv bias scale 0.316228 rope 10 af 1; layers 5 "
     "dense 50 of 0 4"},
    {"OLMoE, clipped, with biases",
     OLMOE ", \"clip_qkv\": 8.5, \"attention_bias\": true, \"norm_topk_prob\": true",
     "olmoe 60, 100 eps 1e-05: heads 6/6 x 10 norm full qkv bias o bias clip 8.5 scale 0.316228 "
     "rope 10 af 1; softmax 2 of 8 x 20 renorm 0; layers 5"},
    {"Granite's defaults", GRANITE ", \"attention_bias\": true",
     "granitemoe 60, 100 eps 1e-06: heads 6/6 x 10 qkv bias o bias scale 1 rope 10 af 1; top-k 2 "
     "of 8 x 20; layers 5"},
    {"llama with biases, tied",
     DENSE("llama") ", \"attention_bias\": true, \"tie_word_embeddings\": true, "
                    "\"num_key_value_heads\": 3",
     "llama 60, 100 eps 1e-06 tied: heads 6/3 x 10 qkv bias o bias scale 0.316228 rope 10 af 1; "
     "layers 5 dense 50 of 0 4"},
    {"qwen3, head_dim 128 by default, windows",
     DENSE("qwen3") ", \"use_sliding_window\": true, \"sliding_window\": 9, "
                    "\"max_window_layers\": 4",
     "qwen3 60, 100 eps 1e-06: heads 6/6 x 128 norm per head scale 0.0883883 rope 128 af 1; layers "
     "5 dense 50 of 0 4 window 9 of 4"},
    {"mistral with a window",
     "\"model_type\": \"mistral\", \"hidden_size\": 60, \"num_hidden_layers\": 2, "
     "\"num_attention_heads\": 6, \"vocab_size\": 100, \"max_position_embeddings\": 128, "
     "\"intermediate_size\": 50, \"sliding_window\": 9, \"head_dim\": 16",
     "mistral 60, 100 eps 1e-06: heads 6/6 x 16 scale 0.25 rope 16 af 1; layers 2 dense 50 of 0 1 "
     "window 9 of 0 window 9 of 1"},
    {"mistral's window by default",
     "\"model_type\": \"mistral\", \"hidden_size\": 60, \"num_hidden_layers\": 1, "
     "\"num_attention_heads\": 6, \"vocab_size\": 100, \"max_position_embeddings\": 128, "
     "\"intermediate_size\": 50",
     "mistral 60, 100 eps 1e-06: heads 6/6 x 10 scale 0.316228 rope 10 af 1; layers 1 dense 50 of "
     "0 window 4096 of 0"},
};

static Status parse(const char *body, Arch *a, Err *e)
{
    char text[6000];
    GenerationDefaults gen;
    int n = snprintf(text, sizeof text, "{%s}", body);
    return arch_parse(text, (size_t)n, NULL, 0, NULL, 0, a, &gen, e);
}

static int check_accepted(void)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
        Line line;
        Arch a;
        Err e = {0};
        if (parse(accepted[i].body, &a, &e) != ST_OK) {
            failed += check_str(accepted[i].name, e.text, "");
            continue;
        }
        describe(&a, &line);
        failed += check_str(accepted[i].name, line.text, accepted[i].want);
        arch_free(&a);
    }
    return failed;
}

/* The scales of models.md section 2, to nine digits of float32. */
static int check_scales(void)
{
    static const double want[] = {0.1352337789, 0.1308608000, 0.1446796258,
                                  0.1446796258, 0.1352337789, 0.1147213868};
    int failed = 0;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        Arch a;
        Err e = {0};
        failed += check_int(accepted[i].name, parse(accepted[i].body, &a, &e), ST_OK);
        failed += check_near(accepted[i].name, a.attn_scale, want[i], 1e-8);
        failed += check_near(accepted[i].name, a.latent.scale, want[i], 1e-8);
        arch_free(&a);
    }
    return failed;
}

/* --- refused --- */

static const struct {
    const char *name, *body, *message;
} refused[] = {
    {"another score", V3 GROUPS ", \"scoring_func\": \"softmax\"",
     "scoring_func \"softmax\" is not supported (sigmoid is)"},
    {"another choice", V3 GROUPS ", \"topk_method\": \"greedy\"",
     "topk_method \"greedy\" is not supported (noaux_tc is)"},
    {"groups that do not divide", V3 ", \"n_group\": 5, \"topk_group\": 2",
     "n_group is 5, which does not divide 12 experts"},
    {"more groups than there are", V3 ", \"n_group\": 4, \"topk_group\": 5",
     "topk_group is 5, but n_group is 4"},
    {"too few in the groups", V3 ", \"n_group\": 4, \"topk_group\": 1",
     "4 experts per token, but 1 groups hold only 3"},
    {"groups of one", V3 ", \"n_group\": 12, \"topk_group\": 8",
     "n_group is 12: groups of one expert are not supported"},
    {"biases of latent attention", V3 GROUPS ", \"attention_bias\": true",
     "attention_bias is not supported: latent attention with biases"},
    {"heads that do not add up", V3 GROUPS ", \"qk_head_dim\": 17",
     "qk_head_dim is 17, but qk_nope_head_dim and qk_rope_head_dim add up to 16"},
    {"no latent", "\"model_type\": \"deepseek_v3\", " SIZES EXPERTS, "kv_lora_rank is missing"},
    {"odd rope",
     "\"model_type\": \"deepseek_v3\", " SIZES EXPERTS
     ", \"kv_lora_rank\": 24, \"qk_nope_head_dim\": 10, \"qk_rope_head_dim\": 5, "
     "\"v_head_dim\": 14",
     "rotary embedding of 5 lanes (head_dim 5), expected an even number"},
    {"latent attention, part of the lanes",
     V3 GROUPS ", \"rope_parameters\": {\"rope_type\": \"default\", "
               "\"partial_rotary_factor\": 0.34}",
     "partial_rotary_factor is not supported for latent attention"},
    {"sparse attention", V3 GROUPS ", \"index_topk\": 2048", "unknown key \"index_topk\""},
    {"router extras", V3 GROUPS ", \"routing_sink\": true", "unknown key \"routing_sink\""},
    {"a window", V3 GROUPS ", \"sliding_window\": 64", "unknown key \"sliding_window\""},
    {"layer_freq as a list", V3 GROUPS ", \"moe_layer_freq\": [0, 1, 1, 1, 1]",
     "moe_layer_freq is a list, expected an integer from 1"},
    {"no number of experts", "\"model_type\": \"deepseek_v3\", " SIZES MLA,
     "num_experts is missing"},
    {"no width of dense layers",
     "\"model_type\": \"deepseek_v3\", " SIZES MLA
     ", \"n_routed_experts\": 12, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 20",
     "intermediate_size is missing"},
    {"too many shared experts", V3 GROUPS ", \"n_shared_experts\": 16000000",
     "n_shared_experts is 16000000, expected an integer from 0 to 16384"},
    {"a wrapper of nothing", "\"model_type\": \"kimi_k25\"",
     "kimi_k25 needs an object text_config"},
    {"a wrapper of itself",
     "\"model_type\": \"kimi_k25\", \"text_config\": {\"model_type\": \"kimi_k25\"}",
     "text_config: model_type \"kimi_k25\" is not a text model"},
    {"a wrapper of an unknown model",
     "\"model_type\": \"kimi_k25\", \"text_config\": {\"model_type\": \"kimi_linear\"}",
     "text_config: model_type \"kimi_linear\" is not supported"},
    {"inside a wrapper",
     "\"model_type\": \"kimi_k25\", \"text_config\": {" V3 GROUPS ", \"logit_cap\": 1}",
     "text_config: unknown key \"logit_cap\""},
    {"around a wrapper",
     "\"model_type\": \"kimi_k25\", \"projector\": 1, \"text_config\": {" V3 GROUPS "}",
     "unknown key \"projector\""},

    {"V2 with a sigmoid", V2 ", \"scoring_func\": \"sigmoid\"",
     "scoring_func \"sigmoid\" is not supported (softmax is)"},
    {"V2 with a correction", V2 ", \"topk_method\": \"noaux_tc\"",
     "topk_method \"noaux_tc\" is not supported (greedy and group_limited_greedy are)"},
    {"V2 renormalized", V2 ", \"norm_topk_prob\": true", "norm_topk_prob is not supported"},
    {"V2 with biases", V2 ", \"mlp_bias\": true", "mlp_bias is not supported"},
    {"V2 in the other layout", V2 ", \"rope_interleave\": true", "unknown key \"rope_interleave\""},
    {"V2, groups that do not divide",
     V2 ", \"topk_method\": \"group_limited_greedy\", \"n_group\": 8, \"topk_group\": 3",
     "n_group is 8, which does not divide 12 experts"},

    {"GLM with a softmax", GLM ", \"scoring_func\": \"softmax\"",
     "scoring_func \"softmax\" is not supported (sigmoid is)"},
    {"GLM, lanes that do not pair", GLM ", \"head_dim\": 10",
     "rotary embedding of 5 lanes (head_dim 10), expected an even number"},

    {"MiniMax with shared experts", M2 ", \"shared_intermediate_size\": 64",
     "shared_intermediate_size is not supported"},
    {"MiniMax with linear attention", M2 ", \"attn_type_list\": [1, 0, 1, 1, 1]",
     "attn_type_list: the attention of layer 1 is not supported"},
    {"MiniMax without norms", M2 ", \"use_qk_norm\": false", "use_qk_norm false is not supported"},
    {"MiniMax without a correction", M2 ", \"use_routing_bias\": false",
     "use_routing_bias false is not supported"},
    {"MiniMax with other norms", M2 ", \"qk_norm_type\": \"per_head\"",
     "qk_norm_type \"per_head\" is not supported (per_layer is)"},
    {"MiniMax with a softmax", M2 ", \"scoring_func\": \"softmax\"",
     "scoring_func \"softmax\" is not supported (sigmoid is)"},
    {"MiniMax with a scaled residual", M2 ", \"layernorm_mlp_beta\": 3.5",
     "layernorm_mlp_beta 3.5 is not supported (1 is)"},
    {"MiniMax, lanes twice", M2 ", \"rotary_dim\": 12, \"partial_rotary_factor\": 0.25",
     "rotary_dim is 12, but partial_rotary_factor makes it 6"},
    {"MiniMax with a window", M2 ", \"sliding_window\": 64", "sliding_window is not supported"},

    {"Qwen2 with norms", QWEN2 ", \"use_qk_norm\": true", "unknown key \"use_qk_norm\""},
    {"Qwen2, a window of nothing", QWEN2 ", \"use_sliding_window\": true, \"sliding_window\": 0",
     "sliding_window is 0, expected an integer from 1"},
    {"OLMoE, clipped to nothing", OLMOE ", \"clip_qkv\": 0", "clip_qkv is 0, expected a number"},
    {"OLMoE with groups", OLMOE ", \"n_group\": 2", "unknown key \"n_group\""},
    {"Granite without logits", GRANITE ", \"logits_scaling\": 0",
     "logits_scaling is 0, expected a number"},
    {"Granite with a shared expert", GRANITE ", \"shared_intermediate_size\": 64",
     "unknown key \"shared_intermediate_size\""},
    {"Granite, another activation", GRANITE ", \"hidden_act\": \"gelu\"",
     "hidden_act \"gelu\" is not supported (silu is)"},
    {"llama with biases in the FFN", DENSE("llama") ", \"mlp_bias\": true",
     "mlp_bias is not supported: biases of the FFN are not implemented"},
    {"llama with experts", DENSE("llama") ", \"num_local_experts\": 8",
     "unknown key \"num_local_experts\""},
    {"llama, frequencies by length",
     DENSE("llama") ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}",
     "rope_type \"dynamic\" is not supported"},
    {"qwen3, a layer that slides without a window",
     DENSE("qwen3") ", \"layer_types\": [\"sliding_attention\", \"full_attention\", "
                    "\"full_attention\", \"full_attention\", \"full_attention\"]",
     "layer_types: layer 0 slides, but sliding_window is not set"},
    {"qwen3, other layers",
     DENSE("qwen3") ", \"layer_types\": [\"chunked_attention\", \"full_attention\", "
                    "\"full_attention\", \"full_attention\", \"full_attention\"]",
     "layer_types: \"chunked_attention\" of layer 0 is not supported"},
    {"mistral without a width", "\"model_type\": \"mistral\", " SIZES,
     "intermediate_size is missing"},
};

static int check_refused(void)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        Arch a;
        Err e = {0};
        failed += check_int(refused[i].name, parse(refused[i].body, &a, &e), ST_INPUT);
        failed += check_has(refused[i].name, e.text, refused[i].message);
        arch_free(&a);
    }
    return failed;
}

/* --- damage --- */

/* What the forward pass and the planning of its buffers rely on. */
static bool sound(const Arch *a)
{
    const RouterSpec *r = &a->router;
    const LatentSpec *l = &a->latent;
    bool moe = false, dense = false, ok = a->n_layers > 0 && a->head_dim > 0 && a->n_kv_heads > 0;
    for (int i = 0; i < a->n_layers; i++) {
        moe |= a->layers[i].moe;
        dense |= !a->layers[i].moe;
        ok &= a->layers[i].window >= 0;
    }
    ok &= moe == (r->n_experts > 0) && moe == (a->moe_inter > 0) && (!dense || a->dense_inter > 0);
    ok &= a->n_heads % a->n_kv_heads == 0 && a->rope.rotary_dim <= a->head_dim;
    ok &= a->attn_scale > 0 && isfinite(a->attn_scale) && isfinite(a->logits_scale);
    if (a->attn == ATTN_LATENT)
        ok &= l->nope_dim > 0 && l->rope_dim == a->rope.rotary_dim && l->v_dim > 0 &&
              l->latent_dim > 0 && l->n_heads == a->n_heads;
    if (moe)
        ok &= r->top_k > 0 && r->n_group > 0 && r->n_experts % r->n_group == 0 &&
              r->topk_group <= r->n_group &&
              r->top_k <= r->topk_group * (r->n_experts / r->n_group);
    return ok && a->shared_inter >= 0 && (moe || (a->shared_inter == 0 && !a->router_correction));
}

/* Whatever bytes are damaged: refused with a message, or an architecture that holds together. */
static int check_damage(void)
{
    enum { N = sizeof accepted / sizeof *accepted };
    uint64_t r = 7;
    int failed = 0, n_ok = 0;
    for (int round = 0; round < 6000; round++) {
        char text[6000];
        Err e = {0};
        Arch a;
        size_t n = strlen(accepted[round % N].body);
        memcpy(text, accepted[round % N].body, n + 1);
        for (int k = 0; k < 1 + round % 3; k++) {
            r = r * 6364136223846793005u + 1442695040888963407u;
            text[(r >> 33) % n] = (char)('0' + (r >> 25) % 10);
        }
        if (parse(text, &a, &e) == ST_OK) {
            n_ok++;
            failed += sound(&a) ? 0 : check_str("an architecture that holds together", text, "");
        } else if (!e.text[0]) {
            failed += check_true("a message", false);
        }
        arch_free(&a);
    }
    return failed + check_true("some numbers stay possible", n_ok > 60 && n_ok < 5000);
}

int main(void)
{
    int failed = check_accepted() + check_scales() + check_refused() + check_damage();
    const char *shared = test_shared();
    if (shared)
        failed += check_references(shared);
    else if (failed == 0)
        return test_skip("the reference checkpoints are not there; all else passed");
    return test_result(failed);
}
