/* io/pretokenize.h - the pre-tokenizer of a tokenizer.json: cuts a text into the pieces that the
 * model works on, one by one. Split, ByteLevel, Metaspace, Digits, and Sequences of them. */
#ifndef MB_IO_PRETOKENIZE_H
#define MB_IO_PRETOKENIZE_H

#include "io/json.h"
#include "io/regex.h"
#include "io/strbuf.h"

typedef struct PreTokenizer PreTokenizer; /* immutable once parsed: threads share it */

typedef struct Piece {
    uint32_t start, len; /* bytes */
} Piece;

typedef struct PieceList {
    Piece *v;
    size_t n, cap;
} PieceList;

/* Scratch of one thread, and the result of the last run; all zero: empty. */
typedef struct PreScratch {
    const char *text; /* what the pieces count in: the given text, or a rewritten one in buf */
    PieceList pieces;
    PieceList spare;
    StrBuf buf[2];
    int next_buf;
    RegexStack stack;
} PreScratch;

/* spec: the "pre_tokenizer" member; NULL or null gives one that leaves a text whole. Nothing of
 * spec is kept. */
Status pretokenizer_parse(const JsonValue *spec, PreTokenizer **out, Err *e);
void pretokenizer_free(PreTokenizer *p); /* NULL is fine */

/* Whether it ends in ByteLevel, so that pieces stand for raw bytes and the vocabulary is in that
 * step's alphabet. The pieces of a run are not mapped to the alphabet. */
bool pretokenizer_is_byte_level(const PreTokenizer *p);

/* Whether it treats the start of the whole input in its own way (Metaspace "first"). */
bool pretokenizer_needs_start(const PreTokenizer *p);

/* Cuts text[0..len), valid UTF-8 and shorter than 2 GiB; s->text and s->pieces hold the result
 * until the next run. at_start: text begins where the whole input begins (Metaspace "first" asks).
 */
Status pretokenizer_run(const PreTokenizer *p, PreScratch *s, const char *text, size_t len,
                        bool at_start, Err *e);
void prescratch_free(PreScratch *s);

#endif
