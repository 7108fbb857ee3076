/* tests/support/quant_case.h - the inputs of tests/data/quant/vectors.json, which its script makes
 * alike, and SHA-256 in one line. */
#ifndef MB_TESTS_QUANT_CASE_H
#define MB_TESTS_QUANT_CASE_H

#include "quant/tensor.h"

/* n floats of mixed sizes, exact in source (FORMAT_F32, FORMAT_BF16, FORMAT_F16), with zeros of
 * either sign; every 37th 32 of them are zeros. spread: from one 32 to the next, sizes go through
 * 61 powers of two. */
void quant_case_values(uint64_t seed, int64_t n, FormatId source, bool spread, float *out);
void quant_case_bytes(uint64_t seed, int64_t n, uint8_t *out);

/* 1 and a message unless the SHA-256 of bytes is want, in hex. */
int check_sha256(const char *name, const void *bytes, int64_t n, const char *want);

#endif
