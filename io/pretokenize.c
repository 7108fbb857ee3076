/* io/pretokenize.c - see pretokenize.h. A step takes the list of pieces and makes the next; steps
 * that change the text (a prefix space, the Metaspace marker) write a new one. */
#include "io/pretokenize.h"

#include "io/normalize.h"
#include "io/scan.h"
#include "io/spec.h"
#include "io/unicode.h"
#include "io/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 64 };

typedef enum Behavior { ISOLATED, REMOVED, MERGED_PREVIOUS, MERGED_NEXT, CONTIGUOUS } Behavior;
typedef enum Scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER } Scheme;

typedef struct Step {
    enum { STEP_SPLIT, STEP_PREFIX, STEP_METASPACE } kind;
    /* STEP_SPLIT: exactly one way to find matches */
    ScanFind scan;
    Regex *regex;
    const char *literal; /* also the Metaspace marker */
    size_t literal_len;
    unsigned category; /* single characters of one category (UC_SPACE and so on), else 0 */
    Behavior behavior;
    bool invert;
    Scheme scheme; /* STEP_METASPACE */
} Step;

struct PreTokenizer {
    Arena arena;
    bool byte_level;
    int n_steps;
    Step steps[MOST_STEPS];
};

/* ---- reading the file ---- */

static Status add_step(PreTokenizer *p, Step s, Err *e)
{
    if (p->byte_level)
        return err_set(e, ST_INPUT, "steps behind ByteLevel are not supported");
    if (p->n_steps == MOST_STEPS)
        return err_set(e, ST_INPUT, "more than %d steps", MOST_STEPS);
    p->steps[p->n_steps++] = s;
    return ST_OK;
}

static Status parse_behavior(const JsonValue *v, Behavior *out, Err *e)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (json_is_string(v, names[i])) {
            *out = (Behavior)i;
            return ST_OK;
        }
    }
    return err_set(e, ST_INPUT, "Split: the behavior %.80s is not supported",
                   v && v->type == JSON_STRING ? v->text : "(missing)");
}

static Status keep_text(PreTokenizer *p, const JsonValue *v, Step *s, Err *e)
{
    s->literal = arena_copy(&p->arena, v->text, v->len);
    s->literal_len = v->len;
    return s->literal ? ST_OK : err_set(e, ST_MEMORY, "no memory for a pre-tokenizer");
}

static Status parse_split(PreTokenizer *p, const JsonValue *spec, Err *e)
{
    Step s = {.kind = STEP_SPLIT};
    const JsonValue *pattern = json_get(spec, "pattern"), *text;
    TRY(spec_keys(spec, "Split", "type pattern behavior invert", e));
    TRY(spec_keys(pattern, "the pattern of Split", "Regex String", e));
    TRY(parse_behavior(json_get(spec, "behavior"), &s.behavior, e));
    TRY(spec_bool(spec, "invert", false, &s.invert, e));
    if (pattern->len != 1)
        return err_set(e, ST_INPUT, "the pattern of Split needs one of Regex and String");
    if (json_get(pattern, "String")) {
        TRY(spec_string(pattern, "String", &text, e));
        TRY(keep_text(p, text, &s, e));
    } else {
        TRY(spec_string(pattern, "Regex", &text, e));
        s.scan = scan_find(text->text, text->len);
    }
    if (text->len == 0) /* also as a String it matches between all characters */
        s.literal = NULL;
    if (!s.scan && !s.literal)
        TRY(regex_compile(text->text, text->len, &s.regex, e));
    Status st = add_step(p, s, e);
    if (st != ST_OK)
        regex_free(s.regex);
    return st;
}

static Status parse_byte_level(PreTokenizer *p, const JsonValue *spec, Err *e)
{
    bool prefix, regex;
    TRY(spec_keys(spec, "ByteLevel", "type add_prefix_space trim_offsets use_regex", e));
    TRY(spec_bool(spec, "add_prefix_space", true, &prefix, e));
    TRY(spec_bool(spec, "use_regex", true, &regex, e));
    if (prefix)
        TRY(add_step(p, (Step){.kind = STEP_PREFIX}, e));
    Step s = {.kind = STEP_SPLIT, .behavior = ISOLATED};
    s.scan = scan_find(scan_gpt2_regex, strlen(scan_gpt2_regex));
    if (regex)
        TRY(add_step(p, s, e));
    p->byte_level = true;
    return ST_OK;
}

