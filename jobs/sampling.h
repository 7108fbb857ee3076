/* jobs/sampling.h - from the logits of one position to a token (the pipeline of contract.md
 * section 3). */
#ifndef MB_JOBS_SAMPLING_H
#define MB_JOBS_SAMPLING_H

#include "jobs/row.h"

typedef struct SamplingScratch SamplingScratch; /* one per thread */

Status sampling_scratch_create(int vocab, SamplingScratch **out, Err *e);
void sampling_scratch_free(SamplingScratch *s);

/* Picks the next token of c from logits[0..vocab), which stay unchanged. lp: filled where the
 * row asks for log-probabilities, else NULL. NaN logits: ST_INPUT (the caller makes it the row's
 * error nan_logits); a request that leaves no token to choose from: ST_USAGE. Greedy when
 * temperature is 0; ties go to the lowest id. */
Status sampling_pick(const RowContext *context, const Row *r, const Choice *c, const float *logits,
                     SamplingScratch *s, int32_t *id, TokenLogprobs *lp, Err *e);
/* What a SampleStatus is as the outcome of either of these. */
Status sampling_status(int status, Err *e);
/* Log-probabilities of token id among logits, with the n_top best beside it. */
Status sampling_logprobs(const float *logits, int vocab, int32_t id, int n_top, TokenLogprobs *out,
                         Err *e);

#endif
