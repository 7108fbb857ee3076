/* quant/recipe_json.c - typed access to a quantization configuration, and what a recipe collects
 * while it is read: schemes, warnings, text. */
#include "quant/recipe_internal.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL_OBJECT = 512 };

Status recipe_no_memory(Err *e)
{
    return err_set(e, ST_MEMORY, "no memory for the quantization recipe");
}

Status recipe_bad(const Recipe *r, const char *key, Err *e, const char *fmt, ...)
{
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return err_set(e, ST_INPUT, "%s: %s%s%s%s%s", r->file, r->where, key && *r->where ? "." : "",
                   key ? key : "", key || *r->where ? ": " : "", text);
}

const JsonValue *recipe_get(const JsonValue *object, const char *key)
{
    const JsonValue *v = json_get(object, key);
    return v && v->type != JSON_NULL ? v : NULL;
}

static const char *type_name(const JsonValue *v)
{
    static const char *const names[] = {"null",     "false",  "true",     "a number",
                                        "a string", "a list", "an object"};
    return v ? names[v->type] : "missing";
}

Status recipe_string(const Recipe *r, const JsonValue *object, const char *key, const char **out,
                     Err *e)
{
    const JsonValue *v = recipe_get(object, key);
    *out = NULL;
    if (!v)
        return ST_OK;
    if (v->type != JSON_STRING || strlen(v->text) != v->len)
        return recipe_bad(r, key, e, "is %s, expected a string", type_name(v));
    *out = v->text;
    return ST_OK;
}

/* What int() makes of it; false where int() raises. */
static bool coerce(const JsonValue *v, double *out)
{
    char *end;
    if (v->type == JSON_TRUE || v->type == JSON_FALSE) {
        *out = v->type == JSON_TRUE;
        return true;
    }
    if (v->type == JSON_NUMBER)
        return json_double(v, out);
    if (v->type != JSON_STRING || v->len == 0 || v->len > 20 || strlen(v->text) != v->len)
        return false;
    *out = (double)strtol(v->text, &end, 10);
    while (isspace((unsigned char)*end))
        end++;
    return *end == 0 && isdigit((unsigned char)v->text[strcspn(v->text, "0123456789")]);
}

Status recipe_int(const Recipe *r, const JsonValue *object, const char *key, int *out, Err *e)
{
    const JsonValue *v = recipe_get(object, key);
    double d;
    if (!v)
        return ST_OK;
    if (!coerce(v, &d) || !(fabs(d) <= INT_MAX))
        return recipe_bad(r, key, e, "is %s, expected an integer", type_name(v));
    *out = (int)d;
    return ST_OK;
}

Status recipe_patterns(Recipe *r, const JsonValue *object, const char *key, bool null_is_empty,
                       PatternList *out, Err *e)
{
    const JsonValue *list = json_get(object, key);
    if (!list || (list->type == JSON_NULL && null_is_empty))
        return ST_OK;
    if (list->type != JSON_ARRAY)
        return recipe_bad(r, key, e, "is %s, expected a list of module names", type_name(list));
    if (list->len > INT_MAX / 4 || (size_t)out->n > INT_MAX / 4)
        return recipe_bad(r, key, e, "is longer than can be");
    Pattern *all = arena_alloc(&r->arena, ((size_t)out->n + list->len + 1) * sizeof *all);
    if (!all)
        return recipe_no_memory(e);
    if (out->n)
        memcpy(all, out->p, (size_t)out->n * sizeof *all);
    out->p = all;
    out->key = key;
    for (const JsonValue *v = list->child; v; v = v->next) {
        if (v->type != JSON_STRING || strlen(v->text) != v->len)
            return recipe_bad(r, key, e, "holds %s, expected module names", type_name(v));
        if (v->len == 0)
            return recipe_bad(r, key, e, "holds an empty name, which would match everything");
        all[out->n++] = (Pattern){.text = v->text, .wild = v->text[strcspn(v->text, "*?[")] != 0};
    }
    return ST_OK;
}

