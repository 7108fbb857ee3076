/* jobs/row_lists.c - see row_lists.h. */
#include "jobs/row_lists.h"

#include <stdlib.h>
#include <string.h>

static Status no_memory(Err *e)
{
    return err_set(e, ST_MEMORY, "not enough memory for a row's lists");
}

static bool given(const JsonValue *v)
{
    return v && v->type != JSON_NULL;
}

Status row_parse_stop(const RowContext *context, const JsonValue *v, int max, Row *r, Err *e)
{
    SamplingParams *p = &r->params;
    if (!given(v) || (v->type == JSON_ARRAY && v->len == 0))
        return ST_OK;
    if (v->type != JSON_STRING && v->type != JSON_ARRAY)
        return row_refuse_type(r, "stop", "a string or a list of strings");
    if (v->type == JSON_ARRAY && v->len > (size_t)max)
        return row_refuse_type(r, "stop", "at most 4 strings");
    bool one = v->type == JSON_STRING;
    StopString *stop = arena_alloc(&r->arena, (one ? 1 : v->len) * sizeof *stop);
    if (!stop)
        return no_memory(e);
    for (const JsonValue *s = one ? v : v->child; s; s = one ? NULL : s->next) {
        if (s->type != JSON_STRING)
            return row_refuse_type(r, "stop", "a string or a list of strings");
        if (s->len == 0)
            return row_refuse(r, "invalid_request", NULL, "a stop string is empty");
        stop[p->n_stop].text = arena_copy(&r->arena, s->text, s->len);
        stop[p->n_stop].len = s->len;
        if (!stop[p->n_stop++].text)
            return no_memory(e);
    }
    p->stop = stop;
    if (!context->tokenizer)
        return row_refuse(r, "unsupported_parameter", "stop",
                          "stop strings need a tokenizer, and the model has none");
    return ST_OK;
}

Status row_parse_ids(const RowContext *context, const JsonValue *v, const char *key, Row *r,
                     IdList *out, Err *e)
{
    *out = (IdList){0};
    if (!given(v) || (v->type == JSON_ARRAY && v->len == 0))
        return ST_OK;
    if (v->type != JSON_ARRAY || v->len > INT32_MAX)
        return row_refuse_type(r, key, "a list of integers");
    int32_t *ids = arena_alloc(&r->arena, v->len * sizeof *ids);
    if (!ids)
        return no_memory(e);
    for (const JsonValue *m = v->child; m; m = m->next) {
        int64_t id;
        if (!row_json_int(m, &id))
            return row_refuse_type(r, key, "a list of integers");
        if (id < 0 || id >= context->arch->vocab)
            return row_refuse(r, "invalid_request", key, "%s: token id %lld is not in 0..%d", key,
                              (long long)id, context->arch->vocab - 1);
        ids[out->n++] = (int32_t)id;
    }
    out->ids = ids;
    return ST_OK;
}