static Status parse_metaspace(PreTokenizer *p, const JsonValue *spec, Err *e)
{
    static const char *const schemes[] = {"always", "first", "never"};
    const JsonValue *marker, *scheme = json_get(spec, "prepend_scheme");
    Step s = {.kind = STEP_METASPACE};
    bool split, prefix;
    TRY(spec_keys(spec, "Metaspace",
                  "type replacement prepend_scheme split add_prefix_space str_rep", e));
    TRY(spec_string(spec, "replacement", &marker, e));
    if (marker->len == 0 || utf8_len((uint8_t)marker->text[0]) != marker->len)
        return err_set(e, ST_INPUT, "Metaspace: the replacement is not one character");
    TRY(spec_bool(spec, "split", true, &split, e));
    TRY(spec_bool(spec, "add_prefix_space", true, &prefix, e)); /* the old spelling of the scheme */
    s.scheme = prefix ? PREPEND_ALWAYS : PREPEND_NEVER;
    if (!spec_absent(scheme)) {
        int i = 0;
        while (i < 3 && !json_is_string(scheme, schemes[i]))
            i++;
        if (i == 3 || (!prefix && i != PREPEND_NEVER))
            return err_set(e, ST_INPUT, "Metaspace: this prepend_scheme is not supported");
        s.scheme = (Scheme)i;
    }
    TRY(keep_text(p, marker, &s, e));
    TRY(add_step(p, s, e));
    Step cut = {.kind = STEP_SPLIT,
                .behavior = MERGED_NEXT,
                .literal = s.literal,
                .literal_len = s.literal_len};
    return split ? add_step(p, cut, e) : ST_OK;
}

static Status parse_digits(PreTokenizer *p, const JsonValue *spec, Err *e)
{
    bool each;
    TRY(spec_keys(spec, "Digits", "type individual_digits", e));
    TRY(spec_bool(spec, "individual_digits", false, &each, e));
    Step s = {.kind = STEP_SPLIT, .category = UC_N, .behavior = each ? ISOLATED : CONTIGUOUS};
    return add_step(p, s, e);
}

static Status parse_step(PreTokenizer *p, const JsonValue *spec, Err *e)
{
    const JsonValue *type = json_get(spec, "type"), *list;
    if (json_is_string(type, "Sequence")) {
        TRY(spec_keys(spec, "Sequence", "type pretokenizers", e));
        TRY(spec_array(spec, "pretokenizers", &list, e));
        for (const JsonValue *v = list->child; v; v = v->next)
            TRY(parse_step(p, v, e));
        return ST_OK;
    }
    if (json_is_string(type, "Split"))
        return parse_split(p, spec, e);
    if (json_is_string(type, "ByteLevel"))
        return p->byte_level ? err_set(e, ST_INPUT, "ByteLevel twice is not supported")
                             : parse_byte_level(p, spec, e);
    if (json_is_string(type, "Metaspace"))
        return parse_metaspace(p, spec, e);
    if (json_is_string(type, "Digits"))
        return parse_digits(p, spec, e);
    return err_set(e, ST_INPUT, "%.80s is not supported", spec_type(spec));
}

Status pretokenizer_parse(const JsonValue *spec, PreTokenizer **out, Err *e)
{
    *out = NULL;
    unicode_init();
    PreTokenizer *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ST_MEMORY, "no memory for a pre-tokenizer");
    Status st = spec_absent(spec) ? ST_OK : parse_step(p, spec, e);
    if (st != ST_OK) {
        err_in(e, "pre_tokenizer");
        pretokenizer_free(p);
        return st;
    }
    *out = p;
    return ST_OK;
}

void pretokenizer_free(PreTokenizer *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n_steps; i++)
        regex_free(p->steps[i].regex);
    arena_free(&p->arena);
    free(p);
}

bool pretokenizer_is_byte_level(const PreTokenizer *p)
{
    return p->byte_level;
}

bool pretokenizer_needs_start(const PreTokenizer *p)
{
    for (int i = 0; i < p->n_steps; i++)
        if (p->steps[i].kind == STEP_METASPACE && p->steps[i].scheme == PREPEND_FIRST)
            return true;
    return false;
}

