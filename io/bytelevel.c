/* io/bytelevel.c - see bytelevel.h. */
#include "io/bytelevel.h"

#include "io/utf8.h"

#include <stdbool.h>

static bool stands_for_itself(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
}

/* The other 68 bytes, in order: 00-20, 7F-A0, AD become U+0100, U+0101 and so on. */
uint32_t bytelevel_char(uint8_t byte)
{
    if (stands_for_itself(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    return byte == 0xad ? 0x143u : 0x100u + 0x21u + (byte - 0x7fu);
}

size_t bytelevel_bytes(const char *text, size_t len, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i += utf8_len((uint8_t)text[i])) {
        uint32_t code = utf8_code((const uint8_t *)text + i);
        if (code < 0x100 && stands_for_itself(code))
            out[n++] = (char)code;
        else if (code >= 0x100 && code <= 0x120)
            out[n++] = (char)(code - 0x100);
        else if (code >= 0x121 && code <= 0x142)
            out[n++] = (char)(code - 0x121 + 0x7f);
        else if (code == 0x143)
            out[n++] = (char)0xad;
        else
            return SIZE_MAX;
    }
    return n;
}
