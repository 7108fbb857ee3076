/* tests/support/golden_model.h - a reference checkpoint and its file of logits, run on any backend.
 * Failure ends the test. */
#ifndef MB_TESTS_GOLDEN_MODEL_H
#define MB_TESTS_GOLDEN_MODEL_H

#include "io/file.h"
#include "io/safetensors.h"
#include "model/model.h"

enum { GOLDEN_ROWS = 144 }; /* no prompt is longer */

typedef struct GoldenModel {
    char dir[FILE_PATH_MAX];
    Arch arch;
    FileMap map;
    SafeTensors file; /* golden.safetensors */
} GoldenModel;

void golden_open(const char *dir, GoldenModel *g);
void golden_close(GoldenModel *g);
/* The k-th prompt's WHAT: "input_ids", "logits", "stored", ...; NULL where there is none. */
const TensorEntry *golden_entry(const GoldenModel *g, const char *what, int k);
/* Its ids; returns how many, 0 when there is no k-th prompt. */
int golden_ids(const GoldenModel *g, int k, int32_t ids[GOLDEN_ROWS]);
Model *golden_load(const GoldenModel *g, Comm *comm, const BackendOps *ops, Backend *backend,
                   const Precision *precision);
/* All n positions of a prompt in one step: out [n, vocab]. */
void golden_run(Model *m, const int32_t *ids, int n, float *out);

/* Calls fn for the folder of every reference checkpoint under folder, or of those whose names are
 * given (n_names of them, 0: all), in the order of their names; returns the sum of what it returns.
 * A name that is not there ends the test. */
int golden_each(const char *folder, int n_names, char *const *names,
                int (*fn)(void *ctx, const char *dir, const char *name), void *ctx);

#endif
