/* tests/support/quant_case.c - see quant_case.h. */
#include "tests/support/quant_case.h"

#include "io/digest.h"
#include "tests/support/check.h"

#include <string.h>

static uint64_t mix(uint64_t seed, uint64_t i)
{
    uint64_t z = (seed << 32) + i;
    z ^= z >> 30;
    z *= 0xbf58476d1ce4e5b9U;
    z ^= z >> 27;
    z *= 0x94d049bb133111ebU;
    return z ^ z >> 31;
}

void quant_case_values(uint64_t seed, int64_t n, FormatId source, bool spread, float *out)
{
    uint32_t kept = source == FORMAT_BF16  ? 0xffff0000U
                    : source == FORMAT_F16 ? 0xffffe000U
                                           : 0xffffffffU;
    for (int64_t i = 0; i < n; i++) {
        uint64_t z = mix(seed, (uint64_t)i);
        int below = 0;
        while (below < 8 && (z >> (23 + below) & 1))
            below++;
        int exponent = 124 - below - (int)(z >> 32 & 3);
        if (spread)
            exponent += (int)(i / 32 % 61) - 30;
        uint32_t bits = (uint32_t)exponent << 23 | (uint32_t)(z & 0x7fffffU);
        if ((z >> 40 & 63) == 0 || i / 32 % 37 == 5)
            bits = 0;
        bits = (bits | (uint32_t)(z >> 63) << 31) & kept;
        memcpy(out + i, &bits, sizeof bits);
    }
}

void quant_case_bytes(uint64_t seed, int64_t n, uint8_t *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (uint8_t)(mix(seed, (uint64_t)i) >> 56);
}

int check_sha256(const char *name, const void *bytes, int64_t n, const char *want)
{
    Err e;
    uint8_t digest[32];
    char hex[65];
    if (sha256_of(bytes, (size_t)n, digest, &e) != ST_OK)
        return check_str(name, e.text, "a digest");
    hex_of(digest, 32, hex);
    return check_str(name, hex, want);
}
