/* model/sampler.h - random numbers that depend only on what they are for. */
#ifndef MB_MODEL_SAMPLER_H
#define MB_MODEL_SAMPLER_H

#include <stdint.h>

/* The block function of Philox-4x32-10: ten rounds over a counter of four words under a key of
 * two. */
void sampler_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Uniform in [0, 1), from a counter-based generator (Philox-4x32-10, Salmon et al. 2011) keyed
 * by seed and row key; the counter is (choice index, index of the generated token). */
double sampler_uniform(int64_t seed, const uint8_t row_key[32], int choice, int64_t token_index);

#endif
