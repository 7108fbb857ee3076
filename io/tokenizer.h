/* io/tokenizer.h - text <-> token ids, exactly as Hugging Face tokenizers and transformers do
 * it. */
#ifndef MB_IO_TOKENIZER_H
#define MB_IO_TOKENIZER_H

#include "io/err.h"
#include "io/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Tokenizer Tokenizer;           /* immutable once loaded: threads share it */
typedef struct TokenizerCache TokenizerCache; /* one per thread: scratch and the piece cache */

typedef struct TokenIds {
    int32_t *ids;
    size_t n, cap;
} TokenIds; /* all zero: empty; the owner frees ids with tokenids_free */

/* From tokenizer.json bytes and, where it is not NULL, tokenizer_config.json bytes
 * (added_tokens_decoder, add_bos_token, add_eos_token). name is used in messages. Unknown parts
 * are errors, never ignored. */
Status tokenizer_parse(const char *json, size_t len, const char *config, size_t config_len,
                       const char *name, Tokenizer **out, Err *e);
/* From the bytes of a tiktoken file (lines of "base64 rank") and of the tokenizer_config.json
 * beside it, which names the special tokens. Only what Kimi's TikTokenTokenizer does is known;
 * another class is ST_INPUT. add_special adds nothing then, as in transformers. */
Status tokenizer_parse_tiktoken(const char *ranks, size_t len, const char *config,
                                size_t config_len, const char *name, Tokenizer **out, Err *e);
/* path: a tokenizer.json (taken alone) or a model directory, with a tokenizer.json or else a file
 * of ranks. *out is NULL and the result ST_OK when a directory has no tokenizer files. */
Status tokenizer_load(const char *path, Tokenizer **out, Err *e);
/* The name of the file in dir that tokenizer_load would read the vocabulary from: tokenizer.json,
 * else tiktoken.model, else the one *.tiktoken (ST_INPUT when there are several); "" where there
 * is none. */
enum { TOKENIZER_NAME_MAX = 256 };
Status tokenizer_vocab_file(const char *dir, char name[TOKENIZER_NAME_MAX], Err *e);
void tokenizer_free(Tokenizer *t);

Status tokenizer_cache_create(const Tokenizer *t, TokenizerCache **out, Err *e);
void tokenizer_cache_free(TokenizerCache *c);

/* Appends the ids of text[0..len), which must be valid UTF-8 (else ST_INPUT). add_special: the
 * post-processor's template or, failing that, the configured BOS and EOS. */
Status tokenizer_encode(const Tokenizer *t, TokenizerCache *c, const char *text, size_t len,
                        bool add_special, TokenIds *out, Err *e);

/* Appends the text of ids[0..n) (valid UTF-8). Unknown ids give nothing. */
Status tokenizer_decode(const Tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                        StrBuf *out, Err *e);

/* The bytes that one id stands for in the middle of a text, before UTF-8 repair (byte-level: its
 * raw bytes; byte fallback: the byte; SentencePiece marker: a space). NULL and 0 for unknown
 * ids. Concatenated, with the repairs of decode, they give decode's text but for what Strip
 * removes at the front. */
const char *tokenizer_token_bytes(const Tokenizer *t, int32_t id, size_t *len);
/* The vocabulary string, as in the file; NULL for unknown ids. */
const char *tokenizer_token_string(const Tokenizer *t, int32_t id, size_t *len);
/* The id of a vocabulary string or added token, or -1. */
int32_t tokenizer_token_id(const Tokenizer *t, const char *s, size_t len);
bool tokenizer_is_special(const Tokenizer *t, int32_t id);
/* One more than the largest id. */
int32_t tokenizer_n_ids(const Tokenizer *t);
/* Token named bos_token / eos_token by tokenizer_config.json, else -1. */
int32_t tokenizer_bos_id(const Tokenizer *t);
int32_t tokenizer_eos_id(const Tokenizer *t);

/* Streaming decode, as the reference's decode stream: *out gets what id adds, possibly nothing
 * yet; text that is held back at the end (half a character) is never flushed. */
typedef struct TokenStream TokenStream;
Status tokenstream_create(const Tokenizer *t, bool skip_special, TokenStream **out, Err *e);
Status tokenstream_step(TokenStream *s, int32_t id, StrBuf *out, Err *e);
void tokenstream_free(TokenStream *s);

void tokenids_push(TokenIds *v, int32_t id, bool *failed); /* sets *failed when memory is short */
void tokenids_free(TokenIds *v);

#endif
