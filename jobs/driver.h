/* jobs/driver.h - the lock-step loop of a job: who takes which rows, one step after another,
 * until all ranks agree that nothing is left.
 *
 * One allgather opens each step (rows wanted, rows brought, failed, stop, drained); the deal of
 * rows follows from it on every rank alike. */
#ifndef MB_JOBS_DRIVER_H
#define MB_JOBS_DRIVER_H

#include "jobs/progress.h"
#include "jobs/scheduler.h"

/* Where rows come from and go to. Called on the rank at which the row is at home. */
typedef struct RowFlow {
    void *ctx;
    int64_t n_records; /* of the queue; the same on all ranks */
    /* Makes the row of a queue record; a bad line is a Row with error set. */
    Status (*load)(void *ctx, int64_t record, Row **out, Err *e);
    /* The row is finished; it is freed afterwards. */
    Status (*finish)(void *ctx, Row *row, Err *e);
    /* A clean stop: the row is not finished; it is freed afterwards. */
    Status (*save)(void *ctx, Row *row, Err *e);
    /* Once per step, for what is due by the clock. */
    Status (*tick)(void *ctx, Err *e);
} RowFlow;

typedef struct DriverConfig {
    int64_t rows_total, rows_resumed, failed_resumed; /* for progress */
    Progress *progress;                               /* rank 0 prints; borrowed */
    bool (*stop)(void);                               /* asked at each step; NULL: never */
} DriverConfig;

typedef struct DriverResult {
    bool stopped;
    int64_t rows_done, rows_failed; /* of this rank and run */
    int64_t steps, idle_steps;      /* the same on all ranks */
    double step_s, schedule_s;      /* in model_step and sampling; in everything else */
    ProgressCounts counts;          /* of all ranks */
} DriverResult;

/* Collective. Every rank returns the same status, with the same message. */
Status driver_run(Scheduler *s, Model *m, Comm *comm, const RowFlow *flow,
                  const DriverConfig *config, DriverResult *out, Err *e);

#endif
