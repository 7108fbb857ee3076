/* quant/recipe.h - which tensor of a checkpoint has which format, as its configuration says.
 *
 * Reads quantization_config of config.json (or of its text_config, or compression_config), or
 * hf_quant_config.json beside it, of ModelOpt, DeepSeek's and Qwen's "fp8", gpt-oss's "mxfp4",
 * MiniMax's "mxfp8" and compressed-tensors. Nothing unknown falls back to "unquantized". */
#ifndef MB_QUANT_RECIPE_H
#define MB_QUANT_RECIPE_H

#include "quant/row_format.h"

typedef struct Recipe Recipe;

/* How scales lie, of FORMAT_FP8 and FORMAT_INT4; other formats' scales are per group of a row. */
typedef enum ScaleGrid {
    GRID_NONE,
    GRID_TENSOR,  /* one scale */
    GRID_CHANNEL, /* one per row */
    GRID_BLOCK,   /* one per block_rows x block_cols, with partial blocks at the ends */
    GRID_GROUP    /* one per row and group */
} ScaleGrid;

/* How a linear layer P (or an expert's projection) is stored: tensors P.NAME. NULL names: there
 * is no such tensor. Of experts in one tensor: P_NAME, where P is
 * "model.layers.0.mlp.experts.down_proj", and an empty weight name is P itself. An input_scale
 * beside a scheme without one (old W4A16 and MXFP8 exports, W05) means nothing. */
typedef struct QuantScheme {
    FormatId format;
    const char
        *algo; /* as the configuration calls it, for messages: "NVFP4", "nvfp4-pack-quantized" */
    ScaleGrid grid;
    int block_rows,
        block_cols; /* GRID_BLOCK; GRID_GROUP: 1 and the declared group size, 0: not declared */
    int group;      /* formats with groups: the declared group size, 0: not declared */
    RowScheme rows; /* activations as declared; ROWS_AS_THEY_ARE: weight-only */
    bool rows_power_of_two;
    const char *weight;      /* "weight", "weight_packed" */
    const char *scale;       /* "weight_scale", "weight_scale_inv", "scale" */
    const char *scale_alias; /* what other writers of the same files call it; NULL: nothing */
    const char *global;      /* "weight_scale_2", "weight_global_scale" */
    const char *input;       /* "input_scale", "input_global_scale"; of a static row scheme */
    const char *input_alias;
    const char *shape;       /* "weight_shape": [2] rows, cols of a padded pack */
    bool whole_blocks;       /* inputs must be whole blocks: FP8_PB_WO */
    bool global_divides;     /* global and input are divisors */
    bool scale_may_be_float; /* canonical MXFP4: a float scale tensor is cast by PyTorch's rule */
    bool transposed; /* experts in one tensor: [experts, inputs, outputs], codes packed along inputs
                      */
} QuantScheme;

typedef enum KvAlgo { KV_ALGO_NONE, KV_ALGO_FP8, KV_ALGO_NVFP4 } KvAlgo;

/* *out is never NULL on success: a checkpoint without any configuration gives a recipe that leaves
 * everything unquantized. Messages name file and key. */
Status recipe_load(const char *dir, Recipe **out, Err *e);
/* The same from bytes: config.json, and hf_quant_config.json or NULL. */
Status recipe_parse(const char *config, size_t config_len, const char *hf_quant,
                    size_t hf_quant_len, Recipe **out, Err *e);
void recipe_free(Recipe *r); /* NULL is fine */

/* The scheme of a linear layer or an embedding by its module name, without ".weight":
 * "model.layers.0.self_attn.q_proj", "lm_head". *out NULL: unquantized. */
Status recipe_linear(Recipe *r, const char *module, const QuantScheme **out, Err *e);
Status recipe_embedding(Recipe *r, const char *module, const QuantScheme **out, Err *e);
/* Of a layer's routed experts: bank is "model.layers.0.mlp.experts", names are their projections
 * as the files call them ("gate_proj", "up_proj", "down_proj"; "w1", "w3", "w2"). All experts of a
 * bank have one scheme per projection; what contradicts that is refused. stacked: the bank is one
 * tensor for all experts, and only its own name counts. */
Status recipe_experts(Recipe *r, const char *bank, const char *const names[3], int n_experts,
                      bool stacked, const QuantScheme *out[3], Err *e);
/* Fused names whose shards must be excluded together, or not at all, are checked with this:
 * parent "model.layers.0.self_attn", shards {"q_proj", "k_proj", "v_proj"}. */
Status recipe_check_fused(Recipe *r, const char *parent, const char *fused,
                          const char *const *shards, int n_shards, Err *e);

KvAlgo recipe_kv_algo(const Recipe *r);
const char *recipe_name(const Recipe *r); /* "modelopt NVFP4", "none": for inspect */
/* Exclude patterns and per-layer entries that no question asked so far has met, in file order; for
 * the lint, after every module was asked about. NULL past the end. */
const char *recipe_unused(const Recipe *r, int i);
/* Warnings found while reading (W conditions of formats.md 3.7), in order; NULL past the end. */
const char *recipe_warning(const Recipe *r, int i);

#endif
