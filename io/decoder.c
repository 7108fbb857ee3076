/* io/decoder.c - see decoder.h. A step turns a list of strings into another, as in the reference;
 * the last list is joined. */
#include "io/decoder.h"

#include "io/bytelevel.h"
#include "io/normalize.h"
#include "io/spec.h"
#include "io/utf8.h"

#include <stdlib.h>

enum { MOST_STEPS = 64 };

typedef struct Step {
    enum { STEP_BYTES, STEP_REPLACE, STEP_FALLBACK, STEP_FUSE, STEP_STRIP, STEP_METASPACE } kind;
    const char *text,
        *from; /* STEP_REPLACE; from also: what STEP_STRIP strips, the Metaspace marker */
    size_t text_len, from_len;
    size_t strip_start, strip_stop; /* how many at most */
    bool drop_first;                /* STEP_METASPACE: the first token loses its markers */
} Step;

struct Decoder {
    Arena arena;
    int n_steps; /* 0: join with spaces */
    Step steps[MOST_STEPS];
};

/* ---- reading the file ---- */

static Status keep(Decoder *d, const JsonValue *v, const char **text, size_t *len, Err *e)
{
    *text = arena_copy(&d->arena, v->text, v->len);
    *len = v->len;
    return *text ? ST_OK : err_set(e, ST_MEMORY, "no memory for a decoder");
}

static bool one_char(const JsonValue *v)
{
    return v->len && utf8_len((uint8_t)v->text[0]) == v->len;
}

static Status parse_replace(Decoder *d, const JsonValue *spec, Step *s, Err *e)
{
    const JsonValue *from, *to;
    s->kind = STEP_REPLACE;
    TRY(spec_keys(spec, "Replace", "type pattern content", e));
    TRY(spec_keys(json_get(spec, "pattern"), "the pattern of Replace", "String", e));
    TRY(spec_string(json_get(spec, "pattern"), "String", &from, e));
    TRY(spec_string(spec, "content", &to, e));
    if (from->len == 0)
        return err_set(e, ST_INPUT, "Replace of an empty string is not supported");
    TRY(keep(d, from, &s->from, &s->from_len, e));
    return keep(d, to, &s->text, &s->text_len, e);
}

static Status parse_strip(Decoder *d, const JsonValue *spec, Step *s, Err *e)
{
    const JsonValue *what;
    int64_t start, stop;
    s->kind = STEP_STRIP;
    TRY(spec_keys(spec, "Strip", "type content start stop", e));
    TRY(spec_string(spec, "content", &what, e));
    if (!one_char(what))
        return err_set(e, ST_INPUT, "Strip: the content is not one character");
    if (!json_int64(json_get(spec, "start"), &start) ||
        !json_int64(json_get(spec, "stop"), &stop) || start < 0 || stop < 0)
        return err_set(e, ST_INPUT, "Strip: start and stop must be counts");
    s->strip_start = (size_t)start;
    s->strip_stop = (size_t)stop;
    return keep(d, what, &s->from, &s->from_len, e);
}

static Status parse_metaspace(Decoder *d, const JsonValue *spec, Step *s, Err *e)
{
    const JsonValue *marker, *scheme = json_get(spec, "prepend_scheme");
    bool prefix, ignored;
    s->kind = STEP_METASPACE;
    TRY(spec_keys(spec, "Metaspace",
                  "type replacement prepend_scheme split add_prefix_space str_rep", e));
    TRY(spec_string(spec, "replacement", &marker, e));
    if (!one_char(marker))
        return err_set(e, ST_INPUT, "Metaspace: the replacement is not one character");
    TRY(spec_bool(spec, "split", true, &ignored, e));
    TRY(spec_bool(spec, "add_prefix_space", true, &prefix, e));
    s->drop_first = prefix;
    if (!spec_absent(scheme)) {
        if (!json_is_string(scheme, "always") && !json_is_string(scheme, "first") &&
            !json_is_string(scheme, "never"))
            return err_set(e, ST_INPUT, "Metaspace: this prepend_scheme is not supported");
        s->drop_first = !json_is_string(scheme, "never");
    }
    return keep(d, marker, &s->from, &s->from_len, e);
}

