/* jobs/row_params.c - see row_params.h. Keys with one number or one switch are read by the table of
 * row_keys.c; lists have a function each in row_lists.c. */
#include "jobs/row_params.h"

#include "jobs/row_keys.h"
#include "jobs/row_lists.h"

#include <limits.h>
#include <math.h>
#include <string.h>

enum { MAX_STOP = 4 };

bool row_json_int(const JsonValue *v, int64_t *out)
{
    double d;
    if (json_int64(v, out))
        return true;
    if (!json_double(v, &d) || d != floor(d) || fabs(d) > 9007199254740992.0)
        return false;
    *out = (int64_t)d;
    return true;
}

void row_default_params(const RowContext *context, SamplingParams *out)
{
    static const GenerationDefaults none;
    const GenerationDefaults *g =
        context->generation && context->generation->present ? context->generation : &none;
    *out = (SamplingParams){.n = 1, .logprobs = -1, .prompt_logprobs = -1, .skip_special = true};
    out->max_tokens = context->has_max_tokens ? context->max_tokens
                      : g->has_max_new_tokens ? g->max_new_tokens
                                              : 16;
    out->temperature = context->has_temperature ? context->temperature
                       : g->has_temperature     ? g->temperature
                                                : 1.0;
    out->top_p = context->has_top_p ? context->top_p : g->has_top_p ? g->top_p : 1.0;
    out->top_k = context->has_top_k ? context->top_k : g->has_top_k ? g->top_k : 0;
    out->min_p = g->has_min_p ? g->min_p : 0.0;
    out->repetition_penalty = g->has_repetition_penalty ? g->repetition_penalty : 1.0;
    out->seed = context->has_seed ? context->seed : 0;
}

typedef struct DefaultsWriter {
    StrBuf *out;
    bool sources;
} DefaultsWriter;

static void add_default(const DefaultsWriter *w, const char *name, double value, bool integer,
                        bool flag, bool file)
{
    const char *source = flag ? "flag" : file ? "generation_config.json" : "default";
    strbuf_fmt(w->out, "\"%s\":%s", name, w->sources ? "{\"value\":" : "");
    if (integer)
        strbuf_fmt(w->out, "%.0f", value);
    else
        strbuf_json_double(w->out, value);
    if (w->sources)
        strbuf_fmt(w->out, ",\"from\":\"%s\"}", source);
    strbuf_str(w->out, ",");
}

void row_defaults_json(const RowContext *context, bool sources, StrBuf *out)
{
    static const GenerationDefaults none;
    const GenerationDefaults *g =
        context->generation && context->generation->present ? context->generation : &none;
    DefaultsWriter w = {out, sources};
    SamplingParams p;
    row_default_params(context, &p);
    strbuf_str(out, "{");
    add_default(&w, "max_tokens", p.max_tokens, true, context->has_max_tokens,
                g->has_max_new_tokens);
    add_default(&w, "temperature", p.temperature, false, context->has_temperature,
                g->has_temperature);
    add_default(&w, "top_p", p.top_p, false, context->has_top_p, g->has_top_p);
    add_default(&w, "top_k", p.top_k, true, context->has_top_k, g->has_top_k);
    add_default(&w, "min_p", p.min_p, false, false, g->has_min_p);
    add_default(&w, "repetition_penalty", p.repetition_penalty, false, false,
                g->has_repetition_penalty);
    strbuf_fmt(out, sources ? "\"seed\":{\"value\":%lld,\"from\":\"%s\"}," : "\"seed\":%lld,",
               (long long)p.seed, context->has_seed ? "flag" : "default");
    strbuf_fmt(out, "\"max_model_len\":%d}", context->max_len);
}

static bool is_neutral(const JsonValue *v, const char *neutral)
{
    double d;
    if (!neutral)
        return false;
    switch (v->type) {
    case JSON_FALSE:
        return strcmp(neutral, "false") == 0;
    case JSON_TRUE:
        return strcmp(neutral, "true") == 0;
    case JSON_NUMBER:
        return strcmp(neutral, "1") == 0 && json_double(v, &d) && d == 1.0;
    case JSON_ARRAY:
        return strcmp(neutral, "[]") == 0 && v->len == 0;
    case JSON_OBJECT:
        return strcmp(neutral, "text") == 0 && json_is_string(json_get(v, "type"), "text");
    default:
        return false;
    }
}

static Status parse_int(const BodyKey *k, const JsonValue *v, Row *r, SamplingParams *p)
{
    int64_t value;
    if (!row_json_int(v, &value))
        return row_refuse_type(r, k->name, "an integer");
    if (k->clamp && value > INT_MAX)
        value = INT_MAX;
    if (value > INT_MAX || value < INT_MIN)
        value = value < 0 ? INT_MIN : INT_MAX; /* out of range either way */
    *(int *)((char *)p + k->offset) = (int)value;
    return ST_OK;
}

