/* io/regex_set.c - classes of characters in a pattern: properties, escapes, brackets. A set is a
 * bit per code point: 136 KiB each, and patterns have a dozen. */
#include "io/regex_internal.h"

#include "io/utf8.h"

#include <stdlib.h>

void regex_set_add(RegexSet *s, uint32_t code)
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
        regex_set_add(s, code);
}

void regex_set_invert(RegexSet *s)
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
            regex_set_add(s, code);
}

/* Keeps a finished set in the pattern; equal sets are kept once. Takes ownership of s. */
Status regex_keep_set(RegexParser *c, RegexSet *s, uint32_t *index)
{
    Regex *r = c->r;
    for (size_t i = 0; i < r->n_sets; i++) {
        if (memcmp(r->sets[i], s, sizeof *s) == 0) {
            free(s);
            *index = (uint32_t)i;
            return ST_OK;
        }
    }
    if (r->n_sets == RX_MOST_SETS) {
        free(s);
        return regex_bad(c, "more than 200 different classes");
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
static Status parse_property(RegexParser *c, bool negative, RegexSet *s)
{
    const uint8_t *start = c->at;
    if (!regex_accept(c, "{"))
        return regex_bad(c, "\\p needs a name in braces");
    if (regex_accept(c, "^"))
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
            regex_set_invert(s);
        c->at = close + 1;
        return ST_OK;
    }
    c->at = start;
    return regex_bad(c, c->fold ? "this property is not supported inside (?i:)"
                                : "this property is not supported");
}

static bool hex_code(RegexParser *c, int least, int most, uint32_t *out)
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
Status regex_parse_char_escape(RegexParser *c, uint32_t *code)
{
    static const char names[] = "tnrfvae", values[] = "\t\n\r\f\v\a\033";
    uint32_t ch = regex_next_code(c);
    const char *named = ch < 0x80 && ch ? strchr(names, (int)ch) : NULL;
    bool ok = true;
    *code = ch;
    if (named)
        *code = (uint32_t)values[named - names];
    else if (ch == 'x' && regex_accept(c, "{"))
        ok = hex_code(c, 1, 8, code) && regex_accept(c, "}");
    else if (ch ==
             'x') /* two digits are a byte there; beyond ASCII it would be part of a character */
        ok = hex_code(c, 2, 2, code) && *code < 0x80;
    else if (ch == 'u')
        ok = hex_code(c, 4, 4, code);
    else if ((ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z'))
        ok = false;
    return ok ? ST_OK : regex_bad(c, "this escape is not supported");
}

/* \d \s \w \h \p and their opposites into s; *is_class is false, and nothing is read, for other
 * escapes. */
Status regex_parse_class_escape(RegexParser *c, bool bracketed, RegexSet *s, bool *is_class)
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
        regex_set_invert(s);
    return ST_OK;
}

/* Adds what equals code when case is ignored. Only ASCII letters are folded; among all of Unicode
 * they have two more partners, the long s and the Kelvin sign. */
void regex_set_add_folded(RegexSet *s, uint32_t code)
{
    regex_set_add(s, code);
    if (!regex_is_letter(code))
        return;
    regex_set_add(s, code ^ 0x20);
    if ((code | 0x20) == 's')
        regex_set_add(s, 0x17f);
    if ((code | 0x20) == 'k')
        regex_set_add(s, 0x212a);
}

/* One item of a class: a character, a range, an escape or a nested class. */
static Status parse_set_item(RegexParser *c, RegexSet *s, RegexSet *scratch)
{
    uint32_t first, last;
    bool is_class = false;
    memset(scratch, 0, sizeof *scratch);
    if (regex_peek(c, '[')) {
        if (c->end - c->at > 1 && c->at[1] == ':')
            return regex_bad(c, "[: :] is not supported");
        c->at++;
        TRY(regex_parse_set(c, scratch));
        set_unite(s, scratch);
        return ST_OK;
    }
    if (regex_accept(c, "\\")) {
        if (c->at == c->end)
            return regex_bad(c, "a backslash at the end");
        TRY(regex_parse_class_escape(c, true, scratch, &is_class));
        if (is_class) {
            set_unite(s, scratch);
            return c->at + 1 < c->end && c->at[0] == '-' && c->at[1] != ']'
                       ? regex_bad(c, "a range cannot start with a class")
                       : ST_OK;
        }
        TRY(regex_parse_char_escape(c, &first));
    } else {
        first = regex_next_code(c);
    }
    last = first;
    if (c->end - c->at > 1 && c->at[0] == '-' && c->at[1] != ']') {
        c->at++;
        if (regex_accept(c, "\\")) {
            if (c->at == c->end)
                return regex_bad(c, "a backslash at the end");
            TRY(regex_parse_char_escape(c, &last));
        } else if (regex_peek(c, '[')) {
            return regex_bad(c, "a range cannot end in a class");
        } else {
            last = regex_next_code(c);
        }
        if (last < first)
            return regex_bad(c, "an empty range");
    }
    if (c->fold && last >= 0x80)
        return regex_bad(c, "(?i:) is supported for ASCII only");
    for (uint32_t code = first; code <= last; code++) {
        if (c->fold)
            regex_set_add_folded(s, code);
        else
            regex_set_add(s, code);
    }
    return ST_OK;
}

/* c->at is behind the opening bracket; reads the closing one. && binds weaker than the items beside
 * it. */
static Status parse_set_body(RegexParser *c, RegexSet *out, RegexSet *part, RegexSet *scratch)
{
    bool negative = regex_accept(c, "^"), first = true, intersecting = false;
    for (;;) {
        if (c->at == c->end)
            return regex_bad(c, "a class does not end");
        bool last = regex_accept(c, "]");
        if (last || regex_accept(c, "&&")) {
            if (first)
                return regex_bad(c, "an empty class");
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
                regex_set_invert(out);
            return ST_OK;
        }
        TRY(parse_set_item(c, part, scratch));
        first = false;
    }
}

Status regex_parse_set(RegexParser *c, RegexSet *out)
{
    if (++c->depth > RX_MOST_NESTING)
        return regex_bad(c, "nested too deeply");
    RegexSet *parts = calloc(2, sizeof *parts);
    if (!parts)
        return regex_no_memory(c);
    Status st = parse_set_body(c, out, parts, parts + 1);
    free(parts);
    c->depth--;
    return st;
}
