/* kernels/cpu/pack_cpu.c - tensors as they are stored into panels of 16 outputs, with a check that
 * every code and scale means a number.
 *
 * What is read by rows is written by columns, so both go in runs of columns that stay in the
 * first-level cache. Panels keep the stored bits: nothing is decoded here. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

typedef enum Fault { CODE_NAN, SCALE_NAN, SCALE_FF, SCALE_SIGN, BLOCK_SCALE } Fault;

typedef struct PackJob {
    IsaLevel isa;
    const QuantTensor *t;
    const CpuPart *part;
    uint8_t *dst;
    atomic_llong fault; /* 8 * row + Fault of the first bad row, or LLONG_MAX */
    atomic_bool steep;
    bool bits_tell;
} PackJob;

enum { RUN = 64 };

static void note_fault(PackJob *job, int64_t row, Fault fault)
{
    long long mine = 8 * row + fault, seen = atomic_load(&job->fault);
    while (mine < seen && !atomic_compare_exchange_weak(&job->fault, &seen, mine))
        ;
}

static const char *fault_text(Fault fault)
{
    switch (fault) {
    case CODE_NAN:
        return "a code is 0x7F or 0xFF, not a number";
    case SCALE_FF:
        return "a block scale is 0xFF, not a number";
    case SCALE_SIGN:
        return "a scale is negative";
    case BLOCK_SCALE:
        return "a block's scale is not finite";
    default:
        return "a scale is not finite";
    }
}

static const uint8_t *scale_at(const QuantTensor *t, int64_t row, int64_t col)
{
    return t->scales + (t->first_row + row) / t->scale_rows * t->scale_row_bytes +
           col / t->group * t->scale_col_bytes;
}

/* Whether a scale of this type can be judged by its own bits: no product with the tensor's scale
 * leaves the numbers. */
static bool bits_tell(const QuantTensor *t)
{
    if (t->scale_type == SCALE_E8M0)
        return true;
    return t->format->id == FORMAT_NVFP4 &&
           isfinite(t->global_divides ? 448.0f / t->global : 448.0f * t->global);
}

/* Looks at the scale of (row, col) and leaves it at dst, as its type or float32. */
static void take_scale(PackJob *job, int64_t row, int64_t col, uint8_t *dst)
{
    const QuantTensor *t = job->t;
    const uint8_t *src = scale_at(t, row, col);
    if (job->bits_tell && job->part->scale == t->scale_type) {
        *dst = *src;
        if (t->scale_type == SCALE_E8M0 ? *src == 255 : (*src & 0x7fU) == 0x7fU)
            note_fault(job, row, t->scale_type == SCALE_E8M0 ? SCALE_FF : SCALE_NAN);
        else if (t->scale_type == SCALE_E4M3 && (*src & 0x80U))
            note_fault(job, row, SCALE_SIGN);
        return;
    }
    float stored = scale_value(t->scale_type, src);
    if (t->scale_type == SCALE_E8M0 && *src == 255)
        note_fault(job, row, SCALE_FF);
    else if (!isfinite(quant_scale(t, row, col)))
        note_fault(job, row, SCALE_NAN);
    else if (signbit(stored))
        note_fault(job, row, SCALE_SIGN);
    if (job->part->scale == t->scale_type)
        memcpy(dst, src, (size_t)scale_bytes(t->scale_type));
    else
        memcpy(dst, &stored, sizeof stored);
}

static int rows_of_panel(const PackJob *job, int64_t panel)
{
    int64_t rest = job->t->rows - panel * PANEL;
    return rest < PANEL ? (int)rest : PANEL;
}

static void pack_plain(PackJob *job, int64_t panel, uint8_t *dst)
{
    const QuantTensor *t = job->t;
    size_t size = (size_t)t->format->unit_bytes;
    int rows = rows_of_panel(job, panel);
    const uint8_t *src = t->data + panel * PANEL * t->row_bytes;
    for (int64_t k0 = 0; k0 < t->cols; k0 += RUN) {
        int64_t end = t->cols - k0 < RUN ? t->cols : k0 + RUN;
        for (int r = 0; r < rows; r++) {
            const uint8_t *from = src + r * t->row_bytes;
            uint8_t *to = dst + (size_t)r * size;
            if (size == 2)
                for (int64_t k = k0; k < end; k++)
                    memcpy(to + k * PANEL * 2, from + k * t->unit_stride, 2);
            else
                for (int64_t k = k0; k < end; k++)
                    memcpy(to + k * PANEL * 4, from + k * t->unit_stride, 4);
        }
    }
}

