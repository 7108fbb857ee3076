/* jobs/score.c - see score.h. */
#include "jobs/score.h"

#include "io/json.h"

#include <stdlib.h>
#include <string.h>

/* A row of one prompt whose every position is scored, and nothing generated. */
static Status make_row(int64_t index, int64_t line_no, Row **out, Err *e)
{
    Row *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ST_MEMORY, "out of memory for a row");
    r->index = index;
    r->line = line_no;
    r->params = (SamplingParams){
        .n = 1, .logprobs = -1, .prompt_logprobs = 0, .repetition_penalty = 1, .echo = true};
    r->prompts = arena_alloc(&r->arena, sizeof *r->prompts);
    r->choices = arena_alloc(&r->arena, sizeof *r->choices);
    if (!r->prompts || !r->choices) {
        row_free(r);
        return err_set(e, ST_MEMORY, "out of memory for a row");
    }
    r->prompts[0] = (Prompt){0};
    r->choices[0] = (Choice){.stop_token = -1, .stop_string = -1, .text_cut = SIZE_MAX};
    r->n_prompts = r->n_choices = 1;
    *out = r;
    return ST_OK;
}

static Status add_logprobs(Row *r, Err *e)
{
    Prompt *p = &r->prompts[0];
    p->logprobs = arena_alloc(&r->arena, p->ids.n * sizeof *p->logprobs);
    return p->logprobs ? ST_OK
                       : err_set(e, ST_MEMORY, "out of memory for %zu log-probabilities", p->ids.n);
}

Status score_row_from_ids(const int32_t *ids, size_t n, int64_t index, Row **out, Err *e)
{
    Row *r;
    bool failed = false;
    TRY(make_row(index, index + 1, &r, e));
    for (size_t i = 0; i < n; i++)
        tokenids_push(&r->prompts[0].ids, ids[i], &failed);
    Status st = failed ? err_set(e, ST_MEMORY, "out of memory for %zu ids", n) : add_logprobs(r, e);
    if (st != ST_OK) {
        row_free(r);
        return st;
    }
    *out = r;
    return ST_OK;
}

static Status read_ids(const RowContext *context, Row *r, const JsonValue *list, Err *e)
{
    bool failed = false;
    for (const JsonValue *v = list->child; v; v = v->next) {
        int64_t id;
        if (!json_int64(v, &id) || id < 0 || id >= context->arch->vocab) {
            row_fail(r, 400, "invalid_request", "input_ids",
                     "input_ids: expected integers from 0 to %d", context->arch->vocab - 1);
            return ST_OK;
        }
        tokenids_push(&r->prompts[0].ids, (int32_t)id, &failed);
    }
    return failed
               ? err_set(e, ST_MEMORY, "out of memory for the ids of line %lld", (long long)r->line)
               : ST_OK;
}

static Status read_text(const RowContext *context, TokenizerCache *cache, Row *r,
                        const JsonValue *text, Err *e)
{
    if (!context->tokenizer) {
        row_fail(r, 400, "invalid_request", "text",
                 "the model has no tokenizer.json or tiktoken.model: only input_ids rows work");
        return ST_OK;
    }
    return tokenizer_encode(context->tokenizer, cache, text->text, text->len, true,
                            &r->prompts[0].ids, e);
}

static Status read_row(const RowContext *context, TokenizerCache *cache, const JsonValue *v, Row *r,
                       Err *e)
{
    const JsonValue *id = json_get(v, "custom_id"), *ids = json_get(v, "input_ids"),
                    *text = json_get(v, "text");
    if (v->type != JSON_OBJECT) {
        row_fail(r, 400, "invalid_request", NULL, "the line is not a JSON object");
        return ST_OK;
    }
    if (id && id->type == JSON_STRING) {
        r->custom_id = arena_copy(&r->arena, id->text, id->len);
        r->custom_id_len = id->len;
        if (!r->custom_id)
            return err_set(e, ST_MEMORY, "out of memory for a custom_id");
    } else if (id && id->type != JSON_NULL) {
        row_fail(r, 400, "invalid_request", "custom_id", "custom_id: expected a string");
        return ST_OK;
    }
    if (json_count_key(v, "custom_id") > 1)
        row_fail(r, 400, "invalid_request", "custom_id", "custom_id is there twice");
    else if (ids && text)
        row_fail(r, 400, "invalid_request", NULL, "a row has either input_ids or text");
    else if (ids && ids->type == JSON_ARRAY)
        TRY(read_ids(context, r, ids, e));
    else if (text && text->type == JSON_STRING)
        TRY(read_text(context, cache, r, text, e));
    else
        row_fail(r, 400, "invalid_request",
                 ids    ? "input_ids"
                 : text ? "text"
                        : NULL,
                 "expected \"input_ids\" (a list of integers) or \"text\" (a string)");
    return ST_OK;
}

