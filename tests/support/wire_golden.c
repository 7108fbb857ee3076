/* tests/support/wire_golden.c - see wire_golden.h. */
#include "tests/support/wire_golden.h"

#include "jobs/key_cursor.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *custom_id;
    GoldenKind kind;
    const char *refused_param;
} special[] = {
    {"n2-sampled", GOLDEN_SHAPE, NULL},
    {"top-k-neg", GOLDEN_SHAPE, NULL},
    {"bad-words", GOLDEN_OWN_READING, NULL},
    {"stream", GOLDEN_UNSUPPORTED, "stream"},
    {"choice", GOLDEN_UNSUPPORTED, "structured_outputs"},
};

bool wire_golden_read(const char *line, size_t len, Arena *arena, WireGolden *out, bool *broken)
{
    JsonValue *v;
    KeyCursor c;
    KeyView k;
    Err e;
    int64_t status = 0;
    *out = (WireGolden){0};
    *broken = json_parse(line, len, arena, &v, &e) != ST_OK;
    if (*broken)
        return false;
    const JsonValue *request = json_get(v, "request"), *id = json_get(request, "custom_id");
    key_cursor_start(&c, line, len);
    while (key_cursor_next(&c, &k))
        if (key_view_is(&k, "request")) {
            out->request = k.value;
            out->request_len = k.value_len;
        }
    *broken = !id || id->type != JSON_STRING || !out->request ||
              !json_int64(json_get(v, "status"), &status);
    if (*broken || !json_is_string(json_get(request, "url"), "/v1/completions"))
        return false;
    out->custom_id = id->text;
    out->status = (int)status;
    out->body = json_get(v, "body");
    if (out->body && out->body->type != JSON_OBJECT)
        out->body = NULL;
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if (strcmp(special[i].custom_id, out->custom_id) == 0) {
            out->kind = special[i].kind;
            out->refused_param = special[i].refused_param;
        }
    return true;
}

typedef struct Compare {
    const char *custom_id;
    double tolerance;
    int failed;
} Compare;

static void note(Compare *c, const char *path, const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", c->custom_id, path, what);
    c->failed++;
}

static bool is_integer(const JsonValue *v)
{
    int64_t i;
    return json_int64(v, &i);
}

static void compare_number(Compare *c, const char *path, const JsonValue *got,
                           const JsonValue *want)
{
    double a, b;
    if (!json_double(got, &a) || !json_double(want, &b))
        note(c, path, "is not a number");
    else
        c->failed += check_near(c->custom_id, a, b, is_integer(want) ? 0 : c->tolerance);
}

/* The same JSON but for the order of an object's members; floats within the tolerance. */
static void compare_value(Compare *c, const char *path, const JsonValue *got, const JsonValue *want)
{
    if (!got || !want || got->type != want->type) {
        note(c, path, "has another type, or is missing");
        return;
    }
    if (want->type == JSON_NUMBER)
        compare_number(c, path, got, want);
    else if (want->type == JSON_STRING)
        c->failed += check_str(c->custom_id, got->text, want->text);
    else if (got->len != want->len)
        note(c, path, "has another number of members");
    else if (want->type == JSON_ARRAY)
        for (const JsonValue *a = got->child, *b = want->child; b; a = a->next, b = b->next)
            compare_value(c, path, a, b);
    else if (want->type == JSON_OBJECT)
        for (const JsonValue *b = want->child; b; b = b->next)
            compare_value(c, b->key, json_get(got, b->key), b);
}

static void compare_choices(Compare *c, GoldenKind kind, const JsonValue *got,
                            const JsonValue *want)
{
    static const char *const keys[] = {
        "index",       "text",      "logprobs",        "finish_reason",
        "stop_reason", "token_ids", "prompt_logprobs", "prompt_token_ids"};
    if (!got || !want || got->len != want->len) {
        note(c, "choices", "another number");
        return;
    }
    for (const JsonValue *a = got->child, *b = want->child; b; a = a->next, b = b->next)
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
            if (kind == GOLDEN_EQUAL || strcmp(keys[i], "text") != 0)
                compare_value(c, keys[i], json_get(a, keys[i]), json_get(b, keys[i]));
}

static void compare_answer(Compare *c, const WireGolden *want, const JsonValue *body)
{
    static const char *const counts[] = {"prompt_tokens", "completion_tokens", "total_tokens"};
    const JsonValue *choices = json_get(body, "choices");
    compare_value(c, "model", json_get(body, "model"), json_get(want->body, "model"));
    compare_value(c, "object", json_get(body, "object"), json_get(want->body, "object"));
    if (want->kind == GOLDEN_OWN_READING) {
        const JsonValue *text = choices && choices->child ? json_get(choices->child, "text") : NULL;
        if (!text || text->type != JSON_STRING || strstr(text->text, " was"))
            note(c, "text", "has the word that was banned");
    } else {
        compare_choices(c, want->kind, choices, json_get(want->body, "choices"));
    }
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        compare_value(c, counts[i], json_get(json_get(body, "usage"), counts[i]),
                      json_get(json_get(want->body, "usage"), counts[i]));
}

int wire_golden_check(const WireGolden *want, int64_t status, const JsonValue *body,
                      double tolerance)
{
    Compare c = {want->custom_id, tolerance, 0};
    const JsonValue *error = json_get(body, "error"), *param = json_get(error, "param");
    if (want->kind == GOLDEN_UNSUPPORTED) {
        c.failed += check_int(want->custom_id, status, 400);
        c.failed += check_true("refused by that key", json_is_string(param, want->refused_param));
        return c.failed;
    }
    c.failed += check_int(want->custom_id, status, want->status);
    if (want->status == 200 && status == 200)
        compare_answer(&c, want, body);
    else if (want->status != 200)
        compare_value(&c, "error.param", param, json_get(json_get(want->body, "error"), "param"));
    return c.failed;
}