static Status parse_step(Decoder *d, const JsonValue *spec, Err *e)
{
    const JsonValue *type = json_get(spec, "type"), *list;
    if (json_is_string(type, "Sequence")) {
        TRY(spec_keys(spec, "Sequence", "type decoders", e));
        TRY(spec_array(spec, "decoders", &list, e));
        for (const JsonValue *v = list->child; v; v = v->next)
            TRY(parse_step(d, v, e));
        return ST_OK;
    }
    if (d->n_steps == MOST_STEPS)
        return err_set(e, ST_INPUT, "more than %d steps", MOST_STEPS);
    Step *s = &d->steps[d->n_steps++];
    if (json_is_string(type, "ByteLevel")) {
        s->kind = STEP_BYTES;
        return spec_keys(spec, "ByteLevel", "type add_prefix_space trim_offsets use_regex", e);
    }
    if (json_is_string(type, "ByteFallback")) {
        s->kind = STEP_FALLBACK;
        return spec_keys(spec, "ByteFallback", "type", e);
    }
    if (json_is_string(type, "Fuse")) {
        s->kind = STEP_FUSE;
        return spec_keys(spec, "Fuse", "type", e);
    }
    if (json_is_string(type, "Replace"))
        return parse_replace(d, spec, s, e);
    if (json_is_string(type, "Strip"))
        return parse_strip(d, spec, s, e);
    if (json_is_string(type, "Metaspace"))
        return parse_metaspace(d, spec, s, e);
    return err_set(e, ST_INPUT, "%.80s is not supported", spec_type(spec));
}

Status decoder_parse(const JsonValue *spec, Decoder **out, Err *e)
{
    *out = NULL;
    Decoder *d = calloc(1, sizeof *d);
    if (!d)
        return err_set(e, ST_MEMORY, "no memory for a decoder");
    Status st = ST_OK;
    if (!spec_absent(spec)) {
        st = parse_step(d, spec, e);
        if (st == ST_OK && d->n_steps == 0) /* an empty Sequence joins without spaces */
            d->steps[d->n_steps++].kind = STEP_FUSE;
    }
    if (st != ST_OK) {
        err_in(e, "decoder");
        decoder_free(d);
        return st;
    }
    *out = d;
    return ST_OK;
}

void decoder_free(Decoder *d)
{
    if (!d)
        return;
    arena_free(&d->arena);
    free(d);
}

bool decoder_is_byte_level(const Decoder *d)
{
    return d->n_steps == 1 && d->steps[0].kind == STEP_BYTES;
}

/* ---- running ---- */

/* A list of strings, one behind the other. */
typedef struct Parts {
    StrBuf text;
    size_t *ends;
    size_t n, cap;
} Parts;

static void end_part(Parts *p)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 64;
        size_t *v = realloc(p->ends, cap * sizeof *v);
        if (!v) {
            p->text.failed = true;
            return;
        }
        p->ends = v;
        p->cap = cap;
    }
    p->ends[p->n++] = p->text.len;
}

static Text part_at(const Parts *p, size_t i)
{
    size_t start = i ? p->ends[i - 1] : 0;
    return (Text){p->text.data + start, (uint32_t)(p->ends[i] - start)};
}

