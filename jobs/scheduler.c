/* jobs/scheduler.c - see scheduler.h. */
#include "jobs/scheduler.h"

#include "io/clock.h"

#include <stdlib.h>
#include <string.h>

typedef struct Seq {
    Row *row;
    Choice *choice;
    int n_computed;  /* positions whose keys and values are in the cache */
    int lp_filled;   /* prompt positions whose log-probabilities are known; the first has none */
    int planned;     /* rows of this step */
    int plan_wanted; /* of them, the last ones that need logits */
    KvSeq kv;
} Seq;

typedef struct SeqList {
    Seq **at;
    int n, cap;
} SeqList;

typedef struct RowList {
    Row **at;
    int n, cap;
} RowList;

struct Scheduler {
    Model *model;
    const RowContext *context;
    SchedulerConfig config;
    SeqList waiting; /* first in, first out; preempted ones return to the front */
    SeqList running; /* in order of admission */
    RowList rows;    /* unfinished */
    RowList done, oversized;
    Step step;
    int32_t *ids, *position;
    StepSeq *seqs;
    SampleWant *wants; /* [logits_rows] */
    Seq **wanting;     /* [logits_rows] whose they are */
    RowSampler *sampler;
    SchedulerCounts counts;
};

static Status grow(void **at, int *cap, int need, size_t size, Err *e)
{
    if (need <= *cap)
        return ST_OK;
    int bigger = *cap ? *cap * 2 : 64;
    void *p = realloc(*at, (size_t)bigger * size);
    if (!p)
        return err_set(e, ST_MEMORY, "out of memory for a list of %d sequences", bigger);
    *at = p;
    *cap = bigger;
    return ST_OK;
}

static Status push_seq(SeqList *l, Seq *seq, int where, Err *e)
{
    void *at = l->at;
    TRY(grow(&at, &l->cap, l->n + 1, sizeof *l->at, e));
    l->at = at;
    memmove(l->at + where + 1, l->at + where, (size_t)(l->n - where) * sizeof *l->at);
    l->at[where] = seq;
    l->n++;
    return ST_OK;
}

static void remove_seq(SeqList *l, int i)
{
    l->n--;
    memmove(l->at + i, l->at + i + 1, (size_t)(l->n - i) * sizeof *l->at);
}

static Status push_row(RowList *l, Row *row, Err *e)
{
    void *at = l->at;
    TRY(grow(&at, &l->cap, l->n + 1, sizeof *l->at, e));
    l->at = at;
    l->at[l->n++] = row;
    return ST_OK;
}

static void remove_row(RowList *l, const Row *row)
{
    for (int i = 0; i < l->n; i++)
        if (l->at[i] == row) {
            l->at[i] = l->at[--l->n];
            return;
        }
}

Status scheduler_create(Scheduler **out, Model *model, const RowContext *context, Team *team,
                        const SchedulerConfig *config, Err *e)
{
    Status st = ST_OK;
    Scheduler *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ST_MEMORY, "out of memory for the scheduler");
    s->model = model;
    s->context = context;
    s->config = *config;
    size_t rows = (size_t)model->config.max_rows;
    s->ids = malloc(rows * sizeof *s->ids);
    s->position = malloc(rows * sizeof *s->position);
    s->seqs = malloc((size_t)config->max_batch * sizeof *s->seqs);
    s->wants = malloc((size_t)model->logits_rows * sizeof *s->wants);
    s->wanting = malloc((size_t)model->logits_rows * sizeof *s->wanting);
    if (!s->ids || !s->position || !s->seqs || !s->wants || !s->wanting) {
        st = err_set(e, ST_MEMORY, "out of memory for a step of %zu rows", rows);
        goto fail;
    }
    TRY_GOTO(row_sampler_create(&s->sampler, model, context, team, e));
    *out = s;
    return ST_OK;
fail:
    scheduler_destroy(s);
    return st;
}

static void free_seqs(Scheduler *s, SeqList *l)
{
    for (int i = 0; i < l->n; i++) {
        kv_seq_free(&s->model->kv, &l->at[i]->kv);
        free(l->at[i]);
    }
    free(l->at);
}

static void free_rows(RowList *l)
{
    for (int i = 0; i < l->n; i++)
        row_free(l->at[i]);
    free(l->at);
}

