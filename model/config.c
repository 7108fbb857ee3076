/* model/config.c - see config.h. */
#include "model/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KEYS = 1 << 20, SHOWN = 48 }; /* characters of a value shown in a message */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorted, since quantized_layers may name every projection of every expert. */
static Status check_names(const cJSON *object, int n, const char *where, Err *e)
{
    const char **names = malloc(((size_t)n + 1) * sizeof *names);
    Status st = ST_OK;
    int i = 0;
    if (!names)
        return err_set(e, ST_MEMORY, "not enough memory for the %d keys of %s", n, where);
    for (const cJSON *v = object->child; v; v = v->next)
        names[i++] = v->string;
    qsort(names, (size_t)n, sizeof *names, by_name);
    for (i = 1; i < n && st == ST_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            st = err_set(e, ST_INPUT, "key \"%s\" occurs twice", names[i]);
    free(names);
    return st;
}

static Status check_duplicates(const cJSON *object, const char *where, Err *e)
{
    int n = cJSON_GetArraySize(object);
    if (n > MAX_KEYS)
        return err_set(e, ST_INPUT, "%s has more than %d keys", where, MAX_KEYS);
    TRY(check_names(object, n, where, e));
    for (const cJSON *v = object->child; v; v = v->next)
        if (cJSON_IsObject(v))
            TRY(check_duplicates(v, v->string, e));
    return ST_OK;
}

Status config_parse(const char *text, size_t len, cJSON **out, Err *e)
{
    const char *end = NULL;
    *out = NULL;
    cJSON *root = cJSON_ParseWithLengthOpts(text, len, &end, 0);
    if (!root)
        return err_set(e, ST_INPUT, "byte %zu: not valid JSON", end ? (size_t)(end - text) : 0);
    Status st = ST_OK;
    for (; end < text + len; end++)
        if (!strchr(" \t\r\n", *end) || *end == 0) {
            st = err_set(e, ST_INPUT, "byte %zu: something follows the JSON object",
                         (size_t)(end - text));
            goto fail;
        }
    if (!cJSON_IsObject(root)) {
        st = err_set(e, ST_INPUT, "not a JSON object");
        goto fail;
    }
    TRY_GOTO(check_duplicates(root, "the configuration", e));
    *out = root;
    return ST_OK;
fail:
    cJSON_Delete(root);
    return st;
}

const cJSON *config_get(const cJSON *config, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(config, key);
    return v && !cJSON_IsNull(v) ? v : NULL;
}

bool config_is_empty(const cJSON *v)
{
    if (cJSON_IsNumber(v))
        return v->valuedouble == 0;
    if (cJSON_IsString(v))
        return v->valuestring[0] == 0;
    if (cJSON_IsArray(v) || cJSON_IsObject(v))
        return !v->child;
    return !cJSON_IsTrue(v);
}

/* "key is VALUE, expected WHAT". */
static Status wrong(const char *key, const cJSON *v, const char *expected, Err *e)
{
    char shown[SHOWN + 4] = "?";
    if (cJSON_IsNumber(v)) {
        snprintf(shown, sizeof shown, "%.15g", v->valuedouble);
    } else if (cJSON_IsString(v)) {
        bool cut = strlen(v->valuestring) > SHOWN - 5;
        snprintf(shown, sizeof shown, "\"%.*s%s\"", SHOWN - 5, v->valuestring, cut ? "..." : "");
    } else {
        snprintf(shown, sizeof shown, "%s",
                 cJSON_IsArray(v)    ? "a list"
                 : cJSON_IsObject(v) ? "an object"
                 : cJSON_IsTrue(v)   ? "true"
                 : cJSON_IsFalse(v)  ? "false"
                                     : "null");
    }
    return err_set(e, ST_INPUT, "%s is %s, expected %s", key, shown, expected);
}

static bool as_int(const cJSON *v, int min, int max, int *out)
{
    if (!cJSON_IsNumber(v) || v->valuedouble != floor(v->valuedouble) || v->valuedouble < min ||
        v->valuedouble > max)
        return false;
    *out = (int)v->valuedouble;
    return true;
}

Status config_int(const cJSON *config, const char *key, int min, int max, int *out, Err *e)
{
    const cJSON *v = config_get(config, key);
    char expected[64];
    if (!v || as_int(v, min, max, out))
        return ST_OK;
    snprintf(expected, sizeof expected, "an integer from %d to %d", min, max);
    return wrong(key, v, expected, e);
}

Status config_need_int(const cJSON *config, const char *key, int min, int max, int *out, Err *e)
{
    if (!config_get(config, key))
        return err_set(e, ST_INPUT, "%s is missing", key);
    return config_int(config, key, min, max, out, e);
}

Status config_need_synonym(const cJSON *config, const char *const *keys, int min, int max, int *out,
                           Err *e)
{
    const char *first = NULL, *const *all = keys;
    for (; *keys; keys++) {
        int value;
        if (!config_get(config, *keys)) {
            if (!keys[1] && !first)
                return err_set(e, ST_INPUT, "%s is missing", all[0]);
            continue;
        }
        TRY(config_int(config, *keys, min, max, &value, e));
        if (first && value != *out)
            return err_set(e, ST_INPUT, "%s is %d but %s is %d", first, *out, *keys, value);
        first = *keys;
        *out = value;
    }
    return ST_OK;
}

Status config_double(const cJSON *config, const char *key, double min, double max, double *out,
                     Err *e)
{
    const cJSON *v = config_get(config, key);
    char expected[96];
    if (!v)
        return ST_OK;
    if (cJSON_IsNumber(v) && v->valuedouble >= min && v->valuedouble <= max) {
        *out = v->valuedouble;
        return ST_OK;
    }
    snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
    return wrong(key, v, expected, e);
}

Status config_bool(const cJSON *config, const char *key, bool *out, Err *e)
{
    const cJSON *v = config_get(config, key);
    if (!v)
        return ST_OK;
    if (!cJSON_IsBool(v))
        return wrong(key, v, "true or false", e);
    *out = cJSON_IsTrue(v);
    return ST_OK;
}

Status config_string(const cJSON *config, const char *key, const char **out, Err *e)
{
    const cJSON *v = config_get(config, key);
    if (!v)
        return ST_OK;
    if (!cJSON_IsString(v))
        return wrong(key, v, "a string", e);
    *out = v->valuestring;
    return ST_OK;
}

Status config_only(const cJSON *config, const char *key, const char *value, Err *e)
{
    const char *got = value;
    TRY(config_string(config, key, &got, e));
    if (strcmp(got, value) != 0)
        return err_set(e, ST_INPUT, "%s \"%.100s\" is not supported (%s is)", key, got, value);
    return ST_OK;
}

Status config_id_list(const cJSON *config, const char *key, int limit, int *out, int *n, int max,
                      Err *e)
{
    const cJSON *v = config_get(config, key);
    char expected[80];
    if (!v)
        return ST_OK;
    snprintf(expected, sizeof expected, "token ids from 0 to %d", limit - 1);
    if (cJSON_IsArray(v) && !v->child)
        return ST_OK;
    for (const cJSON *item = cJSON_IsArray(v) ? v->child : v; item;
         item = cJSON_IsArray(v) ? item->next : NULL) {
        int id, i = 0;
        if (!as_int(item, 0, limit - 1, &id))
            return wrong(key, item, expected, e);
        while (i < *n && out[i] != id)
            i++;
        if (i < *n)
            continue;
        if (*n == max)
            return err_set(e, ST_INPUT, "%s: more than %d different ids", key, max);
        out[(*n)++] = id;
    }
    return ST_OK;
}

Status config_refuse(const cJSON *config, const char *key, const char *why, Err *e)
{
    const cJSON *v = config_get(config, key);
    if (!v || config_is_empty(v))
        return ST_OK;
    return err_set(e, ST_INPUT, "%s is not supported: %s", key, why);
}

/* Whether "outer.key" (outer NULL: key) is in list; "outer.*" stands for all. */
static bool listed(const char *const *list, int n, const char *outer, const char *key)
{
    size_t skip = outer ? strlen(outer) + 1 : 0;
    for (int i = 0; n < 0 ? list[i] != NULL : i < n; i++) {
        const char *entry = list[i];
        if (outer && (strncmp(entry, outer, skip - 1) != 0 || entry[skip - 1] != '.'))
            continue;
        if (strcmp(entry + skip, key) == 0 || (outer && strcmp(entry + skip, "*") == 0))
            return true;
    }
    return false;
}

bool config_key_in(const char *key, const char *const *table)
{
    return listed(table, -1, NULL, key);
}

static bool in_tables(const char *const *const *tables, int n_tables, const char *outer,
                      const char *key)
{
    bool known = false;
    for (int t = 0; t < n_tables && !known; t++)
        known = listed(tables[t], -1, outer, key);
    return known;
}

static Status check_keys(const cJSON *object, const char *outer, const char *const *const *tables,
                         int n_tables, const char *const *accept, int n_accept, Err *e)
{
    for (const cJSON *v = object->child; v; v = v->next) {
        if (listed(accept, n_accept, outer, v->string) || config_is_empty(v))
            continue;
        if (!in_tables(tables, n_tables, outer, v->string))
            return err_set(e, ST_INPUT,
                           "unknown key \"%s%s%s\": it may change results; "
                           "--accept-config-key %s%s%s goes on without it",
                           outer ? outer : "", outer ? "." : "", v->string, outer ? outer : "",
                           outer ? "." : "", v->string);
        if (!outer && cJSON_IsObject(v))
            TRY(check_keys(v, v->string, tables, n_tables, accept, n_accept, e));
    }
    return ST_OK;
}

Status config_check_keys(const cJSON *config, const char *const *const *tables, int n_tables,
                         const char *const *accept, int n_accept, Err *e)
{
    return check_keys(config, NULL, tables, n_tables, accept, n_accept, e);
}

static void list_unknown(const cJSON *object, const char *outer, const char *const *const *tables,
                         int n_tables, StrBuf *out)
{
    for (const cJSON *v = object->child; v; v = v->next) {
        if (config_is_empty(v) && !in_tables(tables, n_tables, outer, v->string))
            strbuf_fmt(out, "%s%s%s\n", outer ? outer : "", outer ? "." : "", v->string);
        if (!outer && cJSON_IsObject(v))
            list_unknown(v, v->string, tables, n_tables, out);
    }
}

void config_list_unknown(const cJSON *config, const char *const *const *tables, int n_tables,
                         StrBuf *out)
{
    list_unknown(config, NULL, tables, n_tables, out);
}
