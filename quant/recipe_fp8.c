/* quant/recipe_fp8.c - quant_method "fp8" of DeepSeek and Qwen, with what DeepSeek-V4 and NVIDIA
 * add to it, and quant_method "mxfp4" (formats.md 2.4, 2.5, 2.9, 2.10, 3.3). */
#include "quant/recipe_internal.h"

#include <stdio.h>
#include <string.h>

static const QuantScheme mxfp4 = {.algo = "MXFP4",
                                  .format = FORMAT_MXFP4,
                                  .weight = "weight",
                                  .scale = "weight_scale",
                                  .scale_may_be_float = true};

/* [rows, columns], both at least 1; absent or null: rows stays 0. */
static Status block_size(const Recipe *r, const JsonValue *config, QuantScheme *s, Err *e)
{
    const JsonValue *v = recipe_get(config, "weight_block_size");
    int64_t rows, cols;
    if (!v)
        return ST_OK;
    if (v->type != JSON_ARRAY || v->len != 2 || !json_int64(v->child, &rows) ||
        !json_int64(v->child->next, &cols) || rows < 1 || cols < 1 || rows > 65536 || cols > 65536)
        return recipe_bad(r, "weight_block_size", e,
                          "is not a list of two sizes, expected [128, 128]");
    s->block_rows = (int)rows;
    s->block_cols = (int)cols;
    return ST_OK;
}

/* The scheme of everything that no other key is about. v4: tensors are named ".scale". */
static Status base_scheme(Recipe *r, const JsonValue *config, bool v4, QuantScheme *s, Err *e)
{
    const char *activations, *fmt, *scale_fmt;
    *s = (QuantScheme){.format = FORMAT_FP8, .weight = "weight"};
    TRY(recipe_string(r, config, "fmt", &fmt, e));
    if (fmt && strcmp(fmt, "e4m3") != 0)
        return recipe_bad(r, "fmt", e, "\"%.60s\" is not supported, expected \"e4m3\"", fmt);
    TRY(recipe_string(r, config, "scale_fmt", &scale_fmt, e));
    if (scale_fmt && strcmp(scale_fmt, "ue8m0") != 0 && strcmp(scale_fmt, "float") != 0)
        return recipe_bad(r, "scale_fmt", e, "\"%.60s\" is not known, expected \"ue8m0\"",
                          scale_fmt);
    TRY(recipe_string(r, config, "activation_scheme", &activations, e));
    bool dynamic = activations && strcmp(activations, "dynamic") == 0;
    if (!dynamic && (!activations || strcmp(activations, "static") != 0))
        return recipe_bad(r, "activation_scheme", e,
                          "\"%.60s\" is not known, expected \"static\" or \"dynamic\"",
                          activations ? activations : "");
    TRY(block_size(r, config, s, e));
    if (s->block_rows) {
        if (!dynamic)
            return recipe_bad(r, "weight_block_size", e,
                              "stands beside activation_scheme \"static\", expected \"dynamic\"");
        s->algo = "FP8 blocks";
        s->grid = GRID_BLOCK;
        s->scale = v4 ? "scale" : "weight_scale_inv";
        s->rows = ROWS_FP8_GROUP;
        s->rows_power_of_two = scale_fmt && strcmp(scale_fmt, "ue8m0") == 0;
        if (s->block_cols == 128)
            return ST_OK;
        s->rows = ROWS_AS_THEY_ARE;
        s->rows_power_of_two = false;
        return recipe_warn(r, e,
                           "%s: %s: activations of blocks of %d columns are left unrounded (those "
                           "of 128 would be rounded)",
                           r->file, r->where, s->block_cols);
    }
    s->algo = dynamic ? "FP8 dynamic" : "FP8 static";
    s->grid = GRID_TENSOR;
    s->rows = dynamic ? ROWS_FP8_TOKEN : ROWS_FP8_STATIC;
    /* vLLM's names; transformers writes the others. */
    s->scale = "weight_scale";
    s->scale_alias = "weight_scale_inv";
    s->input = dynamic ? NULL : "input_scale";
    s->input_alias = dynamic ? NULL : "activation_scale";
    return ST_OK;
}

/* Routed experts may have another format than the rest. */
static Status expert_scheme(Recipe *r, const JsonValue *config, const JsonValue *root, bool v4,
                            QuantScheme s, Err *e)
{
    const char *dtype, *store, *algo;
    const JsonValue *text = recipe_get(root, "text_config");
    TRY(recipe_string(r, root, "expert_dtype", &dtype, e));
    if (!dtype && text && text->type == JSON_OBJECT)
        TRY(recipe_string(r, text, "expert_dtype", &dtype, e));
    TRY(recipe_string(r, config, "store_dtype", &store, e));
    TRY(recipe_string(r, config, "moe_quant_algo", &algo, e));
    if (dtype && strcmp(dtype, "fp4") != 0 && strcmp(dtype, "fp8") != 0)
        return err_set(e, ST_INPUT,
                       "%s: expert_dtype: \"%.60s\" is not known, expected \"fp4\" or \"fp8\"",
                       r->file, dtype);
    if (store && strcmp(store, "mxfp4") != 0)
        return recipe_bad(r, "store_dtype", e, "\"%.60s\" is not known, expected \"mxfp4\"", store);
    if (algo)
        return recipe_algo(r, config, "moe_quant_algo", algo, &r->experts, e);
    if (v4 && (!dtype || strcmp(dtype, "fp4") == 0)) {
        s = mxfp4;
        s.scale = "scale";
    } else if (store) {
        s = mxfp4;
    }
    return recipe_scheme(r, &s, &r->experts, e);
}

