/* kernels/cpu/kv_cpu.c - keys, values and latents into the codes that kv.inc reads back. */
#include "kernels/cpu/cpu.h"
#include "quant/lanes.h"

#include <string.h>

void cpu_kv_encode(uint8_t *code, const float *x, KvDtype dtype, float scale)
{
    if (dtype == KV_BF16) {
        for (int i = 0; i < LANES; i++) {
            uint16_t bits = float_to_bf16(x[i]);
            memcpy(code + 2 * i, &bits, sizeof bits);
        }
    } else if (dtype == KV_FP8) {
        float v[LANES];
        for (int i = 0; i < LANES; i++)
            v[i] = x[i] / scale;
        lanes_to_e4m3(code, v);
    } else {
        row_encode(&(RowFormat){.scheme = ROWS_NVFP4_STATIC, .input_scale = scale}, x, LANES, code);
    }
}

void cpu_kv_store_key(uint8_t *keys, const uint8_t *code, const AttnSpec *spec, int j, int i0)
{
    int d = spec->head_dim, n = d - i0 < LANES ? d - i0 : LANES;
    if (spec->kv.dtype == KV_NVFP4) {
        size_t block = (size_t)(j / PANEL * (d / LANES) + i0 / LANES);
        uint8_t *to = keys + block * cpu_kv_bytes(KV_NVFP4, LANES * PANEL) + j % PANEL;
        *to = code[LANES / 2];
        for (int i = 0; i < LANES / 2; i++)
            to[PANEL + i * PANEL] = code[i];
        return;
    }
    size_t each = cpu_kv_bytes(spec->kv.dtype, 1);
    uint8_t *to = keys + (size_t)((j / PANEL * d + i0) * PANEL + j % PANEL) * each;
    for (int i = 0; i < n; i++)
        memcpy(to + (size_t)(i * PANEL) * each, code + (size_t)i * each, each);
}

void cpu_kv_store_value(uint8_t *values, const uint8_t *code, const AttnSpec *spec, int j, int i0)
{
    KvDtype dtype = spec->kv.dtype;
    uint8_t *group = values + cpu_kv_bytes(dtype, (size_t)(i0 * KV_PAGE));
    if (dtype == KV_NVFP4) {
        memcpy(group + j * LANES / 2, code, LANES / 2);
        group[KV_PAGE * LANES / 2 + j] = code[LANES / 2];
    } else {
        memcpy(group + cpu_kv_bytes(dtype, (size_t)(j * LANES)), code, cpu_kv_bytes(dtype, LANES));
    }
}
