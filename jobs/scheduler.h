/* jobs/scheduler.h - continuous batching on one rank: which rows of which sequences the next
 * step computes.
 *
 * A row's choices are sequences. Each step takes one row of every sequence that decodes and
 * fills the rest with prompt chunks, oldest sequence first. When KV blocks are short the newest
 * sequence gives its pages back and is computed again later, from its prompt and the tokens it
 * has: the oldest always runs, so a small KV budget cannot deadlock. */
#ifndef MB_JOBS_SCHEDULER_H
#define MB_JOBS_SCHEDULER_H

#include "jobs/row.h"
#include "jobs/sample_rows.h"
#include "model/model.h"

typedef struct Scheduler Scheduler;

typedef struct SchedulerConfig {
    int max_batch;     /* sequences in flight */
    int prefill_chunk; /* prompt tokens per step */
    bool keep_logits;  /* every prompt position's logits go to Row.logits (score --logits) */
} SchedulerConfig;

typedef struct SchedulerCounts { /* since creation */
    int64_t prompt_tokens;       /* positions computed that are prompt, recomputed ones too */
    int64_t output_tokens;       /* tokens generated */
    int64_t preemptions;
    double sample_s;
} SchedulerCounts;

/* model, context and team are borrowed. team may be NULL. */
Status scheduler_create(Scheduler **out, Model *model, const RowContext *context, Team *team,
                        const SchedulerConfig *config, Err *e);
void scheduler_destroy(Scheduler *s); /* frees the rows it still holds; NULL is fine */

/* How many more rows it would like to hold. */
int scheduler_wanted(const Scheduler *s);
/* Sequences that are not finished. */
int scheduler_open(const Scheduler *s);
/* Takes the row (also on failure). A row in error, or with nothing to compute, is done at once. */
Status scheduler_add(Scheduler *s, Row *row, Err *e);
/* The next batch; n_rows 0 when nothing can run. Valid until scheduler_consume. */
Status scheduler_plan(Scheduler *s, int64_t number, Step *out, Err *e);
/* After model_step of the planned batch: samples, and moves finished rows to the done list. */
Status scheduler_consume(Scheduler *s, Err *e);
/* The next finished row, now the caller's; NULL: none. */
Row *scheduler_take_done(Scheduler *s);
/* The next unfinished row, for a clean stop, now the caller's; NULL: none. Nothing can be
 * planned afterwards. */
Row *scheduler_take_open(Scheduler *s);
/* The first row whose KV alone exceeds the budget, and the bytes it needs; NULL: none. */
const Row *scheduler_oversized(const Scheduler *s, size_t *kv_bytes);
SchedulerCounts scheduler_counts(const Scheduler *s);

#endif
