/* tests/model/test_quant_conditions.c - the conditions of formats.md 3.7 that shapes, dtypes and
 * values of a checkpoint meet (E20, E30 to E66), by their numbers: small checkpoints that differ
 * from a sound one in the tensors of a module, what is said of each, and which of them are
 * sound. */
#include "io/file.h"
#include "model/checkpoint.h"
#include "model/weights.h"
#include "tests/support/check.h"
#include "tests/support/fake_backend.h"
#include "tests/support/made_model.h"
#include "tests/support/temp_dir.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tensor that is put in place of the one of that name, or added. "*" stands for each expert. */
typedef struct Put {
    const char *name;
    TensorDtype dtype;
    const char *shape; /* "32,4"; "" is a scalar; NULL: the tensor is taken away */
    char fill;         /* v: all values are value; b: all bytes are about value */
    float value;
} Put;

enum { MAX_PUTS = 14 };

typedef struct Case {
    const char *name, *quantization;
    int head_dim, hidden, inter; /* the output projection reads 4 x head_dim */
    Put put[MAX_PUTS];
    const char *message; /* NULL: it loads */
    Precision precision;
} Case;

#define L0 "model.layers.0."
#define O L0 "self_attn.o_proj"
#define X L0 "mlp.experts.*."
#define MIXED(entries)                                                                             \
    "{\"quant_method\":\"modelopt\",\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":"      \
    "{" entries "}}"
#define ALGO(algo) MIXED("\"" O "\":{\"quant_algo\":\"" algo "\"}")
#define EXPERTS(algo) MIXED("\"model.layers.0.mlp.experts\":{\"quant_algo\":\"" algo "\"}")
#define BLOCK_FP8                                                                                  \
    "{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128]," \
    "\"modules_to_not_convert\":[\"experts\",\"q_proj\",\"k_proj\",\"v_proj\"]}"
#define STATIC_FP8                                                                                 \
    "{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\","                                  \
    "\"modules_to_not_convert\":[\"experts\",\"q_proj\",\"k_proj\",\"v_proj\"]}"
/* The key that names the experts' format stands beside the configuration. */
#define V4(dtype, excluded)                                                                        \
    "{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128]," \
    "\"scale_fmt\":\"ue8m0\",\"modules_to_not_convert\":[" excluded                                \
    "]}, \"expert_dtype\": \"" dtype "\""
#define V4_FP8 V4("fp8", "\"experts\",\"q_proj\",\"k_proj\",\"v_proj\"")
#define V4_FP4 V4("fp4", "\"self_attn\"")
#define CODEC(algo, group, payload)                                                                \
    MIXED("\"" O "\":{\"quant_algo\":\"" algo "\",\"group_size\":" group                           \
          ",\"block_payload_bytes\":" payload ",\"packing\":\"ggml\"}")
#define CT_INT4                                                                                    \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{"   \
    "\"g\":{"                                                                                      \
    "\"targets\":[\"re:.*o_proj\"],\"weights\":{\"num_bits\":4,\"type\":\"int\",\"group_size\":"   \
    "32,"                                                                                          \
    "\"strategy\":\"group\"}}}}"
/* Parts of a module in a sound state; o_proj is [32, 64] where nothing else is said. */
#define NVFP4_WEIGHT                                                                               \
    {                                                                                              \
        O ".weight", DTYPE_U8, "32,32", 'b', 0x22                                                  \
    }
#define NVFP4_SCALE                                                                                \
    {                                                                                              \
        O ".weight_scale", DTYPE_F8_E4M3, "32,4", 'b', 0x38                                        \
    }
#define NVFP4_GLOBAL                                                                               \
    {                                                                                              \
        O ".weight_scale_2", DTYPE_F32, "", 'v', 0.01f                                             \
    }
#define NVFP4_INPUT                                                                                \
    {                                                                                              \
        O ".input_scale", DTYPE_F32, "", 'v', 0.01f                                                \
    }
#define E4M3_WEIGHT                                                                                \
    {                                                                                              \
        O ".weight", DTYPE_F8_E4M3, "32,64", 'b', 0x30                                             \
    }
