/* tests/model/test_arch.c - configurations of published checkpoints in both key styles, field by
 * field, and what is refused by name. */
#include "model/arch.h"

#include "io/log.h"
#include "model/family.h"
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the reference checkpoints --- */

typedef struct Want {
    const char *dir, *family;
    int n_layers, hidden, vocab, n_heads, n_kv_heads, head_dim, max_positions;
    double eps;
    int n_experts, top_k, moe_inter;
    int window0, window1;
    int eos;
    double rope_af;
} Want;

static const Want wants[] = {
    {"goldens/qwen3_moe-bf16", "qwen3_moe", 2, 128, 512, 4, 2, 64, 512, 1e-6, 8, 4, 128, 0, 0, 1,
     1},
    {"goldens/mixtral-bf16", "mixtral", 2, 128, 512, 4, 2, 32, 512, 1e-5, 8, 2, 128, 0, 0, 1, 1},
    {"goldens/gpt_oss-bf16", "gpt_oss", 2, 128, 512, 4, 2, 32, 512, 1e-5, 8, 4, 128, 16, 0, 1,
     1.34657359},
    {"goldens/gpt_oss-mxfp4", "gpt_oss", 2, 128, 512, 4, 2, 32, 512, 1e-5, 8, 4, 128, 16, 0, 1,
     1.34657359},
    {"models/storyteller-qwen3_moe", "qwen3_moe", 4, 256, 4096, 4, 2, 64, 1024, 1e-6, 16, 4, 256, 0,
     0, 0, 1},
    {"models/storyteller-gpt_oss", "gpt_oss", 4, 256, 4096, 8, 2, 64, 1024, 1e-6, 16, 4, 256, 128,
     0, 0, 1.34657359},
    {"models/storyteller-gpt_oss-mxfp4", "gpt_oss", 4, 256, 4096, 8, 2, 64, 1024, 1e-6, 16, 4, 256,
     128, 0, 0, 1.34657359},
};

static int check_family_fields(const Want *w, const Arch *a)
{
    int failed = 0;
    bool oss = strcmp(w->family, "gpt_oss") == 0, qwen = strcmp(w->family, "qwen3_moe") == 0;
    failed += check_int(w->dir, a->norm, oss ? NORM_FP32 : NORM_LLAMA);
    failed += check_int(w->dir, a->qk_norm, qwen ? QK_NORM_HEAD : QK_NORM_NONE);
    failed += check_int(w->dir, a->qkv_bias, oss);
    failed += check_int(w->dir, a->o_bias, oss);
    failed += check_int(w->dir, a->sinks, oss);
    failed += check_int(w->dir, a->router_bias, oss);
    failed += check_int(w->dir, a->expert_bias, oss);
    failed += check_int(w->dir, a->router.kind, oss ? ROUTER_TOPK_SOFTMAX : ROUTER_SOFTMAX_TOPK);
    failed += check_int(w->dir, a->router.renormalize, !oss);
    failed += check_near(w->dir, a->act.alpha, oss ? 1.702 : 1, 1e-6);
    failed += check_near(w->dir, a->act.beta, oss ? 1 : 0, 0);
    failed += check_true(w->dir, oss ? a->act.limit == 7 : isinf(a->act.limit) != 0);
    return failed;
}

