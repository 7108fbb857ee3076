/* tests/quant/test_recipe_errors.c - configurations that are refused, each with the words of its
 * message, and those that are read with a warning: the conditions of formats.md 3.7 that a
 * configuration alone can meet, by their numbers, what is refused by name, and damaged text. */
#include "quant/recipe.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG(q) "{\"quantization_config\":" q "}"
#define MODELOPT(rest) CONFIG("{\"quant_method\":\"modelopt\"" rest "}")
#define MIXED(layers) MODELOPT(",\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":" layers)
#define LEGACY(rest) "{\"producer\":{\"name\":\"modelopt\"},\"quantization\":{" rest "}}"
#define CODEC(rest) MIXED("{\"a\":{\"quant_algo\":\"IQ2_XS\"" rest "}}")
#define FP8(rest) CONFIG("{\"quant_method\":\"fp8\"" rest "}")
#define DYNAMIC ",\"activation_scheme\":\"dynamic\""
#define CT(format, weights, inputs)                                                                \
    CONFIG("{\"quant_method\":\"compressed-tensors\",\"format\":\"" format                         \
           "\",\"config_groups\":{\"g\":{\"targets\":[\"Linear\"],\"weights\":{" weights           \
           "},\"input_activations\":" inputs "}}}")
#define CT_GROUP(rest)                                                                             \
    CONFIG("{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\","              \
           "\"config_groups\":{\"g\":{" rest "}}}")
#define CT_FP8 "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\""
#define CT_INT4 "\"num_bits\":4,\"type\":\"int\",\"group_size\":32,\"strategy\":\"group\""

