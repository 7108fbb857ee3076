/* quant/tensor.h - a weight matrix as it is stored, and the table of element formats.
 *
 * Adding a format is one row in the table of formats.c, its decoder, and its kernels. */
#ifndef MB_QUANT_TENSOR_H
#define MB_QUANT_TENSOR_H

#include "io/err.h"

#include <stddef.h>
#include <stdint.h>

typedef enum FormatId { FORMAT_F32, FORMAT_BF16, FORMAT_F16, FORMAT_MXFP4, N_FORMATS } FormatId;

typedef struct QuantTensor QuantTensor;

typedef struct QuantFormat {
    FormatId id;
    const char *name; /* "bf16", "mxfp4": what inspect prints */
    int block;        /* values along a row that share a scale; 1: no block scale */
    int block_bytes;  /* of one block in data, its scale not counted */
    int scale_bytes;  /* of one block's scale; 0: none */
    /* The scalar reference: out[i] = value of (row, col + i), i < n. Exact in float32. */
    void (*decode)(const QuantTensor *t, int64_t row, int64_t col, int64_t n, float *out);
} QuantFormat;

/* A logical matrix [rows, cols], y = x * W^T, seen where it lies. The pointers are borrowed. */
struct QuantTensor {
    const QuantFormat *format;
    int64_t rows, cols;  /* outputs, inputs */
    const uint8_t *data; /* of row 0, column 0 */
    /* from a row to the next: also 2 x for interleaved gate and up rows */
    int64_t row_bytes;
    /* from a column to the next; only plain formats may differ from their size */
    int64_t col_bytes;
    const uint8_t *scales;   /* of row 0, block 0; NULL: none */
    int64_t scale_row_bytes; /* from a row's scales to the next row's */
};

const QuantFormat *quant_format(FormatId id);
/* Bytes of one row in its packed form, scales included. */
int64_t quant_row_bytes(const QuantFormat *f, int64_t cols);

/* A dense row-major matrix of a plain format at data. */
QuantTensor quant_plain(FormatId id, const void *data, int64_t rows, int64_t cols);

/* Element codecs, exact: OCP MX v1.0 for E2M1 and E8M0 (255 gives NaN), IEEE 754 for the rest. */
float bf16_to_float(uint16_t bits);
float f16_to_float(uint16_t bits);
uint16_t float_to_bf16(float v); /* nearest even */
float e2m1_to_float(unsigned nibble);
float e8m0_to_float(uint8_t b);

#endif