/* In the alphabet: the bytes it stands for. Otherwise (an added token, say) its own. */
static void add_bytes(StrBuf *out, Text t)
{
    size_t before = out->len;
    strbuf_add(out, t.at, t.len);
    if (out->failed)
        return;
    size_t n = bytelevel_bytes(t.at, t.len, out->data + before);
    if (n == SIZE_MAX) {
        memcpy(out->data + before, t.at, t.len);
        return;
    }
    out->len = before + n;
    out->data[out->len] = 0;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The byte of a token "<0xHH>", or -1. */
static int fallback_byte(Text t)
{
    if (t.len != 6 || memcmp(t.at, "<0x", 3) != 0 || t.at[5] != '>')
        return -1;
    int high = hex_digit(t.at[3]), low = hex_digit(t.at[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static Text stripped(const Step *s, Text t)
{
    for (size_t i = 0;
         i < s->strip_start && t.len >= s->from_len && memcmp(t.at, s->from, s->from_len) == 0;
         i++) {
        t.at += s->from_len;
        t.len -= (uint32_t)s->from_len;
    }
    for (size_t i = 0; i < s->strip_stop && t.len >= s->from_len &&
                       memcmp(t.at + t.len - s->from_len, s->from, s->from_len) == 0;
         i++)
        t.len -= (uint32_t)s->from_len;
    return t;
}

/* A run of byte tokens is one unit: its text when it is valid, else one U+FFFD for every byte. */
static void end_byte_run(Parts *to, StrBuf *run)
{
    if (run->len == 0)
        return;
    if (utf8_first_bad(run->data, run->len) == run->len) {
        strbuf_add(&to->text, run->data, run->len);
        end_part(to);
    } else {
        for (size_t i = 0; i < run->len; i++) {
            strbuf_add(&to->text, "\xef\xbf\xbd", 3);
            end_part(to);
        }
    }
    to->text.failed = to->text.failed || run->failed;
    strbuf_clear(run);
}

static void run_fallback(const Parts *from, Parts *to)
{
    StrBuf run = {0};
    for (size_t i = 0; i < from->n; i++) {
        Text t = part_at(from, i);
        int byte = fallback_byte(t);
        if (byte >= 0) {
            char c = (char)byte;
            strbuf_add(&run, &c, 1);
            continue;
        }
        end_byte_run(to, &run);
        strbuf_add(&to->text, t.at, t.len);
        end_part(to);
    }
    end_byte_run(to, &run);
    strbuf_free(&run);
}

static void run_bytes(const Parts *from, Parts *to)
{
    StrBuf raw = {0};
    for (size_t i = 0; i < from->n; i++)
        add_bytes(&raw, part_at(from, i));
    utf8_add_repaired(&to->text, raw.data ? raw.data : "", raw.len);
    to->text.failed = to->text.failed || raw.failed;
    strbuf_free(&raw);
    end_part(to);
}

static void run_step(const Step *s, const Parts *from, Parts *to)
{
    if (s->kind == STEP_BYTES) {
        run_bytes(from, to);
        return;
    }
    if (s->kind == STEP_FALLBACK) {
        run_fallback(from, to);
        return;
    }
    if (s->kind == STEP_FUSE) {
        strbuf_add(&to->text, from->text.data, from->text.len);
        end_part(to);
        return;
    }
    for (size_t i = 0; i < from->n; i++) {
        Text t = part_at(from, i);
        if (s->kind == STEP_REPLACE)
            replace_all(&to->text, t.at, t.len, s->from, s->from_len, s->text, s->text_len);
        else if (s->kind == STEP_METASPACE)
            replace_all(&to->text, t.at, t.len, s->from, s->from_len, " ",
                        s->drop_first && i == 0 ? 0 : 1);
        else {
            t = stripped(s, t);
            strbuf_add(&to->text, t.at, t.len);
        }
        end_part(to);
    }
}

Status decoder_run(const Decoder *d, const Text *tokens, size_t n, StrBuf *out, Err *e)
{
    Parts parts[2];
    memset(parts, 0, sizeof parts);
    Parts *from = &parts[0], *to = &parts[1];
    strbuf_add(&from->text, "", 0);
    for (size_t i = 0; i < n; i++) {
        if (d->n_steps == 0 && i)
            strbuf_str(&from->text, " ");
        strbuf_add(&from->text, tokens[i].at, tokens[i].len);
        end_part(from);
    }
    for (int i = 0; i < d->n_steps; i++) {
        strbuf_clear(&to->text);
        strbuf_add(&to->text, "", 0);
        to->n = 0;
        bool failed = from->text.failed;
        if (!failed)
            run_step(&d->steps[i], from, to);
        to->text.failed = to->text.failed || failed;
        Parts *swap = from;
        from = to;
        to = swap;
    }
    strbuf_add(out, from->text.data, from->text.failed ? 0 : from->text.len);
    bool failed = from->text.failed || out->failed;
    for (int i = 0; i < 2; i++) {
        strbuf_free(&parts[i].text);
        free(parts[i].ends);
    }
    return failed ? err_set(e, ST_MEMORY, "no memory to decode %zu tokens", n) : ST_OK;
}

void decoder_token_bytes(const Decoder *d, Text token, StrBuf *out, StrBuf *scratch)
{
    size_t start = out->len;
    bool fused = false;
    strbuf_add(out, d->n_steps ? "" : " ", d->n_steps == 0);
    strbuf_add(out, token.at, token.len);
    for (int i = 0; i < d->n_steps && !out->failed; i++) {
        const Step *s = &d->steps[i];
        strbuf_clear(scratch);
        strbuf_add(scratch, out->data + start, out->len - start);
        if (scratch->failed) {
            out->failed = true;
            return;
        }
        Text t = {scratch->data, (uint32_t)scratch->len};
        int byte = s->kind == STEP_FALLBACK && !fused ? fallback_byte(t) : -1;
        out->len = start;
        fused = fused || s->kind == STEP_FUSE || s->kind == STEP_BYTES;
        if (s->kind == STEP_BYTES)
            add_bytes(out, t);
        else if (s->kind == STEP_REPLACE)
            replace_all(out, t.at, t.len, s->from, s->from_len, s->text, s->text_len);
        else if (s->kind == STEP_METASPACE)
            replace_all(out, t.at, t.len, s->from, s->from_len, " ", 1);
        else if (byte >= 0)
            strbuf_add(out, &(char){(char)byte}, 1);
        else {
            t = s->kind == STEP_STRIP && !fused ? stripped(s, t) : t;
            strbuf_add(out, t.at, t.len);
        }
    }
}
