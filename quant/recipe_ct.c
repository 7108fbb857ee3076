/* quant/recipe_ct.c - compressed-tensors: groups of targets, each with the arguments of its weights
 * and activations (formats.md 2.10 to 2.12, 3.6, 10). */
#include "quant/recipe_internal.h"

#include <stdio.h>
#include <string.h>

enum { MAX_MODULE = 1024, MAX_GROUPS = 256 };

/* What compressed-tensors calls QuantizationArgs. */
typedef struct Args {
    int bits, group;
    const char *type, *strategy;
    bool dynamic, local; /* "dynamic": true; "local" */
    int block[2];
    bool there;
} Args;

/* --- arguments --- */

static Status parse_block(const Recipe *r, const JsonValue *v, const char *key, Args *out, Err *e)
{
    const JsonValue *b = recipe_get(v, "block_structure");
    int64_t rows, cols;
    if (!b)
        return ST_OK;
    if (b->type != JSON_ARRAY || b->len != 2 || !json_int64(b->child, &rows) ||
        !json_int64(b->child->next, &cols) || rows < 1 || cols < 1 || rows > 65536 || cols > 65536)
        return recipe_bad(r, key, e, "block_structure is not a list of two sizes");
    out->block[0] = (int)rows;
    out->block[1] = (int)cols;
    return ST_OK;
}

/* Stored codes are in the order of the columns for "weight" and "static" orderings, which only
 * steered the calibration; the others come with an index of columns. */
static Status check_order(const Recipe *r, const JsonValue *v, const char *key, Err *e)
{
    const JsonValue *order = recipe_get(v, "actorder");
    if (!order || order->type == JSON_FALSE || json_is_string(order, "weight") ||
        json_is_string(order, "static"))
        return ST_OK;
    return recipe_bad(r, key, e,
                      "actorder is not supported: columns ordered by activation need a group index "
                      "(g_idx); expected null");
}

static Status parse_args(Recipe *r, const JsonValue *group, const char *which, const char *key,
                         Args *out, Err *e)
{
    static const char *const known[] = {
        "num_bits", "type",        "symmetric", "group_size", "strategy", "block_structure",
        "dynamic",  "scale_dtype", "zp_dtype",  "actorder",   "observer", "observer_kwargs"};
    const JsonValue *v = recipe_get(group, which);
    *out = (Args){.bits = 8, .type = "int"};
    if (!v)
        return ST_OK;
    if (v->type != JSON_OBJECT)
        return recipe_bad(r, key, e, "%s is not an object", which);
    TRY(recipe_no_duplicates(r, v, key, e));
    for (const JsonValue *k = v->child; k; k = k->next) {
        size_t i = 0, n = sizeof known / sizeof *known;
        while (i < n && strcmp(known[i], k->key) != 0)
            i++;
        if (i == n && k->type != JSON_NULL)
            return recipe_bad(r, key, e, "%s.%.60s is not known", which, k->key);
    }
    const JsonValue *symmetric = recipe_get(v, "symmetric");
    const JsonValue *dynamic = recipe_get(v, "dynamic");
    const char *type;
    out->there = true;
    TRY(recipe_int(r, v, "num_bits", &out->bits, e));
    TRY(recipe_int(r, v, "group_size", &out->group, e));
    TRY(recipe_string(r, v, "type", &type, e));
    TRY(recipe_string(r, v, "strategy", &out->strategy, e));
    TRY(parse_block(r, v, key, out, e));
    TRY(check_order(r, v, key, e));
    if (type)
        out->type = type;
    if (symmetric && symmetric->type != JSON_TRUE)
        return recipe_bad(r, key, e, "%s.symmetric is not true: zero points are not supported",
                          which);
    out->local = dynamic && json_is_string(dynamic, "local");
    out->dynamic = dynamic && dynamic->type == JSON_TRUE;
    if (dynamic && !out->local && dynamic->type != JSON_TRUE && dynamic->type != JSON_FALSE)
        return recipe_bad(r, key, e, "%s.dynamic is not true, false or \"local\"", which);
    if (!out->strategy) /* as the library fills it in */
        out->strategy = out->block[0]      ? "block"
                        : out->group > 0   ? "group"
                        : out->group == -1 ? "channel"
                                           : "tensor";
    return ST_OK;
}

