/* io/regex_compile.c - from the text of a pattern to instructions, by way of a tree. */
#include "io/regex_internal.h"

#include "io/utf8.h"

#include <stdlib.h>
#include <string.h>

/* A hostile pattern must not fill memory: {1000}{1000} would. */
enum { MOST_CODE = 20000, MOST_REPEAT = 1000 };

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

static Status new_node(RegexParser *c, NodeType type, Node **out)
{
    *out = arena_alloc(&c->arena, sizeof **out);
    if (!*out)
        return regex_no_memory(c);
    **out = (Node){.type = type};
    return ST_OK;
}

/* ---- the tree ---- */

static Status parse_alternatives(RegexParser *c, Node **out);

static Status new_set_node(RegexParser *c, RegexSet *s, Node **out)
{
    Status st = new_node(c, N_SET, out);
    if (st != ST_OK) {
        free(s);
        return st;
    }
    return regex_keep_set(c, s, &(*out)->x);
}

static Status parse_class_node(RegexParser *c, Node **out)
{
    RegexSet *s = calloc(1, sizeof *s);
    if (!s)
        return regex_no_memory(c);
    Status st = regex_parse_set(c, s);
    if (st != ST_OK) {
        free(s);
        return st;
    }
    return new_set_node(c, s, out);
}

