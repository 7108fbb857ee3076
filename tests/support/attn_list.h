/* tests/support/attn_list.h - attention over sequences that a test has at hand, without a list of
 * its own. */
#ifndef MB_TESTS_ATTN_LIST_H
#define MB_TESTS_ATTN_LIST_H

#include "kernels/backend.h"

Status test_kv_write(const BackendOps *ops, Backend *b, void *pool, const void *k, const void *v,
                     int64_t stride, const AttnSeq *seqs, int n_seqs, const AttnSpec *spec, Err *e);
Status test_attention(const BackendOps *ops, Backend *b, void *out, const void *q, int64_t stride,
                      const void *pool, const AttnSeq *seqs, int n_seqs, const AttnSpec *spec,
                      Err *e);
Status test_latent_write(const BackendOps *ops, Backend *b, void *pool, const void *rows,
                         int64_t stride, const AttnSeq *seqs, int n_seqs, const LatentSpec *spec,
                         Err *e);
Status test_latent_attention(const BackendOps *ops, Backend *b, void *out, const void *q,
                             const void *pool, const AttnSeq *seqs, int n_seqs,
                             const LatentSpec *spec, const LatentWeights *w, LatentForm form,
                             void *scratch, Err *e);

#endif