static int check_reference(const char *shared, const Want *w)
{
    char dir[1000];
    Err e;
    Arch a;
    GenerationDefaults gen;
    int failed = 0;
    snprintf(dir, sizeof dir, "%s/%s", shared, w->dir);
    if (arch_load(dir, NULL, 0, &a, &gen, &e) != ST_OK)
        return check_str(w->dir, e.text, "");
    failed += check_str(w->dir, a.family->model_type, w->family);
    failed += check_str(w->dir, a.model_type, w->family);
    failed += check_int(w->dir, a.n_layers, w->n_layers);
    failed += check_int(w->dir, a.hidden, w->hidden);
    failed += check_int(w->dir, a.vocab, w->vocab);
    failed += check_int(w->dir, a.n_heads, w->n_heads);
    failed += check_int(w->dir, a.n_kv_heads, w->n_kv_heads);
    failed += check_int(w->dir, a.head_dim, w->head_dim);
    failed += check_int(w->dir, a.max_positions, w->max_positions);
    failed += check_near(w->dir, a.eps, w->eps, 1e-12);
    failed += check_int(w->dir, a.router.n_experts, w->n_experts);
    failed += check_int(w->dir, a.router.top_k, w->top_k);
    failed += check_near(w->dir, a.router.scale, 1, 0);
    failed += check_int(w->dir, a.moe_inter, w->moe_inter);
    failed += check_int(w->dir, a.dense_inter, 0);
    failed += check_int(w->dir, a.tied, 0);
    failed += check_near(w->dir, a.attn_scale, 1 / sqrt(w->head_dim), 1e-7);
    failed += check_near(w->dir, a.embed_scale + a.residual_scale + a.logits_scale, 3, 0);
    failed += check_int(w->dir, a.layers[0].window, w->window0);
    failed += check_int(w->dir, a.layers[1].window, w->window1);
    failed += check_true(w->dir, a.layers[0].moe && a.layers[a.n_layers - 1].moe);
    failed += check_int(w->dir, a.n_eos, 1);
    failed += check_int(w->dir, a.eos[0], w->eos);
    failed += check_int(w->dir, a.bos, 0);
    failed += check_near(w->dir, a.rope.attention_factor, w->rope_af, 1e-7);
    failed += check_int(w->dir, a.rope.rotary_dim, w->head_dim);
    failed += check_int(w->dir, a.rope.layout, ROPE_HALF);
    failed += check_family_fields(w, &a);
    arch_free(&a);
    return failed;
}

/* --- single keys over a small configuration that is accepted --- */

#define SIZES                                                                                      \
    "\"hidden_size\": 64, \"num_hidden_layers\": 4, \"num_attention_heads\": 4, "                  \
    "\"vocab_size\": 100, \"max_position_embeddings\": 128"
#define QWEN                                                                                       \
    "\"model_type\": \"qwen3_moe\", " SIZES ", \"num_experts\": 8, \"num_experts_per_tok\": 2, "   \
    "\"moe_intermediate_size\": 32"
#define MIXTRAL                                                                                    \
    "\"model_type\": \"mixtral\", " SIZES ", \"num_local_experts\": 8, "                           \
    "\"num_experts_per_tok\": 2, \"intermediate_size\": 32"
#define OSS                                                                                        \
    "\"model_type\": \"gpt_oss\", " SIZES ", \"num_local_experts\": 8, "                           \
    "\"experts_per_token\": 2, \"intermediate_size\": 32"

static Status parse(const char *body, const char *generation, const char *accept, Arch *a,
                    GenerationDefaults *gen, Err *e)
{
    char text[4096];
    int n = snprintf(text, sizeof text, "{%s}", body);
    return arch_parse(text, (size_t)n, generation, generation ? strlen(generation) : 0, &accept,
                      accept ? 1 : 0, a, gen, e);
}