void scheduler_destroy(Scheduler *s)
{
    if (!s)
        return;
    free_seqs(s, &s->waiting);
    free_seqs(s, &s->running);
    free_rows(&s->rows);
    free_rows(&s->done);
    free_rows(&s->oversized);
    row_sampler_free(s->sampler);
    free(s->ids);
    free(s->position);
    free(s->seqs);
    free(s->wants);
    free(s->wanting);
    free(s);
}

static const Prompt *prompt_of(const Seq *seq)
{
    return &seq->row->prompts[seq->choice->prompt];
}

/* The first sample of a prompt that wants them fills the prompt's log-probabilities, for all
 * samples. */
static bool fills_prompt(const Seq *seq)
{
    return seq->choice->sample == 0 && prompt_of(seq)->logprobs != NULL;
}

/* Positions that must have been computed before the next token can be sampled, or before the
 * choice is finished. */
static int target(const Scheduler *s, const Seq *seq)
{
    int n = (int)prompt_of(seq)->ids.n;
    if (seq->row->params.max_tokens > 0)
        return n + (int)seq->choice->out.n;
    if (s->config.keep_logits)
        return n;
    return fills_prompt(seq) ? n - 1 : 0;
}

static int longest(const Scheduler *s, const Row *row)
{
    int most = 0;
    for (int p = 0; p < row->n_prompts; p++) {
        int64_t n = (int64_t)row->prompts[p].ids.n + row->params.max_tokens;
        if (n > s->context->max_len)
            n = s->context->max_len;
        if (n > most)
            most = (int)n;
    }
    return most;
}

int scheduler_wanted(const Scheduler *s)
{
    int spare = s->config.max_batch + s->config.max_batch / 4 + 1 - scheduler_open(s);
    return spare > 0 ? spare : 0;
}

int scheduler_open(const Scheduler *s)
{
    return s->waiting.n + s->running.n;
}

static Status finish_row(Scheduler *s, Row *row, Err *e)
{
    remove_row(&s->rows, row);
    Status st = push_row(&s->done, row, e);
    if (st != ST_OK)
        row_free(row);
    return st;
}

static Status add_seq(Scheduler *s, Row *row, Choice *choice, Err *e)
{
    Seq *seq = calloc(1, sizeof *seq);
    if (!seq)
        return err_set(e, ST_MEMORY, "out of memory for a sequence");
    seq->row = row;
    seq->choice = choice;
    /* A token was sampled only once the whole prompt was computed, so a restored row has its
     * log-probabilities. */
    seq->lp_filled = choice->out.n > 0 ? (int)row->prompts[choice->prompt].ids.n : 1;
    Status st = push_seq(&s->waiting, seq, s->waiting.n, e);
    if (st != ST_OK)
        free(seq);
    return st;
}

/* A choice with nothing to compute is finished as it stands. */
static void finish_empty(Scheduler *s, Row *row, Choice *choice)
{
    Seq seq = {.row = row, .choice = choice};
    if (choice->finish == FINISH_NONE && row->params.max_tokens == 0 && target(s, &seq) == 0) {
        choice->finish = FINISH_LENGTH;
        row->n_finished++;
    }
}

Status scheduler_add(Scheduler *s, Row *row, Err *e)
{
    Status st = push_row(&s->rows, row, e);
    if (st != ST_OK) {
        row_free(row);
        return st;
    }
    for (int i = 0; i < row->n_choices && !row->error.status; i++)
        finish_empty(s, row, &row->choices[i]);
    if (row->error.status || row->n_finished == row->n_choices)
        return finish_row(s, row, e);
    if (kv_blocks_needed(&s->model->kv, longest(s, row), KV_PAGE) > s->model->kv.n_blocks) {
        remove_row(&s->rows, row);
        st = push_row(&s->oversized, row, e);
        if (st != ST_OK)
            row_free(row);
        return st;
    }
    for (int i = 0; i < row->n_choices; i++)
        if (row->choices[i].finish == FINISH_NONE)
            TRY(add_seq(s, row, &row->choices[i], e));
    return ST_OK;
}

static Status preempt_newest(Scheduler *s, Err *e)
{
    Seq *seq = s->running.at[s->running.n - 1];
    TRY(push_seq(&s->waiting, seq, 0, e));
    s->running.n--;
    kv_seq_release(&s->model->kv, &seq->kv);
    seq->n_computed = 0;
    s->counts.preemptions++;
    return ST_OK;
}

