/* tests/support/kernel_case.h - backends at every instruction set and several team sizes,
 * reproducible random data, and random weights in every format. Out of memory ends the test. */
#ifndef MB_TESTS_KERNEL_CASE_H
#define MB_TESTS_KERNEL_CASE_H

#include "kernels/backend.h"

typedef struct TestBackend {
    char name[32]; /* "avx2, 3 threads" */
    Team *team;
    Backend *b;
} TestBackend;

enum { MAX_TEST_BACKENDS = 9 };

/* Each level that this processor has at 1, 2 and 3 threads, scalar at 1 thread first; says which
 * levels are missing. Returns how many. */
int test_backends(const BackendOps *ops, TestBackend out[MAX_TEST_BACKENDS]);
void test_backends_free(const BackendOps *ops, TestBackend *t, int n);

void *test_alloc(size_t bytes); /* exactly so many, so that a sanitizer sees the end; free() */
/* n values about [-1, 1), from seed alone. */
float *test_floats(int64_t n, uint64_t seed);
/* A few uniform bits; advances *seed. */
uint32_t test_random(uint64_t *seed);

typedef struct TestTensor {
    QuantTensor t;
    float *value; /* [rows, cols], what t decodes to */
    void *data, *scales;
} TestTensor;
enum { TEST_ALL = 1 << 20 }; /* columns or rows that share a scale: as many as there are */
typedef struct TestScales {
    ScaleType type; /* SCALE_NONE: the format's usual one */
    int64_t group;  /* 0: the usual one */
    int64_t rows;   /* that share a scale; 0: 128 for FP8, else 1 */
} TestScales;
/* Random codes that are numbers, with scales that keep values about [-1, 1): FP8 in blocks of 128,
 * NVFP4 in groups of 16, INT4 in groups of 32 with bf16 scales. cols must be whole blocks. */
TestTensor test_tensor(FormatId format, int64_t rows, int64_t cols, uint64_t seed);
TestTensor test_scaled(FormatId format, TestScales scales, int64_t rows, int64_t cols,
                       uint64_t seed);
/* t.value again, after a change of codes or scales. */
void test_tensor_decode(TestTensor *t);
void test_tensor_free(TestTensor *t);

/* A bank whose matrix m, part p is t[m * n_parts + p]. Failure ends the test. */
Weight *test_weight(const BackendOps *ops, Backend *b, WeightUse use, int n_mats, int n_parts,
                    const TestTensor *t);

/* What every matrix kernel promises of the product of two rows of n values: chains of 128 fused
 * multiply-adds, added in ascending order. */
float test_chains(const float *x, const float *w, int64_t n);

/* 1 and a message with the first differing index, unless all n values have the same bits. */
int check_bits(const char *name, const float *got, const float *want, int64_t n);
/* 1 and a message unless |got - want| <= tolerance * max(1, |want|) throughout. */
int check_close(const char *name, const float *got, const double *want, int64_t n,
                double tolerance);

#endif