static const struct {
    const char *name, *body, *message;
} refused[] = {
    {"not JSON", "\"model_type\"", "config.json: byte"},
    {"no type", SIZES, "model_type is missing"},
    {"unknown family", "\"model_type\": \"bert\"",
     "model_type \"bert\" is not supported (qwen3_moe, mixtral, gpt_oss, deepseek_v3, "},
    {"duplicate key", QWEN ", \"vocab_size\": 100", "key \"vocab_size\" occurs twice"},
    {"unknown key", QWEN ", \"logit_softcap\": 30.0", "unknown key \"logit_softcap\""},
    {"unknown inner key",
     QWEN ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"mrope_section\": [1, 2]}",
     "unknown key \"rope_scaling.mrope_section\""},
    {"missing size", "\"model_type\": \"mixtral\", \"hidden_size\": 64",
     "num_hidden_layers is missing"},
    {"negative size", MIXTRAL ", \"num_key_value_heads\": -2",
     "num_key_value_heads is -2, expected an integer from 1"},
    {"huge size", MIXTRAL ", \"head_dim\": 1e300", "head_dim is 1e+300, expected an integer"},
    {"size with a fraction", MIXTRAL ", \"head_dim\": 16.5", "head_dim is 16.5, expected"},
    {"size as text", MIXTRAL ", \"head_dim\": \"16\"", "head_dim is \"16\", expected an integer"},
    {"uneven heads", MIXTRAL ", \"num_key_value_heads\": 3",
     "not a multiple of num_key_value_heads 3"},
    {"head_dim not whole",
     "\"model_type\": \"mixtral\", \"hidden_size\": 65, \"num_hidden_layers\": 1, "
     "\"num_attention_heads\": 4, \"vocab_size\": 9, \"max_position_embeddings\": 9",
     "head_dim is missing, and hidden_size 65"},
    {"other activation", QWEN ", \"hidden_act\": \"gelu\"", "hidden_act \"gelu\" is not supported"},
    {"negative eps", QWEN ", \"rms_norm_eps\": -1e-6", "rms_norm_eps is -1e-06, expected"},
    {"tie is a number", QWEN ", \"tie_word_embeddings\": 1",
     "tie_word_embeddings is 1, expected true"},
    {"eos past the end", QWEN ", \"eos_token_id\": [3, 100]",
     "eos_token_id is 100, expected token ids from 0 to 99"},
    {"eos negative", QWEN ", \"eos_token_id\": -1", "eos_token_id is -1, expected token ids"},
    {"too many eos",
     QWEN ", \"eos_token_id\": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]",
     "eos_token_id: more than 16 different ids"},
    {"more chosen than there are",
     "\"model_type\": \"mixtral\", " SIZES ", \"num_local_experts\": 2, "
     "\"num_experts_per_tok\": 3, \"intermediate_size\": 32",
     "3 experts per token, but only 2 experts"},
    {"names disagree", OSS ", \"num_experts_per_tok\": 3",
     "num_experts_per_tok is 3 but experts_per_token is 2"},
    {"longrope", QWEN ", \"rope_scaling\": {\"type\": \"longrope\", \"factor\": 4}",
     "rope_type \"longrope\" is not supported"},
    {"window of qwen3_moe", QWEN ", \"use_sliding_window\": true, \"sliding_window\": 64",
     "use_sliding_window is not supported"},
    {"qkv_bias of qwen3_moe", QWEN ", \"qkv_bias\": true", "qkv_bias is not supported"},
    {"no QK norm", QWEN ", \"use_qk_norm\": false", "use_qk_norm false is not supported"},
    {"sliding layer of qwen3_moe",
     QWEN ", \"layer_types\": [\"full_attention\", \"full_attention\", \"sliding_attention\", "
          "\"full_attention\"]",
     "layer 2 slides, but sliding_window is not set"},
    {"dense layer past the end", QWEN ", \"intermediate_size\": 8, \"mlp_only_layers\": [4]",
     "mlp_only_layers holds something that is not a layer, 0 to 3"},
    {"dense layer that is no number", QWEN ", \"mlp_only_layers\": [\"1\"]",
     "mlp_only_layers holds"},
    {"dense layer without width", QWEN ", \"mlp_only_layers\": [1]",
     "intermediate_size is missing"},
    {"step 0", QWEN ", \"decoder_sparse_step\": 0", "decoder_sparse_step is 0, expected"},
    {"bias of mixtral", MIXTRAL ", \"attention_bias\": true", "unknown key \"attention_bias\""},
    {"window 0", MIXTRAL ", \"sliding_window\": 0",
     "sliding_window is 0, expected an integer from 1"},
    {"unknown layer type",
     OSS ", \"layer_types\": [\"linear_attention\", \"full_attention\", \"full_attention\", "
         "\"full_attention\"]",
     "layer_types: \"linear_attention\" of layer 0 is not supported"},
    {"too few layer types", OSS ", \"layer_types\": [\"full_attention\"]",
     "layer_types is not a list of num_hidden_layers = 4 names"},
    {"limit 0", OSS ", \"swiglu_limit\": 0", "swiglu_limit is 0, expected"},
};

static int check_refused(void)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        Err e = {0};
        Arch a;
        GenerationDefaults gen;
        Status st = parse(refused[i].body, NULL, NULL, &a, &gen, &e);
        failed += check_int(refused[i].name, st, ST_INPUT);
        failed += check_has(refused[i].name, e.text, refused[i].message);
        arch_free(&a);
    }
    return failed;
}

static int good(const char *name, const char *body, const char *accept, Arch *a)
{
    Err e = {0};
    GenerationDefaults gen;
    Status st = parse(body, NULL, accept, a, &gen, &e);
    return st == ST_OK ? 0 : check_str(name, e.text, "");
}

