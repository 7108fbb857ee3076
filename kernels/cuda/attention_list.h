/* kernels/cuda/attention_list.h - the rows of a step as the kernels of attention read them: a head of
 * numbers and offsets, and arrays behind it (api.h). */
#ifndef MB_KERNELS_CUDA_ATTENTION_LIST_H
#define MB_KERNELS_CUDA_ATTENTION_LIST_H

#include "kernels/cuda/api.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Bytes that the list of so many rows, of so many sequences with so many pages altogether, takes at
 * most. */
size_t cuda_list_bytes(int n_rows, int n_seqs, int64_t n_pages);
/* Writes to host memory what is to lie at dev, and how to call it into *out; returns its bytes.
 * n_padded > 0: every sequence has one row, and rows up to n_padded are padding; what *out says then
 * depends on n_padded alone. */
size_t cuda_list_fill(void *host, const void *dev, CudaList *out, const AttnSeq *seqs, int n_seqs,
                      int n_padded);
#ifdef __cplusplus
}
#endif

#endif
