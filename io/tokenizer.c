/* io/tokenizer.c - from text to ids: added tokens, normalizer, pre-tokenizer, model, special
 * tokens; and what an id stands for. See tokenizer.h. */
#include "io/tokenizer_internal.h"

#include "io/cut.h"
#include "io/utf8.h"

#include <stdlib.h>

void tokenids_push(TokenIds *v, int32_t id, bool *failed)
{
    if (v->n == v->cap) {
        size_t cap = v->cap ? v->cap * 2 : 64;
        int32_t *p = realloc(v->ids, cap * sizeof *p);
        if (!p) {
            *failed = true;
            return;
        }
        v->ids = p;
        v->cap = cap;
    }
    v->ids[v->n++] = id;
}

void tokenids_free(TokenIds *v)
{
    free(v->ids);
    *v = (TokenIds){0};
}

Status tokenizer_cache_create(const Tokenizer *t, TokenizerCache **out, Err *e)
{
    (void)t; /* every tokenizer's scratch starts out alike */
    *out = NULL;
    TokenizerCache *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ST_MEMORY, "no memory for a tokenizer's cache");
    Status st = bpe_cache_create(&c->bpe, e);
    if (st != ST_OK) {
        free(c);
        return st;
    }
    *out = c;
    return ST_OK;
}

void tokenizer_cache_free(TokenizerCache *c)
{
    if (!c)
        return;
    bpe_cache_free(c->bpe);
    normalize_scratch_free(&c->normalize);
    prescratch_free(&c->pre);
    free(c->raw.v);
    free(c->normalized.v);
    free(c);
}

static Status push_id(TokenIds *out, int32_t id, Err *e)
{
    bool failed = false;
    tokenids_push(out, id, &failed);
    return failed ? err_set(e, ST_MEMORY, "no memory for the ids of a text") : ST_OK;
}

/* A normalized stretch without added tokens. */
static Status encode_plain(const Tokenizer *t, TokenizerCache *c, const char *text, size_t len,
                           bool at_start, TokenIds *out, Err *e)
{
    TRY(pretokenizer_run(t->pre, &c->pre, text, len, at_start, e));
    const PieceList *pieces = &c->pre.pieces;
    for (size_t i = 0; i < pieces->n; i++)
        TRY(bpe_encode(t->bpe, c->bpe, c->pre.text + pieces->v[i].start, pieces->v[i].len, out, e));
    return ST_OK;
}

/* A normalized stretch, between cuts where there are any. */
static Status encode_stretch(const Tokenizer *t, TokenizerCache *c, const char *text, size_t len,
                             bool at_start, TokenIds *out, Err *e)
{
    if (!t->normalized.n)
        return encode_plain(t, c, text, len, at_start, out, e);
    TRY(added_split(&t->normalized, t->added, text, len, &c->normalized, e));
    for (size_t i = 0; i < c->normalized.n; i++) {
        AddedSpan s = c->normalized.v[i];
        if (s.id >= 0)
            TRY(push_id(out, s.id, e));
        else
            TRY(encode_plain(t, c, text + s.start, s.end - s.start, at_start && s.start == 0, out,
                             e));
    }
    return ST_OK;
}

/* A stretch of the given text between added tokens that are found before normalizing. */
static Status encode_gap(const Tokenizer *t, TokenizerCache *c, const char *text, size_t len,
                         bool at_start, TokenIds *out, Err *e)
{
    TRY(normalizer_run(t->normalizer, &c->normalize, text, len, &text, &len, e));
    if (!t->cuts || len <= CUT_RUN)
        return encode_stretch(t, c, text, len, at_start, out, e);
    size_t left = CUT_BLOCK;
    for (size_t start = 0, n; start < len; start += n) {
        n = cut_next(text + start, len - start, &left);
        TRY(encode_stretch(t, c, text + start, n, at_start && start == 0, out, e));
    }
    return ST_OK;
}

static Status encode(const Tokenizer *t, TokenizerCache *c, const char *text, size_t len,
                     TokenIds *out, Err *e)
{
    size_t bad = utf8_first_bad(text, len);
    if (bad != len)
        return err_set(e, ST_INPUT, "the text is not valid UTF-8 at byte %zu", bad);
    if (!t->raw.n)
        return encode_gap(t, c, text, len, true, out, e);
    TRY(added_split(&t->raw, t->added, text, len, &c->raw, e));
    for (size_t i = 0; i < c->raw.n; i++) {
        AddedSpan s = c->raw.v[i];
        if (s.id >= 0)
            TRY(push_id(out, s.id, e));
        else
            TRY(encode_gap(t, c, text + s.start, s.end - s.start, s.start == 0, out, e));
    }
    return ST_OK;
}

Status tokenizer_encode(const Tokenizer *t, TokenizerCache *c, const char *text, size_t len,
                        bool add_special, TokenIds *out, Err *e)
{
    size_t n_before = out->n;
    Status st = ST_OK;
    for (size_t i = 0; st == ST_OK && add_special && i < t->before.n; i++)
        st = push_id(out, t->before.ids[i], e);
    if (st == ST_OK)
        st = encode(t, c, text, len, out, e);
    for (size_t i = 0; st == ST_OK && add_special && i < t->behind.n; i++)
        st = push_id(out, t->behind.ids[i], e);
    if (st != ST_OK)
        out->n = n_before;
    return st;
}

static bool known(const Tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids && t->texts[id].at;
}

const char *tokenizer_token_bytes(const Tokenizer *t, int32_t id, size_t *len)
{
    *len = known(t, id) ? t->bytes[id].len : 0;
    return known(t, id) ? t->bytes[id].at : NULL;
}

const char *tokenizer_token_string(const Tokenizer *t, int32_t id, size_t *len)
{
    *len = known(t, id) ? t->texts[id].len : 0;
    return known(t, id) ? t->texts[id].at : NULL;
}

int32_t tokenizer_token_id(const Tokenizer *t, const char *s, size_t len)
{
    int32_t added = vocab_table_find(&t->by_content, t->contents, s, len);
    if (added >= 0)
        return t->added[added].id;
    return bpe_id(t->bpe, s, len);
}

bool tokenizer_is_special(const Tokenizer *t, int32_t id)
{
    return known(t, id) && t->special[id];
}

int32_t tokenizer_n_ids(const Tokenizer *t)
{
    return t->n_ids;
}

int32_t tokenizer_bos_id(const Tokenizer *t)
{
    return t->bos_id;
}

int32_t tokenizer_eos_id(const Tokenizer *t)
{
    return t->eos_id;
}
