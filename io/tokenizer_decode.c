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
    StrBuf prefix;
    StrBuf text; /* of all ids */
    StrBuf tail; /* byte-level: text ends where an incomplete character begins; its bytes */
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
    strbuf_free(&s->tail);
    free(s);
}

static bool ends_in_replacement(const StrBuf *b)
{
    return b->len >= 3 && memcmp(b->data + b->len - 3, "\xef\xbf\xbd", 3) == 0;
}

static Status no_memory(Err *e)
{
    return err_set(e, ST_MEMORY, "no memory for a token stream");
}

/* Whether s[0..len) may still become one character. */
static bool is_incomplete(const char *s, size_t len)
{
    unsigned char first = (unsigned char)s[0];
    size_t bad = 0;
    return first >= 0xc2 && first <= 0xf4 && utf8_valid((const unsigned char *)s, len, &bad) == 0 &&
           bad == len;
}

/* Adds the bytes of one more token to text; at most three stay behind in tail. So a step costs
 * what the token costs, also while a run of broken bytes keeps everything held back. */
static void add_token_bytes(TokenStream *s, int32_t id)
{
    StrBuf *tail = &s->tail;
    size_t start, stop;
    strbuf_add(tail, s->t->bytes[id].at, s->t->bytes[id].len);
    stop = tail->len > 3 ? tail->len - 3 : 0;
    for (start = tail->len;
         start > stop && !is_incomplete(tail->data + start - 1, tail->len - start + 1);)
        start--;
    start = start > stop ? start - 1 : tail->len; /* where the incomplete character begins */
    utf8_add_repaired(&s->text, tail->data, start);
    memmove(tail->data, tail->data + start, tail->len - start);
    tail->len -= start;
}

/* text of all ids, after one was added or (all_new) others taken away. */
static Status update_text(TokenStream *s, bool all_new, Err *e)
{
    if (!decoder_is_byte_level(s->t->decoder)) {
        strbuf_clear(&s->text);
        return tokenizer_decode_plain(s->t, s->ids.ids, s->ids.n, s->skip_special, &s->text, e);
    }
    if (all_new) {
        strbuf_clear(&s->text);
        strbuf_clear(&s->tail);
    }
    for (size_t i = all_new ? 0 : s->ids.n - 1; i < s->ids.n; i++)
        add_token_bytes(s, s->ids.ids[i]);
    return s->text.failed || s->tail.failed ? no_memory(e) : ST_OK;
}

/* How much of the text was emitted before: the whole prefix, unless a later byte token broke a
 * character that byte fallback had put together. The reference fails then; a batch job must go
 * on. */
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
    if (!counts(s->t, id, s->skip_special))
        return ST_OK;
    /* Ids that gave nothing (the marker that Strip takes off the front) become context, too. */
    if (s->prefix.len == 0 && s->ids.n && !s->tail.len && !ends_in_replacement(&s->text)) {
        strbuf_add(&s->prefix, s->text.data, s->text.len);
        s->n_context = s->ids.n;
    }
    tokenids_push(&s->ids, id, &failed);
    if (failed)
        return no_memory(e);
    TRY(update_text(s, false, e));
    if (s->tail.len || s->text.len <= s->prefix.len || ends_in_replacement(&s->text))
        return ST_OK;
    size_t same = common_prefix(&s->text, &s->prefix);
    strbuf_add(out, s->text.data + same, s->text.len - same);
    if (out->failed)
        return no_memory(e);
    /* The ids just emitted stay as context for the next; a decoder may treat the first token in
     * its own way. */
    size_t n_new = s->ids.n - s->n_context;
    memmove(s->ids.ids, s->ids.ids + s->n_context, n_new * sizeof *s->ids.ids);
    s->ids.n = s->n_context = n_new;
    TRY(update_text(s, true, e));
    strbuf_clear(&s->prefix);
    strbuf_add(&s->prefix, s->text.data, s->text.len);
    return s->prefix.failed ? no_memory(e) : ST_OK;
}
