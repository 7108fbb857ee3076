/* io/json.h - a strict JSON reader (RFC 8259) whose values keep what a double would lose.
 *
 * For rows and tokenizer.json, where strings may hold U+0000, integers may pass 2^53, 1.0 is not
 * 1, and key order matters. (Small configuration files are read with cJSON.) Values live in one
 * arena. */
#ifndef MB_IO_JSON_H
#define MB_IO_JSON_H

#include "io/arena.h"
#include "io/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum JsonType {
    JSON_NULL,
    JSON_FALSE,
    JSON_TRUE,
    JSON_NUMBER, /* text: as written, not NUL-terminated */
    JSON_STRING, /* text: decoded UTF-8, len bytes, may hold NUL; also NUL-terminated */
    JSON_ARRAY,
    JSON_OBJECT
} JsonType;

typedef struct JsonValue {
    JsonType type;
    uint32_t key_len;
    const char *key; /* member name, decoded and NUL-terminated; NULL outside objects */
    const char *text;
    size_t len;              /* bytes of text; members of an array or object */
    struct JsonValue *child; /* first member */
    struct JsonValue *next;  /* next member of the parent, in file order */
} JsonValue;

/* Parses exactly one value that fills text[0..len) but for white space. Refuses bad UTF-8, lone
 * surrogates, trailing bytes and nesting deeper than 512; messages give the byte offset.
 * Duplicate keys are kept in order. Values are valid as long as the arena is. */
Status json_parse(const char *text, size_t len, Arena *arena, JsonValue **out, Err *e);

/* The last member of that name (the usual reading of duplicates), or NULL. */
const JsonValue *json_get(const JsonValue *object, const char *key);
/* How many members have that name. */
int json_count_key(const JsonValue *object, const char *key);
bool json_is_string(const JsonValue *v, const char *want);
/* True when v is a number written without '.', 'e' or 'E' that fits; 1.0 is not an integer. */
bool json_int64(const JsonValue *v, int64_t *out);
/* True when v is a number; overflow gives an infinity. */
bool json_double(const JsonValue *v, double *out);

#endif
