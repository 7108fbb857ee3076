/* model/weight_digest.h - SHA-256 of what quantized weights decode to, so that two checkpoints
 * can be compared by what they mean, whatever formats and files they have (contract.md section
 * 7). */
#ifndef MB_MODEL_WEIGHT_DIGEST_H
#define MB_MODEL_WEIGHT_DIGEST_H

#include "dist/comm.h"
#include "io/team.h"
#include "model/modules.h"

/* Of the decoded float32 values, little-endian, -0 kept: row-major [out, in]; a stack as the
 * family's reference stores it, [E, in, out] with gate and up as they lie. */
Status weight_digest(const Checkpoint *c, const Module *m, uint8_t out[32], Err *e);

/* Collective: the modules are dealt to the ranks, and on each to the team's threads (NULL: one).
 * out [modules->n][32], filled in on rank 0; unquantized modules get zeros. */
Status weight_digests(const Checkpoint *c, const Modules *modules, Comm *comm, Team *team,
                      uint8_t (*out)[32], Err *e);

#endif
