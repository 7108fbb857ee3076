/* model/sampler.c - see sampler.h. */
#include "model/sampler.h"

static uint32_t word_at(const uint8_t *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

void sampler_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0],
             k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        uint32_t next0 = (uint32_t)(b >> 32) ^ c1 ^ k0, next2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c0 = next0;
        c1 = (uint32_t)b;
        c2 = next2;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* 96 bits of the row key take part: 64 of them with the seed as the key, 32 in the counter. Rows
 * differ in all of them, as they are parts of a SHA-256. */
double sampler_uniform(int64_t seed, const uint8_t row_key[32], int choice, int64_t token_index)
{
    uint64_t s = (uint64_t)seed, t = (uint64_t)token_index;
    uint32_t key[2] = {word_at(row_key) ^ (uint32_t)s, word_at(row_key + 4) ^ (uint32_t)(s >> 32)};
    uint32_t counter[4] = {(uint32_t)t, (uint32_t)(t >> 32), (uint32_t)choice,
                           word_at(row_key + 8)},
             out[4];
    sampler_philox(counter, key, out);
    uint64_t bits = (uint64_t)out[0] << 21 | out[1] >> 11; /* 53 */
    return (double)bits * 0x1p-53;
}