/* ---- running ---- */

static bool push_piece(PieceList *l, size_t start, size_t end)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 256;
        Piece *v = realloc(l->v, cap * sizeof *v);
        if (!v)
            return false;
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = (Piece){(uint32_t)start, (uint32_t)(end - start)};
    return true;
}

/* The matches of one step in one piece, taken one after the other. */
typedef struct Matches {
    const Step *step;
    PreScratch *s;
    const char *text; /* of the piece */
    size_t len;
    size_t at;       /* where the search goes on */
    size_t last_end; /* of the last match; SIZE_MAX before the first */
    size_t steps;    /* what the pattern may still cost */
    Err *e;
} Matches;

static Status next_match(Matches *m, bool *found, size_t *start, size_t *end)
{
    const Step *step = m->step;
    const uint8_t *text = (const uint8_t *)m->text, *from, *to;
    *found = false;
    if (step->scan) {
        *found = step->scan(text + m->at, text + m->len, &from, &to);
        if (!*found)
            return ST_OK;
        *start = (size_t)(from - text);
        *end = (size_t)(to - text);
    } else if (step->category) {
        size_t at = m->at;
        while (at < m->len && (unicode_class[utf8_code(text + at)] & UC_CATEGORY) != step->category)
            at += utf8_len(text[at]);
        *found = at < m->len;
        *start = at;
        *end = *found ? at + utf8_len(text[at]) : at;
    } else if (step->literal) {
        const char *hit = memmem(m->text + m->at, m->len - m->at, step->literal, step->literal_len);
        *found = hit != NULL;
        *start = hit ? (size_t)(hit - m->text) : 0;
        *end = *start + step->literal_len;
    } else {
        /* An empty match right behind the last match is passed over, as the reference's iterator
         * does. */
        while (m->at <= m->len) {
            TRY(regex_find(step->regex, &m->s->stack, m->text, m->len, m->at, &m->steps, found,
                           start, end, m->e));
            if (!*found || *start != *end || *end != m->last_end)
                break;
            m->at += m->at < m->len ? utf8_len(text[m->at]) : 1;
            *found = false;
        }
    }
    if (*found)
        m->at = m->last_end = *end;
    return ST_OK;
}

/* Puts stretches (matches and what lies between them) together as the behavior says. The list holds
 * the pieces in text order; MERGED_NEXT is MERGED_PREVIOUS read from the end, so it waits for one
 * more. */
typedef struct Joiner {
    PieceList *out;
    size_t first; /* where this piece's results begin in out */
    bool last_was_match, any;
} Joiner;

static bool join(const Step *step, Joiner *j, size_t start, size_t end, bool match)
{
    Piece *last = j->out->n > j->first ? &j->out->v[j->out->n - 1] : NULL;
    bool glue = false;
    match = match != step->invert;
    switch (step->behavior) {
    case ISOLATED:
        break;
    case REMOVED:
        if (match)
            return true;
        break;
    case CONTIGUOUS:
        glue = match == j->last_was_match;
        break;
    case MERGED_PREVIOUS:
        glue = match && !j->last_was_match;
        break;
    case MERGED_NEXT: /* a match takes what follows it, unless that is a match, too */
        glue = j->last_was_match && !match;
        break;
    }
    j->last_was_match = match;
    if (glue && last) {
        last->len = (uint32_t)(end - last->start);
        return true;
    }
    return push_piece(j->out, start, end);
}

static Status split_piece(const Step *step, PreScratch *s, Piece piece, PieceList *out, Err *e)
{
    Matches m = {
        step, s, s->text + piece.start, piece.len, 0, SIZE_MAX, 10000000 + 1000 * (size_t)piece.len,
        e};
    Joiner j = {.out = out, .first = out->n};
    size_t done = 0, start = 0, end = 0;
    bool found, ok = true;
    for (;;) {
        TRY(next_match(&m, &found, &start, &end));
        if (!found)
            break;
        if (start > done)
            ok = ok && join(step, &j, piece.start + done, piece.start + start, false);
        ok = ok && join(step, &j, piece.start + start, piece.start + end, true);
        done = end;
    }
    if (done < piece.len)
        ok = ok && join(step, &j, piece.start + done, piece.start + piece.len, false);
    return ok ? ST_OK : err_set(e, ST_MEMORY, "no memory for the pieces of a text");
}

