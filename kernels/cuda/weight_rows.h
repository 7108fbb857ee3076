/* kernels/cuda/weight_rows.h - rows of a matrix as they are staged: codes, block scales, and what a whole
 * row is multiplied by. Where they are staged as they are stored, they go as spans of bytes, looked at on
 * their way; else row by row, filled in on the host. */
#ifndef MB_KERNELS_CUDA_WEIGHT_ROWS_H
#define MB_KERNELS_CUDA_WEIGHT_ROWS_H

#include "kernels/cuda/cuda.h"

typedef enum RowKind { ROW_CODES, ROW_SCALES, ROW_WHOLE_SCALES } RowKind;

/* All rows of one part of one matrix. */
typedef struct RowJob {
    const Weight *w;
    const CudaPart *p;
    const QuantTensor *t;
    float *values; /* [threads, cols] where values are decoded on the host, else NULL */
    /* The rest is set by rows_fill. */
    RowKind kind;
    int64_t first, row_bytes;
} RowJob;

Status rows_begin(Backend *b, const Weight *w, int part, const QuantTensor *t, RowJob *out, Err *e);
void rows_end(RowJob *job);

/* Whether codes lie in t as the device reads them, without gaps, or in turns with other matrices. */
bool rows_raw_codes(const Weight *w, const CudaPart *p, const QuantTensor *t);
/* The same of block scales, a row of them for each row; false where p has none. */
bool rows_raw_scales(const CudaPart *p, const QuantTensor *t);
/* Whether they lie in a bank that is no slabs as they do in t. */
bool rows_lie_so(const Weight *w, int part, const QuantTensor *t);
/* Rows first .. first+n-1 of raw codes or scales, with those that take turns with them: all lanes have
 * the same span, and row `first` begins rows_lane_bytes into it. Of a file, it is looked at. */
UploadSpan rows_span(const CudaPart *p, const QuantTensor *t, RowKind kind, int64_t first,
                     int64_t n);
int64_t rows_lane_bytes(const QuantTensor *t, RowKind kind);

/* The same of rows that are not raw, row_bytes each, on stream. */
Status rows_fill(Backend *b, RowJob *job, RowKind kind, int64_t first, int64_t n, int64_t row_bytes,
                 uint8_t *to, void *stream, Err *e);

/* slabs_cuda.c: all rows into the slabs of a matrix. whole: of its row 0, in the bank. */
Status cuda_slabs_set(Backend *b, RowJob *job, int mat, int part, float *whole, Err *e);
void cuda_slabs_ahead(Backend *b, const Weight *w, int part, const QuantTensor *t);
/* fp8_cuda.c: all rows into a bank of WEIGHT_CODED. */
Status cuda_fp8_set(Backend *b, RowJob *job, int mat, int part, Err *e);

/* Whether one factor, that of row 0, is every row's; else they are filled in. */
bool rows_share_scale(const CudaPart *p, const QuantTensor *t);
float rows_whole_scale(const CudaPart *p, const QuantTensor *t, int64_t row);

#endif
