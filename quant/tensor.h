/* quant/tensor.h - a weight matrix as it is stored, and the table of formats.
 *
 * A format says how values are coded; a tensor adds where its codes and scales lie and which values
 * share a scale. Adding a format is one row in the table of formats.c, its decoder, and its
 * kernels. */
#ifndef MB_QUANT_TENSOR_H
#define MB_QUANT_TENSOR_H

#include "io/file.h"
#include "quant/element.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum FormatId {
    FORMAT_F32,
    FORMAT_BF16,
    FORMAT_F16,
    FORMAT_FP8,   /* E4M3 x a float scale: of the tensor, a row, or a block of rows and columns */
    FORMAT_NVFP4, /* E2M1 x (E4M3 scale of 16 or 32 x or / the tensor's scale) */
    FORMAT_MXFP8, /* E4M3 x E8M0 scale of 32 */
    FORMAT_MXFP4, /* E2M1 x E8M0 scale of 32 */
    FORMAT_INT4,  /* (code - 8) x float scale of a group of columns */
    FORMAT_Q8_0,  /* ggml's blocks, each with its scale inside */
    FORMAT_IQ2_XS,
    FORMAT_IQ2_XXS,
    N_FORMATS
} FormatId;

typedef enum ScaleType {
    SCALE_NONE,
    SCALE_F32,
    SCALE_BF16,
    SCALE_F16,
    SCALE_E4M3,
    SCALE_E8M0,
    N_SCALE_TYPES
} ScaleType;

typedef struct QuantTensor QuantTensor;

typedef struct QuantFormat {
    FormatId id;
    const char *name; /* "bf16", "mxfp4": what inspect prints */
    int unit; /* values along a row that lie together: 1, 2 in a byte of 4-bit codes, or a block */
    int unit_bytes;
    /* The scalar reference: out[i] = value of (row, col + i), i < n; roundings as formats.md writes
     * them, operation by operation. */
    void (*decode)(const QuantTensor *t, int64_t row, int64_t col, int64_t n, float *out);
} QuantFormat;

/* A logical matrix [rows, cols], y = x * W^T, seen where it lies. The pointers are borrowed; no
 * alignment is promised. Of the file whose mapping they lie in, if any, data_file and scales_file say
 * that much may be read from it in place of touching pages (file_map_read). The scale of (r, k) lies at
 *   scales + (first_row + r) / scale_rows * scale_row_bytes + k / group * scale_col_bytes. */
struct QuantTensor {
    const QuantFormat *format;
    int64_t rows, cols;  /* outputs, inputs */
    const uint8_t *data; /* of row 0, column 0 */
    /* from a row to the next: also 2 x for interleaved gate and up rows */
    int64_t row_bytes;
    /* Rows of `lanes` matrices that take turns, this one's being every lane-th of them: row_bytes and
     * scale_row_bytes go over one row of each. 0 lanes: it lies alone. */
    int lanes, lane;
    /* from a unit to the next along a row: unit_bytes, or more where the matrix is stored
     * transposed; block codecs always lie together */
    int64_t unit_stride;
    const uint8_t *scales; /* NULL: none */
    ScaleType scale_type;
    int64_t
        group; /* columns that share a scale, >= 1; cols: all of a row; the last group may be shorter */
    int64_t scale_rows; /* rows that share one, >= 1 */
    int64_t first_row;  /* of this matrix among the rows that the scales were made for */
    int64_t scale_row_bytes, scale_col_bytes; /* 0 where all share one */
    float global;                             /* NVFP4: the tensor's scale, */
    bool global_divides;                      /* and whether block scales are divided by it */
    const FileMap *data_file, *scales_file;   /* borrowed; NULL: memory */
};

const QuantFormat *quant_format(FormatId id);
int scale_bytes(ScaleType type); /* 0 for SCALE_NONE */
/* The scale at p, exact. */
float scale_value(ScaleType type, const uint8_t *p);
/* Whether block scales of that type belong to the format; SCALE_NONE where it has none. */
bool quant_scale_fits(FormatId format, ScaleType scale);
/* What (row, col)'s code is multiplied by: the stored scale, or for NVFP4 the rounded product or
 * quotient with the tensor's. 1 where the format has no scales. */
float quant_scale(const QuantTensor *t, int64_t row, int64_t col);
/* Bytes of one row of codes and scales packed without gaps. group and scale as in QuantTensor;
 * ignored where the format has none. */
int64_t quant_row_bytes(const QuantFormat *f, int64_t cols, int64_t group, ScaleType scale);

/* A dense row-major matrix of a plain format (F32, BF16, F16) at data. */
QuantTensor quant_plain(FormatId id, const void *data, int64_t rows, int64_t cols);
/* Rows first .. first+n-1 of t. */
QuantTensor quant_rows(const QuantTensor *t, int64_t first, int64_t n);
/* What every kernel multiplies by, all of it: out float32 [rows, cols] row-major. */
void quant_decode(const QuantTensor *t, float *out);

#endif
