/* tests/quant/test_recipe.c - small configurations, and what each module resolves to: the
 * dialects, the fixtures and the exclusion table of formats.md section 8, the resolution of
 * mixed precision. */
#include "quant/recipe.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A scheme in one line. Only what is there is written. */
static const char *text_of(const QuantScheme *s)
{
    static const char *const grids[] = {"", " tensor", " channel", " block", " group"};
    static const char *const rows[N_ROW_SCHEMES] = {"as they are", "fp8 static",   "fp8 token",
                                                    "fp8 group",   "nvfp4 static", "nvfp4 token",
                                                    "mxfp8"};
    static char text[400];
    const char *const names[] = {s ? s->weight : NULL, s ? s->scale : NULL, s ? s->global : NULL,
                                 s ? s->input : NULL, s ? s->shape : NULL};
    if (!s)
        return "plain";
    int n = snprintf(text, sizeof text, "%s: %s%s", s->algo, quant_format(s->format)->name,
                     grids[s->grid]);
    if (s->grid == GRID_BLOCK)
        n += snprintf(text + n, sizeof text - (size_t)n, " %dx%d", s->block_rows, s->block_cols);
    if (s->group)
        n += snprintf(text + n, sizeof text - (size_t)n, " of %d", s->group);
    n += snprintf(text + n, sizeof text - (size_t)n, ", rows %s%s,", rows[s->rows],
                  s->rows_power_of_two ? " 2^n" : "");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i])
            n += snprintf(text + n, sizeof text - (size_t)n, " %s", *names[i] ? names[i] : "-");
    snprintf(text + n, sizeof text - (size_t)n, "%s%s%s", s->global_divides ? " divides" : "",
             s->scale_may_be_float ? " float-ok" : "", s->transposed ? " transposed" : "");
    return text;
}

static Recipe *parse(const char *name, const char *config, const char *hf, int *failed)
{
    Recipe *r = NULL;
    Err e;
    if (recipe_parse(config, strlen(config), hf, hf ? strlen(hf) : 0, &r, &e) != ST_OK)
        *failed += check_str(name, e.text, "");
    return r;
}

/* What a question is about, by its first letter: l a linear layer, e an embedding, x experts with
 * gate_proj, up_proj and down_proj, w those with w1, w3 and w2, s experts in one tensor. */
static void ask(Recipe *r, const char *question, char *out, size_t size)
{
    static const char *const names[][3] = {{"gate_proj", "up_proj", "down_proj"},
                                           {"w1", "w3", "w2"}};
    const QuantScheme *s[3] = {NULL, NULL, NULL};
    const char *module = question + 2;
    Err e = {.text = ""};
    Status st;
    if (question[0] == 'l')
        st = recipe_linear(r, module, &s[0], &e);
    else if (question[0] == 'e')
        st = recipe_embedding(r, module, &s[0], &e);
    else
        st = recipe_experts(r, module, names[question[0] == 'w'], 4, question[0] == 's', s, &e);
    if (st != ST_OK) {
        snprintf(out, size, "%s", e.text);
        return;
    }
    int n = snprintf(out, size, "%s", text_of(s[0]));
    for (int i = 1; i < 3 && question[0] != 'l' && question[0] != 'e'; i++)
        if (s[i] != s[i - 1])
            n += snprintf(out + n, size - (size_t)n, " | %s", text_of(s[i]));
}

#define CONFIG(q) "{\"quantization_config\":" q "}"
#define FIXTURE_A_WITH(inputs)                                                                     \
    "{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\",\"ignore\":[\"lm_head\","             \
    "\"model.layers.0.mlp*\"],\"kv_cache_scheme\":{\"num_bits\":8,\"type\":\"float\","             \
    "\"dynamic\":false},\"config_groups\":{\"group_0\":{\"weights\":{\"num_bits\":4,\"type\":"     \
    "\"float\",\"group_size\":16,\"dynamic\":false},\"input_activations\":" inputs                 \
    ",\"targets\":[\"Linear\"]}}}"
#define FIXTURE_A                                                                                  \
    FIXTURE_A_WITH("{\"num_bits\":4,\"type\":\"float\",\"group_size\":16,\"dynamic\":false}")
#define FIXTURE_C                                                                                  \
    "{\"producer\":{\"name\":\"modelopt\",\"version\":\"0.29.0\"},\"quantization\":{"              \
    "\"quant_algo\":\"nvfp4\",\"group_size\":\"16\",\"kv_cache_quant_algo\":null,"                 \
    "\"exclude_modules\":[\"lm_head\"]}}"
#define FIXTURE_F_WITH(k)                                                                          \
    "{\"quant_method\":\"modelopt\",\"quant_algo\":\"MIXED_PRECISION\",\"ignore\":[],"             \
    "\"quantized_layers\":{\"model.layers.0.self_attn.q_proj\":{\"quant_algo\":\"FP8\"},"          \
    "\"model.layers.0.self_attn.k_proj\":{\"quant_algo\":\"" k "\"},"                              \
    "\"model.layers.0.self_attn.v_proj\":{\"quant_algo\":\"FP8\"},"                                \
    "\"model.layers.0.mlp.experts\":{\"quant_algo\":\"IQ2_XS\",\"group_size\":256,"                \
    "\"block_payload_bytes\":74,\"packing\":\"ggml\"},"                                            \
    "\"model.layers.1.mlp.experts.0.gate_proj\":{\"quant_algo\":\"NVFP4\",\"group_size\":16}}}"
