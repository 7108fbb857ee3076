/* io/regex_internal.h - the compiled form that regex_compile.c makes and regex.c runs. */
#ifndef MB_IO_REGEX_INTERNAL_H
#define MB_IO_REGEX_INTERNAL_H

#include "io/regex.h"
#include "io/unicode.h"

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

enum { RX_NO_LIMIT = INT32_MAX, MOST_SETS = 200 };

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
    RegexSet *sets[MOST_SETS];
    size_t n_sets;
};

static inline bool regex_in_set(const RegexSet *s, uint32_t code)
{
    return s->bits[code >> 3] >> (code & 7) & 1;
}

#endif
