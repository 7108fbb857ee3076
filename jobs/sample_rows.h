/* jobs/sample_rows.h - rows of logits to tokens and log-probabilities: by this rank's threads, or by
 * a backend that keeps the logits to itself. */
#ifndef MB_JOBS_SAMPLE_ROWS_H
#define MB_JOBS_SAMPLE_ROWS_H

#include "jobs/row.h"
#include "model/model.h"

typedef struct RowSampler RowSampler;

/* One row of logits and what becomes of it. */
typedef struct SampleWant {
    Row *row; /* nothing is done for a row in error */
    Choice *choice;
    int pos;     /* position whose hidden state it is; Row.logits, if there, gets the logits */
    bool sample; /* picks the choice's next token */
    bool prompt; /* fills the log-probabilities of prompt position pos + 1; never with sample */
    /* results */
    int32_t id;       /* with sample */
    TokenLogprobs lp; /* with sample, where the row asks for them */
    Status st;        /* ST_INPUT: NaN logits; ST_USAGE: no token is left to choose */
    Err err;
} SampleWant;

/* model, context and team are borrowed. team may be NULL. */
Status row_sampler_create(RowSampler **out, Model *model, const RowContext *context, Team *team,
                          Err *e);
void row_sampler_free(RowSampler *s); /* NULL is fine */

/* Wanted rows first .. first+n-1 of the step, n <= logits_rows. host_s grows by the seconds that
 * went into anything but the model. Err is for what ends the job. */
Status row_sampler_run(RowSampler *s, int first, int n, SampleWant *wants, double *host_s, Err *e);

#endif
