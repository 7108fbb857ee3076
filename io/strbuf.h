/* io/strbuf.h - a growing byte buffer, and JSON text written into one. */
#ifndef MB_IO_STRBUF_H
#define MB_IO_STRBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct StrBuf {
    char *data; /* NUL-terminated once anything was added */
    size_t len, cap;
    bool failed; /* memory ran out; what follows is ignored. Checked once, at the end. */
} StrBuf;        /* all zero: empty */

void strbuf_add(StrBuf *b, const void *bytes, size_t len);
/* Room for len more bytes, which count as added and which the caller fills; NULL when memory is
 * short. */
char *strbuf_extend(StrBuf *b, size_t len);
void strbuf_str(StrBuf *b, const char *s);
void strbuf_fmt(StrBuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void strbuf_clear(StrBuf *b); /* keeps the memory */
void strbuf_free(StrBuf *b);

/* text[0..len) as a JSON string with quotes: ", \ and control characters escaped, the rest raw;
 * invalid UTF-8 becomes U+FFFD, one per maximal invalid part. */
void strbuf_json_string(StrBuf *b, const char *text, size_t len);
/* The shortest decimal that reads back as the same float, as a JSON number (1.0, -0.5, 1e-07);
 * infinities are clamped to -9999.0 and 9999.0, and NaN becomes null. */
void strbuf_json_float(StrBuf *b, float v);
/* The same for a double. */
void strbuf_json_double(StrBuf *b, double v);

#endif