#define MODELOPT(algo, rest)                                                                       \
    CONFIG("{\"quant_method\":\"modelopt\",\"quant_algo\":\"" algo "\"" rest "}")
#define MIXED(layers, rest) MODELOPT("MIXED_PRECISION", ",\"quantized_layers\":{" layers "}" rest)
#define CT(format, weights, inputs, rest)                                                          \
    CONFIG("{\"quant_method\":\"compressed-tensors\",\"format\":\"" format                         \
           "\",\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{" weights     \
           "},\"input_activations\":" inputs "}}" rest "}")

static const char fp8_text[] = "FP8: fp8 tensor, rows fp8 static, weight weight_scale input_scale";
static const char nvfp4_text[] = "NVFP4: nvfp4, rows nvfp4 static, weight weight_scale "
                                 "weight_scale_2 input_scale";
static const char nvfp4_16_text[] = "NVFP4: nvfp4 of 16, rows nvfp4 static, weight weight_scale "
                                    "weight_scale_2 input_scale";
static const char w4a16_text[] = "W4A16_NVFP4: nvfp4 of 16, rows as they are, weight weight_scale "
                                 "weight_scale_2";
static const char mxfp8_text[] = "MXFP8: mxfp8, rows mxfp8, weight weight_scale";
static const char blocks_text[] = "FP8 blocks: fp8 block 128x128, rows fp8 group, weight "
                                  "weight_scale_inv";

