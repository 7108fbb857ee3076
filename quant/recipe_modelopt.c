/* quant/recipe_modelopt.c - what nvidia-modelopt writes: one algorithm for all modules but the
 * excluded ones, or one for each entry of quantized_layers (formats.md 3.2, 3.3, 3.5). */
#include "quant/recipe_internal.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LAYERS = 1 << 20 };

static const char accepted[] = "FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, FP8_BLOCK_SCALES, "
                               "NVFP4, W4A16_NVFP4, MXFP8, MXFP4, "
                               "MIXED_PRECISION, Q8_0, IQ2_XS or IQ2_XXS";

static const QuantScheme algos[] = {
    {.algo = "FP8",
     .format = FORMAT_FP8,
     .grid = GRID_TENSOR,
     .rows = ROWS_FP8_STATIC,
     .weight = "weight",
     .scale = "weight_scale",
     .input = "input_scale"},
    {.algo = "FP8_PER_CHANNEL_PER_TOKEN",
     .format = FORMAT_FP8,
     .grid = GRID_CHANNEL,
     .rows = ROWS_FP8_TOKEN,
     .weight = "weight",
     .scale = "weight_scale"},
    {.algo = "FP8_PB_WO",
     .format = FORMAT_FP8,
     .grid = GRID_BLOCK,
     .block_rows = 128,
     .block_cols = 128,
     .rows = ROWS_FP8_GROUP,
     .weight = "weight",
     .scale = "weight_scale",
     .whole_blocks = true},
    {.algo = "FP8_BLOCK_SCALES",
     .format = FORMAT_FP8,
     .grid = GRID_BLOCK,
     .block_rows = 128,
     .block_cols = 128,
     .rows = ROWS_FP8_GROUP,
     .weight = "weight",
     .scale = "weight_scale_inv"},
    {.algo = "NVFP4",
     .format = FORMAT_NVFP4,
     .rows = ROWS_NVFP4_STATIC,
     .weight = "weight",
     .scale = "weight_scale",
     .global = "weight_scale_2",
     .input = "input_scale"},
    {.algo = "W4A16_NVFP4",
     .format = FORMAT_NVFP4,
     .weight = "weight",
     .scale = "weight_scale",
     .global = "weight_scale_2"},
    {.algo = "MXFP8",
     .format = FORMAT_MXFP8,
     .rows = ROWS_MXFP8,
     .weight = "weight",
     .scale = "weight_scale",
     .scale_alias = "weight_scale_inv"},
    {.algo = "MXFP4",
     .format = FORMAT_MXFP4,
     .weight = "weight",
     .scale = "weight_scale",
     .scale_may_be_float = true},
    {.algo = "Q8_0", .format = FORMAT_Q8_0, .weight = "weight"},
    {.algo = "IQ2_XS", .format = FORMAT_IQ2_XS, .weight = "weight"},
    {.algo = "IQ2_XXS", .format = FORMAT_IQ2_XXS, .weight = "weight"},
};

/* Algorithms that exist and that are not read: why, by a part of their name. */
static const struct {
    const char *part, *why;
} refused[] = {
    {"AWQ", "AWQ scales input channels (pre_quant_scale)"},
    {"SVD", "SVD variants add low-rank factors"},
    {"W4A8", "W4A8 mixtures have 8-bit activations beside 4-bit weights"},
    {"W8A8_SQ", "it is INT8 (SmoothQuant)"},
    {"INT8", "it is INT8"},
    {"GPTQ", "it is GPTQ"},
};

static const QuantScheme *find_algo(const char *name)
{
    for (size_t i = 0; i < sizeof algos / sizeof *algos; i++)
        if (strcmp(algos[i].algo, name) == 0)
            return &algos[i];
    return NULL;
}

static Status refuse_algo(const Recipe *r, const char *key, const char *algo, Err *e)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (strstr(algo, refused[i].part))
            return recipe_bad(r, key, e, "\"%.60s\" is not supported: %s; expected %s", algo,
                              refused[i].why, accepted);
    return recipe_bad(r, key, e, "\"%.60s\" is not known, expected %s", algo, accepted);
}

