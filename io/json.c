/* io/json.c - see json.h. Recursive descent over the bytes; a string without escapes costs one scan
 * and one copy. */
#include "io/json.h"

#include "io/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 512, TEXT_CHUNK = 64 << 10 };

typedef struct Parser {
    const unsigned char *text, *end, *at;
    Arena *arena;
    char *room,
        *room_end; /* strings are packed into chunks, since most are far shorter than 16 bytes */
    size_t next_chunk;
    Err *e;
} Parser;

static Status fail_at(const Parser *p, const unsigned char *where, const char *what)
{
    return err_set(p->e, ST_INPUT, "byte %zu: %s", (size_t)(where - p->text), what);
}

static Status fail_here(const Parser *p, const char *what)
{
    return fail_at(p, p->at, p->at == p->end ? "the JSON text ends too early" : what);
}

static Status no_memory(const Parser *p)
{
    return err_set(p->e, ST_MEMORY, "not enough memory for %zu bytes of JSON",
                   (size_t)(p->end - p->text));
}

static void skip_space(Parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\r' || *p->at == '\t'))
        p->at++;
}

/* Room for bytes characters of text; the caller moves p->room past what it used. */
static char *text_room(Parser *p, size_t bytes)
{
    if (bytes <= (size_t)(p->room_end - p->room))
        return p->room;
    size_t chunk = bytes > p->next_chunk ? bytes : p->next_chunk;
    if (p->next_chunk < TEXT_CHUNK)
        p->next_chunk *= 2;
    p->room = arena_alloc(p->arena, chunk);
    p->room_end = p->room ? p->room + chunk : NULL;
    return p->room;
}

static int hex4(const unsigned char *s)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        int c = s[i], digit = c >= '0' && c <= '9'   ? c - '0'
                              : c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                     : -1;
        if (digit < 0)
            return -1;
        v = v * 16 + digit;
    }
    return v;
}

