/* jobs/row_render.c - a finished row as a batch output line; the order of keys is contract.md
 * section 3's. */
#include "jobs/row.h"

#include "io/digest.h"
#include "jobs/row_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ID_BYTES = 10 };

typedef struct RowIds { /* hexadecimal, from row key and line digest: the same in every run */
    char line[2 * ID_BYTES + 1], request[2 * ID_BYTES + 1], body[2 * ID_BYTES + 1];
} RowIds;

static Status make_ids(const Row *r, RowIds *out, Err *e)
{
    uint8_t both[64], digest[32];
    memcpy(both, r->key, 32);
    memcpy(both + 32, r->digest, 32);
    TRY(sha256_of(both, sizeof both, digest, e));
    hex_of(digest, ID_BYTES, out->line);
    hex_of(digest + ID_BYTES, ID_BYTES, out->request);
    hex_of(digest + 2 * ID_BYTES, ID_BYTES, out->body);
    return ST_OK;
}

static void add_string_or_null(StrBuf *b, const char *s)
{
    if (s)
        strbuf_json_string(b, s, strlen(s));
    else
        strbuf_str(b, "null");
}

static void add_ids(StrBuf *b, const TokenIds *ids)
{
    strbuf_str(b, "[");
    for (size_t i = 0; i < ids->n; i++)
        strbuf_fmt(b, i ? ",%d" : "%d", ids->ids[i]);
    strbuf_str(b, "]");
}

static void add_error_body(const RowError *error, StrBuf *b)
{
    strbuf_str(b, "{\"error\":{\"message\":");
    strbuf_json_string(b, error->message, strlen(error->message));
    strbuf_fmt(b, ",\"type\":\"%s\",\"param\":",
               error->status >= 500 ? "server_error" : "invalid_request_error");
    add_string_or_null(b, error->param);
    strbuf_str(b, ",\"code\":");
    add_string_or_null(b, error->code);
    strbuf_str(b, "}}");
}

/* One position's map from text to log-probability: the token itself, then others by rank. Equal
 * texts collapse into the first. */
static void add_top(const RowContext *context, int32_t id, const TokenLogprobs *lp, int n_top,
                    StrBuf *b, StrBuf *seen)
{
    size_t start[MAX_LOGPROBS + 1], end[MAX_LOGPROBS + 1];
    int n = 0;
    strbuf_clear(seen);
    strbuf_str(b, "{");
    for (int i = -1; i < n_top && i < lp->n_top; i++) {
        int32_t shown = i < 0 ? id : lp->top_id[i];
        if (i >= 0 && shown == id)
            continue;
        start[n] = seen->len;
        token_text(context, shown, seen);
        end[n] = seen->len;
        if (seen->failed)
            break;
        bool repeated = false;
        for (int j = 0; j < n; j++)
            repeated |=
                end[j] - start[j] == end[n] - start[n] &&
                memcmp(seen->data + start[j], seen->data + start[n], end[n] - start[n]) == 0;
        if (repeated)
            continue;
        if (n)
            strbuf_str(b, ",");
        strbuf_json_string(b, seen->data + start[n], end[n] - start[n]);
        strbuf_str(b, ":");
        strbuf_json_float(b, i < 0 ? lp->logprob : lp->top_logprob[i]);
        n++;
    }
    strbuf_str(b, "}");
    b->failed |= seen->failed;
}

/* The tokens that "logprobs" covers: the echoed prompt, if any, then the output. */
typedef struct Positions {
    const TokenIds *prompt; /* NULL without echo */
    const TokenLogprobs *prompt_lp;
    const Choice *choice;
    size_t n_prompt, n;
} Positions;

static int32_t id_at(const Positions *p, size_t i)
{
    return i < p->n_prompt ? p->prompt->ids[i] : p->choice->out.ids[i - p->n_prompt];
}

/* NULL for the first prompt token, which nothing predicts. */
static const TokenLogprobs *logprobs_at(const Positions *p, size_t i)
{
    if (i >= p->n_prompt)
        return &p->choice->logprobs[i - p->n_prompt];
    return i && p->prompt_lp ? &p->prompt_lp[i] : NULL;
}

