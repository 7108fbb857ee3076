/* jobs/row_text.c - see row_text.h.
 *
 * Decoding a list of tokens does three things to their bytes: it repairs what is not UTF-8 (as one
 * U+FFFD per invalid part, or, with byte fallback, one per byte), it drops skipped special tokens,
 * and some decoders strip a space at the front. The last belongs to the start of a text, not to its
 * continuation, so generated text gets it back. */
#include "jobs/row_text.h"

#include "io/utf8.h"

#include <stdlib.h>
#include <string.h>

static const char replacement[] = "\xef\xbf\xbd";

static bool hidden(const RowContext *context, int32_t id, bool skip_special)
{
    return skip_special && tokenizer_is_special(context->tokenizer, id);
}

static size_t leading_spaces(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && text[n] == ' ')
        n++;
    return n;
}

/* How many spaces at the front of these tokens are missing from their decoded text. */
static size_t stripped_spaces(const RowContext *context, const int32_t *ids, size_t n,
                              bool skip_special, const char *text, size_t len)
{
    size_t spaces = 0, shown = leading_spaces(text, len);
    for (size_t i = 0; i < n; i++) {
        size_t bytes, lead;
        const char *s = tokenizer_token_bytes(context->tokenizer, ids[i], &bytes);
        if (!s || hidden(context, ids[i], skip_special))
            continue;
        spaces += lead = leading_spaces(s, bytes);
        if (lead < bytes)
            break;
    }
    return spaces > shown ? spaces - shown : 0;
}

static void add_spaces(StrBuf *out, size_t n)
{
    while (n-- > 0)
        strbuf_add(out, " ", 1);
}

static Status no_memory(const char *what, Err *e)
{
    return err_set(e, ST_MEMORY, "not enough memory for %s", what);
}

/* The place where any of the stop strings first starts, among matches that end behind `before`. */
static void find_stop(const Row *r, Choice *c, size_t before)
{
    const SamplingParams *p = &r->params;
    size_t best = SIZE_MAX;
    for (int i = 0; i < p->n_stop; i++) {
        size_t len = p->stop[i].len, from = before + 1 > len ? before + 1 - len : 0;
        const char *at = memmem(c->text.data + from, c->text.len - from, p->stop[i].text, len);
        if (at && (size_t)(at - c->text.data) < best) {
            best = (size_t)(at - c->text.data);
            c->stop_string = i;
            c->text_cut = p->include_stop_str ? best + len : best;
        }
    }
}

Status choice_match_stop(const RowContext *context, Row *r, Choice *c, int32_t id, Err *e)
{
    const SamplingParams *p = &r->params;
    size_t before = c->text.len;
    StrBuf added = {0};
    if (!c->stream)
        TRY(tokenstream_create(context->tokenizer, p->skip_special, &c->stream, e));
    Status st = tokenstream_step(c->stream, id, &added, e);
    if (st == ST_OK && before == 0 && added.len)
        add_spaces(&c->text, stripped_spaces(context, c->out.ids, c->out.n, p->skip_special,
                                             added.data, added.len));
    if (st == ST_OK && added.len)
        strbuf_add(&c->text, added.data, added.len);
    if (st == ST_OK && (added.failed || c->text.failed))
        st = no_memory("a choice's text", e);
    strbuf_free(&added);
    if (st == ST_OK && c->text.len > before && c->out.n > (size_t)p->min_tokens)
        find_stop(r, c, before);
    return st;
}

/* How many of the generated tokens the text is made of. */
static size_t tokens_in_text(const Row *r, const Choice *c)
{
    bool by_token = c->finish == FINISH_STOP && c->stop_string < 0;
    return c->out.n - (by_token && !r->params.include_stop_str && c->out.n > 0);
}

/* The text before any stop string cuts it. */
static Status uncut_text(const RowContext *context, const Row *r, const Choice *c, StrBuf *out,
                         Err *e)
{
    bool skip = r->params.skip_special;
    size_t n = tokens_in_text(r, c);
    StrBuf text = {0};
    Status st = tokenizer_decode(context->tokenizer, c->out.ids, n, skip, &text, e);
    if (st == ST_OK) {
        add_spaces(out, stripped_spaces(context, c->out.ids, n, skip, text.data, text.len));
        strbuf_add(out, text.len ? text.data : "", text.len);
        if (text.failed || out->failed)
            st = no_memory("a choice's text", e);
    }
    strbuf_free(&text);
    return st;
}

Status choice_text(const RowContext *context, const Row *r, const Choice *c, StrBuf *out, Err *e)
{
    if (!context->tokenizer)
        return ST_OK;
    if (c->stop_string < 0)
        return uncut_text(context, r, c, out, e);
    strbuf_add(out, c->text.data, c->text_cut < c->text.len ? c->text_cut : c->text.len);
    return out->failed ? no_memory("a choice's text", e) : ST_OK;
}

Status prompt_text(const RowContext *context, const Prompt *p, StrBuf *out, Err *e)
{
    if (p->text)
        strbuf_add(out, p->text, p->text_len);
    else if (context->tokenizer)
        TRY(tokenizer_decode(context->tokenizer, p->ids.ids, p->ids.n, false, out, e));
    return out->failed ? no_memory("a prompt's text", e) : ST_OK;
}