/* Block codecs say everything four times, and all of it must agree (E12). */
static Status check_codec(const Recipe *r, const JsonValue *holder, const char *key,
                          const QuantScheme *s, Err *e)
{
    const QuantFormat *f = quant_format(s->format);
    const struct {
        const char *key;
        int want;
    } numbers[] = {{"group_size", f->unit}, {"block_payload_bytes", f->unit_bytes}};
    for (int i = 0; i < 2; i++) {
        const JsonValue *v = json_get(holder, numbers[i].key);
        int64_t got;
        if (!v || v->type != JSON_NUMBER || !json_int64(v, &got) || got != numbers[i].want)
            return recipe_bad(r, key, e, "%s of %s is %.20s, expected the number %d",
                              numbers[i].key, s->algo,
                              !v                       ? "missing"
                              : v->type == JSON_STRING ? "a string"
                              : v->type == JSON_NUMBER ? "another"
                                                       : "not a number",
                              numbers[i].want);
    }
    if (!json_is_string(json_get(holder, "packing"), "ggml"))
        return recipe_bad(r, key, e, "packing of %s is not \"ggml\", which is the one known",
                          s->algo);
    const JsonValue *padding = recipe_get(holder, "row_padding");
    if (padding && !json_is_string(padding, "right"))
        return recipe_bad(r, key, e, "row_padding of %s is not \"right\", which is the one known",
                          s->algo);
    return ST_OK;
}

/* Group sizes come from the shapes; what the configuration says is kept for comparison, and must be
 * one that the format can have. */
static Status set_group(const Recipe *r, const char *key, int group, QuantScheme *s, Err *e)
{
    if (s->format == FORMAT_NVFP4) {
        if (group && group != 16 && group != 32)
            return recipe_bad(r, key, e, "group_size is %d, expected 16 or 32 for %s", group,
                              s->algo);
        s->group = group;
    } else if (s->format == FORMAT_MXFP8 || s->format == FORMAT_MXFP4) {
        if (group && group != 32)
            return recipe_bad(r, key, e, "group_size is %d, expected 32 for %s", group, s->algo);
        s->group = group;
    } else if (strcmp(s->algo, "FP8_PB_WO") == 0) {
        if (group && group != 128)
            return recipe_bad(r, key, e, "group_size is %d, expected 128 for %s", group, s->algo);
    } else if (strcmp(s->algo, "FP8_BLOCK_SCALES") == 0 && group) {
        if (group < 1 || group > 65536)
            return recipe_bad(r, key, e, "group_size is %d, expected 1 to 65536 for %s", group,
                              s->algo);
        s->block_rows = s->block_cols = group;
        if (group != 128) /* rows are rounded per 128 columns, or not */
            s->rows = ROWS_AS_THEY_ARE;
    }
    return ST_OK;
}

static Status make_scheme(Recipe *r, const JsonValue *holder, const char *key, const char *algo,
                          int group, const QuantScheme **out, Err *e)
{
    const QuantScheme *known = find_algo(algo);
    if (!known)
        return refuse_algo(r, key, algo, e);
    QuantScheme s = *known;
    if (s.format == FORMAT_Q8_0 || s.format == FORMAT_IQ2_XS || s.format == FORMAT_IQ2_XXS)
        TRY(check_codec(r, holder, key, &s, e));
    else
        TRY(set_group(r, key, group, &s, e));
    return recipe_scheme(r, &s, out, e);
}

Status recipe_algo(Recipe *r, const JsonValue *holder, const char *key, const char *algo,
                   const QuantScheme **out, Err *e)
{
    int group = 0;
    char *name = recipe_fold(r, algo, true);
    if (!name)
        return recipe_no_memory(e);
    if (recipe_int(r, holder, "group_size", &group, e) != ST_OK)
        return err_in(e, "%s", key);
    return make_scheme(r, holder, key, name, group, out, e);
}

Status recipe_stacked_algo(Recipe *r, const QuantScheme *single, const QuantScheme **out, Err *e)
{
    QuantScheme s = *single;
    *out = NULL;
    if (s.format != FORMAT_NVFP4 && (s.format != FORMAT_FP8 || s.grid != GRID_TENSOR))
        return ST_OK;
    s.weight = ""; /* gate_up_proj beside gate_up_proj_weight_scale (formats.md 10) */
    s.transposed = true;
    return recipe_scheme(r, &s, out, e);
}

/* --- the KV cache --- */