static void add_logprobs(const RowContext *context, const Row *r, const Positions *p,
                         const int64_t *offsets, StrBuf *b, StrBuf *scratch)
{
    strbuf_str(b, "{\"tokens\":[");
    for (size_t i = 0; i < p->n; i++) {
        strbuf_clear(scratch);
        token_text(context, id_at(p, i), scratch);
        b->failed |= scratch->failed;
        strbuf_str(b, i ? "," : "");
        strbuf_json_string(b, scratch->len ? scratch->data : "", scratch->len);
    }
    strbuf_str(b, "],\"token_logprobs\":[");
    for (size_t i = 0; i < p->n; i++) {
        const TokenLogprobs *lp = logprobs_at(p, i);
        strbuf_str(b, i ? "," : "");
        if (lp)
            strbuf_json_float(b, lp->logprob);
        else
            strbuf_str(b, "null");
    }
    strbuf_str(b, "],\"top_logprobs\":[");
    for (size_t i = 0; i < p->n; i++) {
        const TokenLogprobs *lp = logprobs_at(p, i);
        strbuf_str(b, i ? "," : "");
        if (lp)
            add_top(context, id_at(p, i), lp, r->params.logprobs, b, scratch);
        else
            strbuf_str(b, "null");
    }
    strbuf_str(b, "],\"text_offset\":[");
    for (size_t i = 0; i < p->n; i++)
        strbuf_fmt(b, i ? ",%lld" : "%lld", (long long)offsets[i]);
    strbuf_str(b, "]}");
}

static void add_prompt_entry(const RowContext *context, int32_t id, float logprob, int rank,
                             StrBuf *b, StrBuf *scratch)
{
    strbuf_fmt(b, "\"%d\":{\"logprob\":", id);
    strbuf_json_float(b, logprob);
    strbuf_fmt(b, ",\"rank\":%d,\"decoded_token\":", rank);
    strbuf_clear(scratch);
    token_text(context, id, scratch);
    b->failed |= scratch->failed;
    if (context->tokenizer)
        strbuf_json_string(b, scratch->len ? scratch->data : "", scratch->len);
    else
        strbuf_str(b, "null");
    strbuf_str(b, "}");
}

static void add_prompt_logprobs(const RowContext *context, const Row *r, const Prompt *p, StrBuf *b,
                                StrBuf *scratch)
{
    if (!p->logprobs) {
        strbuf_str(b, "null");
        return;
    }
    strbuf_str(b, "[null");
    for (size_t i = 1; i < p->ids.n; i++) {
        const TokenLogprobs *lp = &p->logprobs[i];
        strbuf_str(b, ",{");
        add_prompt_entry(context, p->ids.ids[i], lp->logprob, lp->rank, b, scratch);
        for (int j = 0; j < lp->n_top && j < r->params.prompt_logprobs; j++) {
            if (lp->top_id[j] == p->ids.ids[i])
                continue;
            strbuf_str(b, ",");
            add_prompt_entry(context, lp->top_id[j], lp->top_logprob[j], j + 1, b, scratch);
        }
        strbuf_str(b, "}");
    }
    strbuf_str(b, "]");
}

/* offsets [n]: of the prompt's tokens in its text, then of the output's behind it. */
static Status find_offsets(const RowContext *context, const Row *r, const Positions *p,
                           const Prompt *prompt, const StrBuf *text, size_t prompt_bytes,
                           int64_t *offsets, Err *e)
{
    const char *all = text->len ? text->data : "";
    if (p->n_prompt)
        TRY(prompt_offsets(context, prompt, all, prompt_bytes, offsets, e));
    TRY(choice_offsets(context, r, p->choice, all + prompt_bytes, text->len - prompt_bytes,
                       offsets + p->n_prompt, e));
    int64_t base = text_code_points(all, prompt_bytes);
    for (size_t i = p->n_prompt; i < p->n; i++)
        offsets[i] += base;
    return ST_OK;
}

