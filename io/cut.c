/* io/cut.c - see cut.h. */
#include "io/cut.h"

#include "io/unicode.h"
#include "io/utf8.h"

/* What Python's str.isspace holds for white space: White_Space, and the four separators that only
 * the bidirectional algorithm counts as such. */
static bool is_space(uint32_t code)
{
    return (unicode_class[code] & UC_CATEGORY) == UC_SPACE || (code >= 0x1c && code <= 0x1f);
}

size_t cut_next(const char *text, size_t len, size_t *left)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t at = 0, run = 0;
    bool in_space = false;
    while (at < len && *left) {
        bool space = is_space(utf8_code(s + at));
        run = at && space == in_space ? run + 1 : 1;
        if (run > CUT_RUN)
            return at;
        in_space = space;
        at += utf8_len(s[at]);
        --*left;
    }
    if (*left == 0)
        *left = CUT_BLOCK;
    return at;
}