static int check_accepted(void)
{
    Arch a;
    int failed = good(
        "empty unknown keys",
        QWEN ", \"a\": null, \"b\": false, \"c\": 0, \"d\": \"\", \"e\": [], \"f\": {}", NULL, &a);
    failed += check_int("no kv heads key", a.n_kv_heads, 4);
    failed += check_int("no head_dim key", a.head_dim, 16);
    failed += check_near("default eps", a.eps, 1e-6, 1e-12);
    failed += check_int("norm_topk_prob absent", a.router.renormalize, 0);
    failed += check_int("no bos", a.bos, -1);
    arch_free(&a);

    failed += good("accepted key", QWEN ", \"logit_softcap\": 30.0", "logit_softcap", &a);
    arch_free(&a);
    failed +=
        good("accepted inner key",
             QWEN ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"finetuned\": true}",
             "rope_scaling.finetuned", &a);
    arch_free(&a);

    failed += good("biases of qwen3_moe", QWEN ", \"attention_bias\": true", NULL, &a);
    failed += check_true("q, k, v and o", a.qkv_bias && a.o_bias);
    arch_free(&a);

    failed += good("dense layers",
                   QWEN ", \"intermediate_size\": 96, \"decoder_sparse_step\": 2, "
                        "\"mlp_only_layers\": [3]",
                   NULL, &a);
    failed += check_int("width of dense layers", a.dense_inter, 96);
    failed +=
        check_true("only layer 1 is sparse", a.layers && !a.layers[0].moe && a.layers[1].moe &&
                                                 !a.layers[2].moe && !a.layers[3].moe);
    arch_free(&a);

    failed += good("no experts at all",
                   "\"model_type\": \"qwen3_moe\", " SIZES
                   ", \"num_experts\": 0, \"intermediate_size\": 96",
                   NULL, &a);
    failed += check_int("dense model", a.router.n_experts + a.router.top_k + a.moe_inter, 0);
    failed += check_int("dense width", a.dense_inter, 96);
    arch_free(&a);

    failed += good("window of mixtral", MIXTRAL ", \"sliding_window\": 48", NULL, &a);
    failed += check_true("on all layers",
                         a.layers && a.layers[0].window == 48 && a.layers[3].window == 48);
    arch_free(&a);

    failed += good("published gpt_oss keys",
                   OSS ", \"attention_bias\": true, \"num_experts_per_tok\": 2, "
                       "\"initial_context_length\": 4096, \"swiglu_limit\": 5.5, "
                       "\"swiglu_alpha\": 1.5",
                   NULL, &a);
    failed += check_true("layers alternate without layer_types",
                         a.layers && a.layers[0].window == 128 && a.layers[1].window == 0 &&
                             a.layers[2].window == 128 && a.layers[3].window == 0);
    failed += check_near("limit", a.act.limit, 5.5, 0);
    failed += check_near("slope", a.act.alpha, 1.5, 0);
    arch_free(&a);
    failed += good("gpt_oss without biases", OSS ", \"attention_bias\": false", NULL, &a);
    failed += check_true("neither", !a.qkv_bias && !a.o_bias);
    arch_free(&a);
    return failed;
}

static int check_generation(void)
{
    Err e = {0};
    Arch a;
    GenerationDefaults gen;
    int failed =
        check_int("published defaults",
                  parse(QWEN ", \"eos_token_id\": 7",
                        "{\"bos_token_id\": 3, \"do_sample\": true, \"eos_token_id\": [5, 7], "
                        "\"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95}",
                        NULL, &a, &gen, &e),
                  ST_OK);
    failed += check_int("union of eos", a.n_eos, 2);
    failed += check_true("its members", a.eos[0] == 7 && a.eos[1] == 5);
    failed += check_true("sampling", gen.present && gen.has_do_sample && gen.do_sample);
    failed += check_near("temperature", gen.has_temperature ? gen.temperature : -1, 0.6, 0);
    failed += check_near("top_p", gen.has_top_p ? gen.top_p : -1, 0.95, 0);
    failed += check_int("top_k", gen.has_top_k ? gen.top_k : -1, 20);
    failed += check_true("absent ones",
                         !gen.has_min_p && !gen.has_repetition_penalty && !gen.has_max_new_tokens);
    arch_free(&a);

    failed += check_int("no file", parse(QWEN, NULL, NULL, &a, &gen, &e), ST_OK);
    failed += check_true("says so", !gen.present && a.n_eos == 0);
    arch_free(&a);

    int before = log_warnings();
    failed += check_int("unused key", parse(QWEN, "{\"num_beams\": 4}", NULL, &a, &gen, &e), ST_OK);
    failed += check_int("is warned about", log_warnings() - before, 1);
    arch_free(&a);

    failed += check_int("bad value", parse(QWEN, "{\"top_p\": 1.5}", NULL, &a, &gen, &e), ST_INPUT);
    failed += check_has("names file and key", e.text,
                        "generation_config.json: top_p is 1.5, expected a number from");
    return failed;
}