static const struct {
    const char *name, *config, *hf, *want_name;
    struct {
        const char *question, *want; /* all of the answer, or where it is longer a part of it */
    } ask[10];
    KvAlgo kv;
} cases[] = {
    {"no configuration", "{}", NULL, "none", {{"l lm_head", "plain"}, {"x m.experts", "plain"}}, 0},
    {"empty configuration", CONFIG("{}"), NULL, "none", {{"l a", "plain"}}, 0},
    {"null configuration", CONFIG("null"), NULL, "none", {{"s m.experts", "plain"}}, 0},
    /* the fixtures of section 8 */
    {"fixture A",
     CONFIG(FIXTURE_A),
     NULL,
     "modelopt NVFP4",
     {{"l lm_head", "plain"},
      {"l model.layers.0.self_attn.q_proj", nvfp4_16_text},
      {"x model.layers.0.mlp.experts", "plain"},
      {"l model.layers.0.mlp.up_proj", "plain"},
      {"x model.layers.10.mlp.experts", nvfp4_16_text},
      {"s model.layers.1.mlp.experts",
       "NVFP4: nvfp4 of 16, rows nvfp4 static, - weight_scale weight_scale_2 input_scale "
       "transposed"},
      {"e model.embed_tokens", "plain"}},
     KV_ALGO_FP8},
    {"fixture B: no input quantizer",
     CONFIG(FIXTURE_A_WITH("null")),
     NULL,
     "modelopt W4A16_NVFP4",
     {{"l a.q_proj", w4a16_text}, {"x m.experts", w4a16_text}},
     KV_ALGO_FP8},
    {"fixture C alone",
     "{}",
     FIXTURE_C,
     "modelopt NVFP4",
     {{"l lm_head", "plain"}, {"l model.lm_head", "plain"}, {"l a.q_proj", nvfp4_16_text}},
     0},
    {"fixture C inside config.json",
     CONFIG(FIXTURE_C),
     NULL,
     "modelopt NVFP4",
     {{"l lm_head", "plain"}, {"l a.q_proj", nvfp4_16_text}},
     0},
    {"fixture E",
     CONFIG("{\"quant_method\":\"mxfp8\",\"ignored_layers\":null}"),
     NULL,
     "mxfp8",
     {{"l lm_head", "MXFP8: mxfp8, rows mxfp8, weight weight_scale_inv"},
      {"w m.experts", "MXFP8: mxfp8, rows mxfp8, weight weight_scale_inv"}},
     0},
    {"fixture F",
     CONFIG(FIXTURE_F_WITH("FP8")),
     NULL,
     "modelopt MIXED_PRECISION",
     {{"l model.layers.0.self_attn.q_proj", fp8_text},
      {"l model.layers.0.self_attn.o_proj", "plain"},
      {"x model.layers.0.mlp.experts", "IQ2_XS: iq2_xs, rows as they are, weight"},
      {"x model.layers.1.mlp.experts", nvfp4_16_text},
      {"x model.layers.2.mlp.experts", "plain"},
      {"l lm_head", "plain"}},
     0},
    {"fixture H",
     CONFIG("{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"activation_scheme\":\"dynamic\","
            "\"weight_block_size\":[128,128]}"),
     NULL,
     "fp8 128x128",
     {{"l a.q_proj", blocks_text},
      {"x m.experts", blocks_text},
      {"l lm_head", "plain"},
      {"l model.layers.3.mlp.gate", "plain"},
      {"e model.embed_tokens", "plain"}},
     0},
    {"fixture I",
     CONFIG("{\"quant_method\":\"mxfp4\",\"modules_to_not_convert\":[\"lm_head\"]}"),
     NULL,
     "mxfp4",
     {{"s m.experts", "MXFP4: mxfp4, rows as they are, blocks scales"},
      {"x m.experts", "MXFP4: mxfp4, rows as they are, weight weight_scale float-ok"},
      {"l a.q_proj", "plain"}},
     0},
    /* ModelOpt's algorithms */
    {"FP8",
     MODELOPT("FP8", ""),
     NULL,
     "modelopt FP8",
     {{"l lm_head", fp8_text},
      {"s m.experts", "FP8: fp8 tensor, rows fp8 static, - weight_scale input_scale transposed"}},
     0},
    {"FP8_PER_CHANNEL_PER_TOKEN",
     MODELOPT("FP8_PER_CHANNEL_PER_TOKEN", ""),
     NULL,
     "modelopt FP8_PER_CHANNEL_PER_TOKEN",
     {{"x m.experts",
       "FP8_PER_CHANNEL_PER_TOKEN: fp8 channel, rows fp8 token, weight weight_scale"},
      {"s m.experts", "config.json: quantization_config: m.experts: experts in one tensor are not "
                      "known as FP8_PER_CHANNEL_PER_TOKEN"}},
     0},
    {"fp8_pb_wo in lower case",
     MODELOPT("fp8_pb_wo", ""),
     NULL,
     "modelopt FP8_PB_WO",
     {{"l a", "FP8_PB_WO: fp8 block 128x128, rows fp8 group, weight weight_scale"}},
     0},
    {"FP8_BLOCK_SCALES",
     MODELOPT("FP8_BLOCK_SCALES", ",\"group_size\":64"),
     NULL,
     "modelopt FP8_BLOCK_SCALES",
     {{"l a", "FP8_BLOCK_SCALES: fp8 block 64x64, rows as they are, weight weight_scale_inv"}},
     0},
    {"W4A16_NVFP4 with groups of 32",
     MODELOPT("W4A16_NVFP4", ",\"group_size\":32"),
     NULL,
     "modelopt W4A16_NVFP4",
     {{"l a", "W4A16_NVFP4: nvfp4 of 32, rows as they are, weight weight_scale weight_scale_2"}},
     0},
    {"E05 group_size 16.9 is 16",
     MODELOPT("NVFP4", ",\"group_size\":16.9"),
     NULL,
     "modelopt NVFP4",
     {{"l a", nvfp4_16_text}},
     0},
    {"E05 group_size null",
     MODELOPT("NVFP4", ",\"group_size\":null"),
     NULL,
     "modelopt NVFP4",
     {{"l a", nvfp4_text}},
     0},
    {"NVFP4 with a group that has inputs and one that has none",
     MODELOPT("NVFP4", ",\"config_groups\":{\"a\":{\"weights\":{}},\"b\":{\"input_activations\":"
                       "{}}}"),
     NULL,
     "modelopt NVFP4",
     {{"l a", nvfp4_text}},
     0},
    {"MXFP8", MODELOPT("MXFP8", ""), NULL, "modelopt MXFP8", {{"l a", mxfp8_text}}, 0},
    {"mxfp4",
     MODELOPT("mxfp4", ",\"exclude_modules\":[\"lm_head\"]"),
     NULL,
     "modelopt MXFP4",
     {{"l lm_head", "plain"},
      {"l a", "MXFP4: mxfp4, rows as they are, weight weight_scale float-ok"}},
     0},
    {"Q8_0 everywhere",
     MODELOPT("Q8_0", ",\"group_size\":32,\"block_payload_bytes\":34,\"packing\":\"ggml\","
                      "\"ignore\":[\"lm_head\"]"),
     NULL,
     "modelopt Q8_0",
     {{"l lm_head", "plain"},
      {"l a", "Q8_0: q8_0, rows as they are, weight"},
      {"e model.embed_tokens", "Q8_0: q8_0, rows as they are, weight"}},
     0},
    {"method and keys as modelopt_fp4 has them",
     CONFIG("{\"quant_method\":\"ModelOpt_FP4\",\"quant_algo\":\"NVFP4\"}"),
     NULL,
     "modelopt NVFP4",
     {{"l a", nvfp4_text}},
     0},
    {"no quant_method but quant_algo",
     CONFIG("{\"quant_algo\":\"FP8\"}"),
     NULL,
     "modelopt FP8",
     {{"l a", fp8_text}},
     0},
    {"text_config",
     "{\"text_config\":{\"quantization_config\":{\"quant_method\":\"modelopt\","
     "\"quant_algo\":\"FP8\"}}}",
     NULL,
     "modelopt FP8",
     {{"l a", fp8_text}},
     0},
    {"config.json comes before hf_quant_config.json",
     MODELOPT("FP8", ""),
     FIXTURE_C,
     "modelopt FP8",
     {{"l lm_head", fp8_text}},
     0},
    {"hf_quant_config.json has the layers of a mixed config",
     MODELOPT("MIXED_PRECISION", ""),
     "{\"producer\":{\"name\":\"modelopt\"},\"quantization\":{\"quant_algo\":\"MIXED_PRECISION\","
     "\"quantized_layers\":{\"a.b\":{\"quant_algo\":\"FP8\"}}}}",
     "modelopt MIXED_PRECISION",
     {{"l a.b", fp8_text}, {"l a.c", "plain"}},
     0},
    {"KV cache of a legacy file",
     "{}",
     "{\"producer\":{\"name\":\"modelopt\"},\"quantization\":{\"quant_algo\":\"FP8\","
     "\"kv_cache_quant_algo\":\"nvfp4\"}}",
     "modelopt FP8",
     {{"l a", fp8_text}},
     KV_ALGO_NVFP4},
    /* exclusion: the table of section 8, and more */
    {"exclusion by part of a name",
     MODELOPT("NVFP4", ",\"ignore\":[\"model.layers.1\"]"),
     NULL,
     "modelopt NVFP4",
     {{"x model.layers.12.mlp.experts", "plain"},
      {"x model.layers.2.mlp.experts", nvfp4_text},
      {"l model.layers.1.self_attn.q_proj", "plain"}},
     0},
    {"exclusion of a bank by one expert",
     MODELOPT("NVFP4", ",\"ignore\":[\"model.layers.3.mlp.experts.7.up_proj\"]"),
     NULL,
     "modelopt NVFP4",
     {{"x model.layers.3.mlp.experts", "plain"}, {"x model.layers.4.mlp.experts", nvfp4_text}},
     0},
    {"exclusion by wildcards",
     MODELOPT("NVFP4", ",\"ignore\":[\"*self_attn*\",\"a.[bc]?\"]"),
     NULL,
     "modelopt NVFP4",
     {{"l model.layers.0.self_attn.o_proj", "plain"},
      {"l a.b1", "plain"},
      {"l a.c1", "plain"},
      {"l a.d1", nvfp4_text},
      {"l a.b12", nvfp4_text}},
     0},
    {"exclusion heeds case",
     MODELOPT("NVFP4", ",\"ignore\":[\"LM_HEAD\"]"),
     NULL,
     "modelopt NVFP4",
     {{"l lm_head", nvfp4_text}},
     0},
    {"exclusion of lm_head within a name",
     MODELOPT("NVFP4", ",\"ignore\":[\"lm_head\"]"),
     NULL,
     "modelopt NVFP4",
     {{"l model.lm_head", "plain"}, {"l language_model.lm_head", "plain"}},
     0},
    {"exclusion of a fused name",
     MODELOPT("NVFP4", ",\"ignore\":[\"a.qkv_proj\"]"),
     NULL,
     "modelopt NVFP4",
     {{"l a.q_proj", "plain"}, {"l a.v_proj", "plain"}, {"l a.o_proj", nvfp4_text}},
     0},
    {"exclusion under a wrapper's other spelling",
     MODELOPT("NVFP4", ",\"ignore\":[\"language_model.model.layers.0.mlp.down_proj\"]"),
     NULL,
     "modelopt NVFP4",
     {{"l model.language_model.layers.0.mlp.down_proj", "plain"},
      {"l model.language_model.layers.1.mlp.down_proj", nvfp4_text}},
     0},
    {"vision towers are unquantized",
     MODELOPT("NVFP4", ""),
     NULL,
     "modelopt NVFP4",
     {{"l vision_tower.blocks.0.q_proj", "plain"},
      {"l model.vision_model.q_proj", "plain"},
      {"l vit_large_projector.fc1", "plain"},
      {"l model.q_proj", nvfp4_text}},
     0},
    {"exclusion of one projection of all experts",
     MODELOPT("NVFP4", ",\"ignore\":[\"*.experts.*.down_proj\"]"),
     NULL,
     "modelopt NVFP4",
     {{"x m.experts",
       "NVFP4: nvfp4, rows nvfp4 static, weight weight_scale weight_scale_2 input_scale | plain"}},
     0},
    {"exclusion of some experts",
     MODELOPT("NVFP4", ",\"ignore\":[\"*s.[01].down_proj\"]"),
     NULL,
     "modelopt NVFP4",
     {{"x m.experts", "config.json: quantization_config.ignore: excludes down_proj of 2 of 4 "
                      "experts of m.experts, expected all or none"}},
     0},
    /* mixed precision */
    {"mixed: head and wrapper by their other names",
     MIXED("\"lm_head\":{\"quant_algo\":\"fp8\"},\"language_model.model.layers.0.o_proj\":"
           "{\"quant_algo\":\"MXFP8\"}",
           ""),
     NULL,
     "modelopt MIXED_PRECISION",
     {{"l model.lm_head", fp8_text}, {"l model.language_model.layers.0.o_proj", mxfp8_text}},
     0},
    {"mixed: exclusion comes first",
     MIXED("\"a.b\":{\"quant_algo\":\"FP8\"}", ",\"ignore\":[\"a.b\"]"),
     NULL,
     "modelopt MIXED_PRECISION",
     {{"l a.b", "plain"}},
     0},
    {"mixed: a part without an entry follows its siblings",
     MIXED("\"a.q_proj\":{\"quant_algo\":\"FP8\"},\"b.gate_up_proj\":{\"quant_algo\":\"MXFP8\"}",
           ""),
     NULL,
     "modelopt MIXED_PRECISION",
     {{"l a.v_proj", fp8_text},
      {"l a.o_proj", "plain"},
      {"l b.up_proj", mxfp8_text},
      {"l b.down_proj", "plain"}},
     0},
    {"mixed: experts by their parent's projections, not by its router",
     MIXED("\"m.gate\":{\"quant_algo\":\"MXFP8\"},\"m.shared_experts.up_proj\":{\"quant_algo\":"
           "\"MXFP8\"},\"m.gate_proj\":{\"quant_algo\":\"FP8\"}",
           ""),
     NULL,
     "modelopt MIXED_PRECISION",
     {{"x m.experts", fp8_text}, {"l m.gate", mxfp8_text}},
     0},
    {"mixed: only a router and a shared expert beside the bank",
     MIXED("\"m.gate\":{\"quant_algo\":\"MXFP8\"},\"m.shared_experts.up_proj\":{\"quant_algo\":"
           "\"MXFP8\"}",
           ""),
     NULL,
     "modelopt MIXED_PRECISION",
     {{"x m.experts", "plain"}},
     0},
    {"mixed: experts that disagree",
     MIXED("\"m.experts.0.gate_proj\":{\"quant_algo\":\"FP8\"},\"m.experts.1.up_proj\":"
           "{\"quant_algo\":\"NVFP4\"}",
           ""),
     NULL,
     "modelopt MIXED_PRECISION",
     {{"x m.experts", "config.json: quantization_config.quantized_layers: m.experts.0.gate_proj is "
                      "FP8 but m.experts.1.up_proj is NVFP4: expected one algorithm"}},
     0},
    {"mixed: block FP8 for a linear layer and experts",
     MIXED("\"a\":{\"quant_algo\":\"FP8_BLOCK_SCALES\",\"group_size\":128},\"m.experts\":"
           "{\"quant_algo\":\"FP8_BLOCK_SCALES\",\"group_size\":128}",
           ""),
     NULL,
     "modelopt MIXED_PRECISION",
     {{"l a", "FP8_BLOCK_SCALES: fp8 block 128x128, rows fp8 group, weight weight_scale_inv"},
      {"x m.experts",
       "FP8_BLOCK_SCALES: fp8 block 128x128, rows fp8 group, weight weight_scale_inv"}},
     0},
    {"E15 an embedding that is not Q8_0",
     MIXED("\"model.embed_tokens\":{\"quant_algo\":\"FP8\"}", ""),
     NULL,
     "modelopt MIXED_PRECISION",
     {{"e model.embed_tokens", "model.embed_tokens is FP8, but an embedding can only be Q8_0"}},
     0},
    {"E15 an embedding in IQ2_XS",
     MIXED("\"model.embed_tokens\":{\"quant_algo\":\"IQ2_XS\",\"group_size\":256,"
           "\"block_payload_bytes\":74,\"packing\":\"ggml\"}",
           ""),
     NULL,
     "modelopt MIXED_PRECISION",
     {{"e model.embed_tokens", "model.embed_tokens is IQ2_XS, but an embedding can only be Q8_0"}},
     0},
    /* fp8 */
    {"fp8, static, with vLLM's and transformers' names",
     CONFIG("{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\",\"ignored_layers\":["
            "\"lm_head\"],\"kv_cache_scheme\":\"static\"}"),
     NULL,
     "fp8 static",
     {{"l a", "FP8 static: fp8 tensor, rows fp8 static, weight weight_scale input_scale"}},
     KV_ALGO_FP8},
    {"fp8, dynamic",
     CONFIG("{\"quant_method\":\"FP8\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":"
            "null}"),
     NULL,
     "fp8 dynamic",
     {{"l a", "FP8 dynamic: fp8 tensor, rows fp8 token, weight weight_scale"}},
     0},
    {"fp8 with power-of-two scales keeps DeepSeek-V3's names",
     CONFIG("{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":"
            "[128,128],\"scale_fmt\":\"ue8m0\"}"),
     NULL,
     "fp8 128x128",
     {{"l a", "FP8 blocks: fp8 block 128x128, rows fp8 group 2^n, weight weight_scale_inv"}},
     0},
    {"fp8 with lists of parents",
     CONFIG("{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":"
            "[128,128],\"modules_to_not_convert\":[\"model.layers.*.self_attn\"]}"),
     NULL,
     "fp8 128x128",
     {{"l model.layers.7.self_attn.q_proj", "plain"}, {"l model.layers.7.mlp.q_proj", blocks_text}},
     0},
    {"fp8 with MXFP4 experts",
     CONFIG("{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":"
            "[128,128],\"store_dtype\":\"mxfp4\"}"),
     NULL,
     "fp8 128x128, experts MXFP4",
     {{"l a", blocks_text},
      {"x m.experts", "MXFP4: mxfp4, rows as they are, weight weight_scale float-ok"}},
     0},
    {"DeepSeek-V4 with fp4 experts",
     "{\"model_type\":\"deepseek_v4\",\"quantization_config\":{\"quant_method\":\"fp8\","
     "\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128],\"scale_fmt\":\"ue8m0\"}}",
     NULL,
     "fp8 128x128, experts MXFP4",
     {{"l layers.0.attn.wq_a", "FP8 blocks: fp8 block 128x128, rows fp8 group 2^n, weight scale"},
      {"w layers.0.ffn.experts", "MXFP4: mxfp4, rows as they are, weight scale float-ok"},
      {"l head", "plain"}},
     0},
    {"DeepSeek-V4 with fp8 experts",
     "{\"expert_dtype\":\"fp8\",\"quantization_config\":{\"quant_method\":\"fp8\","
     "\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128]}}",
     NULL,
     "fp8 128x128",
     {{"w layers.0.ffn.experts", "FP8 blocks: fp8 block 128x128, rows fp8 group, weight scale"}},
     0},
    {"NVIDIA's NVFP4 experts in DeepSeek-V4",
     "{\"model_type\":\"deepseek_v4\",\"quantization_config\":{\"quant_method\":\"fp8\","
     "\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128],\"quant_algo\":"
     "\"MIXED_PRECISION\",\"moe_quant_algo\":\"NVFP4\",\"group_size\":16,\"ignore\":["
     "\"*.attn.*\",\"*.ffn.shared_experts.*\",\"head\",\"mtp.*\"],\"quantized_layers\":{"
     "\"layers.0.ffn.experts\":{\"quant_algo\":\"NVFP4\",\"group_size\":16}}}}",
     NULL,
     "fp8 128x128, experts NVFP4",
     {{"w layers.0.ffn.experts", nvfp4_16_text},
      {"w layers.1.ffn.experts", nvfp4_16_text},
      {"l layers.0.attn.wq_a", "FP8 blocks: fp8 block 128x128, rows fp8 group, weight scale"},
      {"l layers.0.ffn.shared_experts.w1",
       "FP8 blocks: fp8 block 128x128, rows fp8 group, weight scale"}},
     0},
    /* compressed-tensors */
    {"ct nvfp4",
     CT("nvfp4-pack-quantized",
        "\"num_bits\":4,\"type\":\"float\",\"symmetric\":true,\"group_size\":16,\"strategy\":"
        "\"tensor_group\"",
        "{\"num_bits\":4,\"type\":\"float\",\"group_size\":16,\"strategy\":\"tensor_group\","
        "\"dynamic\":\"local\"}",
        ",\"ignore\":[\"lm_head\",\"re:.*mlp.gate$\"],\"kv_cache_scheme\":{\"num_bits\":8,"
        "\"type\":\"float\",\"dynamic\":false}"),
     NULL,
     "compressed-tensors nvfp4-pack-quantized",
     {{"l lm_head", "plain"},
      {"l model.lm_head", "nvfp4-pack-quantized: nvfp4 of 16, rows nvfp4 static, weight_packed "
                          "weight_scale weight_global_scale input_global_scale divides"},
      {"l model.layers.0.mlp.gate", "plain"},
      {"l model.layers.0.mlp.gate_proj", "nvfp4-pack-quantized: nvfp4"},
      {"x m.experts", "nvfp4-pack-quantized: nvfp4"},
      {"e model.embed_tokens", "plain"}},
     KV_ALGO_FP8},
    {"ct mxfp8 with activations",
     CT("mxfp8-quantized",
        "\"num_bits\":8,\"type\":\"float\",\"group_size\":32,\"strategy\":\"group\"",
        "{\"num_bits\":8,\"type\":\"float\",\"group_size\":32,\"strategy\":\"group\","
        "\"dynamic\":true}",
        ""),
     NULL,
     "compressed-tensors mxfp8-quantized",
     {{"l a", "mxfp8-quantized: mxfp8 of 32, rows mxfp8, weight weight_scale"}},
     0},
    {"ct fp8 static",
     CT("float-quantized", "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"tensor\"",
        "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"tensor\",\"dynamic\":false}", ""),
     NULL,
     "compressed-tensors float-quantized",
     {{"l a", "float-quantized: fp8 tensor, rows fp8 static, weight weight_scale input_scale"}},
     0},
    {"ct fp8, weights alone, by channel",
     CT("float-quantized", "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\"", "null",
        ""),
     NULL,
     "compressed-tensors float-quantized",
     {{"l a", "float-quantized: fp8 channel, rows as they are, weight weight_scale"}},
     0},
    {"ct fp8 by blocks of 64 x 128",
     CT("float-quantized",
        "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"block\",\"block_structure\":[64,128]",
        "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"group\",\"group_size\":128,"
        "\"dynamic\":true}",
        ""),
     NULL,
     "compressed-tensors float-quantized",
     {{"l a", "float-quantized: fp8 block 64x128, rows fp8 group, weight weight_scale"}},
     0},
    {"ct int4 by groups of 64, order of calibration",
     CT("pack-quantized",
        "\"num_bits\":4,\"type\":\"int\",\"symmetric\":true,\"group_size\":64,\"strategy\":"
        "\"group\",\"actorder\":\"weight\"",
        "null", ""),
     NULL,
     "compressed-tensors pack-quantized",
     {{"l a", "pack-quantized: int4 group of 64, rows as they are, weight_packed weight_scale "
              "weight_shape"}},
     0},
    {"ct int4 by channel",
     CT("pack-quantized", "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"channel\"", "null", ""),
     NULL,
     "compressed-tensors pack-quantized",
     {{"l a", "pack-quantized: int4 channel, rows as they are, weight_packed weight_scale "
              "weight_shape"}},
     0},
    {"ct mixed-precision: names before regular expressions before classes",
     CONFIG("{\"quant_method\":\"compressed-tensors\",\"format\":\"mixed-precision\","
            "\"config_groups\":{\"c\":{\"targets\":[\"Linear\"],\"format\":\"pack-quantized\","
            "\"weights\":{\"num_bits\":4,\"type\":\"int\",\"strategy\":\"channel\"}},\"b\":{"
            "\"targets\":[\"re:.*self_attn\\\\.[qkv]_proj$\",\"re:.*experts\\\\.\\\\d+\\\\.down_"
            "proj$\"],\"format\":\"float-quantized\",\"weights\":{\"num_bits\":8,\"type\":"
            "\"float\",\"strategy\":\"channel\"}},\"a\":{\"targets\":[\"m.self_attn.q_proj\"],"
            "\"format\":\"mxfp4-pack-quantized\",\"weights\":{\"num_bits\":4,\"type\":\"float\","
            "\"strategy\":\"group\",\"group_size\":32}}}}"),
     NULL,
     "compressed-tensors mixed-precision",
     {{"l m.self_attn.q_proj", "mxfp4-pack-quantized: mxfp4 of 32, rows as they are"},
      {"l m.self_attn.k_proj", "float-quantized: fp8 channel, rows as they are"},
      {"l m.self_attn.o_proj", "pack-quantized: int4 channel"},
      {"x m.experts", "| float-quantized: fp8 channel"}},
     0},
    {"ct: some experts ignored",
     CT("float-quantized", "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\"", "null",
        ",\"ignore\":[\"re:.*experts.[12].up_proj\"]"),
     NULL,
     "compressed-tensors float-quantized",
     {{"x m.experts", "m.experts.1.up_proj is unquantized, but expert 0's is float-quantized"}},
     0},
    /* published configurations, in a few lines of each */
    {"Qwen3.6: a wrapper with an entry for each expert",
     MIXED("\"model.language_model.layers.0.self_attn.q_proj\":{\"quant_algo\":\"FP8\"},"
           "\"model.language_model.layers.0.mlp.experts.0.gate_proj\":{\"quant_algo\":"
           "\"W4A16_NVFP4\",\"group_size\":16},"
           "\"model.language_model.layers.0.mlp.experts.3.down_proj\":{\"quant_algo\":"
           "\"W4A16_NVFP4\",\"group_size\":16},"
           "\"model.language_model.layers.0.mlp.shared_expert.up_proj\":{\"quant_algo\":"
           "\"W4A16_NVFP4\",\"group_size\":16}",
           ",\"ignore\":[\"mtp.layers.0*\",\"mtp*\"]"),
     NULL,
     "modelopt MIXED_PRECISION",
     {{"x model.language_model.layers.0.mlp.experts", w4a16_text},
      {"x language_model.model.layers.0.mlp.experts", w4a16_text},
      {"l model.language_model.layers.0.mlp.shared_expert.gate_proj", w4a16_text},
      {"l model.language_model.layers.0.mlp.gate", "plain"},
      {"l model.language_model.layers.0.self_attn.q_proj", fp8_text},
      {"x mtp.layers.0.mlp.experts", "plain"}},
     0},
    {"MiniMax-M3: MXFP8 layers around NVFP4 experts",
     MIXED("\"language_model.model.layers.0.self_attn.q_proj\":{\"quant_algo\":\"MXFP8\"},"
           "\"language_model.model.layers.0.block_sparse_moe.experts\":{\"quant_algo\":"
           "\"NVFP4\",\"group_size\":16}",
           ""),
     NULL,
     "modelopt MIXED_PRECISION",
     {{"w language_model.model.layers.0.block_sparse_moe.experts", nvfp4_16_text},
      {"l language_model.model.layers.0.self_attn.k_proj", mxfp8_text},
      {"l language_model.model.layers.0.block_sparse_moe.gate", "plain"}},
     0},
    {"Kimi-K3: only experts, by expressions that exclude the rest",
     CT("mxfp4-pack-quantized",
        "\"num_bits\":4,\"type\":\"float\",\"strategy\":\"group\",\"group_size\":32,"
        "\"scale_dtype\":\"torch.uint8\"",
        "null",
        ",\"ignore\":[\"re:.*self_attn.*\",\"re:.*shared_experts.*\","
        "\"re:.*mlp\\\\.(gate|up|gate_up|down)_proj.*\",\"re:.*lm_head.*\"]"),
     NULL,
     "compressed-tensors mxfp4-pack-quantized",
     {{"x model.layers.1.mlp.experts", "mxfp4-pack-quantized: mxfp4 of 32, rows as they are"},
      {"l model.layers.1.mlp.shared_experts.up_proj", "plain"},
      {"l model.layers.0.mlp.down_proj", "plain"},
      {"l model.layers.0.self_attn.kv_b_proj", "plain"},
      {"l lm_head", "plain"}},
     0},
    {"ct in compression_config",
     "{\"compression_config\":{\"format\":\"float-quantized\",\"config_groups\":{\"g\":{"
     "\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":8,\"type\":\"float\"}}}}}",
     NULL,
     "compressed-tensors float-quantized",
     {{"l a", "float-quantized: fp8 tensor, rows as they are, weight weight_scale"}},
     0},
};