static const struct {
    const char *name, *config, *hf;
    const char *want[3]; /* parts of the message: file and key, what is wrong, what is accepted */
} refused[] = {
    {"E01 quantization is a list",
     CONFIG("{\"quantization\":[]}"),
     NULL,
     {"config.json: quantization_config.quantization: is not an object"}},
    {"E01 quantization is null",
     "{}",
     "{\"producer\":{\"name\":\"modelopt\"},\"quantization\":null}",
     {"hf_quant_config.json: quantization: is not an object"}},
    {"E02 no quant_algo",
     MODELOPT(""),
     NULL,
     {"config.json: quantization_config.quant_algo: is missing", "expected FP8,",
      "MIXED_PRECISION"}},
    {"E02 quant_algo is empty", MODELOPT(",\"quant_algo\":\"\""), NULL, {"quant_algo: is missing"}},
    {"E02 quant_algo is null",
     "{}",
     LEGACY("\"quant_algo\":null"),
     {"hf_quant_config.json: quantization.quant_algo: is missing"}},
    {"E02 quant_algo is a number",
     MODELOPT(",\"quant_algo\":8"),
     NULL,
     {"quantization_config.quant_algo: is a number, expected a string"}},
    {"E03 KV algorithm is a list",
     "{}",
     LEGACY("\"quant_algo\":\"FP8\",\"kv_cache_quant_algo\":[\"FP8\"]"),
     {"quantization.kv_cache_quant_algo: is a list, expected a string"}},
    {"E03 KV scheme is a number",
     MODELOPT(",\"quant_algo\":\"FP8\",\"kv_cache_scheme\":8"),
     NULL,
     {"kv_cache_scheme: is neither null nor an object nor a string"}},
    {"E04 ignore is null",
     MODELOPT(",\"quant_algo\":\"FP8\",\"ignore\":null"),
     NULL,
     {"quantization_config.ignore: is null, expected a list of module names"}},
    {"E04 exclude_modules is a string",
     "{}",
     LEGACY("\"quant_algo\":\"FP8\",\"exclude_modules\":\"lm_head\""),
     {"quantization.exclude_modules: is a string, expected a list"}},
    {"E04 ignore holds a number",
     MODELOPT(",\"quant_algo\":\"FP8\",\"ignore\":[1]"),
     NULL,
     {"ignore: holds a number, expected module names"}},
    {"E04 ignore holds an empty name",
     MODELOPT(",\"quant_algo\":\"FP8\",\"ignore\":[\"\"]"),
     NULL,
     {"ignore: holds an empty name"}},
    {"E05 group_size is a list",
     MODELOPT(",\"quant_algo\":\"NVFP4\",\"group_size\":[16]"),
     NULL,
     {"quantization_config.group_size: is a list, expected an integer"}},
    {"E05 group_size is a word",
     MODELOPT(",\"quant_algo\":\"NVFP4\",\"group_size\":\"big\""),
     NULL,
     {"group_size: is a string, expected an integer"}},
    {"E05 group_size is text with a fraction",
     MODELOPT(",\"quant_algo\":\"NVFP4\",\"group_size\":\"16.9\""),
     NULL,
     {"group_size: is a string, expected an integer"}},
    {"E05 group_size true is 1",
     MODELOPT(",\"quant_algo\":\"NVFP4\",\"group_size\":true"),
     NULL,
     {"group_size is 1, expected 16 or 32 for NVFP4"}},
    {"E05 group_size is out of range",
     MODELOPT(",\"quant_algo\":\"NVFP4\",\"group_size\":1e300"),
     NULL,
     {"group_size: is a number, expected an integer"}},
    {"E05 group_size of an entry",
     MIXED("{\"a\":{\"quant_algo\":\"NVFP4\",\"group_size\":{}}}"),
     NULL,
     {"quantized_layers.a: ", "group_size: is an object, expected an integer"}},
    {"E06 unknown algorithm",
     MODELOPT(",\"quant_algo\":\"FP6\""),
     NULL,
     {"quantization_config.quant_algo: \"FP6\" is not known",
      "expected FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, FP8_BLOCK_SCALES, NVFP4, W4A16_NVFP4, "
      "MXFP8, MXFP4, MIXED_PRECISION, Q8_0, IQ2_XS or IQ2_XXS"}},
    {"E06 the old spelling NVFP4_W4A16",
     MODELOPT(",\"quant_algo\":\"NVFP4_W4A16\""),
     NULL,
     {"\"NVFP4_W4A16\" is not known"}},
    {"E06 IQ1_S", MODELOPT(",\"quant_algo\":\"IQ1_S\""), NULL, {"\"IQ1_S\" is not known"}},
    {"E06 of an entry",
     MIXED("{\"a.b\":{\"quant_algo\":\"FP6\"}}"),
     NULL,
     {"quantization_config.quantized_layers.a.b: \"FP6\" is not known"}},
    {"E06 nested mixed precision",
     MIXED("{\"a.b\":{\"quant_algo\":\"MIXED_PRECISION\"}}"),
     NULL,
     {"quantized_layers.a.b: \"MIXED_PRECISION\" is not known"}},
    {"E07 FP8 under the NVFP4 method",
     CONFIG("{\"quant_method\":\"modelopt_fp4\",\"quant_algo\":\"FP8\"}"),
     NULL,
     {"quant_algo: \"FP8\" is not what quant_method \"modelopt_fp4\" is for"}},
    {"E07 NVFP4 under the MXFP8 method",
     CONFIG("{\"quant_method\":\"modelopt_mxfp8\",\"quant_algo\":\"NVFP4\"}"),
     NULL,
     {"\"NVFP4\" is not what quant_method \"modelopt_mxfp8\" is for"}},
    {"E07 FP8 under the mixed method",
     CONFIG("{\"quant_method\":\"modelopt_mixed\",\"quant_algo\":\"FP8\"}"),
     NULL,
     {"expected MIXED_PRECISION"}},
    {"E07 an unknown method of ModelOpt",
     CONFIG("{\"quant_method\":\"modelopt_int3\",\"quant_algo\":\"FP8\"}"),
     NULL,
     {"quant_method: \"modelopt_int3\" is not known, expected modelopt, modelopt_fp4"}},
    {"E08 fixture D: legacy NVFP4 without kv_cache_quant_algo",
     "{}",
     LEGACY("\"quant_algo\":\"nvfp4\",\"group_size\":\"16\",\"exclude_modules\":[\"lm_head\"]"),
     {"hf_quant_config.json: quantization.kv_cache_quant_algo: is missing",
      "beside quant_algo NVFP4"}},
    {"E08 legacy NVFP4 without group_size",
     "{}",
     LEGACY("\"quant_algo\":\"NVFP4\",\"kv_cache_quant_algo\":null,\"exclude_modules\":[]"),
     {"quantization.group_size: is missing"}},
    {"E08 legacy W4A16_NVFP4 without exclude_modules",
     "{}",
     LEGACY("\"quant_algo\":\"W4A16_NVFP4\",\"kv_cache_quant_algo\":null,\"group_size\":16"),
     {"quantization.exclude_modules: is missing"}},
    {"E09 legacy MXFP8 without kv_cache_quant_algo",
     "{}",
     LEGACY("\"quant_algo\":\"MXFP8\",\"exclude_modules\":[]"),
     {"quantization.kv_cache_quant_algo: is missing", "beside quant_algo MXFP8"}},
    {"E09 legacy MXFP8 without exclude_modules",
     "{}",
     LEGACY("\"quant_algo\":\"MXFP8\",\"kv_cache_quant_algo\":null"),
     {"quantization.exclude_modules: is missing"}},
    {"E11 mixed without entries",
     MODELOPT(",\"quant_algo\":\"MIXED_PRECISION\""),
     NULL,
     {"quantization_config.quantized_layers: is missing, expected an entry for each"}},
    {"E11 mixed with no entry", MIXED("{}"), NULL, {"quantized_layers: has 0 entries"}},
    {"E11 mixed with a list", MIXED("[\"a\"]"), NULL, {"quantized_layers: is not an object"}},
    {"an entry without algorithm",
     MIXED("{\"a.b\":{\"group_size\":16}}"),
     NULL,
     {"quantized_layers.a.b: has no quant_algo"}},
    {"an entry that is a string",
     MIXED("{\"a.b\":\"FP8\"}"),
     NULL,
     {"quantized_layers.a.b: is not an object"}},
    {"an entry twice",
     MIXED("{\"a\":{\"quant_algo\":\"FP8\"},\"a\":{\"quant_algo\":\"FP8\"}}"),
     NULL,
     {"quantized_layers.a: occurs twice"}},
    {"E12 codec without group_size",
     CODEC(",\"block_payload_bytes\":74,\"packing\":\"ggml\""),
     NULL,
     {"quantized_layers.a: group_size of IQ2_XS is missing, expected the number 256"}},
    {"E12 codec with group_size as text",
     CODEC(",\"group_size\":\"256\",\"block_payload_bytes\":74,\"packing\":\"ggml\""),
     NULL,
     {"group_size of IQ2_XS is a string, expected the number 256"}},
    {"E12 codec with another payload",
     CODEC(",\"group_size\":256,\"block_payload_bytes\":66,\"packing\":\"ggml\""),
     NULL,
     {"block_payload_bytes of IQ2_XS is another, expected the number 74"}},
    {"E12 codec with another packing",
     CODEC(",\"group_size\":256,\"block_payload_bytes\":74,\"packing\":\"rows\""),
     NULL,
     {"packing of IQ2_XS is not \"ggml\""}},
    {"E12 codec padded on the left",
     CODEC(",\"group_size\":256,\"block_payload_bytes\":74,\"packing\":\"ggml\",\"row_padding\":"
           "\"left\""),
     NULL,
     {"row_padding of IQ2_XS is not \"right\""}},
    {"E12 one codec for all without its keys",
     MODELOPT(",\"quant_algo\":\"Q8_0\""),
     NULL,
     {"quantization_config.quant_algo: group_size of Q8_0 is missing, expected the number 32"}},
    {"E13 two sizes of blocks",
     MIXED("{\"a\":{\"quant_algo\":\"FP8_BLOCK_SCALES\"},\"b\":{\"quant_algo\":"
           "\"FP8_BLOCK_SCALES\",\"group_size\":64}}"),
     NULL,
     {"quantized_layers.b: has blocks of 64, but another entry has blocks of 128"}},
    {"E17 no producer",
     "{}",
     "{\"quantization\":{\"quant_algo\":\"FP8\"}}",
     {"hf_quant_config.json: producer.name: is not \"modelopt\""}},
    {"E17 another producer",
     "{}",
     "{\"producer\":{\"name\":\"quark\"},\"quantization\":{\"quant_algo\":\"FP8\"}}",
     {"hf_quant_config.json: producer.name: is not \"modelopt\""}},
    {"E17 nothing but a producer",
     "{}",
     "{\"producer\":{\"name\":\"modelopt\"}}",
     {"hf_quant_config.json: quantization: is missing"}},
    {"E18 no activation_scheme",
     FP8(""),
     NULL,
     {"quantization_config.activation_scheme: \"\" is not known, expected \"static\" or "
      "\"dynamic\""}},
    {"E18 unknown activation_scheme",
     FP8(",\"activation_scheme\":\"token\""),
     NULL,
     {"activation_scheme: \"token\" is not known"}},
    {"E18 blocks with static activations",
     FP8(",\"activation_scheme\":\"static\",\"weight_block_size\":[128,128]"),
     NULL,
     {"weight_block_size: stands beside activation_scheme \"static\", expected \"dynamic\""}},
    {"E18 blocks of three sizes",
     FP8(DYNAMIC ",\"weight_block_size\":[128,128,1]"),
     NULL,
     {"weight_block_size: is not a list of two sizes, expected [128, 128]"}},
    {"E18 blocks of one size",
     FP8(DYNAMIC ",\"weight_block_size\":128"),
     NULL,
     {"weight_block_size: is not a list of two sizes"}},
    {"E18 blocks of no size",
     FP8(DYNAMIC ",\"weight_block_size\":[128,0]"),
     NULL,
     {"weight_block_size: is not a list of two sizes"}},
    {"fp8 in E5M2",
     FP8(DYNAMIC ",\"fmt\":\"e5m2\""),
     NULL,
     {"fmt: \"e5m2\" is not supported, expected \"e4m3\""}},
    {"fp8 with unknown scales",
     FP8(DYNAMIC ",\"scale_fmt\":\"ue5m3\""),
     NULL,
     {"scale_fmt: \"ue5m3\" is not known, expected \"ue8m0\""}},
    {"fp8 with experts stored otherwise",
     FP8(DYNAMIC ",\"store_dtype\":\"int4\""),
     NULL,
     {"store_dtype: \"int4\" is not known, expected \"mxfp4\""}},
    {"fp8 with one other algorithm",
     FP8(DYNAMIC ",\"quant_algo\":\"NVFP4\""),
     NULL,
     {"quant_algo: \"NVFP4\" is not known beside quant_method fp8"}},
    {"fp8 with unknown experts",
     FP8(DYNAMIC ",\"moe_quant_algo\":\"FP6\""),
     NULL,
     {"moe_quant_algo: \"FP6\" is not known"}},
    {"E11 fp8, mixed, without entries",
     FP8(DYNAMIC ",\"quant_algo\":\"MIXED_PRECISION\""),
     NULL,
     {"quantized_layers: is missing"}},
    {"E19 expert_dtype",
     "{\"expert_dtype\":\"int8\",\"quantization_config\":{\"quant_method\":\"fp8\"" DYNAMIC "}}",
     NULL,
     {"config.json: expert_dtype: \"int8\" is not known, expected \"fp4\" or \"fp8\""}},
    /* refused by name */
    {"AWQ",
     CONFIG("{\"quant_method\":\"awq\"}"),
     NULL,
     {"quant_method: \"awq\" is not supported: AWQ", "expected modelopt, fp8, mxfp4, mxfp8 or"}},
    {"GPTQ", CONFIG("{\"quant_method\":\"GPTQ\"}"), NULL, {"\"gptq\" is not supported: GPTQ"}},
    {"bitsandbytes",
     CONFIG("{\"quant_method\":\"bitsandbytes\"}"),
     NULL,
     {"\"bitsandbytes\" is not supported"}},
    {"an unknown method", CONFIG("{\"quant_method\":\"hqq\"}"), NULL, {"\"hqq\" is not known"}},
    {"no method", CONFIG("{\"bits\":4}"), NULL, {"quant_method: is missing"}},
    {"a method that is a number",
     CONFIG("{\"quant_method\":8}"),
     NULL,
     {"quant_method: is a number, expected a string"}},
    {"ModelOpt's INT8",
     MODELOPT(",\"quant_algo\":\"W8A8_SQ_PER_CHANNEL\""),
     NULL,
     {"\"W8A8_SQ_PER_CHANNEL\" is not supported: it is INT8"}},
    {"ModelOpt's AWQ",
     MODELOPT(",\"quant_algo\":\"W4A16_AWQ\""),
     NULL,
     {"\"W4A16_AWQ\" is not supported: AWQ"}},
    {"NVFP4_AWQ",
     MODELOPT(",\"quant_algo\":\"NVFP4_AWQ\""),
     NULL,
     {"\"NVFP4_AWQ\" is not supported: AWQ scales input channels (pre_quant_scale)"}},
    {"NVFP4_SVD",
     MODELOPT(",\"quant_algo\":\"nvfp4_svd\""),
     NULL,
     {"\"NVFP4_SVD\" is not supported: SVD"}},
    {"W4A8_NVFP4_FP8",
     MODELOPT(",\"quant_algo\":\"W4A8_NVFP4_FP8\""),
     NULL,
     {"is not supported: W4A8 mixtures"}},
    {"W4A8_MXFP4_FP8 of an entry",
     MIXED("{\"a\":{\"quant_algo\":\"W4A8_MXFP4_FP8\"}}"),
     NULL,
     {"quantized_layers.a: \"W4A8_MXFP4_FP8\" is not supported: W4A8 mixtures"}},
    /* sizes that a format cannot have, or that two keys disagree on */
    {"NVFP4 in groups of 64",
     MODELOPT(",\"quant_algo\":\"NVFP4\",\"group_size\":64"),
     NULL,
     {"group_size is 64, expected 16 or 32 for NVFP4"}},
    {"MXFP8 in groups of 16",
     MODELOPT(",\"quant_algo\":\"MXFP8\",\"group_size\":16"),
     NULL,
     {"group_size is 16, expected 32 for MXFP8"}},
    {"FP8_PB_WO in blocks of 64",
     MODELOPT(",\"quant_algo\":\"FP8_PB_WO\",\"group_size\":64"),
     NULL,
     {"group_size is 64, expected 128 for FP8_PB_WO"}},
    {"FP8_BLOCK_SCALES in blocks of none",
     MODELOPT(",\"quant_algo\":\"FP8_BLOCK_SCALES\",\"group_size\":-1"),
     NULL,
     {"group_size is -1, expected 1 to 65536 for FP8_BLOCK_SCALES"}},
    {"two group sizes",
     MODELOPT(",\"quant_algo\":\"NVFP4\",\"group_size\":16,\"config_groups\":{\"g\":{\"weights\":{"
              "\"group_size\":32},\"input_activations\":{}}}"),
     NULL,
     {"config_groups: g has weights in groups of 32, but elsewhere group_size is 16"}},
    /* compressed-tensors */
    {"ct without groups",
     CONFIG("{\"quant_method\":\"compressed-tensors\",\"format\":"
            "\"float-quantized\"}"),
     NULL,
     {"config_groups: is not an object with 1 to"}},
    {"ct without format",
     CONFIG("{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{\"targets\":["
            "\"Linear\"],\"weights\":{}}}}"),
     NULL,
     {"config_groups.g: format is missing, expected nvfp4-pack-quantized"}},
    {"ct mixed-precision without a group's format",
     CT("mixed-precision", CT_FP8, "null"),
     NULL,
     {"config_groups.g: format is missing"}},
    {"ct INT8",
     CT("int-quantized", "\"num_bits\":8,\"type\":\"int\"", "null"),
     NULL,
     {"format \"int-quantized\" is not supported: it is INT8"}},
    {"ct sparse", CT("marlin-24", CT_INT4, "null"), NULL, {"\"marlin-24\" is not supported"}},
    {"ct unknown format",
     CT("naive-quantized", CT_FP8, "null"),
     NULL,
     {"format \"naive-quantized\" is not known"}},
    {"ct zero points",
     CT("pack-quantized", CT_INT4 ",\"symmetric\":false", "null"),
     NULL,
     {"config_groups.g: weights.symmetric is not true: zero points are not supported"}},
    {"ct act-order",
     CT("pack-quantized", CT_INT4 ",\"actorder\":\"group\"", "null"),
     NULL,
     {"config_groups.g: actorder is not supported", "g_idx"}},
    {"ct act-order as true",
     CT("pack-quantized", CT_INT4 ",\"actorder\":true", "null"),
     NULL,
     {"actorder is not supported"}},
    {"ct int4 in groups of 48",
     CT("pack-quantized",
        "\"num_bits\":4,\"type\":\"int\",\"group_size\":48,\"strategy\":\"group\"", "null"),
     NULL,
     {"weights of pack-quantized are 4-bit int by group of 48, expected 4-bit int by channel or by "
      "group of 32, 64 or 128"}},
    {"ct 8-bit integers, packed",
     CT("pack-quantized", "\"num_bits\":8,\"type\":\"int\"", "null"),
     NULL,
     {"weights of pack-quantized are 8-bit int by tensor, expected 4-bit int"}},
    {"ct int4 with activations",
     CT("pack-quantized", CT_INT4,
        "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"token\",\"dynamic\":true}"),
     NULL,
     {"input_activations of pack-quantized are 8-bit float by token, dynamic, expected none"}},
    {"ct fp8 with a scale for a batch",
     CT("float-quantized", CT_FP8,
        "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"tensor\",\"dynamic\":true}"),
     NULL,
     {"input_activations of float-quantized are 8-bit float by tensor, dynamic"}},
    {"ct mxfp4 with activations",
     CT("mxfp4-pack-quantized",
        "\"num_bits\":4,\"type\":\"float\",\"group_size\":32,\"strategy\":\"group\"",
        "{\"num_bits\":4,\"type\":\"float\",\"group_size\":32,\"strategy\":\"group\","
        "\"dynamic\":true}"),
     NULL,
     {"input_activations of mxfp4-pack-quantized are 4-bit float by group of 32"}},
    {"ct nvfp4 with 8-bit activations",
     CT("nvfp4-pack-quantized",
        "\"num_bits\":4,\"type\":\"float\",\"group_size\":16,\"strategy\":\"tensor_group\"",
        "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"token\",\"dynamic\":true}"),
     NULL,
     {"input_activations of nvfp4-pack-quantized are 8-bit float by token, dynamic"}},
    {"ct mxfp8 in groups of 16",
     CT("mxfp8-quantized",
        "\"num_bits\":8,\"type\":\"float\",\"group_size\":16,\"strategy\":\"group\"", "null"),
     NULL,
     {"weights of mxfp8-quantized are 8-bit float by group of 16"}},
    {"ct blocks without their size",
     CT("float-quantized", "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"block\"", "null"),
     NULL,
     {"weights of float-quantized are 8-bit float by block"}},
    {"ct blocks of no rows",
     CT("float-quantized", "\"num_bits\":8,\"type\":\"float\",\"block_structure\":[0,128]", "null"),
     NULL,
     {"block_structure is not a list of two sizes"}},
    {"ct unknown argument",
     CT("float-quantized", CT_FP8 ",\"rotation\":\"had\"", "null"),
     NULL,
     {"config_groups.g: weights.rotation is not known"}},
    {"ct output activations",
     CT_GROUP("\"targets\":[\"Linear\"],\"weights\":{" CT_FP8 "},\"output_activations\":{}"),
     NULL,
     {"config_groups.g: output_activations are not supported"}},
    {"ct without weights",
     CT_GROUP("\"targets\":[\"Linear\"]"),
     NULL,
     {"config_groups.g: has no weights"}},
    {"ct without targets",
     CT_GROUP("\"weights\":{" CT_FP8 "}"),
     NULL,
     {"config_groups.g: has no targets"}},
    {"ct with a broken expression",
     CT_GROUP("\"targets\":[\"re:.*(q_proj\"],\"weights\":{" CT_FP8 "}"),
     NULL,
     {"config.json: quantization_config.targets: \"re:.*(q_proj\""}},
    {"ct not compressed",
     CONFIG("{\"quant_method\":\"compressed-tensors\",\"quantization_status\":\"frozen\"}"),
     NULL,
     {"quantization_status: \"frozen\" is not supported, expected \"compressed\""}},
    {"ct sparsity",
     CONFIG("{\"quant_method\":\"compressed-tensors\",\"sparsity_config\":{"
            "\"format\":\"sparse-24-bitmask\"}}"),
     NULL,
     {"sparsity_config: sparse weights are not supported"}},
    {"ct transforms",
     CONFIG("{\"quant_method\":\"compressed-tensors\",\"transform_config\":{"
            "\"config_groups\":{}}}"),
     NULL,
     {"transform_config: rotated weights"}},
    /* damaged text */
    {"not JSON", "{", NULL, {"config.json: "}},
    {"not an object", "[]", NULL, {"config.json: not a JSON object"}},
    {"the second file is not JSON", "{}", "{\"a\":", {"hf_quant_config.json: "}},
    {"a configuration that is a list",
     CONFIG("[1]"),
     NULL,
     {"config.json: quantization_config: is not an object"}},
    {"two configurations",
     "{\"quantization_config\":{\"a\":1},\"quantization_config\":{}}",
     NULL,
     {"occurs twice"}},
    {"a key twice",
     MODELOPT(",\"quant_algo\":\"FP8\",\"quant_algo\":\"NVFP4\""),
     NULL,
     {"config.json: quantization_config: key \"quant_algo\" occurs twice"}},
    {"a NUL in a name",
     MODELOPT(",\"quant_algo\":\"FP8\",\"ignore\":[\"a\\u0000b\"]"),
     NULL,
     {"ignore: holds"}},
};

