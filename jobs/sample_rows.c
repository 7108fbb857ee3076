/* jobs/sample_rows.c - see sample_rows.h. */
#include "jobs/sample_rows.h"

#include "io/clock.h"
#include "jobs/logit_edits.h"
#include "jobs/sampling.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct RowSampler {
    Model *model;
    const RowContext *context;
    Team *team;
    int n_threads;
    SamplingScratch **scratch; /* [n_threads] where the threads sample */
    LogitEdits **edits;        /* [n_threads] where the backend does, and all below */
    SampleRow *ask;            /* [logits_rows] */
    Sampled *got;              /* [logits_rows] */
    size_t *first_edit;        /* [logits_rows] where a row's edits have room in edit */
    LogitEdit *edit;           /* [edit_cap] */
    size_t edit_cap;
    /* of the block at work */
    SampleWant *wants;
    const float *logits;
};

Status row_sampler_create(RowSampler **out, Model *model, const RowContext *context, Team *team,
                          Err *e)
{
    Status st = ST_OK;
    int vocab = model->arch->vocab;
    *out = NULL;
    RowSampler *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ST_MEMORY, "out of memory to sample");
    s->model = model;
    s->context = context;
    s->team = team;
    s->n_threads = team ? team_size(team) : 1;
    size_t rows = (size_t)model->logits_rows, threads = (size_t)s->n_threads;
    if (model->config.ops->host_memory) {
        s->scratch = calloc(threads, sizeof(SamplingScratch *));
        if (!s->scratch)
            goto no_memory;
        for (int t = 0; t < s->n_threads; t++)
            TRY_GOTO(sampling_scratch_create(vocab, &s->scratch[t], e));
    } else {
        s->edits = calloc(threads, sizeof(LogitEdits *));
        s->ask = malloc(rows * sizeof *s->ask);
        s->got = malloc(rows * sizeof *s->got);
        s->first_edit = malloc(rows * sizeof *s->first_edit);
        if (!s->edits || !s->ask || !s->got || !s->first_edit)
            goto no_memory;
        for (int t = 0; t < s->n_threads; t++)
            TRY_GOTO(logit_edits_create(vocab, &s->edits[t], e));
    }
    *out = s;
    return ST_OK;
no_memory:
    st = err_set(e, ST_MEMORY, "out of memory to sample %zu rows", rows);
fail:
    row_sampler_free(s);
    return st;
}

void row_sampler_free(RowSampler *s)
{
    if (!s)
        return;
    for (int t = 0; s->scratch && t < s->n_threads; t++)
        sampling_scratch_free(s->scratch[t]);
    for (int t = 0; s->edits && t < s->n_threads; t++)
        logit_edits_free(s->edits[t]);
    free(s->scratch);
    free(s->edits);
    free(s->ask);
    free(s->got);
    free(s->first_edit);
    free(s->edit);
    free(s);
}

static bool is_idle(const SampleWant *w)
{
    return w->row->error.status || !(w->sample || w->prompt);
}

/* How many best ids a prompt position or a generated token is to have beside it. */
static int prompt_top(const SamplingParams *p)
{
    int n = p->prompt_logprobs > p->logprobs ? p->prompt_logprobs : p->logprobs;
    return n > 0 ? n : 0;
}

static int sample_top(const SamplingParams *p)
{
    return p->logprobs > 0 ? p->logprobs : 0;
}

static Prompt *prompt_of(const SampleWant *w)
{
    return &w->row->prompts[w->choice->prompt];
}

static void keep_logits(const RowSampler *s, const SampleWant *w, const float *logits)
{
    size_t vocab = (size_t)s->model->arch->vocab;
    if (w->row->logits && !w->row->error.status)
        memcpy(w->row->logits + (size_t)w->pos * vocab, logits, vocab * sizeof *logits);
}

/* --- by threads: everything here depends on one row of logits and one choice --- */

