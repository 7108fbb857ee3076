/* io/normalize.h - the normalizer of a tokenizer.json: NFC, Prepend, Replace, and Sequences of
 * them. */
#ifndef MB_IO_NORMALIZE_H
#define MB_IO_NORMALIZE_H

#include "io/json.h"
#include "io/strbuf.h"

#include <stdbool.h>

typedef struct Normalizer Normalizer; /* immutable once parsed: threads share it */

/* Scratch of one thread; all zero: empty. */
typedef struct NormalizeScratch {
    StrBuf buf[2];
} NormalizeScratch;

/* spec: the "normalizer" member; NULL or null gives a normalizer that changes nothing. Nothing of
 * spec is kept. */
Status normalizer_parse(const JsonValue *spec, Normalizer **out, Err *e);
void normalizer_free(Normalizer *n); /* NULL is fine */

/* Whether it may change which character of a text comes first, or put others before it. */
bool normalizer_moves_start(const Normalizer *n);

/* *out is text itself where nothing changes, else in the scratch, valid until its next use. */
Status normalizer_run(const Normalizer *n, NormalizeScratch *s, const char *text, size_t len,
                      const char **out, size_t *out_len, Err *e);
void normalize_scratch_free(NormalizeScratch *s);

/* Appends text[0..len) with every occurrence of from (not empty) replaced by to, from left to
 * right. */
void replace_all(StrBuf *out, const char *text, size_t len, const char *from, size_t from_len,
                 const char *to, size_t to_len);

#endif
