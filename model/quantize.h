/* model/quantize.h - writes a checkpoint anew with its linear layers in other formats.
 *
 * Parts are dealt to the ranks, and each is written by one. A part appears under its name when
 * it is complete, config.json after all parts; a run that was interrupted keeps what an earlier
 * one with the same source, recipe and calibration has finished. The result does not depend on
 * ranks and threads. */
#ifndef MB_MODEL_QUANTIZE_H
#define MB_MODEL_QUANTIZE_H

#include "dist/comm.h"
#include "io/team.h"
#include "model/observe.h"

typedef struct QuantizeJob {
    const char *model,
        *out;           /* directories (model may be a pack); out is made where it is not there */
    const char *recipe; /* a name or a file: quantize_rules.h */
    bool experts_only;
    const Observer *seen; /* what calibration saw; NULL: there was none */
    bool will_calibrate;  /* for quantize_check: seen is not there yet */
    bool kv_given,
        kv_fp8;         /* whether k_scale and v_scale are wanted; by default with calibration, as
                              far as the format has them */
    int64_t part_bytes; /* a part ends with the module that takes it over this */
    bool overwrite;     /* remove what another run has left in out */
    const char *const *accept_keys;
    int n_accept_keys;
    bool quiet; /* no note for each part written */
    Team *team; /* of this rank; NULL: the caller alone */
} QuantizeJob;

typedef struct QuantizeResult { /* over all ranks */
    int64_t matrices, source_bytes, bytes_read, bytes_written, tensor_bytes;
    int parts, parts_kept;
    int64_t not_lossless; /* MXFP4 matrices that NVFP4 could not take over as they are */
    int unseen_experts; /* projections of experts that saw no token, and took their layer's value */
} QuantizeResult;

/* Collective. Refuses what headers, rules and directories show to be impossible, before anybody
 * calibrates for hours; makes job->out. */
Status quantize_check(const QuantizeJob *job, Comm *comm, Err *e);
/* Collective. Messages name file, tensor or rule. */
Status quantize_run(const QuantizeJob *job, Comm *comm, QuantizeResult *out, Err *e);

#endif
