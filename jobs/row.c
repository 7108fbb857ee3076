/* jobs/row.c - a row's life: failing, accepting tokens, ending. */
#include "jobs/row.h"

#include "jobs/row_params.h"
#include "jobs/row_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void row_free(Row *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_prompts; i++)
        tokenids_free(&r->prompts[i].ids);
    for (int i = 0; i < r->n_choices; i++) {
        Choice *c = &r->choices[i];
        tokenids_free(&c->out);
        free(c->logprobs);
        strbuf_free(&c->text);
        tokenstream_free(c->stream);
    }
    free(r->logits);
    arena_free(&r->arena);
    free(r);
}

static void set_error(Row *r, int status, const char *code, const char *param, const char *fmt,
                      va_list ap)
{
    char text[400];
    vsnprintf(text, sizeof text, fmt, ap);
    const char *copy = arena_copy(&r->arena, text, strlen(text));
    r->error = (RowError){status, code, param, copy ? copy : "not enough memory for the message"};
}

void row_fail(Row *r, int status, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set_error(r, status, code, param, fmt, ap);
    va_end(ap);
}

Status row_refuse(Row *r, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set_error(r, 400, code, param, fmt, ap);
    va_end(ap);
    return ST_INPUT;
}

Status row_refuse_type(Row *r, const char *key, const char *want)
{
    char param[80];
    snprintf(param, sizeof param, "body.%s", key);
    const char *copy = arena_copy(&r->arena, param, strlen(param));
    return row_refuse(r, "invalid_request", copy, "%s must be %s", key, want);
}

int choice_max_new(const RowContext *context, const Row *r, const Choice *c)
{
    int64_t room = (int64_t)context->max_len - (int64_t)r->prompts[c->prompt].ids.n;
    return room < r->params.max_tokens ? (int)room : r->params.max_tokens;
}

static Status append(Row *r, Choice *c, int32_t id, const TokenLogprobs *lp, Err *e)
{
    bool failed = false;
    if (lp && c->out.n == c->logprobs_cap) {
        size_t cap = c->logprobs_cap ? c->logprobs_cap * 2 : 16;
        TokenLogprobs *grown = realloc(c->logprobs, cap * sizeof *grown);
        if (!grown)
            return err_set(e, ST_MEMORY, "row %lld: not enough memory for log-probabilities",
                           (long long)r->index);
        c->logprobs = grown;
        c->logprobs_cap = cap;
    }
    if (lp)
        c->logprobs[c->out.n] = *lp;
    tokenids_push(&c->out, id, &failed);
    return failed ? err_set(e, ST_MEMORY, "row %lld: not enough memory for tokens",
                            (long long)r->index)
                  : ST_OK;
}

static bool is_eos(const RowContext *context, int32_t id)
{
    for (int i = 0; i < context->arch->n_eos; i++)
        if (context->arch->eos[i] == id)
            return true;
    return false;
}

static bool in_list(const IdList *list, int32_t id)
{
    for (int i = 0; i < list->n; i++)
        if (list->ids[i] == id)
            return true;
    return false;
}

static void finish(Row *r, Choice *c, FinishReason reason)
{
    c->finish = reason;
    r->n_finished++;
}

Status choice_accept(const RowContext *context, Row *r, Choice *c, int32_t id,
                     const TokenLogprobs *lp, Err *e)
{
    const SamplingParams *p = &r->params;
    if (c->finish != FINISH_NONE || (p->logprobs >= 0) != (lp != NULL))
        return err_set(
            e, ST_INPUT,
            "row %lld: a token came for a finished choice, or without its log-probabilities",
            (long long)r->index);
    TRY(append(r, c, id, lp, e));
    bool early = c->out.n < (size_t)p->min_tokens;
    bool eos = !early && !p->ignore_eos && is_eos(context, id);
    bool stop = !early && (eos || in_list(&p->stop_ids, id));
    if (p->n_stop && (!stop || p->include_stop_str))
        TRY(choice_match_stop(context, r, c, id, e));
    if (stop && c->stop_string < 0) {
        c->stop_token = eos ? -1 : id;
        finish(r, c, FINISH_STOP);
    } else if (c->stop_string >= 0) {
        finish(r, c, FINISH_STOP);
    } else if (c->out.n >= (size_t)choice_max_new(context, r, c)) {
        finish(r, c, FINISH_LENGTH);
    }
    return ST_OK;
}

int64_t row_prompt_tokens(const Row *r)
{
    int64_t n = 0;
    for (int i = 0; i < r->n_prompts && !r->error.status; i++)
        n += (int64_t)r->prompts[i].ids.n;
    return n;
}

int64_t row_completion_tokens(const Row *r)
{
    int64_t n = 0;
    for (int i = 0; i < r->n_choices && !r->error.status; i++)
        n += (int64_t)r->choices[i].out.n;
    return n;
}
