/* tests/io/test_json.c - what the JSON reader takes, what it refuses and where, and what it keeps.
 */
#include "io/json.h"
#include "io/strbuf.h"
#include "tests/support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SIZED(s) s, sizeof(s) - 1

/* Writes the tree back in a canonical spelling, so that a case can be one string. */
static void write_value(StrBuf *b, const JsonValue *v)
{
    static const char *const words[] = {"null", "false", "true"};
    if (v->type <= JSON_TRUE)
        strbuf_str(b, words[v->type]);
    else if (v->type == JSON_NUMBER)
        strbuf_add(b, v->text, v->len);
    else if (v->type == JSON_STRING)
        strbuf_json_string(b, v->text, v->len);
    else {
        size_t n = 0;
        strbuf_str(b, v->type == JSON_ARRAY ? "[" : "{");
        for (const JsonValue *m = v->child; m; m = m->next, n++) {
            strbuf_str(b, n ? "," : "");
            if (v->type == JSON_OBJECT) {
                strbuf_json_string(b, m->key, m->key_len);
                strbuf_str(b, ":");
            }
            write_value(b, m);
        }
        strbuf_str(b, v->type == JSON_ARRAY ? "]" : "}");
        strbuf_fmt(b, n == v->len ? "" : " wrong count");
    }
}

static const struct {
    const char *text;
    size_t len;
    const char *want;
} good[] = {
    {SIZED("null"), "null"},
    {SIZED(" \t\r\n true \n"), "true"},
    {SIZED("[]"), "[]"},
    {SIZED("{ }"), "{}"},
    {SIZED("[1, -0, 0.50, 1E+05, 12345678901234567890]"), "[1,-0,0.50,1E+05,12345678901234567890]"},
    {SIZED("{\"b\":1,\"a\":[{},[[]]],\"b\":false}"), "{\"b\":1,\"a\":[{},[[]]],\"b\":false}"},
    {SIZED("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\""), "\"\\\"\\\\/\\b\\f\\n\\r\\t\""},
    {SIZED("\"a\\u0000b\""), "\"a\\u0000b\""},
    {SIZED("\"\\u00e9\\u4E2D\\ud83d\\ude00\""), "\"\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80\""},
    {SIZED("\"\xc3\xa9\xf4\x8f\xbf\xbf\x7f\""), "\"\xc3\xa9\xf4\x8f\xbf\xbf\x7f\""},
    {SIZED("\"\\uffff\\uFEFF\""), "\"\xef\xbf\xbf\xef\xbb\xbf\""},
    {SIZED("{\"\\u0000k\":\"\"}"), "{\"\\u0000k\":\"\"}"},
};