/* Up to four bytes along a row, the first lowest; 0 past the end. */
static uint32_t four_bytes(const uint8_t *p, int64_t stride, int n)
{
    uint32_t word = 0;
    if (stride == 1 && n >= 4)
        memcpy(&word, p, sizeof word);
    else
        for (int i = 0; i < n && i < 4; i++, p += stride)
            word |= (uint32_t)*p << 8 * i;
    return word;
}

/* Codes of columns k .. k+n-1, which begin at a unit: FP8, MXFP8. */
static void pack_e4m3(PackJob *job, int64_t panel, int64_t k, int n, uint8_t *dst)
{
    const QuantTensor *t = job->t;
    for (int r = 0; r < rows_of_panel(job, panel); r++) {
        int64_t row = panel * PANEL + r;
        const uint8_t *src = t->data + row * t->row_bytes + k * t->unit_stride;
        uint32_t bad = 0;
        for (int i = 0; i < n; i += 4) {
            uint32_t word = four_bytes(src + i * t->unit_stride, t->unit_stride, n - i);
            bad |= (word & 0x7f7f7f7fU) + 0x01010101U; /* carries out of 0x7f alone */
            memcpy(dst + i * 16 + 4 * r, &word, sizeof word);
        }
        if (bad & 0x80808080U)
            note_fault(job, row, CODE_NAN);
    }
}

/* Eight nibbles of a row from column k on, the first lowest; 0 past the end. */
static uint32_t eight_nibbles(const QuantTensor *t, const uint8_t *row, int64_t k, int n)
{
    const uint8_t *p = row + k / 2 * t->unit_stride;
    if (k % 2 == 0) {
        uint32_t word = four_bytes(p, t->unit_stride, (n + 1) / 2);
        return n < 8 ? word & ((1U << 4 * n) - 1U) : word;
    }
    uint32_t word = 0;
    for (int i = 0; i < n && i < 8; i++) {
        unsigned byte = row[(k + i) / 2 * t->unit_stride];
        word |= ((k + i) % 2 ? byte >> 4 : byte & 15U) << 4 * i;
    }
    return word;
}

/* A row's eight nibbles into a unit, where nibble_place says. */
static void place_eight(IsaLevel isa, uint8_t *unit, int lane, uint32_t word)
{
    if (isa == ISA_AVX512) {
        memcpy(unit + 4 * lane, &word, sizeof word);
    } else if (isa == ISA_SCALAR) {
        for (int i = 0; i < 4; i++)
            unit[i * PANEL + lane] = (uint8_t)(word >> 8 * i);
    } else {
        /* Inputs 0, 2 | 4, 6 in the nibbles of bytes 0 | 2 of even, 1, 3 | 5, 7 in those of odd. */
        uint32_t even = word & 0x0f0f0f0fU, odd = word >> 4 & 0x0f0f0f0fU;
        even |= even >> 4;
        odd |= odd >> 4;
        uint8_t *at = unit + lane % 8 / 4 * 16 + lane / 8 * 8 + lane % 4 * 2;
        at[0] = (uint8_t)even;
        at[1] = (uint8_t)odd;
        at[32] = (uint8_t)(even >> 16);
        at[33] = (uint8_t)(odd >> 16);
    }
}

/* Nibbles of columns k .. k+n-1. any[r]: whether row r has a value besides 0. */
static void pack_nibbles(PackJob *job, int64_t panel, int64_t k, int n, uint8_t *dst,
                         bool any[PANEL])
{
    const QuantTensor *t = job->t;
    for (int r = 0; r < rows_of_panel(job, panel); r++) {
        const uint8_t *src = t->data + (panel * PANEL + r) * t->row_bytes;
        uint32_t seen = 0;
        for (int i = 0; i < n; i += 8) {
            uint32_t word = eight_nibbles(t, src, k + i, n - i);
            seen |= word & 0x77777777U;
            place_eight(job->isa, dst + i * 8, r, word);
        }
        any[r] = any[r] || seen;
    }
}

