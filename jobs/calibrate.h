/* jobs/calibrate.h - runs rows through a model to see how large its activations become. */
#ifndef MB_JOBS_CALIBRATE_H
#define MB_JOBS_CALIBRATE_H

#include "jobs/engine.h"
#include "jobs/progress.h"

typedef struct Calibration {
    Observer seen;
    int64_t n_rows, n_tokens; /* what was run, over all ranks */
} Calibration;

/* Reads rows as `score` does ("text" or "input_ids") until max_tokens tokens (0: all), and runs
 * each as a prompt; rows longer than the context are cut. A bad row is ST_INPUT naming it. The
 * model runs as config says, on every rank. Collective. calibration_free also after a failure. */
Status calibrate_run(const EngineConfig *config, Comm *comm, const char *path, int64_t max_tokens,
                     ProgressMode progress, Calibration *out, Err *e);
void calibration_free(Calibration *c);

#endif