static bool args_are(const Args *a, int bits, const char *type, const char *strategy)
{
    return a->there && a->bits == bits && strcmp(a->type, type) == 0 &&
           (!strategy || strcmp(a->strategy, strategy) == 0);
}

static void describe(const Args *a, char *out, size_t size)
{
    if (!a->there)
        snprintf(out, size, "none");
    else
        snprintf(out, size, "%d-bit %.20s by %.20s%s%.0d%s", a->bits, a->type, a->strategy,
                 a->group > 0 ? " of " : "", a->group > 0 ? a->group : 0,
                 a->dynamic ? ", dynamic"
                 : a->local ? ", dynamic locally"
                            : "");
}

static Status wrong_args(const Recipe *r, const char *key, const char *format, const char *which,
                         const Args *a, const char *expected, Err *e)
{
    char text[120];
    describe(a, text, sizeof text);
    return recipe_bad(r, key, e, "%s of %s are %s, expected %s", which, format, text, expected);
}

/* --- one function per format: the scheme of weights w and inputs in --- */

typedef Status (*FormatFn)(const Recipe *r, const char *key, const Args *w, const Args *in,
                           QuantScheme *s, Err *e);

static Status nvfp4_scheme(const Recipe *r, const char *key, const Args *w, const Args *in,
                           QuantScheme *s, Err *e)
{
    if (!args_are(w, 4, "float", NULL) || w->dynamic || w->group != 16 ||
        (strcmp(w->strategy, "tensor_group") != 0 && strcmp(w->strategy, "group") != 0))
        return wrong_args(r, key, s->algo, "weights", w, "4-bit float by tensor_group of 16", e);
    s->format = FORMAT_NVFP4;
    s->group = w->group;
    s->weight = "weight_packed";
    s->scale = "weight_scale";
    s->global = "weight_global_scale";
    s->global_divides = true;
    if (!in->there)
        return ST_OK;
    if (!args_are(in, 4, "float", "tensor_group") || !in->local || in->group != 16)
        return wrong_args(r, key, s->algo, "input_activations", in,
                          "none or 4-bit float by tensor_group of 16, dynamic locally", e);
    s->rows = ROWS_NVFP4_STATIC;
    s->input = "input_global_scale";
    return ST_OK;
}

static Status mxfp4_scheme(const Recipe *r, const char *key, const Args *w, const Args *in,
                           QuantScheme *s, Err *e)
{
    if (!args_are(w, 4, "float", "group") || w->dynamic || w->group != 32)
        return wrong_args(r, key, s->algo, "weights", w, "4-bit float by group of 32", e);
    if (in->there)
        return wrong_args(r, key, s->algo, "input_activations", in, "none", e);
    s->format = FORMAT_MXFP4;
    s->group = w->group;
    s->weight = "weight_packed";
    s->scale = "weight_scale";
    return ST_OK;
}

static Status mxfp8_scheme(const Recipe *r, const char *key, const Args *w, const Args *in,
                           QuantScheme *s, Err *e)
{
    if (!args_are(w, 8, "float", "group") || w->dynamic || w->group != 32)
        return wrong_args(r, key, s->algo, "weights", w, "8-bit float by group of 32", e);
    s->format = FORMAT_MXFP8;
    s->group = w->group;
    s->weight = "weight";
    s->scale = "weight_scale";
    if (!in->there)
        return ST_OK;
    if (!args_are(in, 8, "float", "group") || !in->dynamic || in->group != 32)
        return wrong_args(r, key, s->algo, "input_activations", in,
                          "none or 8-bit float by group of 32, dynamic", e);
    s->rows = ROWS_MXFP8;
    return ST_OK;
}