static Status kv_from_text(Recipe *r, const char *key, const char *algo, Err *e)
{
    char *name = recipe_fold(r, algo, true);
    if (!name)
        return recipe_no_memory(e);
    if (strcmp(name, "FP8") == 0)
        r->kv = KV_ALGO_FP8;
    else if (strcmp(name, "NVFP4") == 0)
        r->kv = KV_ALGO_NVFP4;
    else if (*name)
        return recipe_warn(r, e,
                           "%s: %s.%s: \"%.60s\" is not known (FP8 and NVFP4 are); the KV cache "
                           "is taken as unquantized",
                           r->file, r->where, key, algo);
    return ST_OK;
}

Status recipe_kv_scheme(Recipe *r, const JsonValue *config, const char *key, Err *e)
{
    const JsonValue *v = recipe_get(config, key);
    int bits = 0;
    if (!v)
        return ST_OK;
    if (v->type == JSON_STRING)
        return kv_from_text(r, key, strcmp(v->text, "static") == 0 ? "FP8" : v->text, e);
    if (v->type != JSON_OBJECT)
        return recipe_bad(r, key, e, "is neither null nor an object nor a string");
    const JsonValue *dynamic = recipe_get(v, "dynamic");
    TRY(recipe_int(r, v, "num_bits", &bits, e));
    if (json_is_string(recipe_get(v, "type"), "float") && (!dynamic || dynamic->type == JSON_FALSE))
        r->kv = bits == 8 ? KV_ALGO_FP8 : bits == 4 ? KV_ALGO_NVFP4 : KV_ALGO_NONE;
    if (r->kv == KV_ALGO_NONE)
        return recipe_warn(r, e,
                           "%s: %s.%s is not 8-bit or 4-bit float with static scales; the KV "
                           "cache is taken as unquantized",
                           r->file, r->where, key);
    return ST_OK;
}

/* --- one algorithm for all --- */

/* "NVFP4" whose groups all leave the inputs alone is W4A16_NVFP4: its files have no input_scale. */
static bool weight_only(const JsonValue *config)
{
    const JsonValue *groups = json_get(config, "config_groups");
    if (!groups || groups->type != JSON_OBJECT || !groups->child)
        return false;
    for (const JsonValue *g = groups->child; g; g = g->next)
        if (g->type != JSON_OBJECT || recipe_get(g, "input_activations"))
            return false;
    return true;
}

/* group_size, and that of the weights in every group where they have one. */
static Status declared_group(const Recipe *r, const JsonValue *config, int *out, Err *e)
{
    const JsonValue *groups = json_get(config, "config_groups");
    TRY(recipe_int(r, config, "group_size", out, e));
    if (!groups || groups->type != JSON_OBJECT)
        return ST_OK;
    for (const JsonValue *g = groups->child; g; g = g->next) {
        const JsonValue *weights = g->type == JSON_OBJECT ? recipe_get(g, "weights") : NULL;
        int group = 0;
        if (!weights || weights->type != JSON_OBJECT)
            continue;
        TRY(recipe_int(r, weights, "group_size", &group, e));
        if (*out && group && group != *out)
            return recipe_bad(r, "config_groups", e,
                              "%.60s has weights in groups of %d, but elsewhere group_size is %d",
                              g->key, group, *out);
        if (group)
            *out = group;
    }
    return ST_OK;
}

static Status set_homogeneous(Recipe *r, const JsonValue *config, const char *algo, Err *e)
{
    int group = 0;
    if (strcmp(algo, "NVFP4") == 0 && weight_only(config))
        algo = "W4A16_NVFP4";
    TRY(declared_group(r, config, &group, e));
    TRY(make_scheme(r, config, "quant_algo", algo, group, &r->linear, e));
    r->experts = r->linear;
    TRY(recipe_stacked_algo(r, r->experts, &r->stacked, e));
    r->stacked_is_foreign = !r->stacked;
    /* Only codecs are applied to embeddings; the other algorithms are about linear layers. */
    if (r->linear->format == FORMAT_Q8_0 || r->linear->format == FORMAT_IQ2_XS ||
        r->linear->format == FORMAT_IQ2_XXS)
        r->embedding = r->linear;
    return ST_OK;
}

/* --- one algorithm for each layer --- */

