/* kernels/cpu/unpack_cpu.c - the inverse of pack_cpu.c, for codes; see kernels/unpack.h. */
#include "kernels/unpack.h"

#include "kernels/cpu/cpu.h"

#include <string.h>

static int level_of(const char *layout)
{
    for (int i = 0; i < N_ISA_LEVELS; i++)
        if (strcmp(layout, cpu_layouts[i]) == 0)
            return i;
    return -1;
}

Status unpack_mat_bytes(const KeptBank *k, size_t *out, Err *e)
{
    CpuPart parts[MAX_PARTS];
    if (level_of(k->layout) < 0)
        return err_set(e, ST_INPUT, "the layout \"%.60s\" is unknown here", k->layout);
    TRY(cpu_check_shape("kept weights", 1, k->parts, k->n_parts, k->cols, e));
    *out = cpu_bank_shape(k->use, k->parts, k->n_parts, k->cols, parts);
    return ST_OK;
}

/* Where the codes of a part go. */
typedef struct Target {
    IsaLevel isa;
    const QuantFormat *f;
    const CpuPart *p;
    int64_t cols;
    uint8_t *codes;
    int64_t row_bytes, unit_stride;
} Target;

static void plain_panel(const Target *t, int64_t first, int rows, const uint8_t *src)
{
    size_t size = (size_t)t->f->unit_bytes;
    for (int r = 0; r < rows; r++) {
        uint8_t *to = t->codes + (first + r) * t->row_bytes;
        for (int64_t k = 0; k < t->cols; k++)
            memcpy(to + k * t->unit_stride, src + ((size_t)k * PANEL + (size_t)r) * size, size);
    }
}

static unsigned nibble_in(const Target *t, const uint8_t *codes, int64_t k, int lane)
{
    int shift, at = nibble_place(t->isa, lane, (int)(k % 8), &shift);
    return codes[k / 8 * 64 + at] >> shift & 15U;
}

static void group_panel(const Target *t, int64_t first, int rows, const uint8_t *src)
{
    for (int64_t k0 = 0; k0 < t->cols; k0 += t->p->group, src += t->p->group_bytes) {
        int64_t n = t->cols - k0 < t->p->group ? t->cols - k0 : t->p->group;
        const uint8_t *codes = src + PANEL * scale_bytes(t->p->scale);
        for (int r = 0; r < rows; r++) {
            uint8_t *to = t->codes + (first + r) * t->row_bytes;
            for (int64_t i = 0; i < n; i++) {
                uint8_t *byte = to + (k0 + i) / t->f->unit * t->unit_stride;
                if (t->f->unit == 1)
                    *byte = codes[i / 4 * 64 + 4 * r + i % 4];
                else if ((k0 + i) % 2)
                    *byte = (uint8_t)((*byte & 15U) | nibble_in(t, codes, i, r) << 4);
                else
                    *byte = (uint8_t)((*byte & 0xf0U) | nibble_in(t, codes, i, r));
            }
        }
    }
}

static void block_panel(const Target *t, int64_t first, int rows, const uint8_t *src)
{
    int n;
    const BlockMember *member = cpu_block_members(t->f->id, &n);
    int64_t n_blocks = (t->cols - 1) / t->f->unit + 1;
    for (int64_t block = 0; block < n_blocks; block++, src += t->p->group_bytes)
        for (int r = 0; r < rows; r++) {
            uint8_t *to = t->codes + (first + r) * t->row_bytes + block * t->unit_stride;
            for (int m = 0; m < n; m++)
                for (int i = 0; i < member[m].n; i++)
                    memcpy(to + member[m].at + i * member[m].size,
                           src + PANEL * member[m].at + (i * PANEL + r) * member[m].size,
                           (size_t)member[m].size);
        }
}

static void lookup_rows(const Target *t, const uint8_t *src)
{
    size_t size = (size_t)t->f->unit_bytes;
    for (int64_t r = 0; r < t->p->rows; r++, src += t->p->panel_bytes)
        for (int64_t k = 0; k < (t->cols + t->f->unit - 1) / t->f->unit; k++)
            memcpy(t->codes + r * t->row_bytes + k * t->unit_stride, src + (size_t)k * size, size);
}

void unpack_part(const KeptBank *k, int part, const uint8_t *mat, uint8_t *codes, int64_t row_bytes,
                 int64_t unit_stride)
{
    CpuPart parts[MAX_PARTS];
    (void)cpu_bank_shape(k->use, k->parts, k->n_parts, k->cols, parts);
    const CpuPart *p = &parts[part];
    Target t = {.isa = (IsaLevel)level_of(k->layout),
                .f = quant_format(p->format),
                .p = p,
                .cols = k->cols,
                .codes = codes,
                .row_bytes = row_bytes,
                .unit_stride = unit_stride};
    const uint8_t *src = mat + p->offset + PANEL_ALIGN;
    if (k->use == WEIGHT_LOOKUP) {
        lookup_rows(&t, src);
        return;
    }
    for (int64_t panel = 0; panel < p->n_panels; panel++, src += p->panel_bytes) {
        int64_t first = panel * PANEL;
        int rows = p->rows - first < PANEL ? (int)(p->rows - first) : PANEL;
        if (t.f->unit > 2)
            block_panel(&t, first, rows, src);
        else if (p->scale == SCALE_NONE)
            plain_panel(&t, first, rows, src);
        else
            group_panel(&t, first, rows, src);
    }
}