static Status float_rows(const Recipe *r, const char *key, const Args *in, QuantScheme *s, Err *e)
{
    if (!in->there)
        return ST_OK;
    if (args_are(in, 8, "float", "tensor") && !in->dynamic && !in->local) {
        s->rows = ROWS_FP8_STATIC;
        s->input = "input_scale";
    } else if (args_are(in, 8, "float", "token") && in->dynamic) {
        s->rows = ROWS_FP8_TOKEN;
    } else if (args_are(in, 8, "float", "group") && in->dynamic && in->group == 128) {
        s->rows = ROWS_FP8_GROUP;
    } else {
        return wrong_args(r, key, s->algo, "input_activations", in,
                          "none, or 8-bit float by tensor, by token (dynamic) or by group of 128 "
                          "(dynamic)",
                          e);
    }
    return ST_OK;
}

static Status float_scheme(const Recipe *r, const char *key, const Args *w, const Args *in,
                           QuantScheme *s, Err *e)
{
    bool tensor = strcmp(w->strategy, "tensor") == 0, block = strcmp(w->strategy, "block") == 0;
    if (!args_are(w, 8, "float", NULL) || w->dynamic || (block && !w->block[0]) ||
        (!tensor && !block && strcmp(w->strategy, "channel") != 0))
        return wrong_args(r, key, s->algo, "weights", w,
                          "8-bit float by tensor, channel or block with its block_structure", e);
    s->format = FORMAT_FP8;
    s->grid = tensor ? GRID_TENSOR : block ? GRID_BLOCK : GRID_CHANNEL;
    s->block_rows = block ? w->block[0] : 0;
    s->block_cols = block ? w->block[1] : 0;
    s->weight = "weight";
    s->scale = "weight_scale";
    return float_rows(r, key, in, s, e);
}

static Status int4_scheme(const Recipe *r, const char *key, const Args *w, const Args *in,
                          QuantScheme *s, Err *e)
{
    bool channel = strcmp(w->strategy, "channel") == 0;
    if (!args_are(w, 4, "int", NULL) || w->dynamic ||
        (!channel && (strcmp(w->strategy, "group") != 0 ||
                      (w->group != 32 && w->group != 64 && w->group != 128))))
        return wrong_args(r, key, s->algo, "weights", w,
                          "4-bit int by channel or by group of 32, 64 or 128", e);
    if (in->there)
        return wrong_args(r, key, s->algo, "input_activations", in, "none", e);
    s->format = FORMAT_INT4;
    s->grid = channel ? GRID_CHANNEL : GRID_GROUP;
    s->group = channel ? 0 : w->group;
    s->block_rows = channel ? 0 : 1;
    s->block_cols = s->group;
    s->weight = "weight_packed";
    s->scale = "weight_scale";
    s->shape = "weight_shape";
    return ST_OK;
}

static const struct {
    const char *name;
    FormatFn scheme;
} formats[] = {
    {"nvfp4-pack-quantized", nvfp4_scheme}, {"mxfp4-pack-quantized", mxfp4_scheme},
    {"mxfp8-quantized", mxfp8_scheme},      {"float-quantized", float_scheme},
    {"pack-quantized", int4_scheme},
};

/* --- groups --- */

static Status refuse_format(const Recipe *r, const char *key, const char *format, Err *e)
{
    const char *why = !format                           ? "is missing"
                      : strstr(format, "int-quantized") ? "is not supported: it is INT8"
                      : strstr(format, "marlin")        ? "is not supported: it is sparse"
                      : strstr(format, "sparse")        ? "is not supported: it is sparse"
                                                        : "is not known";
    return recipe_bad(r, key, e,
                      "format %s%.60s%s%s, expected nvfp4-pack-quantized, mxfp4-pack-quantized, "
                      "mxfp8-quantized, float-quantized, pack-quantized or mixed-precision",
                      format ? "\"" : "", format ? format : "", format ? "\" " : "", why);
}