/* A \uXXXX escape, or two of them that form a surrogate pair; p->at is at the backslash. */
static Status parse_unicode_escape(Parser *p, char **out)
{
    const unsigned char *start = p->at;
    if (p->end - p->at < 6)
        return fail_at(p, start, "an escape is cut off");
    int code = hex4(p->at + 2);
    if (code < 0)
        return fail_at(p, start, "\\u needs four hexadecimal digits");
    p->at += 6;
    if (code >= 0xdc00 && code <= 0xdfff)
        return fail_at(p, start, "a surrogate stands alone");
    if (code >= 0xd800 && code <= 0xdbff) {
        int low = p->end - p->at >= 6 && p->at[0] == '\\' && p->at[1] == 'u' ? hex4(p->at + 2) : -1;
        if (low < 0xdc00 || low > 0xdfff)
            return fail_at(p, start, "a surrogate stands alone");
        p->at += 6;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    *out += utf8_put(*out, (uint32_t)code);
    return ST_OK;
}

static Status parse_escape(Parser *p, char **out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (p->end - p->at < 2)
        return fail_at(p, p->at, "an escape is cut off");
    if (p->at[1] == 'u')
        return parse_unicode_escape(p, out);
    const char *found = p->at[1] ? strchr(from, p->at[1]) : NULL;
    if (!found)
        return fail_at(p, p->at, "no such escape");
    *(*out)++ = to[found - from];
    p->at += 2;
    return ST_OK;
}

/* Moves p->at over plain characters, which it checks, to a quote or a backslash. */
static Status skip_plain(Parser *p)
{
    const unsigned char *s = p->at, *end = p->end;
    while (s < end) {
        unsigned char c = *s;
        size_t bad;
        if (c == '"' || c == '\\')
            break;
        if (c < 0x20)
            return fail_at(p, s, "a control character in a string must be escaped");
        if (c < 0x80) {
            s++;
            continue;
        }
        size_t n = utf8_valid(s, (size_t)(end - s), &bad);
        if (!n)
            return fail_at(p, s, "the text is not valid UTF-8");
        s += n;
    }
    p->at = s;
    return s < end ? ST_OK : fail_at(p, s, "a string does not end");
}

/* p->at is behind the opening quote. Escapes never grow, so the raw length bounds the decoded one.
 */
static Status parse_string(Parser *p, const char **text, size_t *len)
{
    const unsigned char *start = p->at;
    TRY(skip_plain(p));
    size_t plain = (size_t)(p->at - start);
    char *out;
    if (*p->at == '"') {
        out = text_room(p, plain + 1);
        if (!out)
            return no_memory(p);
        memcpy(out, start, plain);
        *text = out;
        out += plain;
    } else {
        const unsigned char *close = p->at;
        while (close < p->end && *close != '"')
            close += *close == '\\' ? 2 : 1;
        if (close >= p->end)
            return fail_at(p, start, "a string does not end");
        out = text_room(p, (size_t)(close - start) + 1);
        if (!out)
            return no_memory(p);
        *text = out;
        p->at = start;
        for (;;) {
            const unsigned char *part = p->at;
            TRY(skip_plain(p));
            memcpy(out, part, (size_t)(p->at - part));
            out += p->at - part;
            if (*p->at == '"')
                break;
            TRY(parse_escape(p, &out));
        }
    }
    *len = (size_t)(out - *text);
    *out++ = 0;
    p->room = out;
    p->at++;
    return ST_OK;
}

static bool skip_digits(Parser *p)
{
    const unsigned char *start = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
        p->at++;
    return p->at > start;
}

static Status parse_number(Parser *p, JsonValue *v)
{
    const unsigned char *start = p->at;
    if (*p->at == '-')
        p->at++;
    if (p->at < p->end && *p->at == '0') {
        p->at++;
        if (p->at < p->end && *p->at >= '0' && *p->at <= '9')
            return fail_at(p, start, "a number starts with 0");
    } else if (!skip_digits(p)) {
        return fail_here(p, "a number needs a digit here");
    }
    if (p->at < p->end && *p->at == '.') {
        p->at++;
        if (!skip_digits(p))
            return fail_here(p, "a number needs a digit here");
    }
    if (p->at < p->end && (*p->at == 'e' || *p->at == 'E')) {
        p->at++;
        if (p->at < p->end && (*p->at == '+' || *p->at == '-'))
            p->at++;
        if (!skip_digits(p))
            return fail_here(p, "a number needs a digit here");
    }
    size_t len = (size_t)(p->at - start);
    char *out = text_room(p, len + 1); /* ends in NUL for strtod */
    if (!out)
        return no_memory(p);
    memcpy(out, start, len);
    out[len] = 0;
    p->room = out + len + 1;
    v->type = JSON_NUMBER;
    v->text = out;
    v->len = len;
    return ST_OK;
}

static Status parse_word(Parser *p, const char *word, JsonType type, JsonValue *v)
{
    size_t n = strlen(word);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n) != 0)
        return fail_here(p, "a value is expected here");
    p->at += n;
    v->type = type;
    return ST_OK;
}

static Status parse_value(Parser *p, JsonValue *v, int depth);

static Status parse_key(Parser *p, JsonValue *member)
{
    if (p->at == p->end || *p->at != '"')
        return fail_here(p, "a member name is expected here");
    const unsigned char *start = p->at++;
    size_t len;
    TRY(parse_string(p, &member->key, &len));
    if (len > UINT32_MAX)
        return fail_at(p, start, "a member name is longer than 4 GiB");
    member->key_len = (uint32_t)len;
    skip_space(p);
    if (p->at == p->end || *p->at != ':')
        return fail_here(p, "a colon is expected here");
    p->at++;
    skip_space(p);
    return ST_OK;
}

