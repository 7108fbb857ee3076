/* io/bpe.h - the model of a tokenizer: byte pair encoding of one piece of text. */
#ifndef MB_IO_BPE_H
#define MB_IO_BPE_H

#include "io/vocab_table.h"
#include "io/json.h"
#include "io/tokenizer.h"

/* Real vocabularies have at most some 260,000 ids; a larger one is a damaged file, and tables are
 * sized from it. */
enum { BPE_MOST_IDS = 1 << 22 };

typedef struct Bpe Bpe;           /* immutable once parsed: threads share it */
typedef struct BpeCache BpeCache; /* one per thread: what recent pieces became, and scratch */

/* spec: the "model" member. byte_level: pieces are raw bytes, and the vocabulary spells them in the
 * alphabet of bytelevel.h; otherwise pieces are UTF-8 in the vocabulary's own spelling. Nothing of
 * spec is kept. */
Status bpe_parse(const JsonValue *spec, bool byte_level, Bpe **out, Err *e);
/* The same from the bytes of a tiktoken file: lines of "base64 rank", where a token's rank is its
 * id and says when it is merged. Ranks must be dense and every single byte a token (ST_INPUT).
 * Pieces are raw bytes; bpe_texts spells tokens in the alphabet of bytelevel.h, as the reference
 * does. */
Status bpe_parse_ranks(const char *file, size_t len, Bpe **out, Err *e);
void bpe_free(Bpe *b); /* NULL is fine */

/* The vocabulary as in the file: strings by id (holes have at NULL), and ids by string (-1: none).
 */
const Text *bpe_texts(const Bpe *b);
/* As pieces spell them: raw bytes where pieces are bytes (at NULL for what no piece can be). */
const Text *bpe_pieces(const Bpe *b);
int32_t bpe_n_ids(const Bpe *b);    /* one more than the largest id */
int32_t bpe_n_tokens(const Bpe *b); /* entries */
int32_t bpe_id(const Bpe *b, const char *text, size_t len);

Status bpe_cache_create(BpeCache **out, Err *e);
void bpe_cache_free(BpeCache *c); /* NULL is fine */

/* Appends the ids of piece[0..len), shorter than 2 GiB. ST_INPUT when a character has no token and
 * the unknown token that the file names is not in the vocabulary. */
Status bpe_encode(const Bpe *b, BpeCache *c, const char *piece, size_t len, TokenIds *out, Err *e);

#endif
