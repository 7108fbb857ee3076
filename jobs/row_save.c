/* jobs/row_save.c - an unfinished row as bytes for the journal, and back.
 *
 * Little-endian: version u32, digest of the line, prompts u32, choices u32; per prompt: tokens u32,
 * scored u8 and, where it is 1, log-probabilities of tokens 1..; per choice: ended u8, tokens u32,
 * their ids i32, and log-probabilities where the row asks for them. What else a choice holds (its
 * text, why it ended) follows from the ids: restoring accepts them again, one by one; only an echo
 * that ended without tokens must be told so. */
#include "jobs/row.h"

#include <string.h>

enum { SAVE_VERSION = 1 };

static void put_u32(StrBuf *b, uint32_t v)
{
    uint8_t bytes[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    strbuf_add(b, bytes, sizeof bytes);
}

static void put_float(StrBuf *b, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_u32(b, bits);
}

static void put_logprobs(StrBuf *b, const TokenLogprobs *lp)
{
    put_float(b, lp->logprob);
    put_u32(b, (uint32_t)lp->rank);
    put_u32(b, (uint32_t)lp->n_top);
    for (int i = 0; i < lp->n_top; i++) {
        put_u32(b, (uint32_t)lp->top_id[i]);
        put_float(b, lp->top_logprob[i]);
    }
}

/* The scheduler fills a prompt's log-probabilities before its first sample gets a token or ends. */
static bool is_scored(const Row *r, int prompt)
{
    const Choice *first = &r->choices[prompt * r->params.n];
    return r->prompts[prompt].logprobs && (first->out.n > 0 || first->finish != FINISH_NONE);
}

Status row_save(const Row *r, StrBuf *out, Err *e)
{
    if (r->error.status)
        return err_set(e, ST_INPUT, "row %lld: a failed row has nothing to save",
                       (long long)r->index);
    put_u32(out, SAVE_VERSION);
    strbuf_add(out, r->digest, sizeof r->digest);
    put_u32(out, (uint32_t)r->n_prompts);
    put_u32(out, (uint32_t)r->n_choices);
    for (int i = 0; i < r->n_prompts; i++) {
        const Prompt *p = &r->prompts[i];
        uint8_t scored = is_scored(r, i);
        put_u32(out, (uint32_t)p->ids.n);
        strbuf_add(out, &scored, 1);
        for (size_t k = 1; scored && k < p->ids.n; k++)
            put_logprobs(out, &p->logprobs[k]);
    }
    for (int i = 0; i < r->n_choices; i++) {
        const Choice *c = &r->choices[i];
        uint8_t ended = c->finish != FINISH_NONE;
        strbuf_add(out, &ended, 1);
        put_u32(out, (uint32_t)c->out.n);
        for (size_t k = 0; k < c->out.n; k++) {
            put_u32(out, (uint32_t)c->out.ids[k]);
            if (r->params.logprobs >= 0)
                put_logprobs(out, &c->logprobs[k]);
        }
    }
    if (out->failed)
        return err_set(e, ST_MEMORY, "row %lld: not enough memory to save it", (long long)r->index);
    return ST_OK;
}

typedef struct Reader {
    const uint8_t *at, *end;
    bool short_of; /* the bytes ended early; zeros were read since */
} Reader;

static const uint8_t *take(Reader *in, size_t n)
{
    static const uint8_t zeros[32];
    if ((size_t)(in->end - in->at) < n) {
        in->short_of = true;
        return zeros;
    }
    in->at += n;
    return in->at - n;
}

static uint32_t get_u32(Reader *in)
{
    const uint8_t *b = take(in, 4);
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static float get_float(Reader *in)
{
    uint32_t bits = get_u32(in);
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static bool get_id(Reader *in, const RowContext *context, int32_t *out)
{
    uint32_t id = get_u32(in);
    *out = (int32_t)id;
    return id < (uint32_t)context->arch->vocab;
}

static bool get_logprobs(Reader *in, const RowContext *context, TokenLogprobs *out)
{
    *out = (TokenLogprobs){.logprob = get_float(in)};
    out->rank = (int32_t)get_u32(in);
    uint32_t n = get_u32(in);
    if (n > MAX_LOGPROBS)
        return false;
    out->n_top = (int32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        if (!get_id(in, context, &out->top_id[i]))
            return false;
        out->top_logprob[i] = get_float(in);
    }
    return !in->short_of;
}

static bool restore_prompt(Reader *in, const RowContext *context, Prompt *p)
{
    if (get_u32(in) != p->ids.n)
        return false;
    bool scored = *take(in, 1) == 1;
    if (scored && !p->logprobs)
        return false;
    for (size_t k = 1; scored && k < p->ids.n; k++)
        if (!get_logprobs(in, context, &p->logprobs[k]))
            return false;
    return !in->short_of;
}

static Status restore_choice(Reader *in, const RowContext *context, Row *r, Choice *c, bool *fits,
                             Err *e)
{
    bool ended = *take(in, 1) == 1;
    uint32_t n = get_u32(in);
    if (ended && n == 0 && r->params.max_tokens == 0) {
        c->finish = FINISH_LENGTH;
        r->n_finished++;
    }
    for (uint32_t k = 0; k < n; k++) {
        TokenLogprobs lp;
        int32_t id;
        bool ask = r->params.logprobs >= 0;
        *fits = get_id(in, context, &id) && (!ask || get_logprobs(in, context, &lp)) &&
                !in->short_of && c->finish == FINISH_NONE;
        if (!*fits)
            return ST_OK;
        TRY(choice_accept(context, r, c, id, ask ? &lp : NULL, e));
    }
    *fits = !in->short_of && ended == (c->finish != FINISH_NONE);
    return ST_OK;
}

Status row_restore(const RowContext *context, Row *r, const void *bytes, size_t len, Err *e)
{
    Reader in = {bytes, (const uint8_t *)bytes + len, false};
    uint32_t version = get_u32(&in);
    bool fits = memcmp(take(&in, sizeof r->digest), r->digest, sizeof r->digest) == 0 &&
                !r->error.status && get_u32(&in) == (uint32_t)r->n_prompts &&
                get_u32(&in) == (uint32_t)r->n_choices;
    if (version != SAVE_VERSION && !in.short_of)
        return err_set(e, ST_INPUT, "row %lld: saved in version %u, this program reads %d",
                       (long long)r->index, version, SAVE_VERSION);
    for (int i = 0; i < r->n_prompts && fits; i++)
        fits = restore_prompt(&in, context, &r->prompts[i]);
    for (int i = 0; i < r->n_choices && fits; i++)
        TRY(restore_choice(&in, context, r, &r->choices[i], &fits, e));
    if (!fits || in.short_of || in.at != in.end)
        return err_set(e, ST_INPUT, "row %lld: the saved tokens do not fit the line",
                       (long long)r->index);
    return ST_OK;
}
