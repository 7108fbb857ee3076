/* jobs/row_parse.c - from an input line to a Row: which of the accepted forms it has, whose it is,
 * and its prompts. */
#include "jobs/row_params.h"

#include "io/digest.h"
#include "jobs/row_overlong.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CHOICES = 1 << 20 };

typedef struct LineParts {
    const JsonValue *body;   /* an object: of a batch line, or the line itself */
    const JsonValue *prompt; /* NULL or null: missing */
    bool ids_only;           /* prompt is the value of "input_ids" */
} LineParts;

static bool given(const JsonValue *v)
{
    return v && v->type != JSON_NULL;
}

/* Row key: contract.md section 1. A line number is hashed as eight bytes, so that it never meets a
 * custom_id that looks like it. */
static Status make_key(Row *r, Err *e)
{
    if (r->custom_id)
        return sha256_of(r->custom_id, r->custom_id_len, r->key, e);
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)r->line >> (8 * i));
    return sha256_of(bytes, sizeof bytes, r->key, e);
}

static Status take_custom_id(const JsonValue *line, Row *r, Err *e)
{
    const JsonValue *id = json_get(line, "custom_id");
    if (json_count_key(line, "custom_id") > 1)
        return row_refuse(r, "invalid_request", "custom_id", "the line has two keys \"custom_id\"");
    if (!given(id))
        return ST_OK;
    if (id->type != JSON_STRING)
        return row_refuse(r, "invalid_request", "custom_id", "custom_id must be a string");
    char *copy = arena_copy(&r->arena, id->text, id->len);
    if (!copy)
        return err_set(e, ST_MEMORY, "not enough memory for a custom_id");
    r->custom_id = copy;
    r->custom_id_len = id->len;
    return make_key(r, e);
}

static Status split_batch_line(const JsonValue *line, Row *r, LineParts *out)
{
    const JsonValue *method = json_get(line, "method"), *url = json_get(line, "url");
    if (!r->custom_id)
        return row_refuse(r, "invalid_request", "custom_id", "a batch line needs a custom_id");
    if (given(method) && !json_is_string(method, "POST"))
        return row_refuse(r, "invalid_request", "method", "method must be \"POST\"");
    if (!given(url) || url->type != JSON_STRING)
        return row_refuse(r, "invalid_request", "url",
                          "a batch line needs a url, which is a string");
    if (!json_is_string(url, "/v1/completions"))
        return row_refuse(r, "unsupported_url", "url",
                          "url \"%.80s\" is not supported; /v1/completions is", url->text);
    out->body = json_get(line, "body");
    if (!out->body || out->body->type != JSON_OBJECT)
        return row_refuse(r, "invalid_request", "body", "body must be an object");
    out->prompt = json_get(out->body, "prompt");
    return ST_OK;
}

static Status split_line(const JsonValue *line, Row *r, LineParts *out)
{
    const JsonValue *ids = json_get(line, "input_ids");
    out->body = line;
    out->prompt = json_get(line, "prompt");
    if (json_get(line, "url") || json_get(line, "body") || json_get(line, "method"))
        return split_batch_line(line, r, out);
    if (json_get(line, "messages"))
        return row_refuse(r, "unsupported_url", "messages", "chat rows are not supported");
    if (!ids && !out->prompt)
        return row_refuse(
            r, "invalid_request", "prompt",
            "the line has neither \"prompt\", \"input_ids\" nor \"url\" and \"body\"");
    if (given(ids) && given(out->prompt))
        return row_refuse(r, "invalid_request", "input_ids",
                          "the line has both \"prompt\" and \"input_ids\"");
    if (given(ids)) {
        out->prompt = ids;
        out->ids_only = true;
    }
    return ST_OK;
}

static Status take_model(const RowContext *context, const JsonValue *body, Row *r, Err *e)
{
    const JsonValue *model = json_get(body, "model");
    const char *served = context->served_name;
    if (!given(model)) {
        const char *name = served ? served : context->default_name;
        r->model = arena_copy(&r->arena, name, strlen(name));
    } else if (model->type != JSON_STRING || strlen(model->text) != model->len) {
        return row_refuse_type(r, "model", "a string");
    } else if (served && !json_is_string(model, served)) {
        row_fail(r, 404, "invalid_request", "model",
                 "the model \"%.80s\" is not served here; \"%.80s\" is", model->text, served);
        return ST_INPUT;
    } else {
        r->model = arena_copy(&r->arena, model->text, model->len);
    }
    return r->model ? ST_OK : err_set(e, ST_MEMORY, "not enough memory for a model name");
}

