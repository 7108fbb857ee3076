/* kernels/cpu/iq2_cpu.c - the codebooks of the IQ2 formats, in the form the kernels want them.
 *
 * Entries are looked up one by one, in code for any processor: vector instructions gather no faster
 * than that, and compilers that try to use others make it slower. */
#include "kernels/cpu/cpu.h"
#include "quant/ggml_grids.h"

#include <string.h>

/* The shift of input k of eight in a word: whatever nibbles_of_words of the level makes least of.
 */
static int level_place(IsaLevel isa, int k)
{
    return isa == ISA_AVX2 ? k / 4 * 16 + k % 2 * 8 + k % 4 / 2 * 4 : 4 * k;
}

static uint32_t spread(IsaLevel isa, uint16_t code)
{
    uint32_t word = 0;
    for (int k = 0; k < 8; k++)
        word |= (uint32_t)(code >> 2 * k & 3) << level_place(isa, k);
    return word;
}

void cpu_iq2_levels(IsaLevel isa, Iq2Levels *levels)
{
    memset(levels, 0, sizeof *levels);
    for (int i = 0; i < 512; i++)
        levels->xs[i] = spread(isa, iq2_xs_codes[i]);
    for (int i = 0; i < 256; i++)
        levels->xxs[i] = spread(isa, iq2_xxs_codes[i]);
    for (unsigned i = 0; i < 128; i++)
        for (int k = 0; k < 8; k++)
            levels->signs[i] |= (uint32_t)(iq2_signs(i) >> k & 1) << (level_place(isa, k) + 3);
}

static uint64_t load_u64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void look_up_xs(const Iq2Levels *levels, const uint8_t *block, Iq2Words *w)
{
    const uint8_t *codes = block + 2 * PANEL;
    for (int eight = 0; eight < IQ2_BLOCK / 8; eight++)
        for (int lane = 0; lane < PANEL; lane += 4, codes += 8) {
            uint64_t four = load_u64(codes);
            uint32_t *word = w->word[eight] + lane;
            word[0] = levels->xs[four & 511U] | levels->signs[four >> 9 & 127U];
            word[1] = levels->xs[four >> 16 & 511U] | levels->signs[four >> 25 & 127U];
            word[2] = levels->xs[four >> 32 & 511U] | levels->signs[four >> 41 & 127U];
            word[3] = levels->xs[four >> 48 & 511U] | levels->signs[four >> 57];
        }
    memcpy(w->scale, codes, sizeof w->scale);
}

static void look_up_xxs(const Iq2Levels *levels, const uint8_t *block, Iq2Words *w)
{
    const uint8_t *record = block + 2 * PANEL;
    for (int i = 0; i < IQ2_BLOCK / 32; i++, record += 8 * PANEL)
        for (int lane = 0; lane < PANEL; lane++) {
            uint32_t rest;
            memcpy(&rest, record + 4 * PANEL + 4 * lane, sizeof rest);
            for (int j = 0; j < 4; j++)
                w->word[4 * i + j][lane] =
                    levels->xxs[record[j * PANEL + lane]] | levels->signs[rest >> 7 * j & 127U];
            w->scale[i][lane] = (uint8_t)((rest >> 28) * 0x11U);
        }
}

void cpu_iq2_look_up(FormatId format, const Iq2Levels *levels, const uint8_t *block, Iq2Words *w)
{
    if (format == FORMAT_IQ2_XS)
        look_up_xs(levels, block, w);
    else
        look_up_xxs(levels, block, w);
}
