/* io/normalize.c - see normalize.h. */
#include "io/normalize.h"

#include "io/spec.h"
#include "io/unicode.h"
#include "io/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 64 };

typedef struct Step {
    enum { STEP_NFC, STEP_PREPEND, STEP_REPLACE } kind;
    const char *text, *from; /* what is prepended, or put in place of from */
    size_t text_len, from_len;
} Step;

struct Normalizer {
    Arena arena;
    int n_steps;
    Step steps[MOST_STEPS];
};

static Status keep(Normalizer *n, const JsonValue *v, const char **text, size_t *len, Err *e)
{
    *text = arena_copy(&n->arena, v->text, v->len);
    *len = v->len;
    return *text ? ST_OK : err_set(e, ST_MEMORY, "no memory for a normalizer");
}

static Status parse_replace(Normalizer *n, const JsonValue *spec, Step *s, Err *e)
{
    const JsonValue *from, *to;
    TRY(spec_keys(spec, "Replace", "type pattern content", e));
    TRY(spec_keys(json_get(spec, "pattern"), "the pattern of Replace", "String", e));
    TRY(spec_string(json_get(spec, "pattern"), "String", &from, e));
    TRY(spec_string(spec, "content", &to, e));
    if (from->len == 0)
        return err_set(e, ST_INPUT, "Replace of an empty string is not supported");
    s->kind = STEP_REPLACE;
    TRY(keep(n, from, &s->from, &s->from_len, e));
    return keep(n, to, &s->text, &s->text_len, e);
}

static Status parse_step(Normalizer *n, const JsonValue *spec, Err *e)
{
    const JsonValue *type = json_get(spec, "type"), *list, *text;
    if (json_is_string(type, "Sequence")) {
        TRY(spec_keys(spec, "Sequence", "type normalizers", e));
        TRY(spec_array(spec, "normalizers", &list, e));
        for (const JsonValue *v = list->child; v; v = v->next)
            TRY(parse_step(n, v, e));
        return ST_OK;
    }
    if (n->n_steps == MOST_STEPS)
        return err_set(e, ST_INPUT, "more than %d steps", MOST_STEPS);
    Step *s = &n->steps[n->n_steps++];
    if (json_is_string(type, "NFC")) {
        s->kind = STEP_NFC;
        return spec_keys(spec, "NFC", "type", e);
    }
    if (json_is_string(type, "Prepend")) {
        s->kind = STEP_PREPEND;
        TRY(spec_keys(spec, "Prepend", "type prepend", e));
        TRY(spec_string(spec, "prepend", &text, e));
        return keep(n, text, &s->text, &s->text_len, e);
    }
    if (json_is_string(type, "Replace"))
        return parse_replace(n, spec, s, e);
    return err_set(e, ST_INPUT, "%.80s is not supported", spec_type(spec));
}

Status normalizer_parse(const JsonValue *spec, Normalizer **out, Err *e)
{
    *out = NULL;
    unicode_init();
    Normalizer *n = calloc(1, sizeof *n);
    if (!n)
        return err_set(e, ST_MEMORY, "no memory for a normalizer");
    Status st = spec_absent(spec) ? ST_OK : parse_step(n, spec, e);
    if (st != ST_OK) {
        err_in(e, "normalizer");
        normalizer_free(n);
        return st;
    }
    *out = n;
    return ST_OK;
}

void normalizer_free(Normalizer *n)
{
    if (!n)
        return;
    arena_free(&n->arena);
    free(n);
}

bool normalizer_moves_start(const Normalizer *n)
{
    for (int i = 0; i < n->n_steps; i++) {
        const Step *s = &n->steps[i];
        bool one_for_one = s->kind == STEP_REPLACE && s->text_len &&
                           utf8_len((uint8_t)s->from[0]) == s->from_len &&
                           utf8_len((uint8_t)s->text[0]) == s->text_len;
        if (s->kind != STEP_NFC && !one_for_one)
            return true;
    }
    return false;
}

void replace_all(StrBuf *out, const char *text, size_t len, const char *from, size_t from_len,
                 const char *to, size_t to_len)
{
    const char *end = text + len, *found;
    while ((found = memmem(text, (size_t)(end - text), from, from_len))) {
        strbuf_add(out, text, (size_t)(found - text));
        strbuf_add(out, to, to_len);
        text = found + from_len;
    }
    strbuf_add(out, text, (size_t)(end - text));
}

static void run_step(const Step *s, StrBuf *out, const char *text, size_t len)
{
    switch (s->kind) {
    case STEP_NFC:
        unicode_nfc(out, text, len);
        break;
    case STEP_PREPEND:
        strbuf_add(out, s->text, s->text_len);
        strbuf_add(out, text, len);
        break;
    case STEP_REPLACE:
        if (s->from_len > 1) {
            replace_all(out, text, len, s->from, s->from_len, s->text, s->text_len);
            break;
        }
        /* A single byte, the space in practice: every few bytes, so a search call each would cost.
         */
        for (size_t i = 0, start = 0; i <= len; i++) {
            if (i < len && text[i] != s->from[0])
                continue;
            strbuf_add(out, text + start, i - start);
            if (i < len)
                strbuf_add(out, s->text, s->text_len);
            start = i + 1;
        }
        break;
    }
}

static bool changes_nothing(const Step *s, const char *text, size_t len)
{
    switch (s->kind) {
    case STEP_NFC:
        return unicode_nfc_quick(text, len);
    case STEP_PREPEND:
        return len == 0 || s->text_len == 0;
    case STEP_REPLACE:
        return !memmem(text, len, s->from, s->from_len);
    }
    return true;
}

Status normalizer_run(const Normalizer *n, NormalizeScratch *s, const char *text, size_t len,
                      const char **out, size_t *out_len, Err *e)
{
    int used = 0;
    for (int i = 0; i < n->n_steps; i++) {
        if (changes_nothing(&n->steps[i], text, len))
            continue;
        StrBuf *b = &s->buf[used];
        used = !used;
        strbuf_clear(b);
        run_step(&n->steps[i], b, text, len);
        if (b->failed)
            return err_set(e, ST_MEMORY, "no memory to normalize a text of %zu bytes", len);
        text = b->data ? b->data : "";
        len = b->len;
    }
    *out = text;
    *out_len = len;
    return ST_OK;
}

void normalize_scratch_free(NormalizeScratch *s)
{
    strbuf_free(&s->buf[0]);
    strbuf_free(&s->buf[1]);
}