/* NVIDIA's conversions keep "fp8" for what they leave alone and list what they made. Their "ignore"
 * is about the conversion, so that what it names is still FP8. */
static Status converted_layers(Recipe *r, const JsonValue *config, Err *e)
{
    const char *algo;
    const JsonValue *layers = recipe_get(config, "quantized_layers");
    TRY(recipe_string(r, config, "quant_algo", &algo, e));
    if (!algo && !layers)
        return ST_OK;
    char *name = algo ? recipe_fold(r, algo, true) : NULL;
    if (algo && !name)
        return recipe_no_memory(e);
    if (algo && strcmp(name, "MIXED_PRECISION") != 0 && strcmp(name, "FP8") != 0)
        return recipe_bad(r, "quant_algo", e,
                          "\"%.60s\" is not known beside quant_method fp8, expected "
                          "MIXED_PRECISION or FP8",
                          algo);
    TRY(recipe_patterns(r, config, "ignore", true, &r->layer_exclude, e));
    if (layers && layers->type == JSON_OBJECT && layers->child)
        return recipe_parse_layers(r, layers, e);
    if (algo && strcmp(name, "MIXED_PRECISION") == 0 && !recipe_get(config, "moe_quant_algo"))
        return recipe_bad(r, "quantized_layers", e,
                          "is missing, expected an entry for each converted module, as quant_algo "
                          "is MIXED_PRECISION");
    return ST_OK;
}

Status recipe_parse_fp8(Recipe *r, const JsonValue *config, const JsonValue *root, Err *e)
{
    static const char *const known[] = {
        "quant_method",  "fmt",        "activation_scheme", "weight_block_size",
        "scale_fmt",     "ignore",     "ignored_layers",    "modules_to_not_convert",
        "store_dtype",   "dequantize", "kv_cache_scheme",   "moe_quant_algo",
        "quant_algo",    "group_size", "quantized_layers",  "producer",
        "config_groups", NULL};
    const JsonValue *type = recipe_get(root, "model_type");
    bool v4 = recipe_get(root, "expert_dtype") || json_is_string(type, "deepseek_v4");
    QuantScheme s;
    TRY(recipe_no_duplicates(r, config, NULL, e));
    TRY(recipe_check_keys(r, config, known, e));
    TRY(base_scheme(r, config, v4, &s, e));
    TRY(recipe_patterns(r, config, "modules_to_not_convert", true, &r->exclude, e));
    TRY(recipe_patterns(r, config, "ignored_layers", true, &r->exclude, e));
    r->exclude.parents = true;
    r->implicit_head = true;
    TRY(recipe_kv_scheme(r, config, "kv_cache_scheme", e));
    TRY(recipe_scheme(r, &s, &r->linear, e));
    TRY(expert_scheme(r, config, root, v4, s, e));
    r->stacked_is_foreign = true;
    TRY(converted_layers(r, config, e));
    r->name = s.grid == GRID_BLOCK
                  ? recipe_text(r, "fp8 %dx%d%s%s", s.block_rows, s.block_cols,
                                r->experts != r->linear ? ", experts " : "",
                                r->experts != r->linear ? r->experts->algo : "")
                  : recipe_text(r, "fp8 %s", s.rows == ROWS_FP8_TOKEN ? "dynamic" : "static");
    return r->name ? ST_OK : recipe_no_memory(e);
}

Status recipe_parse_mxfp4(Recipe *r, const JsonValue *config, Err *e)
{
    static const char *const known[] = {"quant_method", "modules_to_not_convert", "ignored_layers",
                                        "dequantize", NULL};
    QuantScheme s = mxfp4;
    TRY(recipe_no_duplicates(r, config, NULL, e));
    TRY(recipe_check_keys(r, config, known, e));
    TRY(recipe_patterns(r, config, "modules_to_not_convert", true, &r->exclude, e));
    TRY(recipe_patterns(r, config, "ignored_layers", true, &r->exclude, e));
    r->exclude.parents = true;
    /* Only routed experts: one tensor each, or gpt-oss's blocks of all. */
    TRY(recipe_scheme(r, &s, &r->experts, e));
    s.weight = "blocks";
    s.scale = "scales";
    s.scale_may_be_float = false;
    TRY(recipe_scheme(r, &s, &r->stacked, e));
    r->name = "mxfp4";
    return ST_OK;
}
