/* model/step_arrays.h - the index arrays of one step in the backend's memory: set once, before the
 * first layer, at the same addresses in every step, so that recorded layers find them there. */
#ifndef MB_MODEL_STEP_ARRAYS_H
#define MB_MODEL_STEP_ARRAYS_H

#include "model/arch.h"
#include "model/kv_cache.h"

/* Which of a step's rows a list holds. */
typedef enum RowRole {
    ROWS_ALL,
    ROWS_PROMPT,    /* positions of the sequence's prompt */
    ROWS_GENERATED, /* positions after it, also when they are computed again */
    N_ROW_ROLES
} RowRole;

/* One sequence's rows of this step. */
typedef struct StepSeq {
    int row, n_rows; /* rows row .. row+n_rows-1 of the step */
    int pos;         /* position of the first */
    int n_wanted;    /* how many of its last rows need logits */
    int n_prompt;    /* positions below it are the sequence's prompt */
    const KvSeq *kv; /* extended to hold them */
} StepSeq;

typedef struct Step {
    int64_t number;
    const int32_t *ids;      /* [n_rows] */
    const int32_t *position; /* [n_rows] */
    int n_rows;
    const StepSeq *seqs; /* in row order, covering all rows */
    int n_seqs;
    /* not ST_OK: this rank failed before the step, computes nothing, and tells the others */
    Status mine;
} Step;

/* Rows of one role as attention takes them. */
typedef struct RoleList {
    AttnList *list; /* NULL: no layer asks for it */
    int n_seqs;     /* that it holds; 0: nothing to launch */
} RoleList;

typedef struct StepArrays {
    const BackendOps *ops; /* borrowed, with the backend */
    Backend *backend;
    int32_t *ids, *position, *wanted; /* [max_rows] backend memory; wanted: [n_wanted] rows */
    int32_t *live;                    /* one number: rows that are not padding */
    int n_wanted;
    bool all_wanted; /* of the step's rows, as in every step that is recorded: last is not set */
    RoleList lists[MAX_KV_GROUPS][N_ROW_ROLES]; /* of the layers of each group */
    RoleList last[N_ROW_ROLES];                 /* wanted rows alone, of the last layer */
    int last_group;                             /* the last layer's */
    int32_t *host;                              /* [max_rows] scratch */
    AttnSeq *seqs;                              /* [max_seqs] scratch */
} StepArrays;

/* Room for steps of so many rows and sequences of at most max_len positions. On failure *s is to be
 * freed all the same. */
Status step_arrays_create(StepArrays *s, const Arch *arch, const KvCache *kv, const BackendOps *ops,
                          Backend *backend, int max_rows, int max_seqs, int max_len, Err *e);
void step_arrays_free(StepArrays *s); /* all zero is fine */

/* Does not wait. n_padded: as list_set says; 0 for steps that are not recorded. */
Status step_arrays_set(StepArrays *s, const Step *step, int n_padded, Err *e);

/* Every sequence brings one row that was generated, and wants its logits: what can be padded. */
bool step_is_decode(const Step *step);

#endif