/* Isolated matches of a scanner, the usual case, without the machinery above. */
static Status split_by_scan(const Step *step, const PreScratch *s, Piece piece, PieceList *out,
                            Err *e)
{
    const uint8_t *text = (const uint8_t *)s->text;
    const uint8_t *at = text + piece.start, *end = at + piece.len, *match, *match_end;
    bool ok = true;
    while (at < end && step->scan(at, end, &match, &match_end)) {
        if (match > at)
            ok = ok && push_piece(out, (size_t)(at - text), (size_t)(match - text));
        ok = ok && push_piece(out, (size_t)(match - text), (size_t)(match_end - text));
        at = match_end;
    }
    if (at < end)
        ok = ok && push_piece(out, (size_t)(at - text), (size_t)(end - text));
    return ok ? ST_OK : err_set(e, ST_MEMORY, "no memory for the pieces of a text");
}

static Status run_split(const Step *step, PreScratch *s, Err *e)
{
    PieceList *out = &s->spare, swap;
    bool plain = step->scan && step->behavior == ISOLATED;
    out->n = 0;
    for (size_t i = 0; i < s->pieces.n; i++)
        TRY(plain ? split_by_scan(step, s, s->pieces.v[i], out, e)
                  : split_piece(step, s, s->pieces.v[i], out, e));
    size_t kept = 0;
    for (size_t i = 0; i < out->n; i++)
        if (out->v[i].len)
            out->v[kept++] = out->v[i];
    out->n = kept;
    swap = s->pieces;
    s->pieces = *out;
    s->spare = swap;
    return ST_OK;
}

/* Writes every piece anew: spaces become the marker, and prefix goes in front where it is wanted.
 */
static Status rewrite(const Step *step, PreScratch *s, bool at_start, Err *e)
{
    bool metaspace = step->kind == STEP_METASPACE;
    const char *prefix = metaspace ? step->literal : " ";
    size_t prefix_len = metaspace ? step->literal_len : 1;
    StrBuf *b = &s->buf[s->next_buf];
    s->next_buf = !s->next_buf;
    strbuf_clear(b);
    strbuf_add(b, "", 0);
    for (size_t i = 0; i < s->pieces.n; i++) {
        Piece *p = &s->pieces.v[i];
        const char *text = s->text + p->start;
        size_t start = b->len;
        bool has = p->len >= prefix_len && memcmp(text, prefix, prefix_len) == 0;
        has = has || (metaspace && text[0] == ' ');
        bool wanted = !metaspace || step->scheme == PREPEND_ALWAYS ||
                      (step->scheme == PREPEND_FIRST && at_start && p->start == 0);
        if (wanted && !has)
            strbuf_add(b, prefix, prefix_len);
        if (metaspace)
            replace_all(b, text, p->len, " ", 1, prefix, prefix_len);
        else
            strbuf_add(b, text, p->len);
        if (b->len > UINT32_MAX)
            return err_set(e, ST_INPUT, "the text grows past 4 GiB");
        *p = (Piece){(uint32_t)start, (uint32_t)(b->len - start)};
    }
    if (b->failed)
        return err_set(e, ST_MEMORY, "no memory to pre-tokenize a text");
    s->text = b->data;
    return ST_OK;
}

Status pretokenizer_run(const PreTokenizer *p, PreScratch *s, const char *text, size_t len,
                        bool at_start, Err *e)
{
    s->text = text;
    s->pieces.n = 0;
    if (len == 0)
        return ST_OK;
    if (len > INT32_MAX)
        return err_set(e, ST_INPUT, "a text of %zu bytes is too long to tokenize", len);
    if (!push_piece(&s->pieces, 0, len))
        return err_set(e, ST_MEMORY, "no memory for the pieces of a text");
    for (int i = 0; i < p->n_steps; i++) {
        const Step *step = &p->steps[i];
        TRY(step->kind == STEP_SPLIT ? run_split(step, s, e) : rewrite(step, s, at_start, e));
    }
    return ST_OK;
}

void prescratch_free(PreScratch *s)
{
    free(s->pieces.v);
    free(s->spare.v);
    strbuf_free(&s->buf[0]);
    strbuf_free(&s->buf[1]);
    regex_stack_free(&s->stack);
}