void token_text(const RowContext *context, int32_t id, StrBuf *out)
{
    size_t len = 0;
    const char *s = context->tokenizer ? tokenizer_token_bytes(context->tokenizer, id, &len) : NULL;
    if (s)
        utf8_add_repaired(out, s, len);
    else
        strbuf_fmt(out, "token_id:%d", id);
}

int64_t text_code_points(const char *text, size_t len)
{
    int64_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

/* What the tokens are made of, before decoding: their bytes, and where each starts. */
typedef struct RawText {
    StrBuf bytes;
    size_t *start; /* [n] */
    size_t n;
} RawText;

static Status raw_create(RawText *raw, size_t n, Err *e)
{
    *raw = (RawText){.n = n, .start = malloc((n + 1) * sizeof *raw->start)};
    return raw->start ? ST_OK : no_memory("the places of tokens", e);
}

static void raw_free(RawText *raw)
{
    strbuf_free(&raw->bytes);
    free(raw->start);
}

/* Walks both texts side by side, one code point of text at a time. True when they end together and
 * agree everywhere; otherwise the offsets behind the first difference are only close. */
static bool align(const RawText *raw, const char *text, size_t len, bool repair_bytes,
                  int64_t *offsets)
{
    const unsigned char *from = (const unsigned char *)raw->bytes.data;
    size_t r = 0, d = 0, t = 0;
    int64_t at = 0;
    bool agree = true;
    while (r < raw->bytes.len && d < len) {
        size_t bad, n = utf8_valid(from + r, raw->bytes.len - r, &bad);
        size_t shown = utf8_len((unsigned char)text[d]);
        bool repaired = shown == 3 && memcmp(text + d, replacement, 3) == 0;
        if (n && n == shown && memcmp(from + r, text + d, n) == 0) {
            r += n;
        } else {
            agree &= repaired && (repair_bytes || !n);
            r += repair_bytes ? 1 : n ? n : bad;
        }
        for (; t < raw->n && raw->start[t] < r; t++)
            offsets[t] = at;
        d += shown;
        at++;
    }
    for (; t < raw->n; t++)
        offsets[t] = at;
    return agree && r == raw->bytes.len && d == len;
}

/* Both kinds of repair; most text needs none, and the first walk is the answer. */
static void align_any(const RawText *raw, const char *text, size_t len, int64_t *offsets)
{
    if (!align(raw, text, len, false, offsets) && !align(raw, text, len, true, offsets))
        align(raw, text, len, false, offsets);
}

Status prompt_offsets(const RowContext *context, const Prompt *p, const char *text, size_t len,
                      int64_t *offsets, Err *e)
{
    RawText raw;
    TRY(raw_create(&raw, p->ids.n, e));
    for (size_t i = 0; i < p->ids.n; i++) {
        size_t n = 0, at = raw.bytes.len;
        const char *s = context->tokenizer
                            ? tokenizer_token_bytes(context->tokenizer, p->ids.ids[i], &n)
                            : NULL;
        raw.start[i] = at;
        if (!s)
            continue;
        bool shown = at < len && n <= len - at && memcmp(text + at, s, n) == 0;
        if (!shown && tokenizer_is_special(context->tokenizer, p->ids.ids[i]))
            continue;            /* added by the tokenizer, not written by the user */
        if (at == 0 && !shown) { /* a SentencePiece tokenizer puts a space in front of the text */
            size_t extra = leading_spaces(s, n);
            size_t kept = leading_spaces(text, len);
            extra = extra > kept ? extra - kept : 0;
            s += extra;
            n -= extra;
        }
        strbuf_add(&raw.bytes, s, n);
    }
    Status st = raw.bytes.failed ? no_memory("the places of tokens", e) : ST_OK;
    if (st == ST_OK)
        align_any(&raw, text, len, offsets);
    raw_free(&raw);
    return st;
}

Status choice_offsets(const RowContext *context, const Row *r, const Choice *c, const char *text,
                      size_t len, int64_t *offsets, Err *e)
{
    RawText raw;
    StrBuf uncut = {0};
    size_t shown = tokens_in_text(r, c);
    int64_t end = text_code_points(text, len);
    TRY(raw_create(&raw, c->out.n, e));
    for (size_t i = 0; i < c->out.n; i++) {
        size_t n = 0;
        raw.start[i] = raw.bytes.len;
        if (i >= shown || !context->tokenizer ||
            hidden(context, c->out.ids[i], r->params.skip_special))
            continue;
        const char *s = tokenizer_token_bytes(context->tokenizer, c->out.ids[i], &n);
        if (s)
            strbuf_add(&raw.bytes, s, n);
    }
    Status st = raw.bytes.failed ? no_memory("the places of tokens", e) : ST_OK;
    if (st == ST_OK && context->tokenizer)
        st = uncut_text(context, r, c, &uncut, e);
    if (st == ST_OK)
        align_any(&raw, uncut.len ? uncut.data : "", uncut.len, offsets);
    for (size_t i = 0; i < c->out.n && st == ST_OK; i++)
        if (offsets[i] > end)
            offsets[i] = end; /* behind the cut of a stop string */
    raw_free(&raw);
    strbuf_free(&uncut);
    return st;
}