static Status parse_group(Recipe *r, const JsonValue *v, const char *outer, Group *out, Err *e)
{
    static const char *const known[] = {
        "targets", "weights", "input_activations", "output_activations", "format", NULL};
    char key[128];
    const char *format;
    Args weights, inputs;
    size_t i = 0, n = sizeof formats / sizeof *formats;
    snprintf(key, sizeof key, "config_groups.%.80s", v->key);
    *out = (Group){.name = v->key};
    if (v->type != JSON_OBJECT)
        return recipe_bad(r, key, e, "is not an object");
    TRY(recipe_no_duplicates(r, v, key, e));
    TRY(recipe_check_keys(r, v, known, e));
    if (recipe_get(v, "output_activations"))
        return recipe_bad(r, key, e, "output_activations are not supported, expected null");
    TRY(recipe_patterns(r, v, "targets", false, &out->targets, e));
    if (out->targets.n == 0)
        return recipe_bad(r, key, e, "has no targets");
    TRY(recipe_string(r, v, "format", &format, e));
    if (!format && outer && strcmp(outer, "mixed-precision") != 0)
        format = outer;
    while (format && i < n && strcmp(formats[i].name, format) != 0)
        i++;
    if (!format || i == n)
        return refuse_format(r, key, format, e);
    TRY(parse_args(r, v, "weights", key, &weights, e));
    TRY(parse_args(r, v, "input_activations", key, &inputs, e));
    if (!weights.there)
        return recipe_bad(r, key, e, "has no weights");
    QuantScheme s = {.algo = formats[i].name};
    TRY(formats[i].scheme(r, key, &weights, &inputs, &s, e));
    return recipe_scheme(r, &s, &out->scheme, e);
}

/* Regular expressions are compiled once. A pattern that is not understood is refused: what it means
 * is not known. */
static Status compile_patterns(Recipe *r, PatternList *list, Err *e)
{
    for (int i = 0; i < list->n; i++) {
        Pattern *p = &list->p[i];
        if (strncmp(p->text, "re:", 3) != 0)
            continue;
        const char *text = p->text + 3;
        if (regex_compile(text, strlen(text), &p->regex, e) != ST_OK)
            return err_in(e, "%s: %s.%s: \"%.100s\"", r->file, r->where, list->key, p->text);
    }
    return ST_OK;
}

/* Other things that would change what the weights mean. */
static Status refuse_extras(const Recipe *r, const JsonValue *config, Err *e)
{
    static const struct {
        const char *key, *why;
    } extras[] = {
        {"sparsity_config", "sparse weights are not supported"},
        {"transform_config", "rotated weights (transforms) are not supported"},
    };
    for (size_t i = 0; i < sizeof extras / sizeof *extras; i++) {
        const JsonValue *v = recipe_get(config, extras[i].key);
        if (v && (v->type != JSON_OBJECT || v->child) &&
            !(v->type == JSON_OBJECT && json_is_string(json_get(v, "format"), "dense")))
            return recipe_bad(r, extras[i].key, e, "%s, expected null", extras[i].why);
    }
    return ST_OK;
}

