/* io/regex_internal.h - the compiled form that regex_compile.c and regex_set.c make and regex.c
 * runs. */
#ifndef MB_IO_REGEX_INTERNAL_H
#define MB_IO_REGEX_INTERNAL_H

#include "io/arena.h"
#include "io/regex.h"
#include "io/unicode.h"
#include "io/utf8.h"

#include <string.h>

typedef enum RegexOp {
    RX_CHAR,  /* x: code point */
    RX_SET,   /* x: index of a set */
    RX_LOOP,  /* the single-character instruction that follows, min..max times; goes on behind it */
    RX_SPLIT, /* try x, then y */
    RX_JUMP,  /* to x */
    RX_LOOK,  /* sub-program from the next instruction to RX_MATCH; y: negative; goes on at x */
    RX_ATOMIC, /* the same, but its match is consumed and not tried again */
    RX_ASSERT, /* x: a RegexAnchor */
    RX_MATCH
} RegexOp;

typedef enum RegexMode { RX_GREEDY, RX_LAZY, RX_POSSESSIVE } RegexMode;

typedef enum RegexAnchor {
    RX_LINE_START,
    RX_LINE_END,
    RX_TEXT_START,
    RX_TEXT_END,
    RX_TEXT_END_NEWLINE, /* \Z: the end, or before a line feed there */
    RX_WORD_EDGE,
    RX_NO_WORD_EDGE
} RegexAnchor;

enum { RX_NO_LIMIT = INT32_MAX, RX_MOST_SETS = 200 };

typedef struct RegexCode {
    RegexOp op;
    RegexMode mode;
    uint32_t x, y;
    int32_t min, max;
} RegexCode;

typedef struct RegexSet {
    uint8_t bits[UNICODE_END / 8];
} RegexSet;

struct Regex {
    RegexCode *code;
    size_t n_code, cap_code;
    RegexSet *sets[RX_MOST_SETS];
    size_t n_sets;
};

static inline bool regex_in_set(const RegexSet *s, uint32_t code)
{
    return s->bits[code >> 3] >> (code & 7) & 1;
}

/* Reading a pattern; at moves on. */
typedef struct RegexParser {
    const char *pattern;
    const uint8_t *at, *end;
    Regex *r;
    Arena arena;
    bool fold; /* inside (?i:...) */
    int depth; /* of groups and brackets: it bounds the recursion */
    Err *e;
} RegexParser;

enum { RX_MOST_NESTING = 100 };

static inline Status regex_bad(const RegexParser *c, const char *what)
{
    return err_set(c->e, ST_INPUT, "pattern, byte %zu: %s",
                   (size_t)((const char *)c->at - c->pattern), what);
}

static inline Status regex_no_memory(const RegexParser *c)
{
    return err_set(c->e, ST_MEMORY, "no memory to compile a pattern");
}

static inline bool regex_peek(const RegexParser *c, char want)
{
    return c->at < c->end && *c->at == (uint8_t)want;
}

static inline bool regex_accept(RegexParser *c, const char *want)
{
    size_t n = strlen(want);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, want, n) != 0)
        return false;
    c->at += n;
    return true;
}

static inline uint32_t regex_next_code(RegexParser *c)
{
    uint32_t code = utf8_code(c->at);
    c->at += utf8_len(*c->at);
    return code;
}

static inline bool regex_is_letter(uint32_t code)
{
    return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
}

/* A class; at is behind the opening bracket and goes behind the closing one. */
Status regex_parse_set(RegexParser *c, RegexSet *out);
/* \d \s \w \h \p and their opposites into s; *is_class is false, and nothing is read, for other
 * escapes. at is behind the backslash, and not at the end. */
Status regex_parse_class_escape(RegexParser *c, bool bracketed, RegexSet *s, bool *is_class);
/* An escape that stands for one character; the same. */
Status regex_parse_char_escape(RegexParser *c, uint32_t *code);
void regex_set_add(RegexSet *s, uint32_t code);
/* Adds what equals code when case is ignored; code is ASCII. */
void regex_set_add_folded(RegexSet *s, uint32_t code);
void regex_set_invert(RegexSet *s);
/* Keeps a finished set in the pattern; equal sets are kept once. Takes s, also on failure. */
Status regex_keep_set(RegexParser *c, RegexSet *s, uint32_t *index);

#endif