/* One prompt given as token ids. */
static Status take_ids(const RowContext *context, const JsonValue *list, const LineParts *parts,
                       Row *r, Prompt *p, Err *e)
{
    const char *key = parts->ids_only ? "input_ids" : "prompt";
    p->ids.ids = malloc((list->len + 1) * sizeof *p->ids.ids);
    if (!p->ids.ids)
        return err_set(e, ST_MEMORY, "not enough memory for %zu token ids", list->len);
    p->ids.cap = list->len + 1;
    for (const JsonValue *m = list->child; m; m = m->next) {
        int64_t id;
        double big;
        if (!row_json_int(m, &id)) {
            if (!json_double(m, &big) || big < 9e15)
                return row_refuse_type(r, key, "a list of token ids");
            id = INT64_MAX;
        }
        if (id < 0)
            return row_refuse_type(r, key, "a list of token ids, which are not negative");
        if (id >= context->arch->vocab)
            return row_refuse(r, "invalid_request", NULL,
                              "token id %.40s is out of vocabulary (0..%d)", m->text,
                              context->arch->vocab - 1);
        p->ids.ids[p->ids.n++] = (int32_t)id;
    }
    return ST_OK;
}

static Status take_text(const RowContext *context, TokenizerCache *cache, const JsonValue *text,
                        const PromptParams *params, Row *r, Prompt *p, Err *e)
{
    if (!context->tokenizer)
        return row_refuse(
            r, "unsupported_parameter", "prompt",
            "a prompt of text needs a tokenizer, and the model has none; give token ids");
    if (text->len == 0)
        return row_refuse(r, "invalid_request", "prompt", "the prompt is empty");
    TRY(tokenizer_encode(context->tokenizer, cache, text->text, text->len, params->add_special,
                         &p->ids, e));
    if (!r->params.echo)
        return ST_OK;
    p->text = arena_copy(&r->arena, text->text, text->len);
    p->text_len = text->len;
    return p->text
               ? ST_OK
               : err_set(e, ST_MEMORY, "not enough memory for a prompt of %zu bytes", text->len);
}

/* Keeps what truncate_prompt_tokens asks for. A truncated prompt is echoed as what is left of it.
 */
static void truncate_prompt(const RowContext *context, const PromptParams *params, const Row *r,
                            Prompt *p)
{
    int64_t keep = params->truncate;
    if (keep < 0)
        keep = r->params.max_tokens < context->max_len ? context->max_len - r->params.max_tokens
                                                       : context->max_len - 1;
    if (keep == 0 || (uint64_t)keep >= p->ids.n)
        return;
    if (!params->truncate_right)
        memmove(p->ids.ids, p->ids.ids + p->ids.n - (size_t)keep,
                (size_t)keep * sizeof *p->ids.ids);
    p->ids.n = (size_t)keep;
    p->text = NULL;
}

/* at_least: there may be more than n. */
static Status check_length(const RowContext *context, size_t n, bool at_least, Row *r)
{
    size_t room = (size_t)context->max_len - (r->params.max_tokens > 0);
    if (n == 0)
        return row_refuse(r, "invalid_request", "prompt", "the prompt has no tokens");
    if (n > room)
        return row_refuse(r, "context_length_exceeded", "input_tokens",
                          "the prompt has %s%zu tokens; a context of %d takes %zu%s",
                          at_least ? "at least " : "", n, context->max_len, room,
                          r->params.max_tokens > 0 ? " and an answer" : "");
    return ST_OK;
}

static Status finish_prompt(const RowContext *context, const PromptParams *params, Row *r,
                            Prompt *p, Err *e)
{
    if (params->truncate)
        truncate_prompt(context, params, r, p);
    TRY(check_length(context, p->ids.n, false, r));
    if (r->params.prompt_logprobs < 0)
        return ST_OK;
    p->logprobs = arena_alloc(&r->arena, p->ids.n * sizeof *p->logprobs);
    if (!p->logprobs)
        return err_set(e, ST_MEMORY, "not enough memory for the log-probabilities of %zu tokens",
                       p->ids.n);
    memset(p->logprobs, 0, p->ids.n * sizeof *p->logprobs);
    return ST_OK;
}

static Status take_one_prompt(const RowContext *context, TokenizerCache *cache, const JsonValue *v,
                              const LineParts *parts, const PromptParams *params, Row *r, Err *e)
{
    Prompt *p = &r->prompts[r->n_prompts++];
    if (v->type == JSON_STRING)
        TRY(take_text(context, cache, v, params, r, p, e));
    else
        TRY(take_ids(context, v, parts, r, p, e));
    return finish_prompt(context, params, r, p, e);
}