/* Key sets as the publishers ship them, with what their libraries leave behind. */
static const struct {
    const char *name, *config, *generation;
    int n_experts, head_dim, n_eos;
} published[] = {
    {"Qwen3-30B-A3B",
     "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"attention_bias\": false, "
     "\"attention_dropout\": "
     "0.0, \"bos_token_id\": 151643, \"decoder_sparse_step\": 1, \"eos_token_id\": 151645, "
     "\"head_dim\": 128, \"hidden_act\": \"silu\", \"hidden_size\": 2048, \"initializer_range\": "
     "0.02, "
     "\"intermediate_size\": 6144, \"max_position_embeddings\": 40960, \"max_window_layers\": 48, "
     "\"mlp_only_layers\": [], \"model_type\": \"qwen3_moe\", \"moe_intermediate_size\": 768, "
     "\"norm_topk_prob\": true, \"num_attention_heads\": 32, \"num_experts\": 128, "
     "\"num_experts_per_tok\": 8, \"num_hidden_layers\": 48, \"num_key_value_heads\": 4, "
     "\"output_router_logits\": false, \"rms_norm_eps\": 1e-06, \"rope_scaling\": null, "
     "\"rope_theta\": "
     "1000000.0, \"router_aux_loss_coef\": 0.001, \"sliding_window\": null, "
     "\"tie_word_embeddings\": "
     "false, \"torch_dtype\": \"bfloat16\", \"transformers_version\": \"4.51.0\", \"use_cache\": "
     "true, "
     "\"use_sliding_window\": false, \"vocab_size\": 151936}",
     "{\"bos_token_id\": 151643, \"do_sample\": true, \"eos_token_id\": [151645, 151643], "
     "\"pad_token_id\": 151643, \"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95, "
     "\"transformers_version\": \"4.51.0\"}",
     128, 128, 2},
    {"Qwen3-Coder, with the keys of its relatives",
     "{\"model_type\": \"qwen3_moe\", \"head_dim\": 128, \"hidden_size\": 6144, "
     "\"intermediate_size\": 8192, \"max_position_embeddings\": 262144, \"max_window_layers\": 62, "
     "\"moe_intermediate_size\": 2560, \"norm_topk_prob\": true, \"num_attention_heads\": 96, "
     "\"num_experts\": 160, \"num_experts_per_tok\": 8, \"num_hidden_layers\": 62, "
     "\"num_key_value_heads\": 8, \"qkv_bias\": false, \"rope_theta\": 10000000, "
     "\"shared_expert_intermediate_size\": 0, \"use_qk_norm\": true, \"vocab_size\": 151936}",
     NULL, 160, 128, 0},
    {"Mixtral-8x7B",
     "{\"architectures\": [\"MixtralForCausalLM\"], \"attention_dropout\": 0.0, \"bos_token_id\": "
     "1, "
     "\"eos_token_id\": 2, \"hidden_act\": \"silu\", \"hidden_size\": 4096, \"initializer_range\": "
     "0.02, \"intermediate_size\": 14336, \"max_position_embeddings\": 32768, \"model_type\": "
     "\"mixtral\", \"num_attention_heads\": 32, \"num_experts_per_tok\": 2, \"num_hidden_layers\": "
     "32, "
     "\"num_key_value_heads\": 8, \"num_local_experts\": 8, \"output_router_logits\": false, "
     "\"rms_norm_eps\": 1e-05, \"rope_theta\": 1000000.0, \"router_aux_loss_coef\": 0.02, "
     "\"sliding_window\": null, \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", "
     "\"transformers_version\": \"4.36.0\", \"use_cache\": true, \"vocab_size\": 32000}",
     "{\"_from_model_config\": true, \"bos_token_id\": 1, \"eos_token_id\": 2}", 8, 128, 1},
    {"gpt-oss-20b",
     "{\"architectures\": [\"GptOssForCausalLM\"], \"attention_bias\": true, "
     "\"attention_dropout\": 0.0, "
     "\"eos_token_id\": 200002, \"experts_per_token\": 4, \"head_dim\": 64, \"hidden_act\": "
     "\"silu\", "
     "\"hidden_size\": 2880, \"initial_context_length\": 4096, \"initializer_range\": 0.02, "
     "\"intermediate_size\": 2880, \"max_position_embeddings\": 131072, \"model_type\": "
     "\"gpt_oss\", "
     "\"num_attention_heads\": 64, \"num_experts_per_tok\": 4, \"num_hidden_layers\": 24, "
     "\"num_key_value_heads\": 8, \"num_local_experts\": 32, \"output_router_logits\": false, "
     "\"pad_token_id\": 199999, \"quantization_config\": {\"modules_to_not_convert\": "
     "[\"model.layers.*.self_attn\", \"model.layers.*.mlp.router\", \"model.embed_tokens\", "
     "\"lm_head\"], \"quant_method\": \"mxfp4\"}, \"rms_norm_eps\": 1e-05, \"rope_scaling\": "
     "{\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"factor\": 32.0, "
     "\"original_max_position_embeddings\": 4096, \"rope_type\": \"yarn\", \"truncate\": false}, "
     "\"rope_theta\": 150000, \"router_aux_loss_coef\": 0.9, \"sliding_window\": 128, "
     "\"swiglu_limit\": 7.0, \"tie_word_embeddings\": false, \"transformers_version\": \"4.55.0\", "
     "\"use_cache\": true, \"vocab_size\": 201088}",
     "{\"bos_token_id\": 199998, \"do_sample\": true, \"eos_token_id\": [200002, 199999, 200012], "
     "\"pad_token_id\": 199999, \"transformers_version\": \"4.55.0\"}",
     32, 64, 3},
};

