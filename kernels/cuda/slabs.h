/* kernels/cuda/slabs.h - weights in the order in which Hopper's tensor cores take them: the layout,
 * one set of functions for the host and the device.
 *
 * A slab is SLAB_ROWS output rows over all inputs. It is a run of records, one for each SLAB_K
 * inputs, so that a block of threads reads a slab from its first byte to its last. A record is
 *   codes   SLAB_PIECES x 128 threads x 16 bytes: thread t's bytes are its operands of wgmma for 4
 *           steps of 16 inputs (4-bit codes), 2 steps (8-bit) or one (bf16): of step j the inputs
 *           k = 16j + 2(t % 4) + {0, 1, 8, 9} of rows 16(t / 32) + t % 32 / 4 + {0, 8}
 *   scales  for each of 32 pairs of rows (8 of each warp), SLAB_SCALES bytes: those of the first
 *           and the second row, group after group
 * Banks of gate and up ("paired") have 32 rows of either in a slab: of each 16 rows the first eight
 * are gate's and the others up's, so that a thread holds both of an output.
 *
 * How codes lie within the 16 bytes is what is cheapest to unpack. Let a0 .. a3 be the operand's
 * words, each of an even input (low half) and the next one (high half).
 *   4-bit E2M1  a word per step; in each half, sign and magnitude of a0 at bits 15, 8-6; of a1 at
 *               11, 4-2 (shifted left by 4 they are where a0's are); of a2, turned left by 10
 *               within the word, at 5 and, in the other half, 14-12. Bits 0, 1, 9 and 10 of two
 *               steps' words, the second's shifted left by 2, make one word, of which a3 of the
 *               first step is had by a shift of 6 and that of the second by a turn of 12
 *   4-bit int   a word per step; in each half nibble i is a_i's code, value + 8
 *   E4M3        two words per step, {a0, a1} and {a2, a3}; in each half the upper byte is the
 *               first's
 *   8-bit int   two words per step, likewise, but bytes are {first even, first odd, second even,
 *               second odd}, each the value + 128
 *   bf16        the words themselves
 * Block scales are stored as what the kernel multiplies by without a test: see slab_scale. What a
 * row needs beyond (an exponent out of range, a NaN) is in its row_scale. */
#ifndef MB_KERNELS_CUDA_SLABS_H
#define MB_KERNELS_CUDA_SLABS_H

enum { SLAB_ROWS = 64, SLAB_K = 64, SLAB_THREADS = 128 };

typedef enum SlabCodec {
    SLAB_BF16,
    SLAB_MXFP4,  /* E2M1, a power of two for each 32 inputs */
    SLAB_NVFP4,  /* E2M1, E4M3 for each 16 */
    SLAB_E4M3,   /* scales of rows only */
    SLAB_MXFP8,  /* E4M3, a power of two for each 32 */
    SLAB_BLOCK8, /* E4M3, float32 for each 64 */
    SLAB_INT4,   /* bf16 for each 32 */
    SLAB_INT8,   /* float16 for each 32 */
    N_SLAB_CODECS
} SlabCodec;

#ifdef __CUDACC__
#define SLAB_FUNCTION static __host__ __device__ constexpr
#else
#define SLAB_FUNCTION static inline
#endif

/* 16-byte pieces of codes that a thread has of a record. */
SLAB_FUNCTION int slab_pieces(SlabCodec c)
{
    return c == SLAB_BF16 ? 4 : c == SLAB_MXFP4 || c == SLAB_NVFP4 || c == SLAB_INT4 ? 1 : 2;
}

/* Inputs that share a scale in a record. */
SLAB_FUNCTION int slab_group(SlabCodec c)
{
    return c == SLAB_NVFP4 ? 16 : c == SLAB_BLOCK8 ? 64 : 32;
}

/* Bytes of scales for a pair of rows in a record. */
SLAB_FUNCTION int slab_scales(SlabCodec c)
{
    return c == SLAB_BF16 || c == SLAB_E4M3 ? 0 : c == SLAB_MXFP4 || c == SLAB_MXFP8 ? 4 : 8;
}

SLAB_FUNCTION int slab_record_bytes(SlabCodec c)
{
    return slab_pieces(c) * SLAB_THREADS * 16 + slab_scales(c) * 32;
}

#endif
