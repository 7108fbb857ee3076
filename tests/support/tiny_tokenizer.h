/* tests/support/tiny_tokenizer.h - two made-up tokenizers, small enough to know their ids by heart.
 */
#ifndef MB_TESTS_TINY_TOKENIZER_H
#define MB_TESTS_TINY_TOKENIZER_H

#include "io/tokenizer.h"

enum {
    /* Byte-level: characters beyond ASCII take several tokens. */
    TINY_END = 0,    /* "<|end|>", special */
    TINY_MARK = 1,   /* "<|mark|>", special */
    TINY_BYTE = 2,   /* + the byte */
    TINY_AB = 258,   /* "ab" */
    TINY_SP_C = 259, /* " c" */
    TINY_IDS = 260,

    /* SentencePiece style: <s> is added in front, unknown characters fall back to bytes. */
    PIECE_UNK = 0,
    PIECE_BOS = 1,
    PIECE_EOS = 2,
    PIECE_BYTE = 3,    /* + the byte */
    PIECE_SPACE = 259, /* the marker alone */
    PIECE_A = 260,
    PIECE_B = 261,
    PIECE_C = 262,
    PIECE_SP_A = 263,
    PIECE_SP_B = 264,
    PIECE_AB = 265,
    PIECE_IDS = 266
};

Status tiny_tokenizer_bytes(Tokenizer **out, Err *e);
Status tiny_tokenizer_pieces(Tokenizer **out, Err *e);

#endif