static int by_id(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

Status row_parse_allowed(const RowContext *context, const JsonValue *v, Row *r, Err *e)
{
    IdList *out = &r->params.allowed;
    TRY(row_parse_ids(context, v, "allowed_token_ids", r, out, e));
    if (given(v) && out->n == 0)
        return row_refuse(r, "invalid_request", "allowed_token_ids",
                          "allowed_token_ids allows no token");
    if (out->n == 0)
        return ST_OK;
    int32_t *ids = (int32_t *)out->ids; /* this function's own list so far */
    qsort(ids, (size_t)out->n, sizeof *ids, by_id);
    int n = 1;
    for (int i = 1; i < out->n; i++)
        if (ids[i] != ids[n - 1])
            ids[n++] = ids[i];
    out->n = n;
    return ST_OK;
}

typedef struct OrderedBias {
    LogitBias bias;
    int order;
} OrderedBias;

static int by_id_and_order(const void *a, const void *b)
{
    const OrderedBias *x = a, *y = b;
    if (x->bias.id != y->bias.id)
        return x->bias.id < y->bias.id ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

/* A JSON member name as a token id: decimal digits, nothing else. */
static bool parse_id_key(const JsonValue *m, int64_t *id)
{
    *id = 0;
    if (m->key_len == 0 || m->key_len > 18)
        return false;
    for (uint32_t i = 0; i < m->key_len; i++) {
        if (m->key[i] < '0' || m->key[i] > '9')
            return false;
        *id = *id * 10 + (m->key[i] - '0');
    }
    return true;
}

static Status parse_one_bias(const RowContext *context, const JsonValue *m, Row *r, LogitBias *out)
{
    int64_t id;
    double value;
    if (!parse_id_key(m, &id))
        return row_refuse(r, "invalid_request", "logit_bias",
                          "logit_bias: \"%.40s\" is not a token id", m->key);
    if (id >= context->arch->vocab)
        return row_refuse(r, "invalid_request", "logit_bias",
                          "logit_bias: token id %lld is not in 0..%d", (long long)id,
                          context->arch->vocab - 1);
    if (!json_double(m, &value))
        return row_refuse_type(r, "logit_bias", "a map from token ids to numbers");
    value = value > 100 ? 100 : value < -100 ? -100 : value;
    *out = (LogitBias){(int32_t)id, (float)value};
    return ST_OK;
}

Status row_parse_bias(const RowContext *context, const JsonValue *v, Row *r, Err *e)
{
    if (!given(v))
        return ST_OK;
    if (v->type != JSON_OBJECT || v->len > INT32_MAX)
        return row_refuse_type(r, "logit_bias", "a map from token ids to numbers");
    OrderedBias *all = malloc((v->len + 1) * sizeof *all);
    LogitBias *out = arena_alloc(&r->arena, v->len * sizeof *out);
    Status st = all && out ? ST_OK : no_memory(e);
    int n = 0;
    for (const JsonValue *m = v->child; m && st == ST_OK; m = m->next, n++) {
        st = parse_one_bias(context, m, r, &all[n].bias);
        all[n].order = n;
    }
    if (st == ST_OK) {
        qsort(all, (size_t)n, sizeof *all, by_id_and_order);
        for (int i = 0; i < n; i++)
            if (i + 1 == n || all[i + 1].bias.id != all[i].bias.id)
                out[r->params.n_bias++] = all[i].bias;
        r->params.bias = out;
    }
    free(all);
    return st;
}

/* Adds the ids of lead + word unless an equal sequence is there. */
static Status add_bad_word(const RowContext *context, TokenizerCache *cache, const char *lead,
                           const char *word, size_t len, IdList *list, Row *r, Err *e)
{
    TokenIds ids = {0};
    StrBuf text = {0};
    strbuf_str(&text, lead);
    strbuf_add(&text, word, len);
    Status st = text.failed ? no_memory(e)
                            : tokenizer_encode(context->tokenizer, cache, text.data, text.len,
                                               false, &ids, e);
    strbuf_free(&text);
    if (st == ST_OK && ids.n == 0)
        st = row_refuse(r, "invalid_request", "bad_words", "a word in bad_words has no tokens");
    for (int i = 0; i < r->params.n_bad_words && st == ST_OK; i++)
        if ((size_t)list[i].n == ids.n &&
            memcmp(list[i].ids, ids.ids, ids.n * sizeof *ids.ids) == 0)
            goto done;
    if (st == ST_OK) {
        int32_t *copy = arena_alloc(&r->arena, ids.n * sizeof *copy);
        if (copy) {
            memcpy(copy, ids.ids, ids.n * sizeof *copy);
            list[r->params.n_bad_words++] = (IdList){copy, (int)ids.n};
        } else {
            st = no_memory(e);
        }
    }
done:
    tokenids_free(&ids);
    return st;
}

Status row_parse_bad_words(const RowContext *context, TokenizerCache *cache, const JsonValue *v,
                           Row *r, Err *e)
{
    if (!given(v) || (v->type == JSON_ARRAY && v->len == 0))
        return ST_OK;
    if (v->type != JSON_ARRAY || v->len > INT32_MAX / 2)
        return row_refuse_type(r, "bad_words", "a list of strings");
    if (!context->tokenizer)
        return row_refuse(r, "unsupported_parameter", "bad_words",
                          "bad_words needs a tokenizer, and the model has none");
    IdList *list = arena_alloc(&r->arena, 2 * v->len * sizeof *list);
    if (!list)
        return no_memory(e);
    for (const JsonValue *w = v->child; w; w = w->next) {
        if (w->type != JSON_STRING)
            return row_refuse_type(r, "bad_words", "a list of strings");
        if (w->len == 0)
            return row_refuse(r, "invalid_request", NULL, "a word in bad_words is empty");
        const char *word = w->text;
        size_t len = w->len;
        while (len > 1 && *word == ' ') { /* both forms are banned, whichever was given */
            word++;
            len--;
        }
        TRY(add_bad_word(context, cache, "", word, len, list, r, e));
        TRY(add_bad_word(context, cache, " ", word, len, list, r, e));
    }
    r->params.bad_words = list;
    return ST_OK;
}