static Status check_length(const RowContext *context, Row *r, bool keep_logits, Err *e)
{
    size_t n = r->prompts[0].ids.n;
    if (r->error.status)
        return ST_OK;
    if (n == 0)
        row_fail(r, 400, "invalid_request", NULL, "the row has no tokens");
    else if (n > (size_t)context->max_len)
        row_fail(r, 400, "context_length_exceeded", NULL,
                 "the row has %zu tokens, the context is %d", n, context->max_len);
    if (r->error.status)
        return ST_OK;
    if (keep_logits) {
        r->logits = malloc(n * (size_t)context->arch->vocab * sizeof *r->logits);
        if (!r->logits)
            return err_set(e, ST_MEMORY, "out of memory for the logits of %zu tokens", n);
    }
    return add_logprobs(r, e);
}

Status score_parse(const RowContext *context, TokenizerCache *cache, const char *line, size_t len,
                   int64_t index, int64_t line_no, int64_t duplicate_of, bool keep_logits,
                   Row **out, Err *e)
{
    Row *r;
    JsonValue *v;
    Err bad;
    TRY(make_row(index, line_no, &r, e));
    Status st = json_parse(line, len, &r->arena, &v, &bad);
    if (st == ST_INPUT) {
        row_fail(r, 400, "invalid_json", NULL, "%s", bad.text);
        st = ST_OK;
    } else if (st != ST_OK) {
        *e = bad;
    } else {
        st = read_row(context, cache, v, r, e);
    }
    if (st == ST_OK && duplicate_of && !r->error.status)
        row_fail(r, 400, "duplicate_custom_id", "custom_id", "line %lld has the same custom_id",
                 (long long)duplicate_of);
    if (st == ST_OK)
        st = check_length(context, r, keep_logits, e);
    if (st != ST_OK) {
        row_free(r);
        return st;
    }
    *out = r;
    return ST_OK;
}

static void add_nullable(StrBuf *out, const char *text, size_t len)
{
    if (text)
        strbuf_json_string(out, text, len);
    else
        strbuf_str(out, "null");
}

static void render_error(const Row *r, StrBuf *out)
{
    strbuf_str(out, ",\"error\":{\"message\":");
    strbuf_json_string(out, r->error.message, strlen(r->error.message));
    strbuf_str(out, r->error.status >= 500 ? ",\"type\":\"server_error\",\"param\":"
                                           : ",\"type\":\"invalid_request_error\",\"param\":");
    add_nullable(out, r->error.param, r->error.param ? strlen(r->error.param) : 0);
    strbuf_str(out, ",\"code\":");
    add_nullable(out, r->error.code, r->error.code ? strlen(r->error.code) : 0);
    strbuf_str(out, "}}");
}

Status score_render(const Row *r, StrBuf *out, Err *e)
{
    const Prompt *p = &r->prompts[0];
    double sum = 0;
    strbuf_str(out, "{\"custom_id\":");
    add_nullable(out, r->custom_id, r->custom_id_len);
    if (r->error.status) {
        render_error(r, out);
        return out->failed
                   ? err_set(e, ST_MEMORY, "out of memory for line %lld", (long long)r->line)
                   : ST_OK;
    }
    strbuf_str(out, ",\"token_ids\":[");
    for (size_t i = 0; i < p->ids.n; i++)
        strbuf_fmt(out, i ? ",%d" : "%d", p->ids.ids[i]);
    strbuf_str(out, "],\"token_logprobs\":[null");
    for (size_t i = 1; i < p->ids.n; i++) {
        strbuf_str(out, ",");
        strbuf_json_float(out, p->logprobs[i].logprob);
        sum += (double)p->logprobs[i].logprob;
    }
    strbuf_str(out, "],\"logprob\":");
    strbuf_json_double(out, sum);
    strbuf_fmt(out, ",\"num_tokens\":%zu}", p->ids.n - 1);
    return out->failed ? err_set(e, ST_MEMORY, "out of memory for line %lld", (long long)r->line)
                       : ST_OK;
}
