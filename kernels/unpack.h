/* kernels/unpack.h - matrices of a kept bank back into codes as a checkpoint stores them, whatever
 * processor the bank was made for. */
#ifndef MB_KERNELS_UNPACK_H
#define MB_KERNELS_UNPACK_H

#include "kernels/backend.h"

/* A bank as weight_create takes it, and the layout in which its matrices lie. */
typedef struct KeptBank {
    const char *layout;
    WeightUse use;
    int n_parts;
    WeightPart parts[MAX_PARTS];
    int64_t cols;
} KeptBank;

/* Bytes of one matrix; ST_INPUT where such a bank, or its layout, cannot be. */
Status unpack_mat_bytes(const KeptBank *k, size_t *out, Err *e);
/* The codes of one part of mat [unpack_mat_bytes] to where codes, row_bytes and unit_stride say, as
 * in a QuantTensor; scales are left out. */
void unpack_part(const KeptBank *k, int part, const uint8_t *mat, uint8_t *codes, int64_t row_bytes,
                 int64_t unit_stride);

#endif
