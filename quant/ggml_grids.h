/* quant/ggml_grids.h - the codebooks and signs of ggml's IQ2 formats (formats.md 2.14).
 *
 * A codebook entry is eight magnitudes out of {8, 25, 43}. */
#ifndef MB_QUANT_GGML_GRIDS_H
#define MB_QUANT_GGML_GRIDS_H

#include <stdint.h>

/* Two bits a magnitude, those of element 0 lowest: 0, 1, 2 for 8, 25, 43. */
extern const uint16_t iq2_xxs_codes[256];
extern const uint16_t iq2_xs_codes[512];

/* An entry's magnitudes as bytes, that of element 0 lowest. */
uint64_t iq2_levels(uint16_t code);
/* index 0..127: bit j is set where element j is negative. Only seven signs are free: the number of
 * minuses is even. */
uint8_t iq2_signs(unsigned index);

#endif
