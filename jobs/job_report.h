/* jobs/job_report.h - what a run tells people: the memory plan, the manifest, the metrics file. */
#ifndef MB_JOBS_JOB_REPORT_H
#define MB_JOBS_JOB_REPORT_H

#include "jobs/driver.h"
#include "jobs/job_run.h"
#include "jobs/journal.h"

typedef struct PhaseTimes { /* seconds of this rank */
    double start_s, input_s, load_s, run_s, merge_s;
} PhaseTimes;

/* Rank 0: OUT.job/manifest.json. */
Status report_manifest(const JobConfig *config, const Engine *engine, const Job *job,
                       const JobIdentity *id, const Comm *comm, Err *e);
/* "rank 3: weights 61.2 GiB, kv 40.0, ..." to stderr, for each rank. */
void report_plan(const Engine *engine, const Comm *comm);
/* Collective. Writes config->metrics on rank 0 where it is set. scheduler NULL: nothing was
 * computed. */
Status report_metrics(const JobConfig *config, Engine *engine, Comm *comm,
                      const DriverResult *result, const Scheduler *scheduler,
                      const PhaseTimes *times, const JobOutcome *outcome, Err *e);

#endif