Status recipe_parse_layers(Recipe *r, const JsonValue *layers, Err *e)
{
    static const char *const known[] = {
        "quant_algo",  "group_size",        "block_payload_bytes", "packing", "effective_bits",
        "row_padding", "logical_shape_key", "padded_shape_key",    NULL};
    const QuantScheme *blocks = NULL;
    if (layers->type != JSON_OBJECT)
        return recipe_bad(r, "quantized_layers", e, "is not an object");
    if (layers->len == 0 || layers->len > MAX_LAYERS)
        return recipe_bad(r, "quantized_layers", e, "has %zu entries, expected 1 to %d",
                          layers->len, MAX_LAYERS);
    r->layers = arena_alloc(&r->arena, layers->len * sizeof *r->layers);
    if (!r->layers)
        return recipe_no_memory(e);
    TRY(name_table_create(&r->layer_names, (int)layers->len, e));
    for (const JsonValue *v = layers->child; v; v = v->next) {
        const char *algo;
        int added;
        char where[160];
        snprintf(where, sizeof where, "quantized_layers.%.120s", v->key);
        if (strlen(v->key) != v->key_len || v->key_len == 0)
            return recipe_bad(r, "quantized_layers", e, "has a key that is no module name");
        name_table_add(&r->layer_names, v->key, &added);
        if (!added)
            return recipe_bad(r, where, e, "occurs twice");
        if (v->type != JSON_OBJECT)
            return recipe_bad(r, where, e, "is not an object");
        TRY(recipe_string(r, v, "quant_algo", &algo, e));
        if (!algo || !*algo)
            return recipe_bad(r, where, e, "has no quant_algo");
        LayerEntry *entry = &r->layers[r->n_layers++];
        *entry = (LayerEntry){.module = v->key};
        TRY(recipe_algo(r, v, where, algo, &entry->scheme, e));
        TRY(recipe_check_keys(r, v, known, e));
        if (strcmp(entry->scheme->algo, "FP8_BLOCK_SCALES") != 0)
            continue;
        if (blocks && blocks != entry->scheme)
            return recipe_bad(r, where, e,
                              "has blocks of %d, but another entry has blocks of %d: expected one "
                              "group_size for all of FP8_BLOCK_SCALES",
                              entry->scheme->block_rows, blocks->block_rows);
        blocks = entry->scheme;
    }
    return ST_OK;
}

/* The object with the ModelOpt keys in hf_quant_config.json. */
static const JsonValue *legacy_object(const JsonValue *hf_quant)
{
    const JsonValue *q = hf_quant ? json_get(hf_quant, "quantization") : NULL;
    return q && q->type == JSON_OBJECT ? q : NULL;
}

static Status set_mixed(Recipe *r, const JsonValue *config, const JsonValue *hf_quant, Err *e)
{
    const JsonValue *layers = recipe_get(config, "quantized_layers");
    const JsonValue *legacy = legacy_object(hf_quant);
    if ((!layers || (layers->type == JSON_OBJECT && !layers->child)) && legacy)
        layers = recipe_get(legacy, "quantized_layers");
    if (!layers)
        return recipe_bad(r, "quantized_layers", e,
                          "is missing, expected an entry for each quantized module, as quant_algo "
                          "is MIXED_PRECISION");
    return recipe_parse_layers(r, layers, e);
}

/* --- the two shapes --- */

/* Older readers demand these keys though null is fine in most (E08, E09). */
static Status need_keys(const Recipe *r, const JsonValue *config, const char *algo, Err *e)
{
    static const char *const keys[] = {"kv_cache_quant_algo", "exclude_modules", "group_size"};
    bool nvfp4 = strcmp(algo, "NVFP4") == 0 || strcmp(algo, "W4A16_NVFP4") == 0;
    int n = nvfp4 ? 3 : strcmp(algo, "MXFP8") == 0 ? 2 : 0;
    for (int i = 0; i < n; i++)
        if (!json_get(config, keys[i]))
            return recipe_bad(r, keys[i], e, "is missing, expected beside quant_algo %s", algo);
    return ST_OK;
}

/* What a narrower quant_method is for (E07). */
static Status check_method(const Recipe *r, const char *method, const char *algo, Err *e)
{
    static const struct {
        const char *method, *part;
    } narrow[] = {{"modelopt", ""},
                  {"modelopt_fp4", "FP4"},
                  {"modelopt_mxfp8", "MXFP8"},
                  {"modelopt_mixed", "MIXED_PRECISION"}};
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
        if (strcmp(narrow[i].method, method) == 0) {
            if (strstr(algo, narrow[i].part))
                return ST_OK;
            return recipe_bad(r, "quant_algo", e,
                              "\"%.60s\" is not what quant_method \"%s\" is for: expected %s", algo,
                              method, narrow[i].part);
        }
    return recipe_bad(r, "quant_method", e,
                      "\"%.60s\" is not known, expected modelopt, modelopt_fp4, modelopt_mxfp8 or "
                      "modelopt_mixed",
                      method);
}

