/* model/online.h - quantizes the weights of a plain checkpoint while they are loaded.
 *
 * One matrix at a time becomes codes and scales, and these go to the backend like stored ones: a
 * rank needs memory for its largest matrix's codes and a few float32 rows per thread, not more.
 * What is taken, and how, is contract.md section 7: all linear layers and experts but routers,
 * embeddings, lm_head, gates of shared experts and kv_b_proj. NVFP4 is formats.md section 4:
 * matrices that stand in one bank (gate and up; q, k and v) share their tensor's scale. */
#ifndef MB_MODEL_ONLINE_H
#define MB_MODEL_ONLINE_H

#include "io/team.h"
#include "model/checkpoint.h"
#include "model/precision.h"

/* Also says what rows are rounded to where activations are as stored. NULL for ONLINE_NONE. */
const QuantScheme *online_scheme(OnlineFormat format);
/* Gives what is to be quantized this scheme; its matrices stay as they are stored. Nothing for
 * ONLINE_NONE. ST_INPUT for a checkpoint that is quantized already or lacks experts where only
 * they are meant, and for matrices of an unfit width. */
Status online_mark(OnlineFormat format, bool experts_only, const Arch *arch, Checkpoint *c, Err *e);
/* The parts of a bank that takes a matrix like view. */
WeightPart online_part(OnlineFormat format, const QuantTensor *view);

typedef struct OnlineEncoder {
    OnlineFormat format;
    Team *team; /* NULL: the caller alone */
    float *rows, *largest;
    uint8_t *codes, *scales;
    size_t rows_bytes, largest_bytes, codes_bytes, scales_bytes;
} OnlineEncoder; /* {format, team}, then zeros; online_end frees what it took */

/* Raises *amax, which begins as 0, to view's largest magnitude, in formats whose matrices share a
 * scale; else does nothing. ST_INPUT for a value that is infinite or NaN, without a name in
 * front. */
Status online_share(OnlineEncoder *o, const QuantTensor *view, float *amax, Err *e);
/* *out is view in the encoder's format; its bytes are borrowed until the next call. amax: of all
 * views that share its scale. ST_INPUT as in online_share. */
Status online_encode(OnlineEncoder *o, const QuantTensor *view, float amax, QuantTensor *out,
                     Err *e);
void online_end(OnlineEncoder *o);

#endif