static void sample_one(void *ctx, int task, int thread)
{
    RowSampler *s = ctx;
    SampleWant *w = &s->wants[task];
    const float *logits = s->logits + (int64_t)task * s->model->arch->vocab;
    w->st = ST_OK;
    keep_logits(s, w, logits);
    if (is_idle(w))
        return;
    if (w->prompt)
        w->st = sampling_logprobs(logits, s->model->arch->vocab, prompt_of(w)->ids.ids[w->pos + 1],
                                  prompt_top(&w->row->params), &prompt_of(w)->logprobs[w->pos + 1],
                                  &w->err);
    else
        w->st = sampling_pick(s->context, w->row, w->choice, logits, s->scratch[thread], &w->id,
                              w->row->params.logprobs >= 0 ? &w->lp : NULL, &w->err);
}

/* --- by the backend --- */

static void ask_one(void *ctx, int task, int thread)
{
    RowSampler *s = ctx;
    const SampleWant *w = &s->wants[task];
    SampleRow *ask = &s->ask[task];
    const SamplingParams *p = &w->row->params;
    if (w->sample && !is_idle(w)) {
        logit_edits_list(s->edits[thread], s->context, w->row, w->choice,
                         s->edit + s->first_edit[task], ask);
        ask->logprob = p->logprobs >= 0;
        ask->n_top = sample_top(p);
    } else { /* of an idle row nothing is read */
        *ask = (SampleRow){.given = is_idle(w) ? 0 : prompt_of(w)->ids.ids[w->pos + 1],
                           .n_top = is_idle(w) ? 0 : prompt_top(p)};
    }
}

static void take_one(SampleWant *w, const Sampled *got)
{
    w->st = ST_OK;
    if (is_idle(w))
        return;
    w->st = sampling_status(got->status, &w->err);
    if (w->st != ST_OK)
        return;
    w->id = got->id;
    *(w->prompt ? &prompt_of(w)->logprobs[w->pos + 1] : &w->lp) = got->lp;
}

static Status make_room(RowSampler *s, int n, Err *e)
{
    size_t need = 0;
    for (int i = 0; i < n; i++) {
        const SampleWant *w = &s->wants[i];
        s->first_edit[i] = need;
        if (w->sample && !is_idle(w))
            need += (size_t)logit_edits_most(s->context, w->row, w->choice);
    }
    if (need <= s->edit_cap)
        return ST_OK;
    free(s->edit);
    s->edit_cap = 0;
    s->edit = malloc(2 * need * sizeof *s->edit);
    if (!s->edit)
        return err_set(e, ST_MEMORY, "out of memory for %zu edits of logits", 2 * need);
    s->edit_cap = 2 * need;
    return ST_OK;
}

static Status sample_there(RowSampler *s, int first, int n, double *host_s, Err *e)
{
    bool kept = false;
    double start = clock_s();
    TRY(make_room(s, n, e));
    team_run(s->team, n, ask_one, s);
    double asked = clock_s();
    TRY(model_head(s->model, first, n, e));
    TRY(model_sample(s->model, n, logit_edits_n_ids(s->context), s->ask, s->got, e));
    for (int i = 0; i < n; i++)
        kept |= s->wants[i].row->logits != NULL;
    if (kept)
        TRY(model_read_logits(s->model, n, &s->logits, e));
    double got = clock_s();
    for (int i = 0; i < n; i++) {
        if (kept)
            keep_logits(s, &s->wants[i], s->logits + (int64_t)i * s->model->arch->vocab);
        take_one(&s->wants[i], &s->got[i]);
    }
    *host_s += (asked - start) + (clock_s() - got);
    return ST_OK;
}

Status row_sampler_run(RowSampler *s, int first, int n, SampleWant *wants, double *host_s, Err *e)
{
    s->wants = wants;
    for (int i = 0; i < n; i++)
        assert(!(wants[i].sample && wants[i].prompt));
    if (!s->model->config.ops->host_memory)
        return sample_there(s, first, n, host_s, e);
    TRY(model_logits(s->model, first, n, &s->logits, e));
    double start = clock_s();
    team_run(s->team, n, sample_one, s);
    *host_s += clock_s() - start;
    return ST_OK;
}