#define SCALE(dtype, shape)                                                                        \
    {                                                                                              \
        O ".weight_scale", dtype, shape, 'v', 0.01f                                                \
    }
#define POWERS(shape)                                                                              \
    {                                                                                              \
        O ".weight_scale", DTYPE_U8, shape, 'b', 120                                               \
    }
#define NO_MORE                                                                                    \
    {                                                                                              \
        NULL, 0, NULL, 0, 0                                                                        \
    }
#define STORED                                                                                     \
    {                                                                                              \
        .activations = ACTIVATIONS_STORED                                                          \
    }
#define OF_O "model.safetensors: tensor \"" O

static const Case cases[] = {
    {"NVFP4 as it should be",
     ALGO("NVFP4"),
     16,
     32,
     8,
     {NVFP4_WEIGHT, NVFP4_SCALE, NVFP4_GLOBAL, NVFP4_INPUT},
     NULL,
     {0}},
    {"E10 MXFP8 that is not serialized",
     ALGO("MXFP8"),
     16,
     32,
     8,
     {NO_MORE},
     OF_O ".weight\": dtype BF16, expected MXFP8 codes: quantization_config does not exclude",
     {0}},
    {"E20 tokens' scales for experts in W4A16",
     EXPERTS("W4A16_NVFP4"),
     16,
     32,
     16,
     {{X "gate_proj.weight", DTYPE_U8, "16,16", 'b', 0x22},
      {X "gate_proj.weight_scale", DTYPE_F8_E4M3, "16,2", 'b', 0x38},
      {X "gate_proj.weight_scale_2", DTYPE_F32, "", 'v', 0.01f},
      {X "up_proj.weight", DTYPE_U8, "16,16", 'b', 0x22},
      {X "up_proj.weight_scale", DTYPE_F8_E4M3, "16,2", 'b', 0x38},
      {X "up_proj.weight_scale_2", DTYPE_F32, "", 'v', 0.01f},
      {X "down_proj.weight", DTYPE_U8, "32,8", 'b', 0x22},
      {X "down_proj.weight_scale", DTYPE_F8_E4M3, "32,1", 'b', 0x38},
      {X "down_proj.weight_scale_2", DTYPE_F32, "", 'v', 0.01f}},
     "needs experts in NVFP4 with quantized activations (W4A4), these are W4A16_NVFP4",
     {.per_token_experts = true}},
    {"E30 NVFP4 with inputs that 16 does not divide",
     ALGO("NVFP4"),
     10,
     32,
     8,
     {{O ".weight", DTYPE_U8, "32,20", 'b', 0x22},
      {O ".weight_scale", DTYPE_F8_E4M3, "32,3", 'b', 0x38},
      NVFP4_GLOBAL,
      NVFP4_INPUT},
     OF_O ".weight_scale\": shape [32, 3], expected [32, 40 / group]",
     {0}},
    {"E31 MXFP8 with inputs that 32 does not divide",
     ALGO("MXFP8"),
     10,
     32,
     8,
     {{O ".weight", DTYPE_F8_E4M3, "32,40", 'b', 0x30}, POWERS("32,2")},
     OF_O ".weight\": 40 inputs, but MXFP8 needs them in multiples of 32",
     {0}},
    {"E31 MXFP8 experts whose width 32 does not divide",
     EXPERTS("MXFP8"),
     16,
     32,
     24,
     {{X "gate_proj.weight", DTYPE_F8_E4M3, "24,32", 'b', 0x30},
      {X "gate_proj.weight_scale", DTYPE_U8, "24,1", 'b', 120},
      {X "up_proj.weight", DTYPE_F8_E4M3, "24,32", 'b', 0x30},
      {X "up_proj.weight_scale", DTYPE_U8, "24,1", 'b', 120},
      {X "down_proj.weight", DTYPE_F8_E4M3, "32,24", 'b', 0x30},
      {X "down_proj.weight_scale", DTYPE_U8, "32,1", 'b', 120}},
     "mlp.experts.0.down_proj.weight\": 24 inputs, but MXFP8 needs them in multiples of 32",
     {0}},
    {"E32 FP8_PB_WO with inputs that 128 does not divide",
     ALGO("FP8_PB_WO"),
     16,
     32,
     8,
     {E4M3_WEIGHT, SCALE(DTYPE_F32, "1,1,1,1")},
     OF_O ".weight\": 64 inputs, but FP8_PB_WO needs them in multiples of 128",
     {0}},
    {"FP8_PB_WO with four dimensions",
     ALGO("FP8_PB_WO"),
     32,
     32,
     8,
     {{O ".weight", DTYPE_F8_E4M3, "32,128", 'b', 0x30}, SCALE(DTYPE_F32, "1,1,1,1")},
     NULL,
     {0}},
    {"E33 FP8_PB_WO with a scale and no dimension, for one block",
     ALGO("FP8_PB_WO"),
     32,
     32,
     8,
     {{O ".weight", DTYPE_F8_E4M3, "32,128", 'b', 0x30}, SCALE(DTYPE_F32, "")},
     NULL,
     {0}},
    {"E33 FP8_PB_WO with three dimensions",
     ALGO("FP8_PB_WO"),
     32,
     32,
     8,
     {{O ".weight", DTYPE_F8_E4M3, "32,128", 'b', 0x30}, SCALE(DTYPE_F32, "1,1,1")},
     OF_O ".weight_scale\": shape [1, 1, 1], expected [1, 1] or [1, 1, 1, 1]: blocks of 128 x 128",
     {0}},
    {"E33 FP8_PB_WO with no dimension, for two blocks",
     ALGO("FP8_PB_WO"),
     64,
     32,
     8,
     {{O ".weight", DTYPE_F8_E4M3, "32,256", 'b', 0x30}, SCALE(DTYPE_F32, "")},
     OF_O ".weight_scale\": shape [], expected [1, 2] or [1, 1, 2, 1]",
     {0}},
    {"block FP8 with inputs that 128 does not divide",
     BLOCK_FP8,
     16,
     32,
     8,
     {E4M3_WEIGHT, {O ".weight_scale_inv", DTYPE_F32, "1,1", 'v', 0.01f}},
     NULL,
     {0}},
    {"E34 MXFP8 with a scale for four rows",
     ALGO("MXFP8"),
     16,
     32,
     8,
     {E4M3_WEIGHT, POWERS("8,2")},
     NULL,
     {0}},
    {"E34 MXFP8 with a scale for no rows",
     ALGO("MXFP8"),
     16,
     32,
     8,
     {E4M3_WEIGHT, POWERS("64,2")},
     OF_O ".weight_scale\": shape [64, 2], expected [32, 2]: a scale for each 32 inputs",
     {0}},
    {"E34 MXFP8 with a scale for 16 inputs",
     ALGO("MXFP8"),
     16,
     32,
     8,
     {E4M3_WEIGHT, POWERS("32,4")},
     OF_O ".weight_scale\": shape [32, 4], expected [32, 2]: a scale for each 32 inputs",
     {0}},
    {"E34 MXFP8 with float scales",
     ALGO("MXFP8"),
     16,
     32,
     8,
     {E4M3_WEIGHT, SCALE(DTYPE_F32, "32,2")},
     OF_O ".weight_scale\": dtype F32, expected U8 or F8_E8M0",
     {0}},
    {"E35 MXFP8 with weights as bytes",
     ALGO("MXFP8"),
     16,
     32,
     8,
     {{O ".weight", DTYPE_U8, "32,64", 'b', 0x30}, POWERS("32,2")},
     OF_O ".weight\": dtype U8, expected F8_E4M3 [32, 64]",
     {0}},
    {"E35 MXFP8 with three dimensions",
     ALGO("MXFP8"),
     16,
     32,
     8,
     {{O ".weight", DTYPE_F8_E4M3, "1,32,64", 'b', 0x30}, POWERS("32,2")},
     OF_O ".weight\": shape [1, 32, 64], expected [32, 64]",
     {0}},
    {"MXFP4 as it should be, with float scales",
     ALGO("MXFP4"),
     16,
     32,
     8,
     {{O ".weight", DTYPE_U8, "32,32", 'b', 0x22}, SCALE(DTYPE_BF16, "32,2")},
     NULL,
     {0}},
    {"E37 MXFP4 unpacked",
     ALGO("MXFP4"),
     16,
     32,
     8,
     {{O ".weight", DTYPE_U8, "32,64", 'b', 0x22}, POWERS("32,2")},
     OF_O ".weight\": shape [32, 64], expected [32, 32]",
     {0}},
    {"E37 MXFP4 with a scale for 16 inputs",
     ALGO("MXFP4"),
     16,
     32,
     8,
     {{O ".weight", DTYPE_U8, "32,32", 'b', 0x22}, POWERS("32,4")},
     OF_O ".weight_scale\": shape [32, 4], expected [32, 2]",
     {0}},
    {"E38 Q8_0 with two dimensions",
     CODEC("Q8_0", "32", "34"),
     16,
     32,
     8,
     {{O ".weight", DTYPE_U8, "32,68", 'b', 0x22}},
     OF_O ".weight\": shape [32, 68], expected [32, 2, 34]",
     {0}},
    {"E38 Q8_0 in signed bytes of another size",
     CODEC("Q8_0", "32", "34"),
     16,
     32,
     8,
     {{O ".weight", DTYPE_F16, "32,2,17", 'v', 1}},
     OF_O ".weight\": dtype F16, expected Q8_0 codes",
     {0}},
    {"E38 Q8_0 with scales that are no numbers",
     CODEC("Q8_0", "32", "34"),
     16,
     32,
     8,
     {{O ".weight", DTYPE_U8, "32,2,34", 'b', 0x7d}},
     OF_O ".weight\": the scale of the block at [",
     {0}},
    {"Q8_0 as it should be",
     CODEC("Q8_0", "32", "34"),
     16,
     32,
     8,
     {{O ".weight", DTYPE_U8, "32,2,34", 'b', 0x22}},
     NULL,
     {0}},
    {"Q8_0 with padded rows",
     CODEC("Q8_0", "32", "34"),
     10,
     40,
     8,
     {{O ".weight", DTYPE_U8, "40,2,34", 'b', 0x22},
      {O ".weight_logical_shape", DTYPE_I64, "2", 'v', 40},
      {O ".weight_padded_shape", DTYPE_I64, "2", 'v', 64}},
     NULL,
     {0}},
    {"Q8_0 with rows of another length",
     CODEC("Q8_0", "32", "34"),
     10,
     40,
     8,
     {{O ".weight", DTYPE_U8, "40,2,34", 'b', 0x22},
      {O ".weight_logical_shape", DTYPE_I64, "2", 'v', 41}},
     OF_O ".weight_logical_shape\": says [41, 41], expected [40, 40]",
     {0}},
    {"E40 two KV scales",
     NULL,
     16,
     32,
     8,
     {{L0 "self_attn.k_proj.k_scale", DTYPE_F32, "2", 'v', 1}},
     "self_attn.k_proj.k_scale\": shape [2], expected []: one value",
     {0}},
    {"E40 a KV scale in bytes",
     NULL,
     16,
     32,
     8,
     {{L0 "self_attn.k_proj.k_scale", DTYPE_U8, "", 'b', 1}},
     "self_attn.k_proj.k_scale\": dtype U8, expected F32, BF16 or F16",
     {0}},
    {"E41 a scale for values alone",
     NULL,
     16,
     32,
     8,
     {{L0 "self_attn.v_proj.v_scale", DTYPE_F32, "", 'v', 1}},
     "self_attn.v_proj.v_scale\": a scale for values, but none for keys",
     {0}},
    {"E50 NVFP4 that the file has in BF16",
     ALGO("NVFP4"),
     16,
     32,
     8,
     {NO_MORE},
     OF_O ".weight\": dtype BF16, expected NVFP4 codes: quantization_config does not exclude this "
          "layer",
     {0}},
    {"E51 no input scale, which stored activations need",
     ALGO("NVFP4"),
     16,
     32,
     8,
     {NVFP4_WEIGHT, NVFP4_SCALE, NVFP4_GLOBAL},
     OF_O
     ".weight\": has no input_scale, which NVFP4 needs where activations are rounded as stored",
     STORED},
    {"E51 no input scale, which nothing needs",
     ALGO("NVFP4"),
     16,
     32,
     8,
     {NVFP4_WEIGHT, NVFP4_SCALE, NVFP4_GLOBAL},
     NULL,
     {0}},
    {"E51 an input scale of 0",
     ALGO("NVFP4"),
     16,
     32,
     8,
     {NVFP4_WEIGHT, NVFP4_SCALE, NVFP4_GLOBAL, {O ".input_scale", DTYPE_F32, "", 'v', 0}},
     OF_O ".input_scale\": scale 0, expected a positive number",
     STORED},
    {"E52 an FP8 scale that was never written",
     ALGO("FP8"),
     16,
     32,
     8,
     {E4M3_WEIGHT, {O ".weight_scale", DTYPE_F32, "", 'v', -3.4028235e38f}, NVFP4_INPUT},
     OF_O ".weight_scale\": scale is -3.40282e+38, expected a positive number",
     {0}},
    {"E60 no scale",
     ALGO("FP8"),
     16,
     32,
     8,
     {E4M3_WEIGHT, NVFP4_INPUT},
     OF_O ".weight_scale\": missing, expected the scales of FP8 weights",
     {0}},
    {"E60 a projection of one expert is missing",
     NULL,
     16,
     32,
     8,
     {{L0 "mlp.experts.1.up_proj.weight", 0, NULL, 0, 0}},
     "tensor \"model.layers.0.mlp.experts.1.up_proj.weight\": missing, expected BF16, F16 or F32",
     {0}},
    {"E60 a module under two names",
     NULL,
     16,
     32,
     8,
     {{"layers.0.self_attn.o_proj.weight", DTYPE_BF16, "32,64", 'v', 0}},
     "the same as \"",
     {0}},
    {"E61 a scale that nothing asks for",
     NULL,
     16,
     32,
     8,
     {SCALE(DTYPE_F32, "")},
     OF_O ".weight_scale\": F32 [], but qwen3_moe of 1 layers has no such tensor",
     {0}},
    {"E62 a weight that is no number",
     ALGO("FP8"),
     16,
     32,
     8,
     {{O ".weight", DTYPE_F8_E4M3, "32,64", 'b', 0x7e}, SCALE(DTYPE_F32, ""), NVFP4_INPUT},
     OF_O ".weight\": value [",
     {0}},
    {"E62 a block scale that is no number",
     ALGO("NVFP4"),
     16,
     32,
     8,
     {NVFP4_WEIGHT, {O ".weight_scale", DTYPE_F8_E4M3, "32,4", 'b', 0x7e}, NVFP4_GLOBAL},
     "] is nan, expected a finite, not negative number",
     {0}},
    {"E63 a power that is no number",
     ALGO("MXFP8"),
     16,
     32,
     8,
     {E4M3_WEIGHT, {O ".weight_scale", DTYPE_F8_E8M0, "32,2", 'b', 254}},
     "] is 255 (not a number), expected 0 to 254",
     {0}},
    {"E64 a global scale of 0",
     ALGO("NVFP4"),
     16,
     32,
     8,
     {NVFP4_WEIGHT, NVFP4_SCALE, {O ".weight_scale_2", DTYPE_F32, "", 'v', 0}},
     OF_O ".weight_scale_2\": scale 0, expected a positive number",
     {0}},
    {"E64 an infinite global scale",
     ALGO("NVFP4"),
     16,
     32,
     8,
     {NVFP4_WEIGHT, NVFP4_SCALE, {O ".weight_scale_2", DTYPE_F32, "", 'v', INFINITY}},
     OF_O ".weight_scale_2\": scale inf, expected a positive number",
     {0}},
    {"E64 a global scale that is no number",
     ALGO("NVFP4"),
     16,
     32,
     8,
     {NVFP4_WEIGHT, NVFP4_SCALE, {O ".weight_scale_2", DTYPE_F32, "", 'v', NAN}},
     OF_O ".weight_scale_2\": scale ",
     {0}},
    {"E65 a negative block scale",
     ALGO("NVFP4"),
     16,
     32,
     8,
     {NVFP4_WEIGHT, {O ".weight_scale", DTYPE_F8_E4M3, "32,4", 'b', 0xb8}, NVFP4_GLOBAL},
     OF_O ".weight_scale\": scale [0, 0] is -",
     {0}},
    {"E66 FP8 where the configuration has nothing",
     NULL,
     16,
     32,
     8,
     {E4M3_WEIGHT, SCALE(DTYPE_F32, "")},
     OF_O ".weight\": dtype F8_E4M3, expected BF16, F16 or F32",
     {0}},
    {"E66 4-bit codes where the configuration has nothing",
     MIXED("\"x\":{\"quant_algo\":\"FP8\"}"),
     16,
     32,
     8,
     {NVFP4_WEIGHT, NVFP4_SCALE, NVFP4_GLOBAL},
     OF_O ".weight\": dtype U8, expected BF16, F16 or F32",
     {0}},
    {"int4 as it should be",
     CT_INT4,
     16,
     32,
     8,
     {{O ".weight_packed", DTYPE_I32, "32,8", 'v', 0},
      SCALE(DTYPE_BF16, "32,2"),
      {O ".weight", 0, NULL, 0, 0}},
     NULL,
     {0}},
    {"int4 with a scale for 16 inputs",
     CT_INT4,
     16,
     32,
     8,
     {{O ".weight_packed", DTYPE_I32, "32,8", 'v', 0},
      SCALE(DTYPE_BF16, "32,4"),
      {O ".weight", 0, NULL, 0, 0}},
     OF_O ".weight_scale\": a scale for each 16 inputs, but quantization_config says groups of 32",
     {0}},
    {"int4 that says another shape",
     CT_INT4,
     16,
     32,
     8,
     {{O ".weight_packed", DTYPE_I32, "32,8", 'v', 0},
      SCALE(DTYPE_BF16, "32,2"),
      {O ".weight_shape", DTYPE_I64, "2", 'v', 0},
      {O ".weight", 0, NULL, 0, 0}},
     OF_O ".weight_shape\": says [0, 0], expected [32, 64]",
     {0}},
    {"MXFP8 beside others, with MiniMax's name of the scales",
     ALGO("MXFP8"),
     16,
     32,
     8,
     {E4M3_WEIGHT, {O ".weight_scale_inv", DTYPE_U8, "32,2", 'b', 120}},
     NULL,
     STORED},
    {"static FP8 with transformers' names",
     STATIC_FP8,
     16,
     32,
     8,
     {E4M3_WEIGHT,
      {O ".weight_scale_inv", DTYPE_BF16, "", 'v', 0.01f},
      {O ".activation_scale", DTYPE_BF16, "", 'v', 0.01f}},
     NULL,
     STORED},
    {"static FP8 with vLLM's names, but no input scale",
     STATIC_FP8,
     16,
     32,
     8,
     {E4M3_WEIGHT, SCALE(DTYPE_F32, "")},
     OF_O ".weight\": has no input_scale, which FP8 static needs",
     STORED},
    {"DeepSeek-V4's names, powers of two",
     V4_FP8,
     16,
     32,
     8,
     {E4M3_WEIGHT, {O ".scale", DTYPE_F8_E8M0, "1,1", 'b', 120}},
     NULL,
     STORED},
    {"DeepSeek-V4's experts, in signed bytes",
     V4_FP4,
     16,
     32,
     32,
     {{X "gate_proj.weight", DTYPE_I8, "32,16", 'b', 0x22},
      {X "gate_proj.scale", DTYPE_F8_E8M0, "32,1", 'b', 120},
      {X "up_proj.weight", DTYPE_I8, "32,16", 'b', 0x22},
      {X "up_proj.scale", DTYPE_F8_E8M0, "32,1", 'b', 120},
      {X "down_proj.weight", DTYPE_I8, "32,16", 'b', 0x22},
      {X "down_proj.scale", DTYPE_F8_E8M0, "32,1", 'b', 120}},
     NULL,
     STORED},
    {"W05 an input scale that W4A16 does not use",
     ALGO("W4A16_NVFP4"),
     16,
     32,
     8,
     {NVFP4_WEIGHT, NVFP4_SCALE, NVFP4_GLOBAL, NVFP4_INPUT},
     NULL,
     STORED},
};

