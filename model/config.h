/* model/config.h - typed access to a configuration object; every message names the key, what it
 * holds and what was expected. A key that is absent or null leaves *out as it was, so the caller
 * puts the default there. */
#ifndef MB_MODEL_CONFIG_H
#define MB_MODEL_CONFIG_H

#include "io/err.h"
#include "io/strbuf.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

/* One JSON object and nothing after it. Keys that occur twice are refused, since readers differ in
 * which one they take. *out is freed with cJSON_Delete. */
Status config_parse(const char *text, size_t len, cJSON **out, Err *e);

/* NULL: absent or null. */
const cJSON *config_get(const cJSON *config, const char *key);
/* null, false, 0, "", [] or {}: what an unknown key may hold (contract.md section 6). */
bool config_is_empty(const cJSON *value);

Status config_int(const cJSON *config, const char *key, int min, int max, int *out, Err *e);
/* The same, but the key must be there. */
Status config_need_int(const cJSON *config, const char *key, int min, int max, int *out, Err *e);
/* One value under several names (NULL-terminated): at least one is needed, and all that are there
 * must agree. A message about a missing one names the first. */
Status config_need_synonym(const cJSON *config, const char *const *keys, int min, int max, int *out,
                           Err *e);
/* min <= value <= max; NaN and infinities cannot be written in JSON. */
Status config_double(const cJSON *config, const char *key, double min, double max, double *out,
                     Err *e);
Status config_bool(const cJSON *config, const char *key, bool *out, Err *e);
/* *out points into config. */
Status config_string(const cJSON *config, const char *key, const char **out, Err *e);
/* The key, where it is there, must hold this string: others are not supported. */
Status config_only(const cJSON *config, const char *key, const char *value, Err *e);
/* An integer or a list of them, added to out[*n] where not there yet; at most max values in all. */
Status config_id_list(const cJSON *config, const char *key, int limit, int *out, int *n, int max,
                      Err *e);
/* "key is not supported: WHY" unless the key is absent or its value is empty. */
Status config_refuse(const cJSON *config, const char *key, const char *why, Err *e);

bool config_key_in(const char *key, const char *const *table);
/* Every key of config (and, one level down, "key.inner" of objects) must be in one of the
 * NULL-terminated tables or in accept, or hold an empty value. A table entry "key.*" admits
 * whatever is inside. */
Status config_check_keys(const cJSON *config, const char *const *const *tables, int n_tables,
                         const char *const *accept, int n_accept, Err *e);

/* The keys that config_check_keys lets pass only because they are empty, one a line, onto *out. */
void config_list_unknown(const cJSON *config, const char *const *const *tables, int n_tables,
                         StrBuf *out);

#endif
