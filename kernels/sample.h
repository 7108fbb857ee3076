/* kernels/sample.h - choosing tokens from rows of logits: what is asked of a row and what comes
 * back, for backends whose memory is not the host's and for their callers. */
#ifndef MB_KERNELS_SAMPLE_H
#define MB_KERNELS_SAMPLE_H

#include "kernels/exp_log.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

enum { MAX_LOGPROBS = 20 };

/* Log-probabilities of one position: log-softmax of the model's raw logits over all vocabulary
 * rows. */
typedef struct TokenLogprobs {
    float logprob; /* of the token that is there */
    int32_t rank;  /* its rank, 1 = most likely */
    int32_t n_top;
    int32_t top_id[MAX_LOGPROBS]; /* best first; ties: lower id first */
    float top_logprob[MAX_LOGPROBS];
} TokenLogprobs;

/* What becomes of one id's logit before a choice, in this order. */
typedef struct LogitEdit {
    int32_t id;
    float bias;    /* added */
    int32_t count; /* if > 0, frequency * count + presence is taken off */
    bool banned;   /* -infinity before all of this */
    bool repeated; /* divided by the repetition penalty where positive, else multiplied */
} LogitEdit;

typedef struct SampleRow {
    int32_t given; /* >= 0: nothing is chosen, and this id's log-probability is wanted; else -1 */
    int n_top;     /* best ids of the raw logits beside it, 0 .. MAX_LOGPROBS */
    bool logprob;  /* of the chosen id, too, log-probability and rank are wanted */

    /* How an id is chosen (contract.md section 3). */
    bool only_edited;       /* ids without an edit are out */
    const LogitEdit *edits; /* [n_edits] borrowed; ids in any order, each once, below n_ids */
    int n_edits;
    float repetition, presence, frequency;
    int top_k;                        /* 0: off */
    double temperature, min_p, top_p; /* temperature 0: the best, ties to the lowest id */
    double uniform;                   /* [0, 1): where the distribution function is inverted */
} SampleRow;

typedef enum SampleStatus {
    SAMPLE_OK,
    SAMPLE_NOT_NUMBERS, /* a logit is NaN or +infinity */
    SAMPLE_NOTHING_LEFT /* every logit is -infinity, or nothing may be chosen */
} SampleStatus;

typedef struct Sampled {
    int32_t status; /* a SampleStatus; not SAMPLE_OK: the rest is 0 */
    int32_t id;
    TokenLogprobs lp; /* what was asked for; else 0 */
} Sampled;

typedef struct SampleSpec { /* alike for all rows */
    int vocab;
    int n_ids;   /* ids from here on are never chosen, but count in log-probabilities; <= vocab */
    float scale; /* multiplies every logit first */
} SampleSpec;

ON_HOST_AND_DEVICE static inline float logit_edit_apply(const LogitEdit *edit, const SampleRow *row,
                                                        float x)
{
    x = edit->banned ? -INFINITY : x + edit->bias;
    if (edit->repeated)
        x = x > 0 ? x / row->repetition : x * row->repetition;
    if (edit->count > 0)
        x -= row->frequency * (float)edit->count + row->presence;
    return x;
}

#endif
