/* io/regex_compile.c - from the text of a pattern to instructions, by way of a tree. */
#include "io/regex_internal.h"

#include "io/arena.h"
#include "io/utf8.h"

#include <stdlib.h>
#include <string.h>

/* A hostile pattern must not fill memory: {1000}{1000} would. Nesting bounds the recursion here. */
enum { MOST_CODE = 20000, MOST_REPEAT = 1000, MOST_NESTING = 100 };

typedef enum NodeType {
    N_EMPTY,
    N_CHAR,
    N_SET,
    N_CAT,
    N_ALT,
    N_REPEAT,
    N_LOOK,
    N_ATOMIC,
    N_ASSERT
} NodeType;

typedef struct Node {
    NodeType type;
    RegexMode mode;
    uint32_t x, y;      /* as the instruction's; N_LOOK: y is negative */
    int32_t min, max;   /* N_REPEAT */
    struct Node *child; /* first */
    struct Node *next;  /* of the parent's children */
} Node;

typedef struct Compiler {
    const char *pattern;
    const uint8_t *at, *end;
    Regex *r;
    Arena arena;
    bool fold; /* inside (?i:...) */
    int depth;
    Err *e;
} Compiler;

static Status bad(const Compiler *c, const char *what)
{
    return err_set(c->e, ST_INPUT, "pattern, byte %zu: %s",
                   (size_t)((const char *)c->at - c->pattern), what);
}

static Status no_memory(const Compiler *c)
{
    return err_set(c->e, ST_MEMORY, "no memory to compile a pattern");
}

static bool peek(const Compiler *c, char want)
{
    return c->at < c->end && *c->at == (uint8_t)want;
}

static bool accept(Compiler *c, const char *want)
{
    size_t n = strlen(want);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, want, n) != 0)
        return false;
    c->at += n;
    return true;
}

static uint32_t next_code(Compiler *c)
{
    uint32_t code = utf8_code(c->at);
    c->at += utf8_len(*c->at);
    return code;
}

static Status new_node(Compiler *c, NodeType type, Node **out)
{
    *out = arena_alloc(&c->arena, sizeof **out);
    if (!*out)
        return no_memory(c);
    **out = (Node){.type = type};
    return ST_OK;
}

/* ---- sets ---- */

static void set_add(RegexSet *s, uint32_t code)
{
    s->bits[code >> 3] |= (uint8_t)(1 << (code & 7));
}

static void set_remove(RegexSet *s, uint32_t code)
{
    s->bits[code >> 3] &= (uint8_t) ~(1 << (code & 7));
}

static void set_add_range(RegexSet *s, uint32_t first, uint32_t last)
{
    for (uint32_t code = first; code <= last; code++)
        set_add(s, code);
}

static void set_invert(RegexSet *s)
{
    for (size_t i = 0; i < sizeof s->bits; i++)
        s->bits[i] = (uint8_t)~s->bits[i];
}

static void set_unite(RegexSet *s, const RegexSet *other)
{
    for (size_t i = 0; i < sizeof s->bits; i++)
        s->bits[i] |= other->bits[i];
}

static void set_intersect(RegexSet *s, const RegexSet *other)
{
    for (size_t i = 0; i < sizeof s->bits; i++)
        s->bits[i] &= other->bits[i];
}

/* Characters whose category is in categories (bits 1 << category) or whose flags meet flags. */
static void set_add_class(RegexSet *s, unsigned categories, unsigned flags)
{
    for (uint32_t code = 0; code < UNICODE_END; code++)
        if ((categories >> (unicode_class[code] & UC_CATEGORY) & 1) || unicode_class[code] & flags)
            set_add(s, code);
}

/* Keeps a finished set in the pattern; equal sets are kept once. Takes ownership of s. */
static Status keep_set(Compiler *c, RegexSet *s, uint32_t *index)
{
    Regex *r = c->r;
    for (size_t i = 0; i < r->n_sets; i++) {
        if (memcmp(r->sets[i], s, sizeof *s) == 0) {
            free(s);
            *index = (uint32_t)i;
            return ST_OK;
        }
    }
    if (r->n_sets == MOST_SETS) {
        free(s);
        return bad(c, "more than 200 different classes");
    }
    *index = (uint32_t)r->n_sets;
    r->sets[r->n_sets++] = s;
    return ST_OK;
}

