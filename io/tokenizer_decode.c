/* io/tokenizer_decode.c - from ids to text, whole or id by id. */
#include "io/tokenizer_internal.h"

#include "io/utf8.h"

#include <stdlib.h>

static bool counts(const Tokenizer *t, int32_t id, bool skip_special)
{
    return id >= 0 && id < t->n_ids && t->texts[id].at && !(skip_special && t->special[id]);
}

/* Joins raw bytes and repairs once at the end: a character may lie across tokens. */
static Status decode_bytes(const Tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                           StrBuf *out, Err *e)
{
    StrBuf raw = {0};
    for (size_t i = 0; i < n; i++)
        if (counts(t, ids[i], skip_special))
            strbuf_add(&raw, t->bytes[ids[i]].at, t->bytes[ids[i]].len);
    if (!raw.failed)
        utf8_add_repaired(out, raw.data ? raw.data : "", raw.len);
    bool failed = raw.failed || out->failed;
    strbuf_free(&raw);
    return failed ? err_set(e, ST_MEMORY, "no memory to decode %zu tokens", n) : ST_OK;
}

Status tokenizer_decode_plain(const Tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                              StrBuf *out, Err *e)
{
    if (decoder_is_byte_level(t->decoder))
        return decode_bytes(t, ids, n, skip_special, out, e);
    Text *texts = malloc((n + 1) * sizeof *texts);
    size_t n_texts = 0;
    if (!texts)
        return err_set(e, ST_MEMORY, "no memory to decode %zu tokens", n);
    for (size_t i = 0; i < n; i++)
        if (counts(t, ids[i], skip_special))
            texts[n_texts++] = t->texts[ids[i]];
    Status st = decoder_run(t->decoder, texts, n_texts, out, e);
    free(texts);
    return st;
}

/* clean_up_tokenization_spaces of transformers: these replacements, one after the other. */
static Status clean_up(StrBuf *text, size_t start, Err *e)
{
    static const char *const pairs[][2] = {
        {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
        {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    StrBuf other = {0};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        strbuf_clear(&other);
        strbuf_add(&other, text->data, start);
        replace_all(&other, text->data + start, text->len - start, pairs[i][0], strlen(pairs[i][0]),
                    pairs[i][1], strlen(pairs[i][1]));
        if (other.failed)
            break;
        StrBuf swap = *text;
        *text = other;
        other = swap;
    }
    bool failed = other.failed;
    strbuf_free(&other);
    return failed ? err_set(e, ST_MEMORY, "no memory to decode") : ST_OK;
}

Status tokenizer_decode(const Tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                        StrBuf *out, Err *e)
{
    size_t start = out->len;
    TRY(tokenizer_decode_plain(t, ids, n, skip_special, out, e));
    return t->clean_up && out->len > start ? clean_up(out, start, e) : ST_OK;
}

/* ---- streams ---- */

/* The ids since the last emission, and the text of those among them that only give context. */
struct TokenStream {
    const Tokenizer *t;
    bool skip_special;
    TokenIds ids;
    size_t n_context; /* ids[0..n_context) were emitted; prefix is their text */
    StrBuf prefix, text;
};

Status tokenstream_create(const Tokenizer *t, bool skip_special, TokenStream **out, Err *e)
{
    TokenStream *s = calloc(1, sizeof *s);
    *out = s;
    if (!s)
        return err_set(e, ST_MEMORY, "no memory for a token stream");
    s->t = t;
    s->skip_special = skip_special;
    return ST_OK;
}

void tokenstream_free(TokenStream *s)
{
    if (!s)
        return;
    tokenids_free(&s->ids);
    strbuf_free(&s->prefix);
    strbuf_free(&s->text);
    free(s);
}

static bool ends_in_replacement(const StrBuf *b)
{
    return b->len >= 3 && memcmp(b->data + b->len - 3, "\xef\xbf\xbd", 3) == 0;
}

/* The text of ids[from..] into b. */
static Status decode_from(TokenStream *s, size_t from, StrBuf *b, Err *e)
{
    strbuf_clear(b);
    return tokenizer_decode_plain(s->t, s->ids.ids + from, s->ids.n - from, s->skip_special, b, e);
}

/* How much of the text was emitted before: the whole prefix, unless a later byte token broke a
 * character that byte fallback had put together. The reference fails then; a batch job must go on.
 */
static size_t common_prefix(const StrBuf *text, const StrBuf *prefix)
{
    size_t n = 0;
    while (n < prefix->len && text->data[n] == prefix->data[n])
        n++;
    while (n && n < prefix->len && (text->data[n] & 0xc0) == 0x80)
        n--;
    return n;
}

Status tokenstream_step(TokenStream *s, int32_t id, StrBuf *out, Err *e)
{
    bool failed = false;
    if (s->prefix.len == 0 && s->ids.n) {
        TRY(decode_from(s, 0, &s->prefix, e));
        if (ends_in_replacement(&s->prefix))
            strbuf_clear(&s->prefix);
        else
            s->n_context = s->ids.n;
    }
    tokenids_push(&s->ids, id, &failed);
    if (failed)
        return err_set(e, ST_MEMORY, "no memory for a token stream");
    TRY(decode_from(s, 0, &s->text, e));
    if (s->text.len <= s->prefix.len || ends_in_replacement(&s->text))
        return ST_OK;
    size_t same = common_prefix(&s->text, &s->prefix);
    strbuf_add(out, s->text.data + same, s->text.len - same);
    if (out->failed)
        return err_set(e, ST_MEMORY, "no memory for a token stream");
    size_t n_new = s->ids.n - s->n_context;
    memmove(s->ids.ids, s->ids.ids + s->n_context, n_new * sizeof *s->ids.ids);
    s->ids.n = n_new;
    s->n_context = n_new;
    return decode_from(s, 0, &s->prefix, e);
}
