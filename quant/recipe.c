/* quant/recipe.c - finds the quantization configuration of a checkpoint and its dialect
 * (formats.md 3.1, 3.3). */
#include "quant/recipe_internal.h"

#include "io/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t LARGEST_FILE = (size_t)64 << 20;

/* --- which object --- */

/* Empty counts as absent, as it does everywhere in a configuration. */
static Status object_of(const Recipe *r, const JsonValue *parent, const char *key,
                        const JsonValue **out, Err *e)
{
    const JsonValue *v = recipe_get(parent, key);
    if (!v)
        return ST_OK;
    if (json_count_key(parent, key) > 1)
        return recipe_bad(r, key, e, "occurs twice");
    if (v->type != JSON_OBJECT)
        return recipe_bad(r, key, e, "is not an object");
    if (v->child)
        *out = v;
    return ST_OK;
}

static Status find_config(Recipe *r, const JsonValue *root, const JsonValue **out, Err *e)
{
    const JsonValue *text = recipe_get(root, "text_config");
    *out = NULL;
    TRY(object_of(r, root, "quantization_config", out, e));
    r->where = "quantization_config";
    if (!*out && text && text->type == JSON_OBJECT) {
        TRY(object_of(r, text, "quantization_config", out, e));
        r->where = "text_config.quantization_config";
    }
    if (!*out) {
        TRY(object_of(r, root, "compression_config", out, e));
        r->where = "compression_config";
    }
    return ST_OK;
}

/* --- which dialect --- */

static Status refuse_method(const Recipe *r, const char *method, Err *e)
{
    static const struct {
        const char *part, *what;
    } known[] = {
        {"awq", "AWQ has zero points and its own packing"},
        {"gptq", "GPTQ has zero points and a group index (g_idx)"},
        {"bitsandbytes", "bitsandbytes has its own code book"},
        {"svd", "SVD variants add low-rank factors"},
        {"int8", "INT8 is not a format of this program"},
    };
    static const char accepted[] = "expected modelopt, fp8, mxfp4, mxfp8 or compressed-tensors";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strstr(method, known[i].part))
            return recipe_bad(r, "quant_method", e, "\"%.60s\" is not supported: %s; %s", method,
                              known[i].what, accepted);
    return recipe_bad(r, "quant_method", e, "\"%.60s\" is not known, %s", method, accepted);
}

static Status parse_dialect(Recipe *r, const JsonValue *config, const JsonValue *root,
                            const JsonValue *hf_quant, Err *e)
{
    const char *text;
    TRY(recipe_string(r, config, "quant_method", &text, e));
    if (!text && (json_get(config, "quantization") || json_get(config, "quant_algo")))
        text = "modelopt"; /* files before ModelOpt wrote its own name */
    if (!text && strcmp(r->where, "compression_config") == 0)
        text = "compressed-tensors";
    if (!text)
        return recipe_bad(r, "quant_method", e,
                          "is missing, expected modelopt, fp8, mxfp4, mxfp8 or "
                          "compressed-tensors");
    char *method = recipe_fold(r, text, false);
    if (!method)
        return recipe_no_memory(e);
    if (strncmp(method, "modelopt", strlen("modelopt")) == 0)
        return recipe_parse_modelopt(r, config, method, hf_quant, e);
    if (strcmp(method, "fp8") == 0)
        return recipe_parse_fp8(r, config, root, e);
    if (strcmp(method, "mxfp4") == 0)
        return recipe_parse_mxfp4(r, config, e);
    if (strcmp(method, "compressed-tensors") == 0)
        return recipe_parse_compressed(r, config, e);
    if (strcmp(method, "mxfp8") != 0)
        return refuse_method(r, method, e);
    if (json_get(config, "quantization") || json_get(config, "quant_algo"))
        return recipe_parse_modelopt(r, config, "modelopt_mxfp8", hf_quant, e);
    return recipe_parse_mxfp8(r, config, e);
}

/* --- hf_quant_config.json --- */

static const char *algo_in(const JsonValue *config)
{
    const JsonValue *inner = json_get(config, "quantization");
    const JsonValue *v =
        json_get(inner && inner->type == JSON_OBJECT ? inner : config, "quant_algo");
    return v && v->type == JSON_STRING ? v->text : NULL;
}

static Status parse_alone(Recipe *r, const char *label, const JsonValue *hf_quant, Err *e)
{
    const JsonValue *producer = recipe_get(hf_quant, "producer");
    r->file = label;
    r->where = "";
    if (!producer || producer->type != JSON_OBJECT ||
        !json_is_string(json_get(producer, "name"), "modelopt"))
        return recipe_bad(r, "producer.name", e, "is not \"modelopt\", which alone is known");
    if (!json_get(hf_quant, "quantization"))
        return recipe_bad(r, "quantization", e, "is missing");
    return recipe_parse_modelopt(r, hf_quant, "modelopt", hf_quant, e);
}

