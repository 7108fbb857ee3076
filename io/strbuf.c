/* io/strbuf.c - see strbuf.h. */
#include "io/strbuf.h"

#include "io/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(StrBuf *b, size_t more)
{
    if (b->failed)
        return false;
    if (more > SIZE_MAX / 4 || b->len > SIZE_MAX / 4) {
        b->failed = true;
        return false;
    }
    size_t need = b->len + more + 1;
    if (need <= b->cap)
        return true;
    size_t cap = b->cap ? b->cap * 2 : 64;
    if (cap < need)
        cap = need;
    char *p = realloc(b->data, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->data = p;
    b->cap = cap;
    return true;
}

void strbuf_add(StrBuf *b, const void *bytes, size_t len)
{
    if (!reserve(b, len))
        return;
    if (len)
        memcpy(b->data + b->len, bytes, len);
    b->len += len;
    b->data[b->len] = 0;
}

char *strbuf_extend(StrBuf *b, size_t len)
{
    if (!reserve(b, len))
        return NULL;
    char *end = b->data + b->len;
    b->len += len;
    b->data[b->len] = 0;
    return end;
}

void strbuf_str(StrBuf *b, const char *s)
{
    strbuf_add(b, s, strlen(s));
}

void strbuf_fmt(StrBuf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        b->failed = true;
    else if (reserve(b, (size_t)n)) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

void strbuf_clear(StrBuf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = 0;
}

void strbuf_free(StrBuf *b)
{
    free(b->data);
    *b = (StrBuf){0};
}

void strbuf_json_string(StrBuf *b, const char *text, size_t len)
{
    strbuf_add(b, "\"", 1);
    size_t start = 0, i = 0;
    while (i < len) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
            i++;
            continue;
        }
        size_t bad, n = utf8_valid((const unsigned char *)text + i, len - i, &bad);
        if (n > 1 || (n == 1 && c >= 0x20 && c != '"' && c != '\\')) {
            i += n;
            continue;
        }
        strbuf_add(b, text + start, i - start);
        if (n == 0) {
            strbuf_str(b, "\xef\xbf\xbd");
            i += bad;
        } else {
            const char *short_form = c == '"'    ? "\\\""
                                     : c == '\\' ? "\\\\"
                                     : c == '\n' ? "\\n"
                                     : c == '\r' ? "\\r"
                                     : c == '\t' ? "\\t"
                                     : c == '\b' ? "\\b"
                                     : c == '\f' ? "\\f"
                                                 : NULL;
            if (short_form)
                strbuf_str(b, short_form);
            else
                strbuf_fmt(b, "\\u%04x", c);
            i++;
        }
        start = i;
    }
    strbuf_add(b, text + start, len - start);
    strbuf_add(b, "\"", 1);
}

/* %g drops the ".0" that tells a float from an integer. */
static void add_number(StrBuf *b, char *s)
{
    strbuf_str(b, s);
    if (!strpbrk(s, ".e"))
        strbuf_str(b, ".0");
}

static bool add_special(StrBuf *b, double v)
{
    if (isnan(v))
        strbuf_str(b, "null");
    else if (isinf(v))
        strbuf_str(b, v < 0 ? "-9999.0" : "9999.0");
    else
        return false;
    return true;
}

void strbuf_json_float(StrBuf *b, float v)
{
    char s[40];
    if (add_special(b, (double)v))
        return;
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, (double)v);
        if (strtof(s, NULL) == v)
            break;
    }
    add_number(b, s);
}

void strbuf_json_double(StrBuf *b, double v)
{
    char s[40];
    if (add_special(b, v))
        return;
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, v);
        if (strtod(s, NULL) == v)
            break;
    }
    add_number(b, s);
}
