/* jobs/driver.c - see driver.h. */
#include "jobs/driver.h"

#include "io/clock.h"
#include "jobs/queue.h"

#include <stdlib.h>

/* What a rank says when it opens a step. */
typedef struct Opening {
    int64_t wanted;   /* rows it would take */
    int64_t n_tokens; /* rows of this step */
    int64_t open;     /* sequences in flight */
    int64_t failed, stop;
    int64_t rows_done, rows_failed, prompt_tokens, output_tokens;
} Opening;

typedef struct Driver {
    Scheduler *scheduler;
    Model *model;
    Comm *comm;
    const RowFlow *flow;
    const DriverConfig *config;
    DriverResult *out;
    Opening *all;    /* [size] */
    int64_t *wanted; /* [size] */
    int64_t *mine;   /* [mine_cap] records dealt to this rank */
    int64_t mine_cap;
    int64_t cursor; /* of the queue */
} Driver;

static Status drain_done(Driver *d, Err *e)
{
    Row *row;
    while ((row = scheduler_take_done(d->scheduler)) != NULL) {
        d->out->rows_done++;
        d->out->rows_failed += row->error.status != 0;
        Status st = d->flow->finish(d->flow->ctx, row, e);
        row_free(row);
        TRY(st);
    }
    return ST_OK;
}

static Status save_open(Driver *d, Err *e)
{
    Row *row;
    while ((row = scheduler_take_open(d->scheduler)) != NULL) {
        Status st = d->flow->save(d->flow->ctx, row, e);
        row_free(row);
        TRY(st);
    }
    return ST_OK;
}

/* The deal of this step, and the rows that it gives to this rank. */
static Status take_rows(Driver *d, int64_t step, int64_t *n_dealt, Err *e)
{
    int size = d->comm->size;
    for (int r = 0; r < size; r++)
        d->wanted[r] = d->all[r].wanted;
    int64_t need = d->wanted[d->comm->rank], before = d->cursor;
    if (need > d->mine_cap) {
        int64_t *p = realloc(d->mine, (size_t)need * sizeof *p);
        if (!p)
            return err_set(e, ST_MEMORY, "out of memory for %lld new rows", (long long)need);
        d->mine = p;
        d->mine_cap = need;
    }
    int n = queue_deal(d->flow->n_records, &d->cursor, d->wanted, size, (int)(step % size),
                       d->comm->rank, d->mine);
    *n_dealt = d->cursor - before;
    for (int i = 0; i < n; i++) {
        Row *row = NULL;
        TRY(d->flow->load(d->flow->ctx, d->mine[i], &row, e));
        TRY(scheduler_add(d->scheduler, row, e));
    }
    return drain_done(d, e);
}

static ProgressCounts sum_counts(const Driver *d)
{
    const DriverConfig *c = d->config;
    ProgressCounts p = {.rows_total = c->rows_total,
                        .rows_done = c->rows_resumed,
                        .rows_failed = c->failed_resumed,
                        .rows_resumed = c->rows_resumed};
    for (int r = 0; r < d->comm->size; r++) {
        const Opening *o = &d->all[r];
        p.rows_done += o->rows_done;
        p.rows_failed += o->rows_failed;
        p.prompt_tokens += o->prompt_tokens;
        p.output_tokens += o->output_tokens;
        p.sequences += o->open;
    }
    return p;
}

/* Swaps the openings of step; mine is this rank's outcome so far. */
static Status open_step(Driver *d, int64_t step, int n_tokens, Status mine, Err *e)
{
    SchedulerCounts counts = scheduler_counts(d->scheduler);
    Opening o = {.wanted = scheduler_wanted(d->scheduler),
                 .n_tokens = n_tokens,
                 .open = scheduler_open(d->scheduler),
                 .failed = mine != ST_OK,
                 .stop = d->config->stop && d->config->stop(),
                 .rows_done = d->out->rows_done,
                 .rows_failed = d->out->rows_failed,
                 .prompt_tokens = counts.prompt_tokens,
                 .output_tokens = counts.output_tokens};
    comm_at(d->comm, step, -1, "opening of the step");
    TRY(comm_allgather(d->comm, &o, sizeof o, d->all, e));
    d->out->counts = sum_counts(d);
    if (d->comm->rank == 0)
        progress_update(d->config->progress, &d->out->counts);
    return ST_OK;
}