/* Both files come from one export; where they differ, one was edited. */
static Status compare_files(Recipe *r, const JsonValue *config, const char *label,
                            const JsonValue *hf_quant, Err *e)
{
    const char *a = algo_in(config), *b = algo_in(hf_quant);
    char *x = a ? recipe_fold(r, a, true) : NULL, *y = b ? recipe_fold(r, b, true) : NULL;
    if (!x || !y || strcmp(x, y) == 0)
        return ST_OK;
    return recipe_warn(r, e, "%s says %.60s, but %s says %.60s, which counts", label, b, r->file,
                       a);
}

/* --- the recipe --- */

static Status parse_object(Arena *arena, const char *label, const char *text, size_t len,
                           JsonValue **out, Err *e)
{
    if (json_parse(text, len, arena, out, e) != ST_OK)
        return err_in(e, "%s", label);
    if ((*out)->type != JSON_OBJECT)
        return err_set(e, ST_INPUT, "%s: not a JSON object", label);
    return ST_OK;
}

static Status parse_files(Recipe *r, const char *config_label, const char *config,
                          size_t config_len, const char *hf_label, const char *hf_quant,
                          size_t hf_quant_len, Err *e)
{
    JsonValue *root, *hf = NULL;
    const JsonValue *object;
    r->file = arena_copy(&r->arena, config_label, strlen(config_label));
    hf_label = arena_copy(&r->arena, hf_label, strlen(hf_label));
    r->name = "none";
    if (!r->file || !hf_label)
        return recipe_no_memory(e);
    TRY(parse_object(&r->arena, r->file, config, config_len, &root, e));
    if (hf_quant)
        TRY(parse_object(&r->arena, hf_label, hf_quant, hf_quant_len, &hf, e));
    r->where = "";
    TRY(find_config(r, root, &object, e));
    if (object) {
        TRY(parse_dialect(r, object, root, hf, e));
        return hf ? compare_files(r, object, hf_label, hf, e) : ST_OK;
    }
    return hf ? parse_alone(r, hf_label, hf, e) : ST_OK;
}

static Status parse(const char *config_label, const char *config, size_t config_len,
                    const char *hf_label, const char *hf_quant, size_t hf_quant_len, Recipe **out,
                    Err *e)
{
    *out = NULL;
    Recipe *r = calloc(1, sizeof *r);
    if (!r)
        return recipe_no_memory(e);
    Status st =
        parse_files(r, config_label, config, config_len, hf_label, hf_quant, hf_quant_len, e);
    if (st != ST_OK) {
        recipe_free(r);
        return st;
    }
    *out = r;
    return ST_OK;
}

Status recipe_parse(const char *config, size_t config_len, const char *hf_quant,
                    size_t hf_quant_len, Recipe **out, Err *e)
{
    return parse("config.json", config, config_len, "hf_quant_config.json", hf_quant, hf_quant_len,
                 out, e);
}

Status recipe_load(const char *dir, Recipe **out, Err *e)
{
    char config_path[FILE_PATH_MAX], hf_path[FILE_PATH_MAX];
    char *config = NULL, *hf = NULL;
    size_t config_len = 0, hf_len = 0;
    Status st;
    *out = NULL;
    TRY(file_join(config_path, dir, "config.json", e));
    TRY(file_join(hf_path, dir, "hf_quant_config.json", e));
    TRY_GOTO(file_read(config_path, LARGEST_FILE, &config, &config_len, e));
    if (file_exists(hf_path))
        TRY_GOTO(file_read(hf_path, LARGEST_FILE, &hf, &hf_len, e));
    TRY_GOTO(parse(config_path, config, config_len, hf_path, hf, hf_len, out, e));
fail:
    free(config);
    free(hf);
    return st;
}

static void free_patterns(PatternList *list)
{
    for (int i = 0; i < list->n; i++)
        regex_free(list->p[i].regex);
}

void recipe_free(Recipe *r)
{
    if (!r)
        return;
    free_patterns(&r->exclude);
    free_patterns(&r->layer_exclude);
    free_patterns(&r->ignore);
    for (int i = 0; i < r->n_groups; i++)
        free_patterns(&r->groups[i].targets);
    name_table_free(&r->layer_names);
    regex_stack_free(&r->stack);
    arena_free(&r->arena);
    free(r);
}

KvAlgo recipe_kv_algo(const Recipe *r)
{
    return r->kv;
}

const char *recipe_name(const Recipe *r)
{
    return r->name;
}

static bool unused_in(const PatternList *list, int *i, const char **out)
{
    for (int k = 0; k < list->n; k++)
        if (!list->p[k].used && (*i)-- == 0) {
            *out = list->p[k].text;
            return true;
        }
    return false;
}

const char *recipe_unused(const Recipe *r, int i)
{
    const char *out = NULL;
    if (unused_in(&r->exclude, &i, &out) || unused_in(&r->layer_exclude, &i, &out) ||
        unused_in(&r->ignore, &i, &out))
        return out;
    for (int k = 0; k < r->n_layers; k++)
        if (!r->layers[k].used && i-- == 0)
            return r->layers[k].module;
    for (int g = 0; g < r->n_groups; g++)
        if (unused_in(&r->groups[g].targets, &i, &out))
            return out;
    return NULL;
}

const char *recipe_warning(const Recipe *r, int i)
{
    return i >= 0 && i < r->n_warnings ? r->warnings[i] : NULL;
}