enum { LETTERS = 1 << UC_LU | 1 << UC_LL | 1 << UC_LT | 1 << UC_LM | 1 << UC_LO };

static const struct {
    const char *name;
    unsigned categories, flags;
    bool cased; /* differs between cases, so (?i:) would have to fold it */
} properties[] = {
    {"L", LETTERS, 0, false},    {"Letter", LETTERS, 0, false}, {"Lu", 1 << UC_LU, 0, true},
    {"Ll", 1 << UC_LL, 0, true}, {"Lt", 1 << UC_LT, 0, true},   {"Lm", 1 << UC_LM, 0, true},
    {"Lo", 1 << UC_LO, 0, true}, {"M", 1 << UC_M, 0, true},     {"N", 1 << UC_N, 0, true},
    {"Nd", 0, UC_ND, false},     {"P", 1 << UC_P, 0, false},    {"S", 1 << UC_S, 0, true},
    {"Han", 0, UC_HAN, false},
};

/* \p{Name}, \P{Name}, \p{^Name}; c->at is behind the p. */
static Status parse_property(Compiler *c, bool negative, RegexSet *s)
{
    const uint8_t *start = c->at;
    if (!accept(c, "{"))
        return bad(c, "\\p needs a name in braces");
    if (accept(c, "^"))
        negative = !negative;
    const uint8_t *name = c->at, *close = memchr(name, '}', (size_t)(c->end - name));
    size_t len = close ? (size_t)(close - name) : 0;
    for (size_t i = 0; close && i < sizeof properties / sizeof *properties; i++) {
        if (strlen(properties[i].name) != len || memcmp(properties[i].name, name, len) != 0)
            continue;
        if (c->fold && properties[i].cased)
            break;
        set_add_class(s, properties[i].categories, properties[i].flags);
        if (negative)
            set_invert(s);
        c->at = close + 1;
        return ST_OK;
    }
    c->at = start;
    return bad(c, c->fold ? "this property is not supported inside (?i:)"
                          : "this property is not supported");
}

static bool hex_code(Compiler *c, int least, int most, uint32_t *out)
{
    int n = 0;
    uint32_t v = 0;
    for (; n < most && c->at < c->end; n++, c->at++) {
        int ch = *c->at, digit = ch >= '0' && ch <= '9'   ? ch - '0'
                                 : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10
                                 : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10
                                                          : -1;
        if (digit < 0)
            break;
        v = v * 16 + (uint32_t)digit;
    }
    *out = v;
    return n >= least && v < UNICODE_END && (v < 0xd800 || v > 0xdfff);
}

