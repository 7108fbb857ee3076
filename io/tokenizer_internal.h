/* io/tokenizer_internal.h - what tokenizer_load.c puts together and the other tokenizer files use.
 */
#ifndef MB_IO_TOKENIZER_INTERNAL_H
#define MB_IO_TOKENIZER_INTERNAL_H

#include "io/added.h"
#include "io/bpe.h"
#include "io/decoder.h"
#include "io/normalize.h"
#include "io/pretokenize.h"
#include "io/tokenizer.h"

struct Tokenizer {
    Arena arena; /* contents of added tokens */
    Normalizer *normalizer;
    PreTokenizer *pre;
    Bpe *bpe;
    Decoder *decoder;
    AddedToken *added; /* [n_added] in the order they were added */
    size_t n_added, cap_added;
    Text *contents;          /* [cap_added] of the tokens in added, for by_content */
    VocabTable by_content;      /* content -> index in added */
    int32_t next_id;         /* of an added token that is not in the vocabulary */
    AddedMatcher raw;        /* over the text as given: the tokens with normalized false */
    AddedMatcher normalized; /* over normalized text: the others, normalized as well */
    int32_t n_ids;
    Text *texts;      /* [n_ids] an added token's content, else the vocabulary's string */
    Text *bytes;      /* [n_ids] what the id stands for in the middle of a text */
    uint8_t *special; /* [n_ids] left out by skip_special */
    char *bytes_pool;
    TokenIds before, behind; /* what add_special puts around the ids of a text */
    int32_t bos_id, eos_id;
    bool clean_up; /* clean_up_tokenization_spaces */
};

struct TokenizerCache {
    BpeCache *bpe;
    NormalizeScratch normalize;
    PreScratch pre;
    AddedSpans raw, normalized;
};

/* tokenizer_decode without clean_up_tokenization_spaces, which streams do not do either. */
Status tokenizer_decode_plain(const Tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                              StrBuf *out, Err *e);

#endif
