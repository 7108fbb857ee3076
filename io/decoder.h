/* io/decoder.h - the decoder of a tokenizer.json: from token strings back to text. ByteLevel,
 * Replace, ByteFallback, Fuse, Strip, Metaspace, and Sequences of them. */
#ifndef MB_IO_DECODER_H
#define MB_IO_DECODER_H

#include "io/vocab_table.h"
#include "io/json.h"
#include "io/strbuf.h"

typedef struct Decoder Decoder; /* immutable once parsed: threads share it */

/* spec: the "decoder" member; NULL or null joins tokens with spaces. Nothing of spec is kept. */
Status decoder_parse(const JsonValue *spec, Decoder **out, Err *e);
void decoder_free(Decoder *d); /* NULL is fine */

/* Whether it is ByteLevel alone: then a text is the tokens' bytes, joined and repaired. */
bool decoder_is_byte_level(const Decoder *d);

/* Appends the text of tokens[0..n): valid UTF-8 as long as the tokens are. */
Status decoder_run(const Decoder *d, const Text *tokens, size_t n, StrBuf *out, Err *e);

/* Appends what one token stands for in the middle of a text, before broken UTF-8 is repaired. */
void decoder_token_bytes(const Decoder *d, Text token, StrBuf *out, StrBuf *scratch);

#endif