/* The four forms: text, [text], [id], [[id]]; input_ids knows the last two. */
static Status take_prompts(const RowContext *context, TokenizerCache *cache, const LineParts *parts,
                           const PromptParams *params, Row *r, Err *e)
{
    const JsonValue *v = parts->prompt;
    const char *key = parts->ids_only ? "input_ids" : "prompt";
    if (!given(v) || (v->type == JSON_ARRAY && v->len == 0))
        return row_refuse(r, "invalid_request", key, "%s is missing or empty", key);
    bool list = v->type == JSON_ARRAY && v->child->type != JSON_NUMBER;
    JsonType type = list ? v->child->type : v->type;
    for (const JsonValue *m = list ? v->child : v; m; m = list ? m->next : NULL)
        if (m->type != type || (type != JSON_ARRAY && (type != JSON_STRING || parts->ids_only)))
            return row_refuse_type(r, key,
                                   parts->ids_only ? "a list of token ids, or a list of such lists"
                                                   : "text, token ids, or a list of either");
    size_t n = list ? v->len : 1;
    if (n > (size_t)(MAX_CHOICES / r->params.n))
        return row_refuse(r, "invalid_request", key,
                          "%zu prompts with n %d are too many for one row", n, r->params.n);
    r->prompts = arena_alloc(&r->arena, n * sizeof *r->prompts);
    if (!r->prompts)
        return err_set(e, ST_MEMORY, "not enough memory for %zu prompts", n);
    memset(r->prompts, 0, n * sizeof *r->prompts);
    for (const JsonValue *m = list ? v->child : v; m; m = list ? m->next : NULL)
        TRY(take_one_prompt(context, cache, m, parts, params, r, e));
    return ST_OK;
}

static Status make_choices(Row *r, Err *e)
{
    int n = r->n_prompts * r->params.n;
    r->choices = arena_alloc(&r->arena, (size_t)n * sizeof *r->choices);
    if (!r->choices)
        return err_set(e, ST_MEMORY, "not enough memory for %d choices", n);
    for (int i = 0; i < n; i++)
        r->choices[i] = (Choice){.prompt = i / r->params.n,
                                 .sample = i % r->params.n,
                                 .stop_token = -1,
                                 .stop_string = -1,
                                 .text_cut = SIZE_MAX};
    r->n_choices = n;
    return ST_OK;
}

static Status parse_tree(const RowContext *context, TokenizerCache *cache, const JsonValue *line,
                         int64_t duplicate_of, size_t n_overlong, Row *r, Err *e)
{
    LineParts parts = {0};
    PromptParams params;
    if (line->type != JSON_OBJECT)
        return row_refuse(r, "invalid_request", NULL, "the line is not a JSON object");
    TRY(take_custom_id(line, r, e));
    if (duplicate_of)
        return row_refuse(r, "duplicate_custom_id", "custom_id", "line %lld has the same custom_id",
                          (long long)duplicate_of);
    TRY(split_line(line, r, &parts));
    TRY(take_model(context, parts.body, r, e));
    TRY(row_params_parse(context, cache, parts.body, r, &params, e));
    if (n_overlong)
        return check_length(context, n_overlong, true, r);
    TRY(take_prompts(context, cache, &parts, &params, r, e));
    return make_choices(r, e);
}

static Status parse_line(const RowContext *context, TokenizerCache *cache, const char *line,
                         size_t len, int64_t duplicate_of, Row *r, Err *e)
{
    Arena tree = {0};
    StrBuf reduced = {0};
    JsonValue *v;
    size_t n_overlong;
    Status st = ST_OK;
    TRY_GOTO(sha256_of(line, len, r->digest, e));
    TRY_GOTO(make_key(r, e));
    TRY_GOTO(row_cut_overlong(context, line, len, &reduced, &n_overlong, e));
    st = json_parse(n_overlong ? reduced.data : line, n_overlong ? reduced.len : len, &tree, &v, e);
    if (st == ST_INPUT)
        st = row_refuse(r, "invalid_json", NULL, "%s", e->text);
    else if (st == ST_OK)
        st = parse_tree(context, cache, v, duplicate_of, n_overlong, r, e);
fail:
    arena_free(&tree);
    strbuf_free(&reduced);
    return st;
}

Status row_parse(const RowContext *context, TokenizerCache *cache, const char *line, size_t len,
                 int64_t index, int64_t line_no, int64_t duplicate_of, Row **out, Err *e)
{
    Row *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r)
        return err_set(e, ST_MEMORY, "not enough memory for a row");
    r->index = index;
    r->line = line_no;
    Status st = parse_line(context, cache, line, len, duplicate_of, r, e);
    if (st == ST_INPUT && !r->error.status) /* the tokenizer refused the text */
        row_fail(r, 400, "invalid_request", "prompt", "%s", e->text);
    if (st != ST_OK && st != ST_INPUT) {
        row_free(r);
        return st;
    }
    *out = r;
    return ST_OK;
}
