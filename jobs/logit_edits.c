/* jobs/logit_edits.c - see logit_edits.h. */
#include "jobs/logit_edits.h"

#include "model/sampler.h"

#include <stdlib.h>
#include <string.h>

struct LogitEdits {
    int32_t *place; /* [vocab] 1 + where an id's edit is in the list; all 0 between calls */
    /* of the list at work */
    LogitEdit *list;
    int n, n_ids;
    bool closed; /* ids that have no edit get none */
};

Status logit_edits_create(int vocab, LogitEdits **out, Err *e)
{
    LogitEdits *l = calloc(1, sizeof *l);
    *out = l;
    if (l)
        l->place = calloc((size_t)vocab + 1, sizeof *l->place);
    if (l && l->place)
        return ST_OK;
    logit_edits_free(l);
    *out = NULL;
    return err_set(e, ST_MEMORY, "not enough memory to sample among %d tokens", vocab);
}

void logit_edits_free(LogitEdits *l)
{
    if (!l)
        return;
    free(l->place);
    free(l);
}

int logit_edits_n_ids(const RowContext *context)
{
    int vocab = context->arch->vocab;
    int n = context->tokenizer ? tokenizer_n_ids(context->tokenizer) : vocab;
    return n < vocab ? n : vocab;
}

static bool has_counts(const SamplingParams *p)
{
    return p->presence_penalty != 0 || p->frequency_penalty != 0;
}

int logit_edits_most(const RowContext *context, const Row *r, const Choice *c)
{
    const SamplingParams *p = &r->params;
    size_t vocab = (size_t)context->arch->vocab, most;
    if (p->allowed.n) {
        most = (size_t)p->allowed.n;
    } else {
        most = (size_t)p->n_bad_words + (size_t)p->n_bias;
        if (c->out.n < (size_t)p->min_tokens)
            most += (size_t)context->arch->n_eos + (size_t)p->stop_ids.n;
        if (p->repetition_penalty != 1)
            most += r->prompts[c->prompt].ids.n;
        if (p->repetition_penalty != 1 || has_counts(p))
            most += c->out.n;
    }
    return (int)(most < vocab ? most : vocab);
}

/* The edit of id; NULL for one that cannot be chosen anyway. */
static LogitEdit *edit_of(LogitEdits *l, int32_t id)
{
    if (id < 0 || id >= l->n_ids)
        return NULL;
    if (l->place[id] == 0) {
        if (l->closed)
            return NULL;
        l->list[l->n] = (LogitEdit){.id = id};
        l->place[id] = ++l->n;
    }
    return &l->list[l->place[id] - 1];
}

static void ban(LogitEdits *l, int32_t id)
{
    LogitEdit *edit = edit_of(l, id);
    if (edit)
        edit->banned = true;
}

/* Bans the last token of a word whose other tokens have just been generated. */
static void ban_word(LogitEdits *l, const IdList *word, const TokenIds *out)
{
    size_t lead = (size_t)word->n - 1;
    if (lead <= out->n &&
        (lead == 0 || memcmp(out->ids + out->n - lead, word->ids, lead * sizeof *word->ids) == 0))
        ban(l, word->ids[lead]);
}

static void list_masks(LogitEdits *l, const RowContext *context, const SamplingParams *p,
                       const Choice *c)
{
    for (int i = 0; i < p->allowed.n; i++)
        (void)edit_of(l, p->allowed.ids[i]);
    l->closed = p->allowed.n > 0;
    for (int i = 0; i < p->n_bad_words; i++)
        ban_word(l, &p->bad_words[i], &c->out);
    if (c->out.n < (size_t)p->min_tokens) {
        for (int i = 0; i < context->arch->n_eos; i++)
            ban(l, context->arch->eos[i]);
        for (int i = 0; i < p->stop_ids.n; i++)
            ban(l, p->stop_ids.ids[i]);
    }
    for (int i = 0; i < p->n_bias; i++) {
        LogitEdit *edit = edit_of(l, p->bias[i].id);
        if (edit)
            edit->bias = p->bias[i].bias;
    }
}

/* Each id once, however often it is there. */
static void list_repeated(LogitEdits *l, const TokenIds *ids)
{
    for (size_t i = 0; i < ids->n; i++) {
        LogitEdit *edit = edit_of(l, ids->ids[i]);
        if (edit)
            edit->repeated = true;
    }
}

static void list_counts(LogitEdits *l, const TokenIds *ids)
{
    for (size_t i = 0; i < ids->n; i++) {
        LogitEdit *edit = edit_of(l, ids->ids[i]);
        if (edit)
            edit->count++;
    }
}

void logit_edits_list(LogitEdits *l, const RowContext *context, const Row *r, const Choice *c,
                      LogitEdit *to, SampleRow *out)
{
    const SamplingParams *p = &r->params;
    l->list = to;
    l->n = 0;
    l->n_ids = logit_edits_n_ids(context);
    l->closed = false;
    list_masks(l, context, p, c);
    if (p->repetition_penalty != 1) {
        list_repeated(l, &r->prompts[c->prompt].ids);
        list_repeated(l, &c->out);
    }
    if (has_counts(p))
        list_counts(l, &c->out);
    for (int i = 0; i < l->n; i++)
        l->place[to[i].id] = 0;
    *out = (SampleRow){.given = -1,
                       .only_edited = p->allowed.n > 0,
                       .edits = to,
                       .n_edits = l->n,
                       .repetition = (float)p->repetition_penalty,
                       .presence = (float)p->presence_penalty,
                       .frequency = (float)p->frequency_penalty,
                       .top_k = p->top_k,
                       .temperature = p->temperature,
                       .min_p = p->min_p,
                       .top_p = p->top_p};
    if (p->temperature != 0)
        out->uniform =
            sampler_uniform(p->seed, r->key, c->prompt * p->n + c->sample, (int64_t)c->out.n);
}