/* "text" and "logprobs" of a choice. */
static Status add_text(const RowContext *context, const Row *r, const Choice *c, StrBuf *b,
                       StrBuf *scratch, Err *e)
{
    const Prompt *prompt = &r->prompts[c->prompt];
    Positions p = {.choice = c, .n = c->out.n};
    StrBuf text = {0};
    int64_t *offsets = NULL;
    Status st = ST_OK;
    if (r->params.echo) {
        p.prompt = &prompt->ids;
        p.prompt_lp = prompt->logprobs;
        p.n_prompt = prompt->ids.n;
        p.n += p.n_prompt;
        TRY_GOTO(prompt_text(context, prompt, &text, e));
    }
    size_t prompt_bytes = text.len;
    TRY_GOTO(choice_text(context, r, c, &text, e));
    strbuf_json_string(b, text.len ? text.data : "", text.len);
    strbuf_str(b, ",\"logprobs\":");
    if (r->params.logprobs < 0) {
        strbuf_str(b, "null");
    } else {
        offsets = malloc((p.n + 1) * sizeof *offsets);
        if (!offsets) {
            st = err_set(e, ST_MEMORY, "not enough memory for %zu text offsets", p.n);
            goto fail;
        }
        TRY_GOTO(find_offsets(context, r, &p, prompt, &text, prompt_bytes, offsets, e));
        add_logprobs(context, r, &p, offsets, b, scratch);
    }
fail:
    free(offsets);
    strbuf_free(&text);
    return st;
}

static void add_stop_reason(const Row *r, const Choice *c, StrBuf *b)
{
    if (c->stop_string >= 0)
        strbuf_json_string(b, r->params.stop[c->stop_string].text,
                           r->params.stop[c->stop_string].len);
    else if (c->stop_token >= 0)
        strbuf_fmt(b, "%d", c->stop_token);
    else
        strbuf_str(b, "null");
}

static Status add_choice(const RowContext *context, const Row *r, int index, StrBuf *b,
                         StrBuf *scratch, Err *e)
{
    const Choice *c = &r->choices[index];
    const Prompt *p = &r->prompts[c->prompt];
    strbuf_fmt(b, "%s{\"index\":%d,\"text\":", index ? "," : "", index);
    TRY(add_text(context, r, c, b, scratch, e));
    strbuf_fmt(b, ",\"finish_reason\":\"%s\",\"stop_reason\":",
               c->finish == FINISH_STOP ? "stop" : "length");
    add_stop_reason(r, c, b);
    strbuf_str(b, ",\"token_ids\":");
    if (r->params.return_token_ids || !context->tokenizer)
        add_ids(b, &c->out);
    else
        strbuf_str(b, "null");
    strbuf_str(b, ",\"prompt_logprobs\":");
    add_prompt_logprobs(context, r, p, b, scratch);
    strbuf_str(b, ",\"prompt_token_ids\":");
    if (r->params.return_token_ids)
        add_ids(b, &p->ids);
    else
        strbuf_str(b, "null");
    strbuf_str(b, "}");
    return ST_OK;
}

static Status add_body(const RowContext *context, const Row *r, const RowIds *ids, StrBuf *b,
                       Err *e)
{
    StrBuf scratch = {0};
    Status st = ST_OK;
    strbuf_fmt(b, "{\"id\":\"cmpl-%s\",\"object\":\"text_completion\",\"created\":%lld,\"model\":",
               ids->body, (long long)context->created);
    strbuf_json_string(b, r->model, strlen(r->model));
    strbuf_str(b, ",\"choices\":[");
    for (int i = 0; i < r->n_choices && st == ST_OK; i++)
        st = add_choice(context, r, i, b, &scratch, e);
    int64_t prompt = row_prompt_tokens(r), completion = row_completion_tokens(r);
    strbuf_fmt(b,
               "],\"system_fingerprint\":null,\"usage\":{\"prompt_tokens\":%lld,\"completion_"
               "tokens\":%lld,"
               "\"total_tokens\":%lld}}",
               (long long)prompt, (long long)completion, (long long)(prompt + completion));
    strbuf_free(&scratch);
    return st;
}

Status row_render(const RowContext *context, const Row *r, StrBuf *out, Err *e)
{
    RowIds ids;
    TRY(make_ids(r, &ids, e));
    strbuf_fmt(out, "{\"id\":\"batch_req_%s\",\"custom_id\":", ids.line);
    if (r->custom_id)
        strbuf_json_string(out, r->custom_id, r->custom_id_len);
    else
        strbuf_str(out, "null");
    strbuf_fmt(out, ",\"response\":{\"status_code\":%d,\"request_id\":\"req_%s\",\"body\":",
               r->error.status ? r->error.status : 200, ids.request);
    if (r->error.status)
        add_error_body(&r->error, out);
    else
        TRY(add_body(context, r, &ids, out, e));
    strbuf_str(out, "},\"error\":null}");
    if (out->failed)
        return err_set(e, ST_MEMORY, "row %lld: not enough memory for its output line",
                       (long long)r->index);
    return ST_OK;
}