typedef struct Agreed { /* what the openings say together */
    bool failed, stop, idle, empty;
} Agreed;

static Agreed agree(const Driver *d)
{
    Agreed a = {.idle = true, .empty = true};
    for (int r = 0; r < d->comm->size; r++) {
        a.failed |= d->all[r].failed != 0;
        a.stop |= d->all[r].stop != 0;
        a.idle &= d->all[r].n_tokens == 0;
        a.empty &= d->all[r].open == 0;
    }
    return a;
}

/* The batch of one step, through the model and the sampler. Ranks without rows, or with a
 * failure, take part for the others. *all_know: every rank has learnt of a failure in this step. */
static Status compute(Driver *d, const Step *step, bool *all_know, Err *e)
{
    double start = clock_s();
    if (!d->model->exchange && (step->n_rows == 0 || step->mine != ST_OK))
        return step->mine;
    Status st = model_step(d->model, step, all_know, e);
    if (st == ST_OK)
        st = scheduler_consume(d->scheduler, e);
    d->out->step_s += clock_s() - start;
    return st == ST_OK ? drain_done(d, e) : st;
}

/* Until all are done, a stop was agreed, or every rank knows of a failure. Returns this rank's
 * own outcome. */
static Status run_steps(Driver *d, Err *e)
{
    Status mine = ST_OK;
    for (int64_t number = 0;; number++) {
        Step step = {0};
        if (mine == ST_OK)
            mine = d->flow->tick(d->flow->ctx, e);
        if (mine == ST_OK)
            mine = scheduler_plan(d->scheduler, number, &step, e);
        Err comm_err;
        Status opened = open_step(d, number, step.n_rows, mine, &comm_err);
        if (opened != ST_OK && mine == ST_OK)
            *e = comm_err;
        if (opened != ST_OK)
            return mine == ST_OK ? opened : mine;
        Agreed a = agree(d);
        if (a.failed)
            return mine != ST_OK ? mine : err_set(e, ST_COMM, "another rank failed");
        if (a.stop) {
            d->out->stopped = true;
            return save_open(d, e);
        }
        int64_t dealt = 0;
        d->out->steps++;
        mine = take_rows(d, number, &dealt, e);
        if (a.idle) {
            d->out->idle_steps++;
            if (a.empty && dealt == 0 && d->cursor == d->flow->n_records)
                return mine;
            continue;
        }
        bool all_know = false;
        step.mine = mine;
        mine = compute(d, &step, &all_know, e);
        if (all_know)
            return mine;
    }
}

static Status refuse_oversized(const Driver *d, Err *e)
{
    size_t bytes = 0;
    const Row *row = scheduler_oversized(d->scheduler, &bytes);
    if (!row)
        return ST_OK;
    return err_set(e, ST_MEMORY,
                   "line %lld%s%s: its KV cache alone needs %.1f MiB, --kv-memory gives %.1f MiB; "
                   "all other rows are done",
                   (long long)row->line, row->custom_id ? ", custom_id " : "",
                   row->custom_id ? row->custom_id : "", (double)bytes / (1 << 20),
                   (double)d->model->config.kv_bytes / (1 << 20));
}

Status driver_run(Scheduler *s, Model *m, Comm *comm, const RowFlow *flow,
                  const DriverConfig *config, DriverResult *out, Err *e)
{
    *out = (DriverResult){0};
    Driver d = {
        .scheduler = s, .model = m, .comm = comm, .flow = flow, .config = config, .out = out};
    double start = clock_s();
    d.all = calloc((size_t)comm->size, sizeof *d.all);
    d.wanted = calloc((size_t)comm->size, sizeof *d.wanted);
    Status st =
        d.all && d.wanted ? ST_OK : err_set(e, ST_MEMORY, "out of memory for the step's openings");
    st = dist_agree(comm, st, e);
    if (st == ST_OK) {
        st = run_steps(&d, e);
        if (st == ST_OK && !out->stopped)
            st = refuse_oversized(&d, e);
        comm_at(comm, out->steps, -1, "end of the job");
        st = dist_agree(comm, st, e);
    }
    out->schedule_s = clock_s() - start - out->step_s;
    free(d.all);
    free(d.wanted);
    free(d.mine);
    return st;
}