Status recipe_parse_compressed(Recipe *r, const JsonValue *config, Err *e)
{
    static const char *const known[] = {"quant_method",
                                        "format",
                                        "config_groups",
                                        "ignore",
                                        "version",
                                        "kv_cache_scheme",
                                        "sparsity_config",
                                        "quantization_status",
                                        "producer",
                                        "transform_config",
                                        "moe_sparsity_config",
                                        "global_compression_ratio",
                                        NULL};
    const char *format, *status;
    const JsonValue *groups = recipe_get(config, "config_groups");
    TRY(recipe_no_duplicates(r, config, NULL, e));
    TRY(recipe_check_keys(r, config, known, e));
    TRY(refuse_extras(r, config, e));
    TRY(recipe_string(r, config, "format", &format, e));
    TRY(recipe_string(r, config, "quantization_status", &status, e));
    if (status && strcmp(status, "compressed") != 0)
        return recipe_bad(r, "quantization_status", e,
                          "\"%.60s\" is not supported, expected \"compressed\"", status);
    if (!groups || groups->type != JSON_OBJECT || !groups->child || groups->len > MAX_GROUPS)
        return recipe_bad(r, "config_groups", e, "is not an object with 1 to %d groups",
                          MAX_GROUPS);
    TRY(recipe_no_duplicates(r, groups, "config_groups", e));
    r->groups = arena_alloc(&r->arena, groups->len * sizeof *r->groups);
    if (!r->groups)
        return recipe_no_memory(e);
    for (const JsonValue *g = groups->child; g; g = g->next) {
        Group *group = &r->groups[r->n_groups];
        TRY(parse_group(r, g, format, group, e));
        r->n_groups++; /* from here on its regular expressions are freed */
        TRY(compile_patterns(r, &group->targets, e));
    }
    TRY(recipe_patterns(r, config, "ignore", true, &r->ignore, e));
    TRY(compile_patterns(r, &r->ignore, e));
    TRY(recipe_kv_scheme(r, config, "kv_cache_scheme", e));
    r->name = recipe_text(r, "compressed-tensors %s", format ? format : r->groups[0].scheme->algo);
    return r->name ? ST_OK : recipe_no_memory(e);
}

/* --- which group --- */

/* names: equal names count; regexes: regular expressions do. */
static Status any_matches(Recipe *r, PatternList *list, const char *module, bool names,
                          bool regexes, bool *out, Err *e)
{
    for (int i = 0; i < list->n; i++) {
        Pattern *p = &list->p[i];
        bool hit;
        if (p->regex ? !regexes : !names)
            continue;
        TRY(recipe_name_matches(r, p, module, &hit, e));
        if (hit)
            *out = p->used = true;
    }
    return ST_OK;
}

static bool has_class(PatternList *list, const char *class_name)
{
    bool hit = false;
    for (int i = 0; i < list->n; i++)
        if (!list->p[i].regex && strcmp(list->p[i].text, class_name) == 0)
            hit = list->p[i].used = true;
    return hit;
}

/* Equal names come before regular expressions, and those before class names. */
static Status find_group(Recipe *r, const char *module, const char *class_name,
                         const QuantScheme **out, Err *e)
{
    for (int pass = 0; pass < 2; pass++)
        for (int g = 0; g < r->n_groups; g++) {
            bool hit = false;
            TRY(any_matches(r, &r->groups[g].targets, module, pass == 0, pass == 1, &hit, e));
            if (hit && !*out)
                *out = r->groups[g].scheme;
        }
    for (int g = 0; g < r->n_groups && !*out; g++)
        if (has_class(&r->groups[g].targets, class_name))
            *out = r->groups[g].scheme;
    return ST_OK;
}

Status recipe_group_scheme(Recipe *r, const char *module, const char *class_name,
                           const QuantScheme **out, Err *e)
{
    char other[MAX_MODULE];
    bool ignored = has_class(&r->ignore, class_name);
    *out = NULL;
    TRY(any_matches(r, &r->ignore, module, true, true, &ignored, e));
    bool swapped = recipe_swap(module, other, sizeof other);
    if (swapped)
        TRY(any_matches(r, &r->ignore, other, true, true, &ignored, e));
    if (ignored)
        return ST_OK;
    TRY(find_group(r, module, class_name, out, e));
    if (!*out && swapped)
        TRY(find_group(r, other, class_name, out, e));
    return ST_OK;
}