static const struct {
    const char *text;
    size_t len;
    const char *message;
} bad[] = {
    {SIZED(""), "byte 0: the JSON text ends"},
    {SIZED("  "), "byte 2: the JSON text ends"},
    {SIZED("nul"), "byte 0: a value"},
    {SIZED("nullx"), "byte 4: text after"},
    {SIZED("True"), "byte 0: a value"},
    {SIZED("NaN"), "byte 0: a value"},
    {SIZED("1 2"), "byte 2: text after"},
    {SIZED("01"), "byte 0: a number starts with 0"},
    {SIZED("-"), "byte 1: the JSON text ends"},
    {SIZED("-a"), "byte 1: a number needs"},
    {SIZED("+1"), "byte 0: a value"},
    {SIZED(".5"), "byte 0: a value"},
    {SIZED("1."), "byte 2: the JSON text ends"},
    {SIZED("1.e5"), "byte 2: a number needs"},
    {SIZED("1e"), "byte 2: the JSON text ends"},
    {SIZED("1e+]"), "byte 3: a number needs"},
    {SIZED("[1,]"), "byte 3: a value"},
    {SIZED("[1 2]"), "byte 3: a comma or ]"},
    {SIZED("[1"), "byte 2: the JSON text ends"},
    {SIZED("[1}"), "byte 2: a comma or ]"},
    {SIZED("{\"a\"}"), "byte 4: a colon"},
    {SIZED("{\"a\":1,}"), "byte 7: a member name"},
    {SIZED("{a:1}"), "byte 1: a member name"},
    {SIZED("{\"a\":1]"), "byte 6: a comma or }"},
    {SIZED("{\"a\":"), "byte 5: the JSON text ends"},
    {SIZED("\"a"), "byte 2: a string does not end"},
    {SIZED("\"a\\\""), "a string does not end"},
    {SIZED("\"\\"), "a string does not end"},
    {SIZED("\"a\nb\""), "byte 2: a control character"},
    {SIZED("\"a\0b\""), "byte 2: a control character"},
    {SIZED("\"\\x41\""), "byte 1: no such escape"},
    {SIZED("\"\\\0\""), "byte 1: no such escape"},
    {SIZED("\"\\u12g4\""), "byte 1: \\u needs"},
    {SIZED("\"\\u12\""), "byte 1: an escape is cut off"},
    {SIZED("\"\\ud800\""), "byte 1: a surrogate"},
    {SIZED("\"\\ud800\\u0041\""), "byte 1: a surrogate"},
    {SIZED("\"\\udc00\\ud800\""), "byte 1: a surrogate"},
    {SIZED("\"\x80\""), "byte 1: the text is not valid UTF-8"},
    {SIZED("\"\xc0\x80\""), "byte 1: the text is not valid UTF-8"},
    {SIZED("\"\xed\xa0\x80\""), "byte 1: the text is not valid UTF-8"},
    {SIZED("\"\xf4\x90\x80\x80\""), "byte 1: the text is not valid UTF-8"},
    {SIZED("\"\xe4\xb8"), "byte 1: the text is not valid UTF-8"},
    {SIZED("\"\\n\xff\""), "byte 3: the text is not valid UTF-8"},
    {SIZED("\xef\xbb\xbf{}"), "byte 0: a value"},
    {SIZED("[1]\0"), "byte 3: text after"},
    {SIZED("// x\n1"), "byte 0: a value"},
    {SIZED("'a'"), "byte 0: a value"},
};

/* The bytes alone on the heap, so that a sanitizer sees a read past the end. */
static Status parse_exact(const char *text, size_t len, Arena *arena, JsonValue **out, Err *e)
{
    char *copy = malloc(len + !len);
    if (!copy)
        return err_set(e, ST_MEMORY, "no memory");
    memcpy(copy, text, len);
    Status st = json_parse(copy, len, arena, out, e);
    free(copy); /* values must not point into the input */
    return st;
}

static int check_tables(void)
{
    int failed = 0;
    Arena arena = {0};
    StrBuf b = {0};
    Err e;
    JsonValue *v;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        strbuf_clear(&b);
        e.text[0] = 0;
        if (parse_exact(good[i].text, good[i].len, &arena, &v, &e) == ST_OK)
            write_value(&b, v);
        else
            strbuf_str(&b, e.text);
        failed += check_str(good[i].text, b.data, good[i].want);
        arena_reset(&arena);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e.text[0] = 0;
        failed +=
            check_int(bad[i].text, parse_exact(bad[i].text, bad[i].len, &arena, &v, &e), ST_INPUT);
        failed += check_has(bad[i].text, e.text, bad[i].message);
        failed += check_true("no value", v == NULL);
    }
    /* Every prefix of a valid text is refused without a read past it. */
    const char *whole =
        "{\"k\\u00e9\": [1.5e-3, \"\\ud83d\\ude00 \xe4\xb8\xad\", true, null, {\"x\": false}]}";
    for (size_t n = 0; n < strlen(whole); n++)
        failed += check_int("prefix", parse_exact(whole, n, &arena, &v, &e), ST_INPUT);
    arena_free(&arena);
    strbuf_free(&b);
    return failed;
}