/* Pages for n more positions of running[i], taken from newer sequences if need be. *n shrinks to
 * a page when even that is short, and to 0 when this is the newest and must wait. */
static Status make_room(Scheduler *s, int i, int *n, Err *e)
{
    Seq *seq = s->running.at[i];
    bool ok = false;
    for (;;) {
        TRY(kv_seq_extend(&s->model->kv, &seq->kv, seq->n_computed, *n, &ok, e));
        if (ok)
            return ST_OK;
        if (*n > KV_PAGE)
            *n = KV_PAGE;
        else if (s->running.n - 1 > i)
            TRY(preempt_newest(s, e));
        else
            break;
    }
    *n = 0;
    return ST_OK;
}

/* How many of the n rows from position pos on need logits, counted from the last. */
static int count_wanted(const Scheduler *s, const Seq *seq, int pos, int n)
{
    int end = pos + n, prompt_n = (int)prompt_of(seq)->ids.n, first = end;
    if (end == target(s, seq) && seq->row->params.max_tokens > 0)
        first = end - 1;
    if (s->config.keep_logits)
        first = pos;
    else if (fills_prompt(seq) && seq->lp_filled < prompt_n) {
        int from = seq->lp_filled - 1; /* its logits give the next position's */
        from = from < pos ? pos : from;
        if (from < end && from < first)
            first = from;
    }
    return end - first;
}

static int32_t id_at(const Seq *seq, int pos)
{
    const Prompt *p = prompt_of(seq);
    return pos < (int)p->ids.n ? p->ids.ids[pos] : seq->choice->out.ids[pos - (int)p->ids.n];
}

static void plan_rows(Scheduler *s, Seq *seq, int n)
{
    Step *step = &s->step;
    int prompt_n = (int)prompt_of(seq)->ids.n;
    seq->planned = n;
    seq->plan_wanted = count_wanted(s, seq, seq->n_computed, n);
    s->seqs[step->n_seqs++] =
        (StepSeq){step->n_rows, n, seq->n_computed, seq->plan_wanted, prompt_n, &seq->kv};
    for (int i = 0; i < n; i++, step->n_rows++) {
        int pos = seq->n_computed + i;
        s->ids[step->n_rows] = id_at(seq, pos);
        s->position[step->n_rows] = pos;
        s->counts.prompt_tokens += pos < prompt_n;
    }
}

/* Blocks are kept back for the running sequences' next pages, so that admission does not thrash. */
static bool fits(const Scheduler *s, const Seq *seq)
{
    const KvCache *kv = &s->model->kv;
    if (s->running.n == 0)
        return true;
    return kv_blocks_needed(kv, target(s, seq) + 1, s->config.prefill_chunk) +
               s->running.n * kv->n_groups / 8 <=
           kv->n_free;
}

Status scheduler_plan(Scheduler *s, int64_t number, Step *out, Err *e)
{
    int chunk_left = s->config.prefill_chunk;
    bool short_of_blocks = false;
    s->step = (Step){.number = number, .ids = s->ids, .position = s->position, .seqs = s->seqs};
    for (int i = 0; i < s->running.n || (s->waiting.n > 0 && s->running.n < s->config.max_batch);
         i++) {
        if (i == s->running.n) {
            if (chunk_left == 0 || short_of_blocks || !fits(s, s->waiting.at[0]))
                break;
            TRY(push_seq(&s->running, s->waiting.at[0], s->running.n, e));
            remove_seq(&s->waiting, 0);
        }
        Seq *seq = s->running.at[i];
        int n = target(s, seq) - seq->n_computed;
        bool decode = n == 1 && seq->n_computed > 0;
        if (!decode && n > chunk_left)
            n = chunk_left;
        seq->planned = 0;
        if (n == 0)
            continue;
        int waiting_before = s->waiting.n;
        TRY(make_room(s, i, &n, e));
        short_of_blocks |= n == 0 || s->waiting.n > waiting_before;
        if (n == 0)
            continue;
        if (!decode)
            chunk_left -= n;
        plan_rows(s, seq, n);
    }
    *out = s->step;
    return ST_OK;
}