Status recipe_no_duplicates(const Recipe *r, const JsonValue *object, const char *what, Err *e)
{
    if (object->len > SMALL_OBJECT)
        return recipe_bad(r, what, e, "has more than %d keys", SMALL_OBJECT);
    for (const JsonValue *a = object->child; a; a = a->next)
        if (json_count_key(object, a->key) > 1)
            return recipe_bad(r, what, e, "key \"%.100s\" occurs twice", a->key);
    return ST_OK;
}

char *recipe_fold(Recipe *r, const char *text, bool upper)
{
    char *copy = arena_copy(&r->arena, text, strlen(text));
    for (char *c = copy; c && *c; c++)
        *c = (char)(upper ? toupper((unsigned char)*c) : tolower((unsigned char)*c));
    return copy;
}

static char *text_of(Recipe *r, const char *fmt, va_list args)
{
    char text[600];
    vsnprintf(text, sizeof text, fmt, args);
    return arena_copy(&r->arena, text, strlen(text));
}

char *recipe_text(Recipe *r, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char *text = text_of(r, fmt, args);
    va_end(args);
    return text;
}

Status recipe_warn(Recipe *r, Err *e, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char *text = text_of(r, fmt, args);
    va_end(args);
    if (r->n_warnings == r->max_warnings) {
        int max = r->max_warnings ? 2 * r->max_warnings : 8;
        const char **more = arena_alloc(&r->arena, (size_t)max * sizeof *more);
        if (!more)
            return recipe_no_memory(e);
        if (r->n_warnings)
            memcpy(more, r->warnings, (size_t)r->n_warnings * sizeof *more);
        r->warnings = more;
        r->max_warnings = max;
    }
    if (!text)
        return recipe_no_memory(e);
    r->warnings[r->n_warnings++] = text;
    return ST_OK;
}

static bool holds_something(const JsonValue *v)
{
    double d;
    if (v->type == JSON_NULL || v->type == JSON_FALSE)
        return false;
    if (v->type == JSON_NUMBER)
        return !json_double(v, &d) || d != 0;
    return v->type == JSON_TRUE || v->len > 0;
}

Status recipe_check_keys(Recipe *r, const JsonValue *object, const char *const *known, Err *e)
{
    for (const JsonValue *v = object->child; v; v = v->next) {
        int i = 0;
        while (known[i] && strcmp(known[i], v->key) != 0)
            i++;
        if (!known[i] && holds_something(v))
            TRY(recipe_warn(r, e, "%s: %s: key \"%.100s\" is not known, and is ignored", r->file,
                            r->where, v->key));
    }
    return ST_OK;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool same_scheme(const QuantScheme *a, const QuantScheme *b)
{
    return a->format == b->format && same_text(a->algo, b->algo) && a->grid == b->grid &&
           a->block_rows == b->block_rows && a->block_cols == b->block_cols &&
           a->group == b->group && a->rows == b->rows &&
           a->rows_power_of_two == b->rows_power_of_two && same_text(a->weight, b->weight) &&
           same_text(a->scale, b->scale) && same_text(a->scale_alias, b->scale_alias) &&
           same_text(a->global, b->global) && same_text(a->input, b->input) &&
           same_text(a->input_alias, b->input_alias) && same_text(a->shape, b->shape) &&
           a->whole_blocks == b->whole_blocks && a->global_divides == b->global_divides &&
           a->scale_may_be_float == b->scale_may_be_float && a->transposed == b->transposed;
}

Status recipe_scheme(Recipe *r, const QuantScheme *s, const QuantScheme **out, Err *e)
{
    for (int i = 0; i < r->n_schemes; i++)
        if (same_scheme(r->schemes[i], s)) {
            *out = r->schemes[i];
            return ST_OK;
        }
    if (r->n_schemes == r->max_schemes) {
        int max = r->max_schemes ? 2 * r->max_schemes : 8;
        QuantScheme **more = arena_alloc(&r->arena, (size_t)max * sizeof *more);
        if (!more)
            return recipe_no_memory(e);
        if (r->n_schemes)
            memcpy(more, r->schemes, (size_t)r->n_schemes * sizeof *more);
        r->schemes = more;
        r->max_schemes = max;
    }
    QuantScheme *copy = arena_alloc(&r->arena, sizeof *copy);
    if (!copy)
        return recipe_no_memory(e);
    *copy = *s;
    r->schemes[r->n_schemes++] = copy;
    *out = copy;
    return ST_OK;
}
