/* model/quantize_rules.c - see quantize_rules.h. */
#include "model/quantize_rules.h"

#include "io/file.h"
#include "io/json.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RULES = 10000, MAX_FILE_BYTES = 16 << 20 };

static const Target targets[N_TARGETS] = {
    {TARGET_KEEP, "keep", NULL, FORMAT_F32, 1, 0, false},
    {TARGET_BF16, "bf16", NULL, FORMAT_BF16, 1, 0, false},
    {TARGET_FP8_STATIC, "fp8-static", "FP8", FORMAT_FP8, 1, 0, true},
    {TARGET_FP8_DYNAMIC, "fp8-dynamic", "FP8_PER_CHANNEL_PER_TOKEN", FORMAT_FP8, 1, 0, false},
    {TARGET_FP8_BLOCK, "fp8-block", "FP8_PB_WO", FORMAT_FP8, 128, 128, false},
    {TARGET_NVFP4, "nvfp4", "NVFP4", FORMAT_NVFP4, 16, 16, true},
    {TARGET_W4A16_NVFP4, "w4a16_nvfp4", "W4A16_NVFP4", FORMAT_NVFP4, 16, 16, false},
    {TARGET_MXFP8, "mxfp8", "MXFP8", FORMAT_MXFP8, 32, 32, false},
    {TARGET_MXFP4, "mxfp4", "MXFP4", FORMAT_MXFP4, 32, 32, false},
    {TARGET_INT4, "int4", NULL, FORMAT_INT4, 1, 32, false},
    {TARGET_Q8_0, "q8_0", "Q8_0", FORMAT_Q8_0, 32, 0, false},
};

static const char known[] = "fp8, fp8-static, fp8-dynamic, fp8-block, nvfp4, w4a16_nvfp4, mxfp8, "
                            "mxfp4, int4, q8_0";

const Target *quantize_target(TargetId id)
{
    return &targets[id];
}

/* False: there is no such format. */
static bool find_target(const char *name, bool calibrated, TargetId *out)
{
    if (strcmp(name, "fp8") == 0) {
        *out = calibrated ? TARGET_FP8_STATIC : TARGET_FP8_DYNAMIC;
        return true;
    }
    for (int i = 0; i < N_TARGETS; i++)
        if (strcmp(name, targets[i].name) == 0) {
            *out = targets[i].id;
            return true;
        }
    return false;
}

static bool group_fits(TargetId target, int64_t group)
{
    switch (target) {
    case TARGET_NVFP4:
    case TARGET_W4A16_NVFP4:
        return group == 16 || group == 32;
    case TARGET_INT4:
        return group >= 1 && group <= 1 << 20;
    default:
        return false;
    }
}

static Status check_keys(const JsonValue *object, const char *const *keys, const char *where,
                         Err *e)
{
    for (const JsonValue *m = object->child; m; m = m->next) {
        int known_key = 0;
        for (int i = 0; keys[i]; i++)
            known_key |= strcmp(m->key, keys[i]) == 0;
        if (!known_key)
            return err_set(e, ST_INPUT, "%s: unknown key \"%.100s\"", where, m->key);
        if (json_count_key(object, m->key) > 1)
            return err_set(e, ST_INPUT, "%s: key \"%.100s\" is there twice", where, m->key);
    }
    return ST_OK;
}

static Status need_text(const JsonValue *object, const char *key, const char *where,
                        const char **out, Err *e)
{
    const JsonValue *v = json_get(object, key);
    if (!v || v->type != JSON_STRING || v->len == 0 || strlen(v->text) != v->len)
        return err_set(e, ST_INPUT, "%s: %s is missing or not a string", where, key);
    *out = v->text;
    return ST_OK;
}

static Status parse_rule(const JsonValue *v, int number, bool calibrated, QuantizeRules *out,
                         Err *e)
{
    static const char *const keys[] = {"match", "format", "group_size", NULL};
    QuantizeRule *r = &out->rules[out->n];
    const char *match, *format;
    char where[40];
    int64_t group = 0;
    snprintf(where, sizeof where, "rule %d", number);
    if (v->type != JSON_OBJECT)
        return err_set(e, ST_INPUT, "%s is not an object", where);
    TRY(check_keys(v, keys, where, e));
    TRY(need_text(v, "match", where, &match, e));
    TRY(need_text(v, "format", where, &format, e));
    if (!find_target(format, calibrated, &r->target))
        return err_set(e, ST_INPUT, "%s: unknown format \"%.60s\" (%s, bf16, keep)", where, format,
                       known);
    if (json_get(v, "group_size")) {
        if (!json_int64(json_get(v, "group_size"), &group) || !group_fits(r->target, group))
            return err_set(e, ST_INPUT,
                           "%s: group_size does not fit format %s (nvfp4, w4a16_nvfp4: 16 or 32; "
                           "int4: 1 or more)",
                           where, format);
        r->group = (int)group;
    }
    r->match = arena_copy(&out->arena, match, strlen(match));
    if (!r->match)
        return err_set(e, ST_MEMORY, "not enough memory for rules");
    out->n++;
    return ST_OK;
}