static int check_published(void)
{
    int failed = 0, before = log_warnings();
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        const char *generation = published[i].generation;
        Err e = {0};
        Arch a;
        GenerationDefaults gen;
        if (arch_parse(published[i].config, strlen(published[i].config), generation,
                       generation ? strlen(generation) : 0, NULL, 0, &a, &gen, &e) != ST_OK)
            failed += check_str(published[i].name, e.text, "");
        failed += check_int(published[i].name, a.router.n_experts, published[i].n_experts);
        failed += check_int(published[i].name, a.head_dim, published[i].head_dim);
        failed += check_int(published[i].name, a.n_eos, published[i].n_eos);
        arch_free(&a);
    }
    return failed + check_int("without a warning", log_warnings() - before, 0);
}

/* Whatever bytes are damaged: refused with a message, or sizes within their bounds. */
static int check_damage(void)
{
    char text[2000];
    uint64_t r = 99;
    int failed = 0, n_ok = 0;
    for (int round = 0; round < 8000; round++) {
        const char *config = published[round % 4].config;
        size_t n = strlen(config);
        Err e = {0};
        Arch a;
        GenerationDefaults gen;
        memcpy(text, config, n);
        for (int k = 0; k < 1 + round % 2; k++) {
            r = r * 6364136223846793005u + 1442695040888963407u;
            text[(r >> 33) % n] = (char)(round % 3 ? '0' + (r >> 25) % 10 : r >> 25);
        }
        if (arch_parse(text, n, NULL, 0, NULL, 0, &a, &gen, &e) == ST_OK) {
            n_ok++;
            if (a.n_layers < 1 || a.hidden < 1 || a.vocab < 1 || a.n_heads % a.n_kv_heads != 0 ||
                a.router.top_k > a.router.n_experts || a.rope.rotary_dim > a.head_dim)
                failed += check_true("sizes within bounds", false);
        } else if (!e.text[0]) {
            failed += check_true("a message", false);
        }
        arch_free(&a);
    }
    return failed + check_true("some numbers stay possible", n_ok > 100 && n_ok < 7000);
}

static int check_no_file(void)
{
    Err e;
    Arch a;
    GenerationDefaults gen;
    int failed = check_int("no directory", arch_load("/nonexistent", NULL, 0, &a, &gen, &e), ST_IO);
    return failed + check_has("names it", e.text, "/nonexistent/config.json: No such file");
}

int main(void)
{
    int failed = check_refused() + check_accepted() + check_published() + check_generation() +
                 check_damage() + check_no_file();
    const char *shared = test_shared();
    for (size_t i = 0; shared && i < sizeof wants / sizeof *wants; i++)
        failed += check_reference(shared, &wants[i]);
    if (!shared && failed == 0)
        return test_skip("the reference configurations are not there; all else passed");
    return test_result(failed);
}