/* An array or an object; p->at is behind its opening bracket. */
static Status parse_members(Parser *p, JsonValue *parent, int depth)
{
    bool object = parent->type == JSON_OBJECT;
    unsigned char close = object ? '}' : ']';
    JsonValue **link = &parent->child;
    if (depth > MAX_DEPTH)
        return fail_at(p, p->at - 1, "nested deeper than 512");
    skip_space(p);
    if (p->at < p->end && *p->at == close) {
        p->at++;
        return ST_OK;
    }
    for (;;) {
        JsonValue *v = arena_alloc(p->arena, sizeof *v);
        if (!v)
            return no_memory(p);
        *v = (JsonValue){0};
        if (object)
            TRY(parse_key(p, v));
        TRY(parse_value(p, v, depth));
        *link = v;
        link = &v->next;
        parent->len++;
        skip_space(p);
        if (p->at == p->end || (*p->at != ',' && *p->at != close))
            return fail_here(p, object ? "a comma or } is expected here"
                                       : "a comma or ] is expected here");
        if (*p->at++ == close)
            return ST_OK;
        skip_space(p);
    }
}

static Status parse_value(Parser *p, JsonValue *v, int depth)
{
    if (p->at == p->end)
        return fail_here(p, "");
    switch (*p->at) {
    case '"':
        p->at++;
        v->type = JSON_STRING;
        return parse_string(p, &v->text, &v->len);
    case '{':
    case '[':
        v->type = *p->at++ == '{' ? JSON_OBJECT : JSON_ARRAY;
        return parse_members(p, v, depth + 1);
    case 't':
        return parse_word(p, "true", JSON_TRUE, v);
    case 'f':
        return parse_word(p, "false", JSON_FALSE, v);
    case 'n':
        return parse_word(p, "null", JSON_NULL, v);
    default:
        if (*p->at != '-' && (*p->at < '0' || *p->at > '9'))
            return fail_here(p, "a value is expected here");
        return parse_number(p, v);
    }
}

Status json_parse(const char *text, size_t len, Arena *arena, JsonValue **out, Err *e)
{
    const unsigned char *start = (const unsigned char *)text;
    Parser p = {
        .text = start, .end = start + len, .at = start, .arena = arena, .next_chunk = 256, .e = e};
    *out = NULL;
    JsonValue *v = arena_alloc(arena, sizeof *v);
    if (!v)
        return no_memory(&p);
    *v = (JsonValue){0};
    skip_space(&p);
    TRY(parse_value(&p, v, 0));
    skip_space(&p);
    if (p.at != p.end)
        return fail_here(&p, "text after the JSON value");
    *out = v;
    return ST_OK;
}

static bool has_key(const JsonValue *v, const char *key, size_t len)
{
    return v->key_len == len && memcmp(v->key, key, len) == 0;
}

const JsonValue *json_get(const JsonValue *object, const char *key)
{
    const JsonValue *found = NULL;
    size_t len = strlen(key);
    if (!object || object->type != JSON_OBJECT)
        return NULL;
    for (const JsonValue *v = object->child; v; v = v->next)
        if (has_key(v, key, len))
            found = v;
    return found;
}

int json_count_key(const JsonValue *object, const char *key)
{
    int n = 0;
    size_t len = strlen(key);
    if (!object || object->type != JSON_OBJECT)
        return 0;
    for (const JsonValue *v = object->child; v; v = v->next)
        n += has_key(v, key, len);
    return n;
}

bool json_is_string(const JsonValue *v, const char *want)
{
    return v && v->type == JSON_STRING && v->len == strlen(want) &&
           memcmp(v->text, want, v->len) == 0;
}

bool json_int64(const JsonValue *v, int64_t *out)
{
    if (!v || v->type != JSON_NUMBER)
        return false;
    bool negative = v->text[0] == '-';
    uint64_t limit = (uint64_t)INT64_MAX + negative, sum = 0;
    for (size_t i = negative; i < v->len; i++) {
        if (v->text[i] < '0' || v->text[i] > '9')
            return false;
        uint64_t digit = (uint64_t)(v->text[i] - '0');
        if (sum > (limit - digit) / 10)
            return false;
        sum = sum * 10 + digit;
    }
    *out = negative ? (int64_t)(0 - sum) : (int64_t)sum;
    return true;
}

bool json_double(const JsonValue *v, double *out)
{
    if (!v || v->type != JSON_NUMBER)
        return false;
    *out = strtod(v->text, NULL); /* json_parse ends every number in NUL */
    return true;
}
