/* io/scan.c - see scan.h. Each function below gives the end of the match that starts at p; all but
 * DeepSeek's match at every position, since their alternatives cover all characters. */
#include "io/scan.h"

#include "io/unicode.h"
#include "io/utf8.h"

#include <string.h>

/* Sets of categories: bit 1 << category. END is what class_at gives at the end; it is in no set. */
enum {
    END = 15,
    LETTER = 1 << UC_LU | 1 << UC_LL | 1 << UC_LT | 1 << UC_LM | 1 << UC_LO,
    MARK = 1 << UC_M,
    NUMBER = 1 << UC_N,
    PUNCT = 1 << UC_P | 1 << UC_S,
    SPACE = 1 << UC_SPACE,
    OTHER = 1 << UC_OTHER,
    UPPER = 1 << UC_LU | 1 << UC_LT | 1 << UC_LM | 1 << UC_LO | MARK,
    LOWER = 1 << UC_LL | 1 << UC_LM | 1 << UC_LO | MARK
};

static inline bool in(unsigned class, unsigned set)
{
    return set >> (class & UC_CATEGORY) & 1;
}

static inline unsigned class_at(const uint8_t *p, const uint8_t *end, const uint8_t **next)
{
    if (p >= end) {
        *next = p;
        return END;
    }
    if (*p < 0x80) {
        *next = p + 1;
        return unicode_class[*p];
    }
    *next = p + utf8_len(*p);
    return unicode_class[utf8_code(p)];
}

static inline const uint8_t *run_of(const uint8_t *p, const uint8_t *end, unsigned set)
{
    const uint8_t *next;
    while (in(class_at(p, end, &next), set))
        p = next;
    return p;
}