static int check_depth(void)
{
    int failed = 0;
    Arena arena = {0};
    Err e;
    JsonValue *v;
    char deep[2 * 513];
    for (int n = 512; n <= 513; n++) {
        memset(deep, '[', (size_t)n);
        memset(deep + n, ']', (size_t)n);
        Status st = parse_exact(deep, (size_t)(2 * n), &arena, &v, &e);
        failed += check_int("nesting", st, n == 512 ? ST_OK : ST_INPUT);
    }
    failed += check_has("nesting", e.text, "nested deeper than 512");
    size_t many = 1000000;
    char *open = malloc(many);
    if (open) {
        memset(open, '[', many);
        failed += check_int("a million brackets", json_parse(open, many, &arena, &v, &e), ST_INPUT);
    }
    free(open);
    arena_free(&arena);
    return failed;
}

static const struct {
    const char *text;
    bool is_int, is_double;
    int64_t want;
    double want_double;
} numbers[] = {
    {"0", true, true, 0, 0},
    {"-0", true, true, 0, -0.0},
    {"9007199254740993", true, true, 9007199254740993, 9007199254740992.0},
    {"9223372036854775807", true, true, INT64_MAX, 9223372036854775808.0},
    {"-9223372036854775808", true, true, INT64_MIN, -9223372036854775808.0},
    {"9223372036854775808", false, true, 0, 9223372036854775808.0},
    {"-9223372036854775809", false, true, 0, -9223372036854775808.0},
    {"99999999999999999999999", false, true, 0, 1e23},
    {"1.0", false, true, 0, 1},
    {"1e0", false, true, 0, 1},
    {"1E2", false, true, 0, 100},
    {"1e999", false, true, 0, (double)INFINITY},
    {"-1e999", false, true, 0, -(double)INFINITY},
    {"1e-999", false, true, 0, 0},
    {"\"1\"", false, false, 0, 0},
    {"true", false, false, 0, 0},
};

static int check_access(void)
{
    int failed = 0;
    Arena arena = {0};
    Err e;
    JsonValue *v;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int64_t n = 0;
        double d = 0;
        failed += check_int(
            "parses", parse_exact(numbers[i].text, strlen(numbers[i].text), &arena, &v, &e), ST_OK);
        if (!v)
            continue;
        failed += check_int(numbers[i].text, json_int64(v, &n), numbers[i].is_int);
        failed += check_int(numbers[i].text, n, numbers[i].want);
        failed += check_int(numbers[i].text, json_double(v, &d), numbers[i].is_double);
        failed += check_true(numbers[i].text, d == numbers[i].want_double);
    }
    const char *text = "{\"a\":1,\"ab\":\"x\",\"a\\u0000\":3,\"a\":4,\"s\":\"x\\u0000\"}";
    failed += check_int("parses", parse_exact(text, strlen(text), &arena, &v, &e), ST_OK);
    int64_t n = 0;
    failed += check_true("the last duplicate", v && json_int64(json_get(v, "a"), &n) && n == 4);
    failed += check_int("both duplicates", json_count_key(v, "a"), 2);
    failed += check_int("absent", json_count_key(v, "b"), 0);
    failed += check_true("absent", json_get(v, "b") == NULL && json_get(NULL, "a") == NULL);
    failed += check_true("not an object", json_get(json_get(v, "a"), "a") == NULL);
    failed += check_true("string", json_is_string(json_get(v, "ab"), "x"));
    failed += check_true("a NUL is part of the string", !json_is_string(json_get(v, "s"), "x"));
    failed += check_true("not a string",
                         !json_is_string(json_get(v, "a"), "4") && !json_is_string(NULL, ""));
    failed += check_true("NUL after the text", v && json_get(v, "ab")->text[1] == 0);
    arena_free(&arena);
    return failed;
}

int main(void)
{
    return test_result(check_tables() + check_depth() + check_access());
}