/* An escape that stands for one character; c->at is behind the backslash. */
static Status parse_char_escape(Compiler *c, uint32_t *code)
{
    static const char names[] = "tnrfvae", values[] = "\t\n\r\f\v\a\033";
    uint32_t ch = next_code(c);
    const char *named = ch < 0x80 && ch ? strchr(names, (int)ch) : NULL;
    bool ok = true;
    *code = ch;
    if (named)
        *code = (uint32_t)values[named - names];
    else if (ch == 'x' && accept(c, "{"))
        ok = hex_code(c, 1, 8, code) && accept(c, "}");
    else if (ch ==
             'x') /* two digits are a byte there; beyond ASCII it would be part of a character */
        ok = hex_code(c, 2, 2, code) && *code < 0x80;
    else if (ch == 'u')
        ok = hex_code(c, 4, 4, code);
    else if ((ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z'))
        ok = false;
    return ok ? ST_OK : bad(c, "this escape is not supported");
}

/* \d \s \w \h \p and their opposites into s; *is_class is false, and nothing is read, for other
 * escapes. */
static Status parse_class_escape(Compiler *c, bool bracketed, RegexSet *s, bool *is_class)
{
    uint8_t ch = *c->at;
    bool negative = ch >= 'A' && ch <= 'Z';
    *is_class = true;
    c->at++;
    switch (ch | 0x20) {
    case 'p':
        return parse_property(c, negative, s);
    case 'd':
        set_add_class(s, 0, UC_ND);
        break;
    case 's':
        set_add_class(s, 1 << UC_SPACE, 0);
        break;
    case 'w':
        set_add_class(s, 0, UC_WORD);
        for (const char *k = "\xb2\xb3\xb9\xbc\xbd\xbe"; bracketed && *k; k++)
            set_remove(s, (uint8_t)*k);
        break;
    case 'h':
        set_add_range(s, '0', '9');
        set_add_range(s, 'A', 'F');
        set_add_range(s, 'a', 'f');
        break;
    default:
        c->at--;
        *is_class = false;
        return ST_OK;
    }
    if (negative)
        set_invert(s);
    return ST_OK;
}

static bool ascii_letter(uint32_t code)
{
    return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
}

/* Adds what equals code when case is ignored. Only ASCII letters are folded; among all of Unicode
 * they have two more partners, the long s and the Kelvin sign. */
static void set_add_folded(RegexSet *s, uint32_t code)
{
    set_add(s, code);
    if (!ascii_letter(code))
        return;
    set_add(s, code ^ 0x20);
    if ((code | 0x20) == 's')
        set_add(s, 0x17f);
    if ((code | 0x20) == 'k')
        set_add(s, 0x212a);
}

static Status parse_set(Compiler *c, RegexSet *out);

/* One item of a class: a character, a range, an escape or a nested class. */
static Status parse_set_item(Compiler *c, RegexSet *s, RegexSet *scratch)
{
    uint32_t first, last;
    bool is_class = false;
    memset(scratch, 0, sizeof *scratch);
    if (peek(c, '[')) {
        if (c->end - c->at > 1 && c->at[1] == ':')
            return bad(c, "[: :] is not supported");
        c->at++;
        TRY(parse_set(c, scratch));
        set_unite(s, scratch);
        return ST_OK;
    }
    if (accept(c, "\\")) {
        if (c->at == c->end)
            return bad(c, "a backslash at the end");
        TRY(parse_class_escape(c, true, scratch, &is_class));
        if (is_class) {
            set_unite(s, scratch);
            return c->at + 1 < c->end && c->at[0] == '-' && c->at[1] != ']'
                       ? bad(c, "a range cannot start with a class")
                       : ST_OK;
        }
        TRY(parse_char_escape(c, &first));
    } else {
        first = next_code(c);
    }
    last = first;
    if (c->end - c->at > 1 && c->at[0] == '-' && c->at[1] != ']') {
        c->at++;
        if (accept(c, "\\")) {
            if (c->at == c->end)
                return bad(c, "a backslash at the end");
            TRY(parse_char_escape(c, &last));
        } else if (peek(c, '[')) {
            return bad(c, "a range cannot end in a class");
        } else {
            last = next_code(c);
        }
        if (last < first)
            return bad(c, "an empty range");
    }
    if (c->fold && last >= 0x80)
        return bad(c, "(?i:) is supported for ASCII only");
    for (uint32_t code = first; code <= last; code++) {
        if (c->fold)
            set_add_folded(s, code);
        else
            set_add(s, code);
    }
    return ST_OK;
}

/* c->at is behind the opening bracket; reads the closing one. && binds weaker than the items beside
 * it. */
static Status parse_set_body(Compiler *c, RegexSet *out, RegexSet *part, RegexSet *scratch)
{
    bool negative = accept(c, "^"), first = true, intersecting = false;
    for (;;) {
        if (c->at == c->end)
            return bad(c, "a class does not end");
        bool last = accept(c, "]");
        if (last || accept(c, "&&")) {
            if (first)
                return bad(c, "an empty class");
            if (intersecting)
                set_intersect(out, part);
            else
                memcpy(out, part, sizeof *out);
            intersecting = true;
            memset(part, 0, sizeof *part);
            first = true;
            if (!last)
                continue;
            if (negative)
                set_invert(out);
            return ST_OK;
        }
        TRY(parse_set_item(c, part, scratch));
        first = false;
    }
}

static Status parse_set(Compiler *c, RegexSet *out)
{
    if (++c->depth > MOST_NESTING)
        return bad(c, "nested too deeply");
    RegexSet *parts = calloc(2, sizeof *parts);
    if (!parts)
        return no_memory(c);
    Status st = parse_set_body(c, out, parts, parts + 1);
    free(parts);
    c->depth--;
    return st;
}

/* ---- the tree ---- */

static Status parse_alternatives(Compiler *c, Node **out);

static Status new_set_node(Compiler *c, RegexSet *s, Node **out)
{
    Status st = new_node(c, N_SET, out);
    if (st != ST_OK) {
        free(s);
        return st;
    }
    return keep_set(c, s, &(*out)->x);
}

static Status parse_class_node(Compiler *c, Node **out)
{
    RegexSet *s = calloc(1, sizeof *s);
    if (!s)
        return no_memory(c);
    Status st = parse_set(c, s);
    if (st != ST_OK) {
        free(s);
        return st;
    }
    return new_set_node(c, s, out);
}

static Status parse_group(Compiler *c, Node **out)
{
    bool old_fold = c->fold;
    NodeType type = N_CAT;
    uint32_t negative = 0;
    Node *body = NULL;
    if (accept(c, "?i:")) {
        c->fold = true;
    } else if (accept(c, "?=")) {
        type = N_LOOK;
    } else if (accept(c, "?!")) {
        type = N_LOOK;
        negative = 1;
    } else if (accept(c, "?>")) {
        type = N_ATOMIC;
    } else if (!accept(c, "?:") && peek(c, '?')) {
        return bad(c, "this kind of group is not supported");
    }
    TRY(parse_alternatives(c, &body));
    if (!accept(c, ")"))
        return bad(c, "a group does not end");
    c->fold = old_fold;
    if (type == N_CAT) {
        *out = body;
        return ST_OK;
    }
    TRY(new_node(c, type, out));
    (*out)->child = body;
    (*out)->y = negative;
    return ST_OK;
}

static Status parse_char_node(Compiler *c, uint32_t code, Node **out)
{
    if (!c->fold || (code < 0x80 && !ascii_letter(code))) {
        TRY(new_node(c, N_CHAR, out));
        (*out)->x = code;
        return ST_OK;
    }
    if (code >= 0x80)
        return bad(c, "(?i:) is supported for ASCII only");
    RegexSet *s = calloc(1, sizeof *s);
    if (!s)
        return no_memory(c);
    set_add_folded(s, code);
    return new_set_node(c, s, out);
}

static Status parse_escape_node(Compiler *c, Node **out)
{
    static const char names[] = "AzZbB";
    static const RegexAnchor anchors[] = {RX_TEXT_START, RX_TEXT_END, RX_TEXT_END_NEWLINE,
                                          RX_WORD_EDGE, RX_NO_WORD_EDGE};
    if (c->at == c->end)
        return bad(c, "a backslash at the end");
    const char *named = *c->at ? strchr(names, *c->at) : NULL;
    if (named) {
        c->at++;
        TRY(new_node(c, N_ASSERT, out));
        (*out)->x = anchors[named - names];
        return ST_OK;
    }
    RegexSet *s = calloc(1, sizeof *s);
    if (!s)
        return no_memory(c);
    bool is_class;
    Status st = parse_class_escape(c, false, s, &is_class);
    if (st == ST_OK && is_class)
        return new_set_node(c, s, out);
    free(s);
    TRY(st);
    uint32_t code;
    TRY(parse_char_escape(c, &code));
    return parse_char_node(c, code, out);
}

static Status parse_atom(Compiler *c, Node **out)
{
    if (accept(c, "("))
        return parse_group(c, out);
    if (accept(c, "["))
        return parse_class_node(c, out);
    if (accept(c, "\\"))
        return parse_escape_node(c, out);
    if (accept(c, ".")) {
        RegexSet *s = calloc(1, sizeof *s);
        if (!s)
            return no_memory(c);
        set_add(s, '\n');
        set_invert(s);
        return new_set_node(c, s, out);
    }
    if (peek(c, '^') || peek(c, '$')) {
        TRY(new_node(c, N_ASSERT, out));
        (*out)->x = *c->at++ == '^' ? RX_LINE_START : RX_LINE_END;
        return ST_OK;
    }
    if (peek(c, '*') || peek(c, '+') || peek(c, '?'))
        return bad(c, "nothing to repeat");
    return parse_char_node(c, next_code(c), out);
}

/* {m,n}, {m,}, {,n}, {m}; false, and nothing is read, when the brace is a plain character. */
static bool parse_counts(Compiler *c, int32_t *min, int32_t *max, bool *fixed)
{
    const uint8_t *start = c->at;
    int32_t n[2] = {0, RX_NO_LIMIT};
    int which = 0, digits[2] = {0, 0};
    for (c->at++; c->at < c->end; c->at++) {
        if (*c->at >= '0' && *c->at <= '9' && digits[which] < 6)
            n[which] = (digits[which]++ ? n[which] * 10 : 0) + (*c->at - '0');
        else if (*c->at == ',' && which == 0)
            which = 1;
        else
            break;
    }
    *fixed = which == 0;
    if (!peek(c, '}') || (!digits[0] && !digits[1])) {
        c->at = start;
        return false;
    }
    c->at++;
    *min = n[0];
    *max = which ? n[1] : n[0];
    return true;
}

/* The least number of characters that a node takes; only zero or not matters. */
static bool may_be_empty(const Node *n)
{
    switch (n->type) {
    case N_CHAR:
    case N_SET:
        return false;
    case N_CAT:
        for (const Node *k = n->child; k; k = k->next)
            if (!may_be_empty(k))
                return false;
        return true;
    case N_ALT:
        for (const Node *k = n->child; k; k = k->next)
            if (may_be_empty(k))
                return true;
        return false;
    case N_REPEAT:
        return n->min == 0 || may_be_empty(n->child);
    case N_ATOMIC:
        return may_be_empty(n->child);
    case N_EMPTY:
    case N_LOOK:
    case N_ASSERT:
        return true;
    }
    return true;
}

static Status parse_repeats(Compiler *c, Node **atom)
{
    for (;;) {
        int32_t min = 0, max = RX_NO_LIMIT;
        bool counted = false, fixed = false;
        if (accept(c, "?"))
            max = 1;
        else if (accept(c, "+"))
            min = 1;
        else if (peek(c, '{') && parse_counts(c, &min, &max, &fixed))
            counted = true;
        else if (!accept(c, "*"))
            return ST_OK;
        if (min > max || min > MOST_REPEAT || (max != RX_NO_LIMIT && max > MOST_REPEAT))
            return bad(c, "repeat counts must be in order and at most 1000");
        if ((*atom)->type == N_ASSERT || (*atom)->type == N_LOOK)
            return bad(c, "repeating an anchor or a look-ahead is not supported");
        if (max == RX_NO_LIMIT && may_be_empty(*atom))
            return bad(c, "repeating without end what may match nothing is not supported");
        Node *repeat;
        TRY(new_node(c, N_REPEAT, &repeat));
        repeat->child = *atom;
        repeat->min = min;
        repeat->max = max;
        /* Oniguruma's Ruby syntax: {n,m}+ is a repeat of a repeat, and so is {n}?. */
        if (!(counted && fixed) && accept(c, "?"))
            repeat->mode = RX_LAZY;
        else if (!counted && accept(c, "+"))
            repeat->mode = RX_POSSESSIVE;
        *atom = repeat;
        if (++c->depth > MOST_NESTING)
            return bad(c, "nested too deeply");
    }
}

/* Under (?i:) these spell a single character of another alphabet (U+00DF, U+FB00..FB06), too. */
static bool folds_together(uint32_t a, uint32_t b)
{
    static const char pairs[] = "ssfffiflst";
    for (const char *p = pairs; *p; p += 2)
        if ((a | 0x20) == (uint32_t)p[0] && (b | 0x20) == (uint32_t)p[1])
            return true;
    return false;
}

static Status parse_sequence(Compiler *c, Node **out)
{
    Node **link;
    uint32_t last = 0;
    TRY(new_node(c, N_CAT, out));
    link = &(*out)->child;
    while (c->at < c->end && *c->at != '|' && *c->at != ')') {
        uint32_t code = *c->at;
        Node *atom;
        if (c->fold && folds_together(last, code))
            return bad(c, "these letters have a ligature; not supported inside (?i:)");
        last = code;
        int depth = c->depth;
        TRY(parse_atom(c, &atom));
        TRY(parse_repeats(c, &atom));
        c->depth = depth;
        *link = atom;
        link = &atom->next;
    }
    return ST_OK;
}

static Status parse_alternatives(Compiler *c, Node **out)
{
    if (++c->depth > MOST_NESTING)
        return bad(c, "nested too deeply");
    Node *first, **link;
    TRY(parse_sequence(c, &first));
    *out = first;
    if (peek(c, '|')) {
        TRY(new_node(c, N_ALT, out));
        (*out)->child = first;
        link = &first->next;
        while (accept(c, "|")) {
            TRY(parse_sequence(c, link));
            link = &(*link)->next;
        }
    }
    c->depth--;
    return ST_OK;
}

/* ---- instructions ---- */

static Status emit(Compiler *c, RegexCode code, size_t *at)
{
    Regex *r = c->r;
    if (r->n_code >= MOST_CODE)
        return bad(c, "the pattern is too large");
    if (r->n_code == r->cap_code) {
        size_t cap = r->cap_code ? r->cap_code * 2 : 64;
        RegexCode *p = realloc(r->code, cap * sizeof *p);
        if (!p)
            return no_memory(c);
        r->code = p;
        r->cap_code = cap;
    }
    if (at)
        *at = r->n_code;
    r->code[r->n_code++] = code;
    return ST_OK;
}

static uint32_t here(const Compiler *c)
{
    return (uint32_t)c->r->n_code;
}

static Status generate(Compiler *c, const Node *n);

/* A SPLIT whose sides are the next instruction and a place that is not known yet. */
static Status emit_choice(Compiler *c, bool lazy, size_t *at)
{
    TRY(emit(c, (RegexCode){.op = RX_SPLIT}, at));
    c->r->code[*at].x = c->r->code[*at].y = here(c);
    c->r->code[*at].mode = lazy ? RX_LAZY : RX_GREEDY;
    return ST_OK;
}

static void set_way_out(Compiler *c, size_t split)
{
    RegexCode *code = &c->r->code[split];
    if (code->mode == RX_LAZY)
        code->x = here(c);
    else
        code->y = here(c);
}

static Status generate_group_repeat(Compiler *c, const Node *n)
{
    bool lazy = n->mode == RX_LAZY;
    size_t split, first_split = 0;
    for (int32_t i = 0; i < n->min; i++)
        TRY(generate(c, n->child));
    if (n->max == RX_NO_LIMIT) {
        TRY(emit_choice(c, lazy, &split));
        TRY(generate(c, n->child));
        TRY(emit(c, (RegexCode){.op = RX_JUMP, .x = (uint32_t)split}, NULL));
        set_way_out(c, split);
        return ST_OK;
    }
    /* x{0,3} is (x(x(x)?)?)?: every way out leads behind all of it. They are linked through min. */
    for (int32_t i = n->min; i < n->max; i++) {
        TRY(emit_choice(c, lazy, &split));
        c->r->code[split].min = (int32_t)first_split;
        first_split = split + 1;
        TRY(generate(c, n->child));
    }
    while (first_split) {
        split = first_split - 1;
        first_split = (size_t)c->r->code[split].min;
        set_way_out(c, split);
    }
    return ST_OK;
}

static Status generate_repeat(Compiler *c, const Node *n)
{
    bool single = n->child->type == N_CHAR || n->child->type == N_SET;
    size_t start;
    if (single) {
        TRY(emit(c, (RegexCode){.op = RX_LOOP, .mode = n->mode, .min = n->min, .max = n->max},
                 NULL));
        return generate(c, n->child);
    }
    if (n->mode != RX_POSSESSIVE)
        return generate_group_repeat(c, n);
    TRY(emit(c, (RegexCode){.op = RX_ATOMIC}, &start));
    TRY(generate_group_repeat(c, n));
    TRY(emit(c, (RegexCode){.op = RX_MATCH}, NULL));
    c->r->code[start].x = here(c);
    return ST_OK;
}

static Status generate_alternatives(Compiler *c, const Node *n)
{
    size_t split, jump, last_jump = 0;
    for (const Node *k = n->child; k; k = k->next) {
        if (!k->next) {
            TRY(generate(c, k));
            break;
        }
        TRY(emit_choice(c, false, &split));
        TRY(generate(c, k));
        TRY(emit(c, (RegexCode){.op = RX_JUMP, .x = (uint32_t)last_jump}, &jump));
        last_jump = jump + 1; /* the jumps to the end are linked through x until it is known */
        set_way_out(c, split);
    }
    while (last_jump) {
        RegexCode *code = &c->r->code[last_jump - 1];
        last_jump = code->x;
        code->x = here(c);
    }
    return ST_OK;
}

static Status generate(Compiler *c, const Node *n)
{
    size_t start;
    switch (n->type) {
    case N_EMPTY:
        return ST_OK;
    case N_CHAR:
        return emit(c, (RegexCode){.op = RX_CHAR, .x = n->x}, NULL);
    case N_SET:
        return emit(c, (RegexCode){.op = RX_SET, .x = n->x}, NULL);
    case N_ASSERT:
        return emit(c, (RegexCode){.op = RX_ASSERT, .x = n->x}, NULL);
    case N_CAT:
        for (const Node *k = n->child; k; k = k->next)
            TRY(generate(c, k));
        return ST_OK;
    case N_ALT:
        return generate_alternatives(c, n);
    case N_REPEAT:
        return generate_repeat(c, n);
    case N_LOOK:
    case N_ATOMIC:
        TRY(emit(c, (RegexCode){.op = n->type == N_LOOK ? RX_LOOK : RX_ATOMIC, .y = n->y}, &start));
        TRY(generate(c, n->child));
        TRY(emit(c, (RegexCode){.op = RX_MATCH}, NULL));
        c->r->code[start].x = here(c);
        return ST_OK;
    }
    return ST_OK;
}

Status regex_compile(const char *pattern, size_t len, Regex **out, Err *e)
{
    *out = NULL;
    unicode_init();
    if (utf8_first_bad(pattern, len) != len)
        return err_set(e, ST_INPUT, "a pattern is not valid UTF-8");
    Regex *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ST_MEMORY, "no memory to compile a pattern");
    Compiler c = {.pattern = pattern, .at = (const uint8_t *)pattern, .r = r, .e = e};
    c.end = c.at + len;
    Node *tree;
    Status st = parse_alternatives(&c, &tree);
    if (st == ST_OK && c.at < c.end)
        st = bad(&c, "a parenthesis closes nothing");
    if (st == ST_OK)
        st = generate(&c, tree);
    if (st == ST_OK)
        st = emit(&c, (RegexCode){.op = RX_MATCH}, NULL);
    arena_free(&c.arena);
    if (st != ST_OK) {
        regex_free(r);
        return st;
    }
    *out = r;
    return ST_OK;
}

void regex_free(Regex *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n_sets; i++)
        free(r->sets[i]);
    free(r->code);
    free(r);
}