static Status parse_group(RegexParser *c, Node **out)
{
    bool old_fold = c->fold;
    NodeType type = N_CAT;
    uint32_t negative = 0;
    Node *body = NULL;
    if (regex_accept(c, "?i:")) {
        c->fold = true;
    } else if (regex_accept(c, "?=")) {
        type = N_LOOK;
    } else if (regex_accept(c, "?!")) {
        type = N_LOOK;
        negative = 1;
    } else if (regex_accept(c, "?>")) {
        type = N_ATOMIC;
    } else if (!regex_accept(c, "?:") && regex_peek(c, '?')) {
        return regex_bad(c, "this kind of group is not supported");
    }
    TRY(parse_alternatives(c, &body));
    if (!regex_accept(c, ")"))
        return regex_bad(c, "a group does not end");
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

static Status parse_char_node(RegexParser *c, uint32_t code, Node **out)
{
    if (!c->fold || (code < 0x80 && !regex_is_letter(code))) {
        TRY(new_node(c, N_CHAR, out));
        (*out)->x = code;
        return ST_OK;
    }
    if (code >= 0x80)
        return regex_bad(c, "(?i:) is supported for ASCII only");
    RegexSet *s = calloc(1, sizeof *s);
    if (!s)
        return regex_no_memory(c);
    regex_set_add_folded(s, code);
    return new_set_node(c, s, out);
}

static Status parse_escape_node(RegexParser *c, Node **out)
{
    static const char names[] = "AzZbB";
    static const RegexAnchor anchors[] = {RX_TEXT_START, RX_TEXT_END, RX_TEXT_END_NEWLINE,
                                          RX_WORD_EDGE, RX_NO_WORD_EDGE};
    if (c->at == c->end)
        return regex_bad(c, "a backslash at the end");
    const char *named = *c->at ? strchr(names, *c->at) : NULL;
    if (named) {
        c->at++;
        TRY(new_node(c, N_ASSERT, out));
        (*out)->x = anchors[named - names];
        return ST_OK;
    }
    RegexSet *s = calloc(1, sizeof *s);
    if (!s)
        return regex_no_memory(c);
    bool is_class;
    Status st = regex_parse_class_escape(c, false, s, &is_class);
    if (st == ST_OK && is_class)
        return new_set_node(c, s, out);
    free(s);
    TRY(st);
    uint32_t code;
    TRY(regex_parse_char_escape(c, &code));
    return parse_char_node(c, code, out);
}

static Status parse_atom(RegexParser *c, Node **out)
{
    if (regex_accept(c, "("))
        return parse_group(c, out);
    if (regex_accept(c, "["))
        return parse_class_node(c, out);
    if (regex_accept(c, "\\"))
        return parse_escape_node(c, out);
    if (regex_accept(c, ".")) {
        RegexSet *s = calloc(1, sizeof *s);
        if (!s)
            return regex_no_memory(c);
        regex_set_add(s, '\n');
        regex_set_invert(s);
        return new_set_node(c, s, out);
    }
    if (regex_peek(c, '^') || regex_peek(c, '$')) {
        TRY(new_node(c, N_ASSERT, out));
        (*out)->x = *c->at++ == '^' ? RX_LINE_START : RX_LINE_END;
        return ST_OK;
    }
    if (regex_peek(c, '*') || regex_peek(c, '+') || regex_peek(c, '?'))
        return regex_bad(c, "nothing to repeat");
    return parse_char_node(c, regex_next_code(c), out);
}

/* {m,n}, {m,}, {,n}, {m}; false, and nothing is read, when the brace is a plain character. */
static bool parse_counts(RegexParser *c, int32_t *min, int32_t *max, bool *fixed)
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
    if (!regex_peek(c, '}') || (!digits[0] && !digits[1])) {
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

static Status parse_repeats(RegexParser *c, Node **atom)
{
    for (;;) {
        int32_t min = 0, max = RX_NO_LIMIT;
        bool counted = false, fixed = false;
        if (regex_accept(c, "?"))
            max = 1;
        else if (regex_accept(c, "+"))
            min = 1;
        else if (regex_peek(c, '{') && parse_counts(c, &min, &max, &fixed))
            counted = true;
        else if (!regex_accept(c, "*"))
            return ST_OK;
        if (min > max || min > MOST_REPEAT || (max != RX_NO_LIMIT && max > MOST_REPEAT))
            return regex_bad(c, "repeat counts must be in order and at most 1000");
        if ((*atom)->type == N_ASSERT || (*atom)->type == N_LOOK)
            return regex_bad(c, "repeating an anchor or a look-ahead is not supported");
        if (max == RX_NO_LIMIT && may_be_empty(*atom))
            return regex_bad(c, "repeating without end what may match nothing is not supported");
        Node *repeat;
        TRY(new_node(c, N_REPEAT, &repeat));
        repeat->child = *atom;
        repeat->min = min;
        repeat->max = max;
        /* Oniguruma's Ruby syntax: {n,m}+ is a repeat of a repeat, and so is {n}?. */
        if (!(counted && fixed) && regex_accept(c, "?"))
            repeat->mode = RX_LAZY;
        else if (!counted && regex_accept(c, "+"))
            repeat->mode = RX_POSSESSIVE;
        *atom = repeat;
        if (++c->depth > RX_MOST_NESTING)
            return regex_bad(c, "nested too deeply");
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

static Status parse_sequence(RegexParser *c, Node **out)
{
    Node **link;
    uint32_t last = 0;
    TRY(new_node(c, N_CAT, out));
    link = &(*out)->child;
    while (c->at < c->end && *c->at != '|' && *c->at != ')') {
        uint32_t code = *c->at;
        Node *atom;
        if (c->fold && folds_together(last, code))
            return regex_bad(c, "these letters have a ligature; not supported inside (?i:)");
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

static Status parse_alternatives(RegexParser *c, Node **out)
{
    if (++c->depth > RX_MOST_NESTING)
        return regex_bad(c, "nested too deeply");
    Node *first, **link;
    TRY(parse_sequence(c, &first));
    *out = first;
    if (regex_peek(c, '|')) {
        TRY(new_node(c, N_ALT, out));
        (*out)->child = first;
        link = &first->next;
        while (regex_accept(c, "|")) {
            TRY(parse_sequence(c, link));
            link = &(*link)->next;
        }
    }
    c->depth--;
    return ST_OK;
}

/* ---- instructions ---- */

static Status emit(RegexParser *c, RegexCode code, size_t *at)
{
    Regex *r = c->r;
    if (r->n_code >= MOST_CODE)
        return regex_bad(c, "the pattern is too large");
    if (r->n_code == r->cap_code) {
        size_t cap = r->cap_code ? r->cap_code * 2 : 64;
        RegexCode *p = realloc(r->code, cap * sizeof *p);
        if (!p)
            return regex_no_memory(c);
        r->code = p;
        r->cap_code = cap;
    }
    if (at)
        *at = r->n_code;
    r->code[r->n_code++] = code;
    return ST_OK;
}

static uint32_t here(const RegexParser *c)
{
    return (uint32_t)c->r->n_code;
}

static Status generate(RegexParser *c, const Node *n);

/* A SPLIT whose sides are the next instruction and a place that is not known yet. */
static Status emit_choice(RegexParser *c, bool lazy, size_t *at)
{
    TRY(emit(c, (RegexCode){.op = RX_SPLIT}, at));
    c->r->code[*at].x = c->r->code[*at].y = here(c);
    c->r->code[*at].mode = lazy ? RX_LAZY : RX_GREEDY;
    return ST_OK;
}

static void set_way_out(RegexParser *c, size_t split)
{
    RegexCode *code = &c->r->code[split];
    if (code->mode == RX_LAZY)
        code->x = here(c);
    else
        code->y = here(c);
}

static Status generate_group_repeat(RegexParser *c, const Node *n)
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

static Status generate_repeat(RegexParser *c, const Node *n)
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

static Status generate_alternatives(RegexParser *c, const Node *n)
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

static Status generate(RegexParser *c, const Node *n)
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
    RegexParser c = {.pattern = pattern, .at = (const uint8_t *)pattern, .r = r, .e = e};
    c.end = c.at + len;
    Node *tree;
    Status st = parse_alternatives(&c, &tree);
    if (st == ST_OK && c.at < c.end)
        st = regex_bad(&c, "a parenthesis closes nothing");
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
