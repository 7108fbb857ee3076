/* io/utf8.h - UTF-8, byte by byte: what is valid, what a sequence stands for, how to write one. */
#ifndef MB_IO_UTF8_H
#define MB_IO_UTF8_H

#include "io/strbuf.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes of the valid sequence at s, of which left >= 1 bytes may be read; or 0 and *bad = the
 * length of the maximal invalid part, the unit that becomes one U+FFFD. */
static inline size_t utf8_valid(const unsigned char *s, size_t left, size_t *bad)
{
    unsigned char c = s[0];
    if (c < 0x80)
        return 1;
    size_t n = c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    *bad = 1;
    unsigned char lo = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    unsigned char hi = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    for (size_t i = 1; i < n; i++) {
        if (i >= left || s[i] < lo || s[i] > hi) {
            *bad = i;
            return 0;
        }
        lo = 0x80;
        hi = 0xbf;
    }
    return n;
}

/* Bytes of the sequence that starts with c, in text known to be valid. */
static inline size_t utf8_len(unsigned char c)
{
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* The code point at s, in text known to be valid. */
static inline uint32_t utf8_code(const unsigned char *s)
{
    uint32_t c = s[0];
    if (c < 0x80)
        return c;
    if (c < 0xe0)
        return (c & 0x1f) << 6 | (s[1] & 0x3fu);
    if (c < 0xf0)
        return (c & 0x0f) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
    return (c & 0x07) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
}

/* Writes code, a scalar value, to out (4 bytes of room) and returns how many bytes it took. */
static inline size_t utf8_put(char *out, uint32_t code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

/* Offset of the first byte of text[0..len) that is not part of valid UTF-8; len when there is none.
 */
size_t utf8_first_bad(const char *text, size_t len);

/* Appends text[0..len) with each maximal invalid part replaced by U+FFFD. */
void utf8_add_repaired(StrBuf *out, const char *text, size_t len);

#endif
