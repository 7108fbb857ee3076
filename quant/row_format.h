/* quant/row_format.h - activation rows in the few bits that a checkpoint was calibrated for.
 *
 * A row is a token's vector. Rounding one is encoding and decoding it again; what goes over the
 * wire is the encoding. Everything is float32 arithmetic as formats.md section 2 writes it,
 * operation by operation, so that every backend can give the same bits. With f(.) a rounding to
 * float32, A(v) the E2M1 and Q(v) the E4M3 nearest to v (ties to even, saturating), amax of the row
 * and bmax of the group, decoded values are
 *   FP8_STATIC    f(Q(f(x * f(1 / input_scale))) * input_scale)
 *   FP8_TOKEN     f(Q(f(x / s)) * s), s = max(f(amax / 448), f(1 / 229376))
 *   FP8_GROUP     f(Q(f(x / s)) * s), s = f(max(bmax, 1e-10) / 448), or the next power of two
 *   NVFP4_STATIC  f(A(f(x * o)) * f(b * input_scale)), g = f(1 / input_scale),
 *                 b = Q(f(g * f(bmax * f(1 / 6)))), o = f(1 / f(b * f(1 / g))), 0 where b is 0
 *   NVFP4_TOKEN   f(A(f(f(x * e) / b)) * f(b * s)), s = f(amax * f(1 / 2688)), e = f(1 / s),
 *                 b = Q(f(f(e * bmax) / 6)); e is 0 where s is 0 or 1 / s overflows, and a group
 *                 whose b is 0 becomes zeros
 *   MXFP8         Q(x * 2^-k) * 2^k, k = ceil(log2(f(bmax / 448))), -127 .. 127
 * A NaN counts as the largest magnitude, so that in schemes whose codes have no NaN the scale
 * becomes one. -0 stays -0. */
#ifndef MB_QUANT_ROW_FORMAT_H
#define MB_QUANT_ROW_FORMAT_H

#include "quant/tensor.h"

typedef enum RowScheme {
    ROWS_AS_THEY_ARE,  /* no rounding */
    ROWS_FP8_STATIC,   /* E4M3, one calibrated scale (formats.md 2.1) */
    ROWS_FP8_TOKEN,    /* E4M3, a scale per row (2.2) */
    ROWS_FP8_GROUP,    /* E4M3, a scale per row and 128 columns, the last group shorter (2.4) */
    ROWS_NVFP4_STATIC, /* E2M1, E4M3 scale per 16, calibrated global (2.6) */
    ROWS_NVFP4_TOKEN,  /* E2M1, E4M3 scale per 16, a global per row (4) */
    ROWS_MXFP8,        /* E4M3, E8M0 scale per 32, ceil rule (2.8) */
    N_ROW_SCHEMES
} RowScheme;

typedef struct RowFormat {
    RowScheme scheme;
    float input_scale; /* the static schemes': a multiplier, > 0, and 1 / it finite */
    bool power_of_two; /* ROWS_FP8_GROUP: scales are rounded up to powers of two ("ue8m0") */
} RowFormat;

const char *row_scheme_name(RowScheme scheme); /* "fp8 static", for messages and inspect */
/* Same scheme and parameters, so that rows rounded by the one need no rounding by the other. */
bool row_format_same(const RowFormat *a, const RowFormat *b);
/* Columns that width must be a multiple of: 16 for NVFP4, 32 for MXFP8, else 1. */
int row_format_multiple(RowScheme scheme);
/* Bytes of an encoded row, a multiple of 4; width * 4 for ROWS_AS_THEY_ARE. */
int64_t row_encoded_bytes(RowScheme scheme, int64_t width);
/* out [row_encoded_bytes] from x [width]: codes, then the groups' scales, then the row's; gaps
 * are zeros. 16 E2M1 codes are 8 bytes, of which byte j holds values j (its low half) and j + 8.
 * No alignment is needed. A NaN in x stays one somewhere in the decoded row. */
void row_encode(const RowFormat *f, const float *x, int64_t width, uint8_t *out);
void row_decode(const RowFormat *f, const uint8_t *in, int64_t width, float *x);
/* y[i] = decode(encode(x))[i]; y may be x. */
void row_round(const RowFormat *f, const float *x, int64_t width, float *y);

#endif
