/* jobs/logit_edits.h - what a row asks of the choice of a token, in the terms of kernels/sample.h:
 * masks, biases and penalties become edits of single ids (the first half of the pipeline of
 * contract.md section 3). */
#ifndef MB_JOBS_LOGIT_EDITS_H
#define MB_JOBS_LOGIT_EDITS_H

#include "jobs/row.h"

typedef struct LogitEdits LogitEdits; /* one per thread */

Status logit_edits_create(int vocab, LogitEdits **out, Err *e);
void logit_edits_free(LogitEdits *l); /* NULL is fine */

/* How many ids may be chosen from: those of the tokenizer, where the model has more rows. */
int logit_edits_n_ids(const RowContext *context);
/* At least as many edits as the row can have for its next token; at most vocab. */
int logit_edits_most(const RowContext *context, const Row *r, const Choice *c);
/* Everything of *out about the next token of c; given, n_top and logprob become -1, 0 and false.
 * The edits are written to `to`, which has room for logit_edits_most, and out->edits is that. */
void logit_edits_list(LogitEdits *l, const RowContext *context, const Row *r, const Choice *c,
                      LogitEdit *to, SampleRow *out);

#endif
