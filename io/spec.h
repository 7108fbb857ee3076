/* io/spec.h - reading the parts of a tokenizer.json: every key is known or an error. */
#ifndef MB_IO_SPEC_H
#define MB_IO_SPEC_H

#include "io/err.h"
#include "io/json.h"

#include <stdbool.h>

/* ST_INPUT unless part is an object whose keys are all among keys (separated by spaces) and none
 * twice; what names the part in messages. */
Status spec_keys(const JsonValue *part, const char *what, const char *keys, Err *e);

/* A boolean member; fallback when it is absent or null. */
Status spec_bool(const JsonValue *part, const char *key, bool fallback, bool *out, Err *e);

/* A string member that must be there. */
Status spec_string(const JsonValue *part, const char *key, const JsonValue **out, Err *e);

/* A member that must be an array. */
Status spec_array(const JsonValue *part, const char *key, const JsonValue **out, Err *e);

static inline bool spec_absent(const JsonValue *v)
{
    return !v || v->type == JSON_NULL;
}

/* The "type" member, as text for a message; "(no type)" where there is none. */
const char *spec_type(const JsonValue *part);

#endif