static void pack_groups(PackJob *job, int64_t panel, uint8_t *dst)
{
    const QuantTensor *t = job->t;
    const CpuPart *p = job->part;
    bool nibbles = t->format->unit == 2;
    size_t size = (size_t)scale_bytes(p->scale);
    for (int64_t k = 0; k < t->cols; k += p->group, dst += p->group_bytes) {
        int64_t n = t->cols - k < p->group ? t->cols - k : p->group;
        bool any[PANEL] = {false};
        for (int64_t i = 0; i < n; i += RUN) {
            int run = n - i < RUN ? (int)(n - i) : RUN;
            if (nibbles)
                pack_nibbles(job, panel, k + i, run, dst + PANEL * size + i / 8 * 64, any);
            else
                pack_e4m3(job, panel, k + i, run, dst + PANEL * size + i / 4 * 64);
        }
        for (int r = 0; r < PANEL; r++) {
            if (r >= rows_of_panel(job, panel))
                break;
            take_scale(job, panel * PANEL + r, k, dst + (size_t)r * size);
            if (t->format->id == FORMAT_MXFP4) {
                /* Some writers give blocks of zeros the smallest scale: those decode anyhow. */
                if (any[r] && (dst[r] < MX_LEAST || dst[r] > MX_MOST))
                    atomic_store(&job->steep, true);
            } else if (!nibbles && scale_value(p->scale, dst + (size_t)r * size) >= 0x1p8f) {
                atomic_store(&job->steep, true); /* no room for E4M3_OFFSET */
            }
        }
    }
}

static bool finite_f16(const uint8_t *p)
{
    return (p[1] & 0x7cU) != 0x7cU;
}

const BlockMember *cpu_block_members(FormatId format, int *n)
{
    /* XXS: a record's four entries, then its signs and scale; eight records. */
    static const BlockMember q8_0[] = {{0, 2, 1}, {2, 4, 8}},
                             xs[] = {{0, 2, 1}, {2, 2, 32}, {66, 1, 8}},
                             xxs[] = {{0, 2, 1},  {2, 1, 4},  {6, 4, 1},  {10, 1, 4}, {14, 4, 1},
                                      {18, 1, 4}, {22, 4, 1}, {26, 1, 4}, {30, 4, 1}, {34, 1, 4},
                                      {38, 4, 1}, {42, 1, 4}, {46, 4, 1}, {50, 1, 4}, {54, 4, 1},
                                      {58, 1, 4}, {62, 4, 1}};
    *n = format == FORMAT_Q8_0 ? 2 : format == FORMAT_IQ2_XS ? 3 : 17;
    return format == FORMAT_Q8_0 ? q8_0 : format == FORMAT_IQ2_XS ? xs : xxs;
}

static void pack_block(PackJob *job, int64_t panel, int64_t block, const BlockMember *member, int n,
                       uint8_t *dst)
{
    const QuantTensor *t = job->t;
    for (int r = 0; r < rows_of_panel(job, panel); r++) {
        int64_t row = panel * PANEL + r;
        const uint8_t *src = t->data + row * t->row_bytes + block * t->unit_stride;
        if (!finite_f16(src))
            note_fault(job, row, BLOCK_SCALE);
        for (int m = 0; m < n; m++) {
            uint8_t *to = dst + PANEL * member[m].at + r * member[m].size;
            for (int i = 0; i < member[m].n; i++)
                memcpy(to + i * PANEL * member[m].size, src + member[m].at + i * member[m].size,
                       (size_t)member[m].size);
        }
    }
}

static void pack_blocks(PackJob *job, int64_t panel, uint8_t *dst)
{
    int n;
    const BlockMember *member = cpu_block_members(job->t->format->id, &n);
    for (int64_t block = 0; block < (job->t->cols - 1) / job->t->format->unit + 1; block++)
        pack_block(job, panel, block, member, n, dst + (size_t)block * job->part->group_bytes);
}