static Status parse_value(const JsonValue *root, bool calibrated, QuantizeRules *out, Err *e)
{
    static const char *const keys[] = {"rules", "kv_cache", NULL};
    if (root->type != JSON_OBJECT)
        return err_set(e, ST_INPUT, "the recipe is not a JSON object");
    TRY(check_keys(root, keys, "the recipe", e));
    const JsonValue *list = json_get(root, "rules"), *kv = json_get(root, "kv_cache");
    if (!list || list->type != JSON_ARRAY || list->len == 0 || list->len > MAX_RULES)
        return err_set(e, ST_INPUT, "rules is missing, empty or not a list");
    if (kv) {
        out->kv_given = true;
        out->kv_fp8 = json_is_string(kv, "fp8");
        if (!out->kv_fp8 && !json_is_string(kv, "none"))
            return err_set(e, ST_INPUT, "kv_cache is neither \"fp8\" nor \"none\"");
    }
    out->rules = calloc(list->len, sizeof *out->rules);
    if (!out->rules)
        return err_set(e, ST_MEMORY, "not enough memory for rules");
    int number = 1;
    for (const JsonValue *v = list->child; v; v = v->next)
        TRY(parse_rule(v, number++, calibrated, out, e));
    return ST_OK;
}

Status quantize_rules_parse(const char *text, size_t len, bool calibrated, QuantizeRules *out,
                            Err *e)
{
    Arena arena = {0};
    JsonValue *root;
    *out = (QuantizeRules){0};
    Status st = json_parse(text, len, &arena, &root, e);
    if (st == ST_OK)
        st = parse_value(root, calibrated, out, e);
    arena_free(&arena);
    if (st != ST_OK)
        quantize_rules_free(out);
    return st;
}

static Status load_file(const char *path, bool calibrated, QuantizeRules *out, Err *e)
{
    char *text;
    size_t len;
    TRY(file_read(path, MAX_FILE_BYTES, &text, &len, e));
    Status st = quantize_rules_parse(text, len, calibrated, out, e);
    free(text);
    out->file = path;
    return st == ST_OK ? ST_OK : err_in(e, "%.300s", path);
}

Status quantize_rules_load(const char *recipe, bool experts_only, bool calibrated,
                           QuantizeRules *out, Err *e)
{
    TargetId target;
    *out = (QuantizeRules){0};
    if (!find_target(recipe, calibrated, &target) || target == TARGET_KEEP) {
        if (!file_exists(recipe))
            return err_set(e, ST_USAGE, "recipe \"%.200s\" is neither a file nor one of %s", recipe,
                           known);
        if (experts_only)
            return err_set(e, ST_USAGE,
                           "--experts-only goes with a recipe's name; a file of rules "
                           "says what it means");
        return load_file(recipe, calibrated, out, e);
    }
    out->rules = calloc(1, sizeof *out->rules);
    if (!out->rules)
        return err_set(e, ST_MEMORY, "not enough memory for rules");
    out->rules[0] = (QuantizeRule){.match = experts_only ? "experts" : "all", .target = target};
    out->n = 1;
    return ST_OK;
}

void quantize_rules_free(QuantizeRules *r)
{
    free(r->rules);
    arena_free(&r->arena);
    *r = (QuantizeRules){0};
}

static bool matches(const char *match, ModuleKind kind, const char *module)
{
    static const struct {
        const char *word;
        unsigned kinds;
    } words[] = {
        {"all",
         1U << MODULE_ATTENTION | 1U << MODULE_DENSE | 1U << MODULE_SHARED | 1U << MODULE_EXPERTS},
        {"attention", 1U << MODULE_ATTENTION},
        {"dense", 1U << MODULE_DENSE},
        {"shared", 1U << MODULE_SHARED},
        {"experts", 1U << MODULE_EXPERTS},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(match, words[i].word) == 0)
            return words[i].kinds >> kind & 1;
    return fnmatch(match, module, FNM_NOESCAPE) == 0;
}

const QuantizeRule *quantize_rules_find(QuantizeRules *r, ModuleKind kind, const char *module)
{
    for (int i = 0; i < r->n; i++)
        if (matches(r->rules[i].match, kind, module)) {
            r->rules[i].used = true;
            return &r->rules[i];
        }
    return NULL;
}

const QuantizeRule *quantize_rules_unused(const QuantizeRules *r)
{
    for (int i = 0; i < r->n; i++)
        if (!r->rules[i].used)
            return &r->rules[i];
    return NULL;
}