/* --- making one --- */

static bool put_one(MadeModel *m, const Put *p, const char *name)
{
    int64_t shape[4] = {0};
    int n = 0;
    MadeTensor *old = made_find(m, name);
    if (old)
        made_remove(m, name);
    if (!p->shape)
        return old != NULL;
    for (const char *c = p->shape; *c && n < 4; c += strcspn(c, ","), c += *c == ',')
        shape[n++] = strtol(c, NULL, 10);
    MadeTensor *t = made_add(m, name, p->dtype, n, shape, 0);
    if (!t)
        return false;
    t->mean = p->value;
    if (p->fill == 'b') {
        t->kind = MADE_SCALES;
        t->middle = (uint8_t)p->value;
    }
    return true;
}

static bool put(MadeModel *m, const Put *p)
{
    char name[200];
    const char *star = strchr(p->name, '*');
    bool ok = true;
    if (!star)
        return put_one(m, p, p->name);
    for (int x = 0; x < m->spec.experts && ok; x++) {
        snprintf(name, sizeof name, "%.*s%d%s", (int)(star - p->name), p->name, x, star + 1);
        ok = put_one(m, p, name);
    }
    return ok;
}

static void add_quantization(const char *dir, const char *quantization)
{
    char path[600], text[8192];
    snprintf(path, sizeof path, "%s/config.json", dir);
    long n = temp_dir_get(path, text, sizeof text);
    char *end = n > 0 ? strrchr(text, '}') : NULL;
    if (!end || !quantization)
        return;
    snprintf(end, sizeof text - (size_t)(end - text), ", \"quantization_config\": %s}\n",
             quantization);
    temp_dir_put(path, text, strlen(text));
}