static int test_refused(void)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        Recipe *r = NULL;
        Err e = {.text = ""};
        const char *hf = refused[i].hf;
        Status st = recipe_parse(refused[i].config, strlen(refused[i].config), hf,
                                 hf ? strlen(hf) : 0, &r, &e);
        failed += check_int(refused[i].name, st, ST_INPUT);
        failed += check_true(refused[i].name, r == NULL);
        for (int k = 0; k < 3 && refused[i].want[k]; k++)
            failed += check_has(refused[i].name, e.text, refused[i].want[k]);
        recipe_free(r);
    }
    return failed;
}

/* --- warnings --- */

static int test_warnings(void)
{
    static const struct {
        const char *name, *config, *hf, *asked, *want;
    } warned[] = {
        {"W09 unknown KV algorithm", "{}",
         LEGACY("\"quant_algo\":\"FP8\",\"kv_cache_quant_algo\":\"INT8\""), NULL,
         "hf_quant_config.json: quantization.kv_cache_quant_algo: \"INT8\" is not known"},
        {"W09 KV scheme in integers",
         MODELOPT(",\"quant_algo\":\"FP8\",\"kv_cache_scheme\":{\"num_bits\":8,\"type\":\"int\","
                  "\"dynamic\":false}"),
         NULL, NULL, "kv_cache_scheme is not 8-bit or 4-bit float with static scales"},
        {"W09 KV scheme with dynamic scales",
         MODELOPT(",\"quant_algo\":\"FP8\",\"kv_cache_scheme\":{\"num_bits\":8,\"type\":\"float\","
                  "\"dynamic\":true}"),
         NULL, NULL, "the KV cache is taken as unquantized"},
        {"two files that differ", MODELOPT(",\"quant_algo\":\"FP8\""),
         LEGACY("\"quant_algo\":\"NVFP4\""), NULL,
         "hf_quant_config.json says NVFP4, but config.json says FP8, which counts"},
        {"an unknown key", MODELOPT(",\"quant_algo\":\"FP8\",\"flavour\":\"sweet\""), NULL, NULL,
         "config.json: quantization_config: key \"flavour\" is not known, and is ignored"},
        {"an unknown key that holds nothing", MODELOPT(",\"quant_algo\":\"FP8\",\"flavour\":{}"),
         NULL, NULL, NULL},
        {"blocks that activations do not follow", FP8(DYNAMIC ",\"weight_block_size\":[64,64]"),
         NULL, NULL, "activations of blocks of 64 columns are left unrounded"},
        {"exclusion by a part that ends inside a name",
         MODELOPT(",\"quant_algo\":\"FP8\",\"ignore\":[\"model.layers.1\"]"), NULL,
         "model.layers.12.mlp.up_proj",
         "quantization_config.ignore: \"model.layers.1\" also keeps model.layers.12.mlp.up_proj "
         "unquantized, whose name contains it"},
        {"exclusion by a part that ends with a name",
         MODELOPT(",\"quant_algo\":\"FP8\",\"ignore\":[\"model.layers.1\"]"), NULL,
         "model.layers.1.mlp.up_proj", NULL},
        {"exclusion by an odd part and by an exact name",
         MODELOPT(",\"quant_algo\":\"FP8\",\"ignore\":[\"layers.1\",\"layers.12.up_proj\"]"), NULL,
         "layers.12.up_proj", NULL},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof warned / sizeof *warned; i++) {
        const char *hf = warned[i].hf;
        Recipe *r = NULL;
        const QuantScheme *s;
        Err e = {.text = ""};
        if (recipe_parse(warned[i].config, strlen(warned[i].config), hf, hf ? strlen(hf) : 0, &r,
                         &e) != ST_OK) {
            failed += check_str(warned[i].name, e.text, "");
            continue;
        }
        for (int twice = 0; warned[i].asked && twice < 2; twice++) {
            failed += check_int(warned[i].name, recipe_linear(r, warned[i].asked, &s, &e), ST_OK);
            failed += check_true(warned[i].name, s == NULL);
        }
        if (warned[i].want)
            failed += check_has(warned[i].name, recipe_warning(r, 0), warned[i].want);
        failed += check_true(warned[i].name, recipe_warning(r, warned[i].want ? 1 : 0) == NULL);
        recipe_free(r);
    }
    return failed;
}

/* --- truncation: every prefix of a configuration is refused, and none reads past its end --- */

static int test_prefixes(void)
{
    static const char whole[] =
        CONFIG("{\"quant_method\":\"compressed-tensors\",\"format\":\"mixed-precision\","
               "\"config_groups\":{\"g\":{\"targets\":[\"re:.*q_proj\"],\"format\":"
               "\"float-quantized\",\"weights\":{" CT_FP8 "}}},\"ignore\":[\"re:a|b\"]}");
    int failed = 0;
    for (size_t len = 0; len <= strlen(whole); len++) {
        Recipe *r = NULL;
        Err e;
        char *copy = malloc(len ? len : 1); /* so that a sanitizer sees the end */
        if (!copy)
            return failed + check_true("memory", false);
        memcpy(copy, whole, len);
        Status st = recipe_parse(copy, len, NULL, 0, &r, &e);
        failed += check_int("prefix", st, len == strlen(whole) ? ST_OK : ST_INPUT);
        recipe_free(r);
        free(copy);
    }
    return failed;
}

int main(void)
{
    return test_result(test_refused() + test_warnings() + test_prefixes());
}