static Status legacy_kv(Recipe *r, const JsonValue *config, Err *e)
{
    const char *algo;
    TRY(recipe_string(r, config, "kv_cache_quant_algo", &algo, e)); /* E03 */
    return algo ? kv_from_text(r, "kv_cache_quant_algo", algo, e) : ST_OK;
}

Status recipe_parse_modelopt(Recipe *r, const JsonValue *config, const char *method,
                             const JsonValue *hf_quant, Err *e)
{
    static const char *const known[] = {"quant_method",
                                        "quant_algo",
                                        "ignore",
                                        "exclude_modules",
                                        "group_size",
                                        "kv_cache_scheme",
                                        "config_groups",
                                        "kv_cache_quant_algo",
                                        "quantized_layers",
                                        "producer",
                                        "quantization",
                                        "effective_bits",
                                        "block_payload_bytes",
                                        "packing",
                                        "row_padding",
                                        "logical_shape_key",
                                        "padded_shape_key",
                                        "kv_cache_quantized_layers",
                                        NULL};
    const JsonValue *legacy = json_get(config, "quantization");
    const char *text;
    PatternList exclude = {0};
    if (legacy) {
        if (legacy->type != JSON_OBJECT) /* E01 */
            return recipe_bad(r, "quantization", e, "is not an object");
        r->where = recipe_text(r, "%s%squantization", r->where, *r->where ? "." : "");
        if (!r->where)
            return recipe_no_memory(e);
        config = legacy;
    }
    TRY(recipe_no_duplicates(r, config, NULL, e));
    TRY(recipe_string(r, config, "quant_algo", &text, e));
    if (!text || !*text) /* E02 */
        return recipe_bad(r, "quant_algo", e, "is missing, expected %s", accepted);
    char *algo = recipe_fold(r, text, true);
    if (!algo)
        return recipe_no_memory(e);
    bool mixed = strcmp(algo, "MIXED_PRECISION") == 0;
    if (!mixed && !find_algo(algo))
        return refuse_algo(r, "quant_algo", algo, e);
    TRY(check_method(r, method, algo, e));
    if (legacy)
        TRY(need_keys(r, config, algo, e));
    TRY(recipe_patterns(r, config, "exclude_modules", false, &exclude, e));
    if (!legacy)
        TRY(recipe_patterns(r, config, "ignore", false, &exclude, e));
    TRY(recipe_kv_scheme(r, config, "kv_cache_scheme", e));
    if (r->kv == KV_ALGO_NONE)
        TRY(legacy_kv(r, config, e));
    TRY(recipe_check_keys(r, config, known, e));
    if (mixed) {
        r->layer_exclude = exclude;
        TRY(set_mixed(r, config, hf_quant, e));
    } else {
        r->exclude = exclude;
        TRY(set_homogeneous(r, config, algo, e));
    }
    r->name = recipe_text(r, "modelopt %s", mixed ? algo : r->linear->algo);
    return r->name ? ST_OK : recipe_no_memory(e);
}

Status recipe_parse_mxfp8(Recipe *r, const JsonValue *config, Err *e)
{
    static const char *const known[] = {"quant_method",           "ignored_layers",
                                        "kv_cache_quant_algo",    "weight_block_size",
                                        "activation_scheme",      "fmt",
                                        "modules_to_not_convert", NULL};
    QuantScheme s = *find_algo("MXFP8");
    s.scale = "weight_scale_inv";
    s.scale_alias = "weight_scale";
    TRY(recipe_no_duplicates(r, config, NULL, e));
    TRY(recipe_check_keys(r, config, known, e));
    TRY(recipe_patterns(r, config, "ignored_layers", true, &r->exclude, e));
    TRY(recipe_patterns(r, config, "modules_to_not_convert", true, &r->exclude, e));
    TRY(legacy_kv(r, config, e));
    TRY(recipe_scheme(r, &s, &r->linear, e));
    r->experts = r->linear;
    r->stacked_is_foreign = true;
    r->name = "mxfp8";
    return ST_OK;
}
