/* io/spec.c - see spec.h. */
#include "io/spec.h"

#include <string.h>

static bool listed(const char *keys, const char *key, size_t len)
{
    while (*keys) {
        size_t n = strcspn(keys, " ");
        if (n == len && memcmp(keys, key, n) == 0)
            return true;
        keys += n + (keys[n] == ' ');
    }
    return false;
}

Status spec_keys(const JsonValue *part, const char *what, const char *keys, Err *e)
{
    if (!part || part->type != JSON_OBJECT)
        return err_set(e, ST_INPUT, "%s is not an object", what);
    for (const JsonValue *v = part->child; v; v = v->next) {
        if (!listed(keys, v->key, v->key_len))
            return err_set(e, ST_INPUT, "%s has the key \"%.80s\", which is not supported", what,
                           v->key);
        if (json_get(part, v->key) != v)
            return err_set(e, ST_INPUT, "%s has the key \"%.80s\" twice", what, v->key);
    }
    return ST_OK;
}

Status spec_bool(const JsonValue *part, const char *key, bool fallback, bool *out, Err *e)
{
    const JsonValue *v = json_get(part, key);
    *out = fallback;
    if (spec_absent(v))
        return ST_OK;
    if (v->type != JSON_TRUE && v->type != JSON_FALSE)
        return err_set(e, ST_INPUT, "\"%s\" is not true or false", key);
    *out = v->type == JSON_TRUE;
    return ST_OK;
}

Status spec_string(const JsonValue *part, const char *key, const JsonValue **out, Err *e)
{
    const JsonValue *v = json_get(part, key);
    if (!v || v->type != JSON_STRING)
        return err_set(e, ST_INPUT, "\"%s\" is %s", key, v ? "not a string" : "missing");
    *out = v;
    return ST_OK;
}

Status spec_array(const JsonValue *part, const char *key, const JsonValue **out, Err *e)
{
    const JsonValue *v = json_get(part, key);
    if (!v || v->type != JSON_ARRAY)
        return err_set(e, ST_INPUT, "\"%s\" is %s", key, v ? "not a list" : "missing");
    *out = v;
    return ST_OK;
}

const char *spec_type(const JsonValue *part)
{
    const JsonValue *v = json_get(part, "type");
    return v && v->type == JSON_STRING ? v->text : "(no type)";
}
