/* io/utf8.c - see utf8.h. */
#include "io/utf8.h"

#include <string.h>

/* How many of the bytes at s are ASCII, in steps of 8: most text is, and this is the hot loop. */
static size_t ascii_run(const unsigned char *s, size_t len)
{
    size_t i = 0;
    while (len - i >= 8) {
        uint64_t word;
        memcpy(&word, s + i, 8);
        if (word & UINT64_C(0x8080808080808080))
            break;
        i += 8;
    }
    while (i < len && s[i] < 0x80)
        i++;
    return i;
}

size_t utf8_first_bad(const char *text, size_t len)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t i = 0, bad;
    while (i < len) {
        if (s[i] < 0x80) {
            i += ascii_run(s + i, len - i);
            continue;
        }
        size_t n = utf8_valid(s + i, len - i, &bad);
        if (!n)
            return i;
        i += n;
    }
    return len;
}

void utf8_add_repaired(StrBuf *out, const char *text, size_t len)
{
    while (len) {
        size_t good = utf8_first_bad(text, len), bad = 0;
        strbuf_add(out, text, good);
        if (good == len)
            return;
        utf8_valid((const unsigned char *)text + good, len - good, &bad);
        strbuf_add(out, "\xef\xbf\xbd", 3);
        text += good + bad;
        len -= good + bad;
    }
}
