/* quant/encode.h - weights of float32 rows into every format that this program writes.
 *
 * The rules are those of formats.md section 2 and 4, operation by operation in float32, so that
 * nvidia-modelopt's, compressed-tensors' and ggml's own results come out to the bit. Where those
 * tools compute in the weights' own type, source says which it was (FORMAT_F32, FORMAT_BF16,
 * FORMAT_F16) and results are rounded to it.
 *
 * Weights are row-major and without gaps, w [rows, cols]; so are codes and scales. A matrix may be
 * given a few rows at a time, except where scales span rows. All values must be finite: the caller
 * asks encode_amax first. The caller owns every buffer; nothing is allocated, nothing fails.
 *
 * Which matrices share one amax in ModelOpt's exports, found from their scales and digests:
 *   FP8 per tensor: gate and up of a routed expert. Those of dense layers and shared experts, and q,
 *     k and v, each have their own.
 *   NVFP4: whatever reads the same input: gate and up anywhere, q, k and v, and of latent attention
 *     the two that read the layer's input.
 *   FP8 per channel and per block, MXFP8, MXFP4: none share anything.
 *   Experts in one tensor (gpt-oss): FP8 and NVFP4 have one amax for all of them, and FP8 quotients
 *     are not rounded to source, since there the scale is a vector of one to PyTorch. */
#ifndef MB_QUANT_ENCODE_H
#define MB_QUANT_ENCODE_H

#include "quant/tensor.h"

/* max |w[i]|, i < n; infinite or NaN when any value is (0 for n = 0). */
float encode_amax(const float *w, int64_t n);
/* What maps amax to largest: amax / largest, > 0; 1 where amax is 0, since a scale of 0 means
 * damage to readers. */
float encode_scale(float amax, float largest);
/* Bytes of the codes of one row: of FORMAT_INT4 whole 32-bit words, else what quant_row_bytes says
 * without scales. */
int64_t encode_row_bytes(FormatId id, int64_t cols);

/* FORMAT_FP8. Per tensor (2.1): scale is encode_scale(shared amax, 448), codes [n]; the quotient is
 * rounded to source before it becomes a code. */
void encode_fp8(const float *w, int64_t n, FormatId source, float scale, uint8_t *codes);
/* Per row (2.2): codes [rows, cols], scales [rows]. */
void encode_fp8_channel(const float *w, int64_t rows, int64_t cols, uint8_t *codes, float *scales);
/* Per block of block x block (2.3, 2.4), those at the ends smaller; a matrix may be given in parts
 * whose rows are multiples of block. codes [rows, cols], scales [ceil(rows / block),
 * ceil(cols / block)]. */
void encode_fp8_block(const float *w, int64_t rows, int64_t cols, int64_t block, uint8_t *codes,
                      float *scales);

/* FORMAT_NVFP4 as it stands on disk (2.6): scale is encode_scale(shared amax, 2688); group (16 or
 * 32) divides cols. codes [rows, cols / 2], scales [rows, cols / group] E4M3. As in ModelOpt, a
 * weight of -0 becomes 0, and only what is less than 0 and rounds to it becomes -0. */
void encode_nvfp4(const float *w, int64_t rows, int64_t cols, int64_t group, float scale,
                  uint8_t *codes, uint8_t *scales);

/* FORMAT_NVFP4 as inference engines make it at load (4): one amax for all of an expert's gate and
 * up. *factor multiplies the weights, *scale is what the tensor keeps; it may differ from amax /
 * 2688 in the last bit. */
void encode_nvfp4_online_scale(float amax, float *factor, float *scale);
/* cols % 16 == 0. codes [rows, cols / 2], scales [rows, cols / 16]. w times factor is rounded to
 * source first. */
void encode_nvfp4_online(const float *w, int64_t rows, int64_t cols, FormatId source, float factor,
                         uint8_t *codes, uint8_t *scales);

/* FORMAT_MXFP8 (2.8) and FORMAT_MXFP4 by ModelOpt's rules (1.3 "ceil", 1.4 rule B: ties go towards
 * zero, and 0 gets the code of -0). cols % 32 == 0; scales [rows, cols / 32] E8M0. ModelOpt takes a
 * rounded logarithm, so that its scale is half of this where a float32 amax lies a few units above
 * the largest code times a power of two; amax of 16-bit weights cannot lie there. */
void encode_mxfp8(const float *w, int64_t rows, int64_t cols, uint8_t *codes, uint8_t *scales);
void encode_mxfp4(const float *w, int64_t rows, int64_t cols, uint8_t *codes, uint8_t *scales);

/* FORMAT_INT4, symmetric, as compressed-tensors quantizes a group: amax / 7.5 and the quotients
 * rounded to source, codes -8 .. 7 stored plus 8. The last group of a row may be shorter. codes
 * [rows, encode_row_bytes], unused nibbles 0; scales [rows, ceil(cols / group)] bf16. */
void encode_int4(const float *w, int64_t rows, int64_t cols, int64_t group, FormatId source,
                 uint8_t *codes, uint16_t *scales);
/* The same containers from decoded MXFP4 in groups of 32 (2.12): every operation rounds to bf16,
 * amax / 7, codes -7 .. 7. cols % 32 == 0. */
void encode_int4_of_mxfp4(const float *w, int64_t rows, int64_t cols, uint8_t *codes,
                          uint16_t *scales);

/* FORMAT_Q8_0 (2.14): cols % 32 == 0; blocks [rows, cols / 32 * 34]. */
void encode_q8_0(const float *w, int64_t rows, int64_t cols, uint8_t *blocks);

/* MXFP4 to NVFP4 without loss (2.5): codes stay, each scale of 32 becomes two of 16.
 * Exponents (scale byte - 127) of the blocks that hold anything but zeros; codes [n_blocks, 16],
 * scales [n_blocks], no 255. low and high are widened, so that several matrices can share a range:
 * start with low = 127, high = -128. */
void encode_mxfp4_range(const uint8_t *codes, const uint8_t *scales, int64_t n_blocks, int *low,
                        int *high);
/* E4M3 holds the powers from 2^-9 to 2^8: no more than 18 exponents, low .. low + 17. */
bool encode_mxfp4_fits_nvfp4(int low, int high);
/* The tensor's scale; where all blocks are zeros (high < low) that of exponent 0. */
float encode_nvfp4_of_mxfp4_scale(int low, int high);
/* out [n_blocks, 2] E4M3; a block of zeros gets the nearest power that there is. */
void encode_nvfp4_of_mxfp4(const uint8_t *scales, int64_t n_blocks, int low, int high,
                           uint8_t *out);

#endif
