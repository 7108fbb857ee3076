/* model/quantize_write.h - fills the parts of a plan: reads the source, encodes, writes. */
#ifndef MB_MODEL_QUANTIZE_WRITE_H
#define MB_MODEL_QUANTIZE_WRITE_H

#include "io/team.h"
#include "model/quantize_plan.h"

typedef struct QuantizeCounts {
    int64_t matrices, bytes_read, bytes_written;
    int64_t
        not_lossless; /* MXFP4 matrices whose exponents NVFP4 could not take over, and which were
                             quantized anew */
} QuantizeCounts;

/* Writes DIR/PART's file, complete and synced, and adds to *counts. Memory: for each thread of the
 * team some rows of a matrix (of a stack that is stored transposed: one expert). Not collective.
 * ST_INPUT names weights that are not finite. */
Status quantize_write_part(const QuantizePlan *plan, int part, const Checkpoint *source,
                           const char *dir, Team *team, QuantizeCounts *counts, Err *e);

#endif