static int test_cases(void)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Recipe *r = parse(cases[i].name, cases[i].config, cases[i].hf, &failed);
        if (!r)
            continue;
        failed += check_str(cases[i].name, recipe_name(r), cases[i].want_name);
        failed += check_int(cases[i].name, recipe_kv_algo(r), cases[i].kv);
        for (int k = 0; k < 10 && cases[i].ask[k].question; k++) {
            char got[1024], name[200];
            snprintf(name, sizeof name, "%s: %s", cases[i].name, cases[i].ask[k].question);
            ask(r, cases[i].ask[k].question, got, sizeof got);
            failed += check_has(name, got, cases[i].ask[k].want);
            if (strcmp(cases[i].ask[k].want, "plain") == 0)
                failed += check_str(name, got, "plain");
        }
        recipe_free(r);
    }
    return failed;
}

/* --- fused layers --- */

static int test_fused(void)
{
    static const struct {
        const char *name, *config, *want;
    } fused[] = {
        {"all quantized", MODELOPT("FP8", ""), NULL},
        {"all excluded", MODELOPT("FP8", ",\"ignore\":[\"a.q_proj\",\"a.k_proj\",\"a.v_proj\"]"),
         NULL},
        {"excluded by the fused name", MODELOPT("FP8", ",\"ignore\":[\"a.qkv_proj\"]"), NULL},
        {"E16 one excluded", MODELOPT("FP8", ",\"ignore\":[\"a.q_proj\"]"),
         "config.json: quantization_config: a.qkv_proj: q_proj is excluded, but k_proj is FP8: "
         "expected all parts"},
        {"E14 two algorithms",
         MIXED("\"a.q_proj\":{\"quant_algo\":\"FP8\"},\"a.k_proj\":{\"quant_algo\":\"NVFP4\"},"
               "\"a.v_proj\":{\"quant_algo\":\"FP8\"}",
               ""),
         "config.json: quantization_config: a.qkv_proj: q_proj is FP8, but k_proj is NVFP4"},
        {"missing parts are tolerated", MIXED("\"a.q_proj\":{\"quant_algo\":\"FP8\"}", ""), NULL},
        {"E14 the missing part has no one to follow",
         MIXED("\"a.q_proj\":{\"quant_algo\":\"FP8\"},\"a.k_proj\":{\"quant_algo\":\"MXFP8\"}", ""),
         "a.qkv_proj: q_proj is FP8, but k_proj is MXFP8"},
    };
    static const char *const shards[] = {"q_proj", "k_proj", "v_proj"};
    int failed = 0;
    for (size_t i = 0; i < sizeof fused / sizeof *fused; i++) {
        Recipe *r = parse(fused[i].name, fused[i].config, NULL, &failed);
        Err e = {.text = ""};
        if (!r)
            continue;
        Status st = recipe_check_fused(r, "a", "qkv_proj", shards, 3, &e);
        failed += check_int(fused[i].name, st, fused[i].want ? ST_INPUT : ST_OK);
        failed += check_has(fused[i].name, e.text, fused[i].want ? fused[i].want : "");
        recipe_free(r);
    }
    return failed;
}