static Status accept_one(Scheduler *s, Seq *seq, const SampleWant *w, Err *e)
{
    Row *row = w->row;
    if (row->error.status)
        return ST_OK;
    if (w->st == ST_INPUT) {
        row_fail(row, 500, "nan_logits", NULL, "%s", w->err.text);
        return ST_OK;
    }
    if (w->st == ST_USAGE) {
        row_fail(row, 400, "invalid_request", NULL, "%s", w->err.text);
        return ST_OK;
    }
    if (w->st != ST_OK) {
        *e = w->err;
        return w->st;
    }
    if (w->prompt)
        seq->lp_filled = w->pos + 2;
    if (!w->sample)
        return ST_OK;
    s->counts.output_tokens++;
    return choice_accept(s->context, row, w->choice, w->id,
                         row->params.logprobs >= 0 ? &w->lp : NULL, e);
}

/* Samples the n rows of logits that were listed in wants, which start at row first of the wanted
 * ones. */
static Status sample_block(Scheduler *s, int first, int n, Err *e)
{
    if (n == 0)
        return ST_OK;
    TRY(row_sampler_run(s->sampler, first, n, s->wants, &s->counts.sample_s, e));
    double start = clock_s();
    for (int i = 0; i < n; i++)
        TRY(accept_one(s, s->wanting[i], &s->wants[i], e));
    s->counts.sample_s += clock_s() - start;
    return ST_OK;
}

static Status sample_all(Scheduler *s, Err *e)
{
    int n = 0, first = 0;
    for (int i = 0; i < s->running.n; i++) {
        Seq *seq = s->running.at[i];
        int prompt_n = (int)prompt_of(seq)->ids.n, end = seq->n_computed + seq->planned;
        for (int pos = end - seq->plan_wanted; seq->planned && pos < end; pos++) {
            SampleWant *w = &s->wants[n];
            s->wanting[n++] = seq;
            w->row = seq->row;
            w->choice = seq->choice;
            w->pos = pos;
            w->sample = pos == end - 1 && end == target(s, seq) && seq->row->params.max_tokens > 0;
            w->prompt = fills_prompt(seq) && pos + 1 < prompt_n && pos + 1 >= seq->lp_filled;
            if (n == s->model->logits_rows) {
                TRY(sample_block(s, first, n, e));
                first += n;
                n = 0;
            }
        }
    }
    return sample_block(s, first, n, e);
}

/* Drops the sequences of list whose choice or row has ended. */
static void drop_ended(Scheduler *s, SeqList *list)
{
    int kept = 0;
    for (int i = 0; i < list->n; i++) {
        Seq *seq = list->at[i];
        if (seq->choice->finish == FINISH_NONE && !seq->row->error.status) {
            list->at[kept++] = seq;
            continue;
        }
        kv_seq_free(&s->model->kv, &seq->kv);
        free(seq);
    }
    list->n = kept;
}

Status scheduler_consume(Scheduler *s, Err *e)
{
    TRY(sample_all(s, e));
    for (int i = 0; i < s->running.n; i++) {
        Seq *seq = s->running.at[i];
        seq->n_computed += seq->planned;
        seq->planned = 0;
        if (seq->row->params.max_tokens == 0 && seq->n_computed == target(s, seq)) {
            seq->choice->finish = FINISH_LENGTH;
            seq->row->n_finished++;
        }
    }
    drop_ended(s, &s->running);
    drop_ended(s, &s->waiting); /* other choices of a row that failed */
    for (int i = s->rows.n - 1; i >= 0; i--) {
        Row *row = s->rows.at[i];
        if (row->error.status || row->n_finished == row->n_choices)
            TRY(finish_row(s, row, e));
    }
    return ST_OK;
}

Row *scheduler_take_done(Scheduler *s)
{
    return s->done.n > 0 ? s->done.at[--s->done.n] : NULL;
}

Row *scheduler_take_open(Scheduler *s)
{
    return s->rows.n > 0 ? s->rows.at[--s->rows.n] : NULL;
}

const Row *scheduler_oversized(const Scheduler *s, size_t *kv_bytes)
{
    if (s->oversized.n == 0)
        return NULL;
    const KvCache *kv = &s->model->kv;
    *kv_bytes = (size_t)kv_blocks_needed(kv, longest(s, s->oversized.at[0]), KV_PAGE) *
                kv->page_bytes * (size_t)kv->pages_per_block;
    return s->oversized.at[0];
}

SchedulerCounts scheduler_counts(const Scheduler *s)
{
    return s->counts;
}