static void pack_panel(void *ctx, int task, int thread)
{
    (void)thread;
    PackJob *job = ctx;
    FormatId id = job->t->format->id;
    uint8_t *dst = job->dst + (size_t)task * job->part->panel_bytes;
    bool whole = job->part->scale == SCALE_NONE || id == FORMAT_Q8_0;
    if (!whole || rows_of_panel(job, task) < PANEL)
        memset(dst, 0, job->part->panel_bytes);
    if (id == FORMAT_Q8_0 || id == FORMAT_IQ2_XS || id == FORMAT_IQ2_XXS)
        pack_blocks(job, task, dst);
    else if (whole)
        pack_plain(job, task, dst);
    else
        pack_groups(job, task, dst);
}

/* A row's packed bytes: its codes, then its scales. */
static void copy_row(void *ctx, int task, int thread)
{
    (void)thread;
    PackJob *job = ctx;
    const QuantTensor *t = job->t;
    const QuantFormat *f = t->format;
    size_t size = (size_t)f->unit_bytes, n_units = (size_t)((t->cols + f->unit - 1) / f->unit);
    uint8_t *dst = job->dst + (size_t)task * job->part->panel_bytes;
    const uint8_t *src = t->data + task * t->row_bytes;
    if (t->unit_stride == f->unit_bytes)
        memcpy(dst, src, n_units * size);
    else
        for (size_t k = 0; k < n_units; k++)
            memcpy(dst + k * size, src + (int64_t)k * t->unit_stride, size);
    for (size_t k = 0; k < n_units; k++) {
        if (f->unit > 2 && !finite_f16(dst + k * size))
            note_fault(job, task, BLOCK_SCALE);
        if ((f->id == FORMAT_FP8 || f->id == FORMAT_MXFP8) && (dst[k] & 0x7fU) == 0x7fU)
            note_fault(job, task, CODE_NAN);
    }
    dst += n_units * size;
    for (int64_t k = 0; t->scales && k < t->cols; k += t->group, dst += scale_bytes(t->scale_type))
        take_scale(job, task, k, dst);
}

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

void cpu_panel_shape(CpuPart *p, int64_t cols, ScaleType stored)
{
    const QuantFormat *f = quant_format(p->format);
    p->scale = f->id == FORMAT_Q8_0 ? SCALE_F16 : stored;
    if (f->unit > 2) {
        p->group = f->unit;
        p->group_bytes = (size_t)(PANEL * f->unit_bytes);
        p->panel_bytes = (size_t)((cols - 1) / f->unit + 1) * p->group_bytes;
        return;
    }
    if (stored == SCALE_NONE) {
        p->group = cols;
        p->group_bytes = p->panel_bytes = (size_t)(cols * f->unit_bytes * PANEL);
        return;
    }
    int per_unit = f->unit == 2 ? 8 : 4; /* inputs in 64 bytes */
    int64_t scales = PANEL * scale_bytes(stored), last = cols % p->group;
    p->group_bytes = (size_t)(scales + round_up(p->group, per_unit) / per_unit * 64);
    p->panel_bytes = (size_t)(cols / p->group) * p->group_bytes +
                     (last ? (size_t)(scales + round_up(last, per_unit) / per_unit * 64) : 0);
}

Status cpu_pack(Backend *b, const CpuPart *p, const QuantTensor *t, uint8_t *dst, bool lookup,
                const char *where, Err *e)
{
    PartNote note = {.global = t->global, .divides = t->global_divides};
    if (t->format->id == FORMAT_NVFP4 &&
        (!isfinite(t->global) || signbit(t->global) || (t->global_divides && t->global == 0)))
        return err_set(e, ST_INPUT, "%s: the tensor's scale is %g", where, (double)t->global);
    PackJob job = {.isa = b->kernels->isa,
                   .t = t,
                   .part = p,
                   .dst = dst + PANEL_ALIGN,
                   .fault = INT64_MAX,
                   .bits_tell = bits_tell(t)};
    if (lookup)
        cpu_run(b, (int)p->rows, p->rows * t->cols, copy_row, &job);
    else
        cpu_run(b, (int)p->n_panels, p->rows * t->cols, pack_panel, &job);
    long long fault = atomic_load(&job.fault);
    if (fault != INT64_MAX)
        return err_set(e, ST_INPUT, "%s, row %lld: %s", where, fault / 8,
                       fault_text((Fault)(fault % 8)));
    note.steep = atomic_load(&job.steep);
    memset(dst, 0, PANEL_ALIGN);
    memcpy(dst, &note, sizeof note);
    return ST_OK;
}
