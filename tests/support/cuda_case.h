/* tests/support/cuda_case.h - the CUDA backend beside the CPU's: rows of the same values in the
 * memory of both, and how far results may be apart. */
#ifndef MB_TESTS_CUDA_CASE_H
#define MB_TESTS_CUDA_CASE_H

#include "kernels/backend.h"

typedef struct CudaCase {
    const BackendOps *cpu, *cuda;
    Backend *host, *dev;
} CudaCase;

/* 0; or 77 after "skipped: no CUDA device" with the reason, where there is none. */
int cuda_case_open(CudaCase *c);
void cuda_case_close(CudaCase *c);

/* n values about [-1, 1) that bf16 holds, from seed alone; free(). */
float *cuda_case_floats(int64_t n, uint64_t seed);
/* Device memory with n values as bf16, or bytes as they are; release with cuda->release. Failure
 * ends the test, here and below. */
void *cuda_case_rows(const CudaCase *c, const float *x, int64_t n);
void *cuda_case_bytes(const CudaCase *c, const void *from, size_t bytes);
/* n bf16 values, or float32 ones, of the device; free(). */
float *cuda_case_read(const CudaCase *c, const void *dev, int64_t n);
float *cuda_case_read_floats(const CudaCase *c, const void *dev, int64_t n);
/* Ends the test where a call failed. */
void cuda_case_must(Status st, const Err *e);

/* 1 and a message unless |got - want| <= slack[i] + relative * |want| throughout; slack NULL: 0. */
int cuda_case_near(const char *name, const float *got, const float *want, int64_t n,
                   const float *slack, double relative);
/* 1 and a message unless the relative L2 distance is below limit. */
int cuda_case_l2(const char *name, const float *got, const float *want, int64_t n, double limit);

/* What rounding to bf16 moves a value by at most, relative: half a unit of eight bits. Its mean
 * square is below (0.6 BF16_HALF)^2. */
#define BF16_HALF 0x1p-8

#endif
