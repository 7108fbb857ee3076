/* tests/support/cuda_case.h - the CUDA backend beside the CPU's: rows of the same values in the
 * memory of both, and how far results may be apart. */
#ifndef MB_TESTS_CUDA_CASE_H
#define MB_TESTS_CUDA_CASE_H

#include "tests/support/kernel_case.h"

typedef struct CudaCase {
    const BackendOps *cpu, *cuda;
    Backend *host, *dev;
    bool small;             /* fewer rows and pieces, for compute-sanitizer */
    int part, parts, asked; /* of cases, this test has every parts-th */
} CudaCase;

/* 0; or 77 after "skipped: no CUDA device" with the reason, where there is none. */
int cuda_case_open(CudaCase *c);
void cuda_case_close(CudaCase *c);
/* [small [PART PARTS]]: what of a test runs. Ends it where they are others. */
void cuda_case_arguments(CudaCase *c, int argc, char **argv);
/* Whether the next case runs. */
bool cuda_case_due(CudaCase *c);

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

/* Experts that both backends have; the caller fills in all but the last line. */
typedef struct CudaExperts {
    int n, per;       /* experts; matrices of each in w13: 2, or 1 where nothing is gated */
    TestTensor *w13;  /* [n * per] */
    TestTensor *w2;   /* [n] */
    WeightUse use[2]; /* of the device's banks */
    bool bias;        /* random ones */
    FfnSpec host;     /* hidden, inter, act, inner; then the CPU's banks as well */
    FfnSpec dev;      /* the device's; what rows it reads is the caller's to say */
    void *biases_dev[2];
} CudaExperts;
void cuda_experts_make(const CudaCase *c, CudaExperts *x);
/* The CPU's results for n pairs, float32 [n, hidden]; arguments as ffn's. free(). */
float *cuda_experts_want(const CudaCase *c, const CudaExperts *x, const float *rows,
                         const float *rows_up, const int32_t *row_of, const int32_t *first, int n);
/* With the tensors in w13 and w2. */
void cuda_experts_free(const CudaCase *c, CudaExperts *x);

/* 1 and a message unless |got - want| <= slack[i] + relative * |want| throughout; slack NULL: 0. */
int cuda_case_near(const char *name, const float *got, const float *want, int64_t n,
                   const float *slack, double relative);
/* 1 and a message unless the relative L2 distance is below limit. */
int cuda_case_l2(const char *name, const float *got, const float *want, int64_t n, double limit);

/* What rounding to bf16 moves a value by at most, relative: half a unit of eight bits. Its mean
 * square is below (0.6 BF16_HALF)^2. */
#define BF16_HALF 0x1p-8

#endif