static inline bool line_end(uint8_t c)
{
    return c == '\r' || c == '\n';
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ where lines is true, else \s+(?!\S)|\s+; p is at white space. */
static inline const uint8_t *spaces(const uint8_t *p, const uint8_t *end, bool lines)
{
    const uint8_t *at = p, *last = p, *next, *behind_line = NULL;
    while (in(class_at(at, end, &next), SPACE)) {
        if (line_end(*at))
            behind_line = next;
        last = at;
        at = next;
    }
    if (lines && behind_line)
        return behind_line;
    return at == end || last == p ? at : last;
}

/* 's|'t|'re|'ve|'m|'ll|'d or NULL. fold: the pattern ignores case; then U+017F counts as s, the
 * only character beyond ASCII that does. */
static inline const uint8_t *contraction(const uint8_t *p, const uint8_t *end, bool fold)
{
    if (end - p < 2 || *p != '\'')
        return NULL;
    unsigned bit = fold ? 0x20 : 0;
    unsigned a = p[1] | bit, b = end - p > 2 ? p[2] | bit : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return p + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return p + 3;
    if (fold && end - p > 2 && p[1] == 0xc5 && p[2] == 0xbf)
        return p + 3;
    return NULL;
}

static inline const uint8_t *digits(const uint8_t *p, const uint8_t *end, int most)
{
    const uint8_t *next;
    while (most-- > 0 && in(class_at(p, end, &next), NUMBER))
        p = next;
    return p;
}

/* " ?[^\s\p{L}\p{N}]+[\r\n]*" and its relatives, or NULL; tail holds the bytes that may follow. */
static inline const uint8_t *punctuation(const uint8_t *p, const uint8_t *end, unsigned set,
                                         const char *tail)
{
    const uint8_t *start = *p == ' ' ? p + 1 : p, *at = run_of(start, end, set);
    if (at == start)
        return NULL;
    while (at < end && ((tail[0] && line_end(*at)) || (tail[0] == '/' && *at == '/')))
        at++;
    return at;
}

static const uint8_t *gpt2(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *at = contraction(p, end, false), *next;
    if (at)
        return at;
    const uint8_t *start = *p == ' ' && p + 1 < end ? p + 1 : p;
    unsigned class = class_at(start, end, &next);
    if (in(class, LETTER))
        return run_of(next, end, LETTER);
    if (in(class, NUMBER))
        return run_of(next, end, NUMBER);
    if (!in(class, SPACE))
        return run_of(next, end, OTHER | MARK | PUNCT);
    return spaces(p, end, false);
}

static inline const uint8_t *cl100k(const uint8_t *p, const uint8_t *end, unsigned letters,
                                    int n_digits)
{
    const uint8_t *at = contraction(p, end, true), *next;
    if (at)
        return at;
    unsigned class = class_at(p, end, &next);
    if (!in(class, LETTER | NUMBER) && !line_end(*p)) {
        at = run_of(next, end, letters);
        if (at > next)
            return at;
    }
    if (in(class, letters))
        return run_of(next, end, letters);
    if (in(class, NUMBER))
        return digits(p, end, n_digits);
    at = punctuation(p, end, (OTHER | MARK | PUNCT) & ~letters, "\n");
    return at ? at : spaces(p, end, true);
}

static const uint8_t *cl100k_3(const uint8_t *p, const uint8_t *end)
{
    return cl100k(p, end, LETTER, 3);
}

static const uint8_t *qwen2(const uint8_t *p, const uint8_t *end)
{
    return cl100k(p, end, LETTER, 1);
}

static const uint8_t *qwen35(const uint8_t *p, const uint8_t *end)
{
    return cl100k(p, end, LETTER | MARK, 1);
}

/* The word rules of o200k at start, without the prefix: [U]*[V]+ and [U]+[V]*, where U is UPPER and
 * V is LOWER. han is UC_HAN where Han is excluded from both (kimi), else 0. */
typedef struct Case {
    const uint8_t *upper_end; /* of the U run; start when empty */
    const uint8_t *word_end;  /* of [U]*[V]+, or NULL */
} Case;

static inline Case cased_word(const uint8_t *start, const uint8_t *end, unsigned han)
{
    const uint8_t *at = start, *next, *behind_both = NULL;
    unsigned class;
    while (class = class_at(at, end, &next), in(class, UPPER) && !(class & han)) {
        at = next;
        if (in(class, LOWER))
            behind_both = at;
    }
    Case found = {.upper_end = at, .word_end = behind_both};
    if (in(class, LOWER) && !(class & han)) {
        do {
            at = next;
            class = class_at(at, end, &next);
        } while (in(class, LOWER) && !(class & han));
        found.word_end = at;
    }
    return found;
}

static inline const uint8_t *o200k_like(const uint8_t *p, const uint8_t *end, unsigned han,
                                        const char *tail)
{
    const uint8_t *next;
    unsigned class = class_at(p, end, &next);
    if (han && (class & han)) {
        const uint8_t *at = p;
        while (class & han) {
            at = next;
            class = class_at(at, end, &next);
            class = class == END ? 0 : class;
        }
        return at;
    }
    bool prefix = !in(class, LETTER | NUMBER) && !line_end(*p);
    if (prefix || in(class, LETTER)) {
        Case behind = prefix ? cased_word(next, end, han) : (Case){next, NULL};
        Case here = behind.word_end ? (Case){p, NULL} : cased_word(p, end, han);
        const uint8_t *at = behind.word_end           ? behind.word_end
                            : here.word_end           ? here.word_end
                            : behind.upper_end > next ? behind.upper_end
                            : here.upper_end > p      ? here.upper_end
                                                      : NULL;
        if (at) {
            const uint8_t *suffix = contraction(at, end, true);
            return suffix ? suffix : at;
        }
    }
    if (in(class, NUMBER))
        return digits(p, end, 3);
    const uint8_t *at = punctuation(p, end, OTHER | MARK | PUNCT, tail);
    return at ? at : spaces(p, end, true);
}

static const uint8_t *o200k(const uint8_t *p, const uint8_t *end)
{
    return o200k_like(p, end, 0, "/");
}

static const uint8_t *kimi(const uint8_t *p, const uint8_t *end)
{
    return o200k_like(p, end, UC_HAN, "\n");
}

static inline bool ascii_letter(uint8_t c)
{
    return (uint8_t)((c | 0x20) - 'a') < 26;
}

/* DeepSeek's third pattern at p, or NULL: some characters (digits, most controls) match nothing. */
static const uint8_t *deepseek_words(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *next;
    unsigned class = class_at(p, end, &next);
    if (*p < 0x80 && in(class, PUNCT) && next < end && ascii_letter(*next)) {
        while (next < end && ascii_letter(*next))
            next++;
        return next;
    }
    if (in(class, LETTER | MARK))
        return run_of(next, end, LETTER | MARK);
    if (!in(class, PUNCT) && !line_end(*p)) {
        const uint8_t *at = run_of(next, end, LETTER | MARK);
        if (at > next)
            return at;
    }
    const uint8_t *at = punctuation(p, end, PUNCT, "\n");
    if (at)
        return at;
    return in(class, SPACE) ? spaces(p, end, true) : NULL;
}

static bool deepseek_find(const uint8_t *p, const uint8_t *end, const uint8_t **match,
                          const uint8_t **match_end)
{
    for (; p < end; p += utf8_len(*p)) {
        const uint8_t *at = deepseek_words(p, end);
        if (at) {
            *match = p;
            *match_end = at;
            return true;
        }
    }
    return false;
}

static bool numbers_find(const uint8_t *p, const uint8_t *end, const uint8_t **match,
                         const uint8_t **match_end)
{
    const uint8_t *next;
    for (; p < end; p = next) {
        if (in(class_at(p, end, &next), NUMBER)) {
            *match = p;
            *match_end = digits(p, end, 3);
            return true;
        }
    }
    return false;
}

static inline bool deepseek_cjk(const uint8_t *p)
{
    if (*p < 0xe3 || *p > 0xe9)
        return false;
    uint32_t c = utf8_code(p);
    return (c >= 0x4e00 && c <= 0x9fa5) || (c >= 0x3040 && c <= 0x30ff);
}

static bool cjk_find(const uint8_t *p, const uint8_t *end, const uint8_t **match,
                     const uint8_t **match_end)
{
    while (p < end && !deepseek_cjk(p))
        p += utf8_len(*p);
    if (p == end)
        return false;
    *match = p;
    while (p < end && deepseek_cjk(p))
        p += 3;
    *match_end = p;
    return true;
}

#define COVERING_FIND(at)                                                                          \
    static bool at##_find(const uint8_t *p, const uint8_t *end, const uint8_t **match,             \
                          const uint8_t **match_end)                                               \
    {                                                                                              \
        if (p >= end)                                                                              \
            return false;                                                                          \
        *match = p;                                                                                \
        *match_end = at(p, end);                                                                   \
        return true;                                                                               \
    }
