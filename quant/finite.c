/* quant/finite.c - see finite.h. */
#include "quant/finite.h"

#include <math.h>
#include <string.h>

static const NotFinite in_e4m3 = {1, 0x7f, 0x01, 0x80}, in_bf16 = {2, 0x7f80, 0x0080, 0x8000},
                       in_f16 = {2, 0x7c00, 0x0400, 0x8000},
                       in_f32 = {4, 0x7f800000, 0x00800000, 0x80000000};

const NotFinite *finite_test(FormatId format)
{
    switch (format) {
    case FORMAT_FP8:
    case FORMAT_MXFP8:
        return &in_e4m3;
    case FORMAT_BF16:
        return &in_bf16;
    case FORMAT_F32:
        return &in_f32;
    case FORMAT_F16:
    case FORMAT_Q8_0: /* blocks of codecs begin with their scale, in binary16 */
    case FORMAT_IQ2_XS:
    case FORMAT_IQ2_XXS:
        return &in_f16;
    default: /* all 16 codes are numbers */
        return NULL;
    }
}

/* The pattern in every element of a word. */
static uint64_t everywhere(uint64_t pattern, int size)
{
    for (int bits = 8 * size; bits < 64; bits *= 2)
        pattern |= pattern << bits;
    return pattern;
}

int64_t finite_search(const NotFinite *f, const uint8_t *p, int64_t n)
{
    uint64_t mask = everywhere(f->mask, f->size), add = everywhere(f->add, f->size),
             top = everywhere(f->top, f->size);
    int64_t per_word = 8 / f->size, i = 0;
    for (; i + per_word <= n; i += per_word) {
        uint64_t word;
        memcpy(&word, p + i * f->size, sizeof word);
        if (((word & mask) + add) & top)
            break;
    }
    for (; i < n; i++) {
        uint64_t bits = 0;
        memcpy(&bits, p + i * f->size, (size_t)f->size);
        if (((bits & f->mask) + f->add) & f->top)
            return i;
    }
    return -1;
}

bool scale_is_bad(ScaleType type, bool single, const uint8_t *p, float *value)
{
    float v = scale_value(type, p);
    *value = v;
    return !(v >= 0) || v > 3.4028234e38f || signbit(v) || (single && v == 0);
}

/* The bytes of E8M0 and E4M3 tell at once: the first has one that is no number, the second those from
 * 0x7f, not a number, on to all the negative ones. */
bool scales_are_good(ScaleType type, const uint8_t *p, int64_t n)
{
    if (type == SCALE_E8M0 || type == SCALE_E4M3) {
        uint8_t most = 0;
        for (int64_t i = 0; i < n; i++)
            most = p[i] > most ? p[i] : most;
        return most < (type == SCALE_E8M0 ? 255 : 0x7f);
    }
    float v;
    for (int64_t i = 0; i < n; i++)
        if (scale_is_bad(type, false, p + i * scale_bytes(type), &v))
            return false;
    return true;
}
