/* io/tokenizer_internal.h - what tokenizer_load.c or tokenizer_tiktoken.c puts together and the
 * other tokenizer files use. */
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
    VocabTable by_content;   /* content -> index in added */
    int32_t next_id;         /* of an added token that is not in the vocabulary */
    AddedMatcher raw;        /* over the text as given: the tokens with normalized false */
    AddedMatcher normalized; /* over normalized text, between cuts: the others, normalized too */
    bool cuts;               /* a text is cut as in cut.h, after raw and before normalized */
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

/* ---- tokenizer_added.c ---- */

/* Says once per file how many ids are not what the file says. */
typedef struct IdCheck {
    size_t n_wrong;
    AddedToken first;
    int64_t stated;
} IdCheck;

/* Room for as many added tokens as the two files can name (config may be NULL), once the model
 * is there. */
Status added_reserve(Tokenizer *t, const JsonValue *list, const JsonValue *config, Err *e);
AddedToken *added_find(Tokenizer *t, const char *content, size_t len); /* NULL: none */
/* The content and flags of an entry, borrowed from it; what is missing is false. */
Status added_read(const JsonValue *spec, AddedToken *out, Err *e);
/* Adds a copy of token unless its content is there already or empty. */
Status added_add(Tokenizer *t, AddedToken token, Err *e);
/* stated: the id in the file, which need not be the one that token got. */
Status added_check_id(const Tokenizer *t, const AddedToken *token, int64_t stated, IdCheck *check,
                      Err *e);
void added_warn_ids(const Tokenizer *t, const IdCheck *check, const char *name);
/* The "added_tokens" member. */
Status added_load(Tokenizer *t, const JsonValue *list, const char *name, Err *e);
/* The two matchers, and what the tokens decode to, once all are added. */
Status added_build_matchers(Tokenizer *t, Err *e);

/* ---- tokenizer_load.c ---- */

/* n_ids and the tables texts and special, once all tokens are known. */
Status tokenizer_build_texts(Tokenizer *t, Err *e);

/* ---- tokenizer_config.c ---- */

/* The members of added_tokens_decoder, {"ID": {content, flags}}, in the order of their ids; the
 * caller frees *out. spec lives as long as the JSON does. */
typedef struct AddedEntry {
    int64_t id;
    const JsonValue *spec;
} AddedEntry;
Status config_added_entries(const JsonValue *map, AddedEntry **out, size_t *n, Err *e);

/* Adds the tokens that only tokenizer_config.json has, and finds BOS and EOS. */
Status config_load(Tokenizer *t, const JsonValue *config, const char *name, Err *e);
/* For a tokenizer.json without a template: what add_bos_token and add_eos_token ask for. */
Status config_load_bos_rule(Tokenizer *t, const JsonValue *config, Err *e);

/* ---- tokenizer_decode.c ---- */

/* tokenizer_decode without clean_up_tokenization_spaces, which streams do not do either. */
Status tokenizer_decode_plain(const Tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                              StrBuf *out, Err *e);

#endif