static Status parse_key(const BodyKey *k, const JsonValue *v, Row *r)
{
    SamplingParams *p = &r->params;
    char *at = (char *)p + k->offset;
    switch (k->kind) {
    case KEY_INT:
        return parse_int(k, v, r, p);
    case KEY_INT64:
        return row_json_int(v, (int64_t *)at) ? ST_OK
                                              : row_refuse_type(r, k->name, "a 64-bit integer");
    case KEY_REAL:
        return json_double(v, (double *)at) ? ST_OK : row_refuse_type(r, k->name, "a number");
    case KEY_BOOL:
        if (v->type != JSON_TRUE && v->type != JSON_FALSE)
            return row_refuse_type(r, k->name, "true or false");
        *(bool *)at = v->type == JSON_TRUE;
        return ST_OK;
    case KEY_UNSUPPORTED:
        if (!is_neutral(v, k->neutral))
            return row_refuse(r, "unsupported_parameter", k->name, "%s is not supported%s", k->name,
                              k->neutral ? " with this value" : "");
        return ST_OK;
    default:
        return ST_OK;
    }
}

/* After all sources were merged, so that values from generation_config.json are held to the same
 * ranges. */
static Status check_range(const BodyKey *k, bool given, Row *r)
{
    const char *at = (const char *)&r->params + k->offset;
    const char *param = k->names_param ? k->name : NULL;
    double v = k->kind == KEY_INT ? (double)*(const int *)at : *(const double *)at;
    if (k->optional && !given)
        return ST_OK;
    if (isfinite(v) && (k->open_min ? v > k->min : v >= k->min) && v <= k->max)
        return ST_OK;
    if (isfinite(k->max) && k->max < INT_MAX)
        return row_refuse(r, "invalid_request", param, "%s must be %s %g and at most %g, not %g",
                          k->name, k->open_min ? "above" : "at least", k->min, k->max, v);
    return row_refuse(r, "invalid_request", param, "%s must be a finite number %s %g, not %g",
                      k->name, k->open_min ? "above" : "of at least", k->min, v);
}

static Status parse_prompt_params(const JsonValue *body, Row *r, PromptParams *out)
{
    const JsonValue *v = json_get(body, "add_special_tokens");
    *out = (PromptParams){.add_special = true};
    if (v && v->type != JSON_NULL) {
        if (v->type != JSON_TRUE && v->type != JSON_FALSE)
            return row_refuse_type(r, "add_special_tokens", "true or false");
        out->add_special = v->type == JSON_TRUE;
    }
    v = json_get(body, "truncate_prompt_tokens");
    if (v && v->type != JSON_NULL) {
        if (!row_json_int(v, &out->truncate) || out->truncate < -1)
            return row_refuse_type(r, "truncate_prompt_tokens", "an integer of at least -1");
        if (out->truncate == 0)
            return row_refuse(r, "invalid_request", "truncate_prompt_tokens",
                              "truncate_prompt_tokens 0 leaves no prompt");
    }
    v = json_get(body, "truncation_side");
    if (v && v->type != JSON_NULL) {
        if (!json_is_string(v, "left") && !json_is_string(v, "right"))
            return row_refuse_type(r, "truncation_side", "\"left\" or \"right\"");
        out->truncate_right = json_is_string(v, "right");
    }
    return ST_OK;
}

/* What needs more than one key. */
static Status check_together(Row *r)
{
    SamplingParams *p = &r->params;
    if (p->max_tokens == 0 && !p->echo)
        return row_refuse(r, "invalid_request", "max_tokens",
                          "max_tokens is 0, which only echo gives a use");
    if (p->min_tokens > p->max_tokens)
        return row_refuse(r, "invalid_request", NULL, "min_tokens %d is more than max_tokens %d",
                          p->min_tokens, p->max_tokens);
    if (p->n > 1 && p->temperature == 0)
        return row_refuse(r, "invalid_request", NULL,
                          "n is %d, but at temperature 0 all answers are the same", p->n);
    if (p->top_k < 0)
        p->top_k = 0;
    if (p->echo && p->prompt_logprobs < 0)
        p->prompt_logprobs = p->logprobs;
    return ST_OK;
}

Status row_params_parse(const RowContext *context, TokenizerCache *cache, const JsonValue *body,
                        Row *r, PromptParams *prompt, Err *e)
{
    row_default_params(context, &r->params);
    for (int i = 0; i < n_body_keys; i++) {
        const BodyKey *k = &body_keys[i];
        const JsonValue *v = json_get(body, k->name);
        bool given = v && v->type != JSON_NULL;
        if (given)
            TRY(parse_key(k, v, r));
        if (k->kind == KEY_INT || k->kind == KEY_REAL)
            TRY(check_range(k, given, r));
    }
    TRY(parse_prompt_params(body, r, prompt));
    TRY(check_together(r));
    TRY(row_parse_stop(context, json_get(body, "stop"), MAX_STOP, r, e));
    TRY(row_parse_ids(context, json_get(body, "stop_token_ids"), "stop_token_ids", r,
                      &r->params.stop_ids, e));
    TRY(row_parse_allowed(context, json_get(body, "allowed_token_ids"), r, e));
    TRY(row_parse_bias(context, json_get(body, "logit_bias"), r, e));
    return row_parse_bad_words(context, cache, json_get(body, "bad_words"), r, e);
}