COVERING_FIND(gpt2)
COVERING_FIND(cl100k_3)
COVERING_FIND(qwen2)
COVERING_FIND(qwen35)
COVERING_FIND(o200k)
COVERING_FIND(kimi)

#define SUFFIXES "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PREFIX "[^\\r\\n\\p{L}\\p{N}]?"
#define U_SET "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define V_SET "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define NOT_HAN "&&[^\\p{Han}]"

const char scan_gpt2_regex[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

const char scan_kimi_regex[] = "[\\p{Han}]+|" PREFIX "[" U_SET NOT_HAN "]*[" V_SET NOT_HAN
                               "]+" SUFFIXES "?|" PREFIX "[" U_SET NOT_HAN "]+[" V_SET NOT_HAN
                               "]*" SUFFIXES "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;

static const struct {
    const char *regex;
    ScanFind find;
} known[] = {
    {scan_gpt2_regex, gpt2_find},
    {SUFFIXES "|" PREFIX "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES,
     cl100k_3_find},
    {SUFFIXES "|" PREFIX "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES, qwen2_find},
    {SUFFIXES "|" PREFIX "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES,
     qwen35_find},
    {PREFIX "[" U_SET "]*[" V_SET "]+" SUFFIXES "?|" PREFIX "[" U_SET "]+[" V_SET "]*" SUFFIXES
            "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
     o200k_find},
    {scan_kimi_regex, kimi_find},
    {"\\p{N}{1,3}", numbers_find},
    {"[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+", cjk_find},
    {"[!\"#$%&'()*+,\\-./"
     ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
     "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
     deepseek_find},
};

ScanFind scan_find(const char *regex, size_t len)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].regex) == len && memcmp(known[i].regex, regex, len) == 0)
            return known[i].find;
    return NULL;
}

const char *scan_regex(size_t index)
{
    return index < sizeof known / sizeof *known ? known[index].regex : NULL;
}