static Status make(const Case *c, const char *dir, Err *e)
{
    MadeSpec spec = {"qwen3_moe", c->hidden,  c->inter,          3,        2, 1, 19, 4, 2,
                     c->head_dim, DTYPE_BF16, .dense_layer = -1, .seed = 5};
    MadeModel m;
    TRY(made_create(&spec, &m, e));
    Status st = ST_OK;
    for (int i = 0; i < MAX_PUTS && c->put[i].name && st == ST_OK; i++)
        if (!put(&m, &c->put[i]))
            st = err_set(e, ST_USAGE, "%s cannot be put", c->put[i].name);
    if (st == ST_OK)
        st = made_write(&m, dir, 0, e);
    made_free(&m);
    if (st == ST_OK)
        add_quantization(dir, c->quantization);
    return st;
}

/* --- loading it --- */

static Status load(const Case *c, const char *dir, Err *e)
{
    Arch arch = {0};
    GenerationDefaults gen;
    Placement placement = {0};
    Backend *backend = NULL;
    Weights w;
    Precision precision = c->precision;
    Status st;
    TRY_GOTO(arch_load(dir, NULL, 0, &arch, &gen, e));
    TRY_GOTO(placement_create(&placement, arch.router.n_experts, 1, e));
    TRY_GOTO(fake_backend_create(&backend, e));
    precision_resolve(&precision, &fake_backend);
    st = weights_load(
        &(WeightsConfig){dir, NULL, &arch, &precision, &placement, 0, &fake_backend, backend, NULL},
        &w, e);
    if (st == ST_OK)
        weights_free(&w);
fail:
    if (backend && fake_backend_destroy(backend) != 0)
        st = err_set(e, ST_MEMORY, "backend memory was not given back");
    placement_free(&placement);
    arch_free(&arch);
    return st;
}

int main(void)
{
    static const char dir[] = "model";
    int failed = 0;
    temp_dir_enter();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Case *c = &cases[i];
        Err e = {.text = ""};
        temp_dir_fresh(dir);
        if (make(c, dir, &e) != ST_OK) {
            failed += check_str(c->name, e.text, "");
            continue;
        }
        Status st = load(c, dir, &e);
        failed += check_int(c->name, st, c->message ? ST_INPUT : ST_OK);
        failed +=
            c->message ? check_has(c->name, e.text, c->message) : check_str(c->name, e.text, "");
    }
    return test_result(failed);
}