/* --- what no question has met --- */

static int test_unused(void)
{
    int failed = 0;
    const QuantScheme *s;
    Err e;
    Recipe *r = parse("unused",
                      MIXED("\"a.b\":{\"quant_algo\":\"FP8\"},\"a.c\":{\"quant_algo\":\"FP8\"}",
                            ",\"ignore\":[\"x\",\"y*\",\"z.z\",\"x\"]"),
                      NULL, &failed);
    if (!r)
        return failed;
    static const char *const before[] = {"x", "y*", "z.z", "x", "a.b", "a.c"};
    for (int i = 0; i < 6; i++)
        failed += check_str("unused, before", recipe_unused(r, i), before[i]);
    failed += check_true("unused, end", recipe_unused(r, 6) == NULL);
    static const char *const modules[] = {"a.b", "y.q", "m.x"};
    for (int i = 0; i < 3; i++)
        failed += check_int(modules[i], recipe_linear(r, modules[i], &s, &e), ST_OK);
    failed += check_str("unused, after", recipe_unused(r, 0), "z.z");
    failed += check_str("unused, after", recipe_unused(r, 1), "a.c");
    failed += check_true("unused, end", recipe_unused(r, 2) == NULL);
    recipe_free(r);
    return failed;
}

int main(void)
{
    return test_result(test_cases() + test_fused() + test_unused());
}
