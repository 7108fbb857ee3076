/* kernels/cpu/weight_cpu.c - banks of weight matrices, repacked for the kernels.
 *
 * A matmul bank keeps each part in panels of 16 outputs: [cols][16] values of the stored element
 * size, or for MXFP4 blocks of 32 inputs (256 bytes of codes, 16 scales). A last panel is filled up
 * with zeros. A lookup bank keeps its rows as they are: data, then scales. */
#include "kernels/cpu/cpu.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Status check_shape(const char *name, int n_mats, const WeightPart *parts, int n_parts,
                          int64_t cols, Err *e)
{
    if (n_mats < 1 || n_parts < 1 || n_parts > MAX_PARTS || cols < 1 || cols > INT32_MAX)
        return err_set(e, ST_INPUT,
                       "%s: %d matrices of %d parts over %lld inputs cannot be a weight", name,
                       n_mats, n_parts, (long long)cols);
    for (int i = 0; i < n_parts; i++) {
        if (parts[i].rows < 1 || parts[i].rows > INT32_MAX)
            return err_set(e, ST_INPUT, "%s: part %d has %lld rows", name, i,
                           (long long)parts[i].rows);
        if ((unsigned)parts[i].format >= N_FORMATS)
            return err_set(e, ST_INPUT, "%s: part %d has an unknown format", name, i);
        const QuantFormat *f = quant_format(parts[i].format);
        /* All parts of all matrices, filled up to panels, must stay countable. */
        if (quant_row_bytes(f, cols, parts[i].group, parts[i].scale) >
            PTRDIFF_MAX / 4 / n_mats / (parts[i].rows + 2 * PANEL))
            return err_set(e, ST_MEMORY, "%s: %d x [%lld, %lld] is more than any memory holds",
                           name, n_mats, (long long)parts[i].rows, (long long)cols);
        if (parts[i].format == FORMAT_MXFP4 && (parts[i].group != MX_BLOCK || cols % MX_BLOCK))
            return err_set(e, ST_INPUT, "%s: %lld inputs are not whole %s blocks of %d", name,
                           (long long)cols, f->name, MX_BLOCK);
    }
    return ST_OK;
}

Status cpu_weight_create(Backend *b, const char *name, WeightUse use, int n_mats,
                         const WeightPart *parts, int n_parts, int64_t cols, Weight **out, Err *e)
{
    TRY(check_shape(name, n_mats, parts, n_parts, cols, e));
    Weight *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ST_MEMORY, "out of memory: %s", name);
    snprintf(w->name, sizeof w->name, "%s", name);
    w->use = use;
    w->n_mats = n_mats;
    w->n_parts = n_parts;
    w->cols = cols;
    for (int i = 0; i < n_parts; i++) {
        CpuPart *p = &w->part[i];
        size_t row_bytes = (size_t)quant_row_bytes(quant_format(parts[i].format), cols,
                                                   parts[i].group, parts[i].scale);
        p->format = parts[i].format;
        p->group = parts[i].group;
        p->scale = parts[i].scale;
        p->rows = parts[i].rows;
        p->first_row = w->rows;
        p->n_panels = (parts[i].rows + PANEL - 1) / PANEL;
        p->panel_bytes = PANEL * row_bytes;
        p->offset = w->mat_bytes;
        w->rows += p->rows;
        size_t bytes = use == WEIGHT_LOOKUP ? (size_t)p->rows * row_bytes
                                            : (size_t)p->n_panels * p->panel_bytes;
        w->mat_bytes += (bytes + 63) / 64 * 64;
    }
    void *data;
    Status st = cpu_alloc(b, (size_t)n_mats * w->mat_bytes, name, &data, e);
    if (st != ST_OK) {
        free(w);
        return st;
    }
    w->data = data;
    *out = w;
    return ST_OK;
}

void cpu_weight_destroy(Backend *b, Weight *w)
{
    if (!w)
        return;
    cpu_release(b, w->data);
    free(w);
}

size_t cpu_weight_bytes(const Weight *w)
{
    return (size_t)w->n_mats * w->mat_bytes;
}

void cpu_weight_panels(const Weight *w, int mat, int part, int64_t first, int n, Panel *out)
{
    const CpuPart *p = &w->part[part];
    const uint8_t *data =
        w->data + (size_t)mat * w->mat_bytes + p->offset + (size_t)first * p->panel_bytes;
    for (int i = 0; i < n; i++, data += p->panel_bytes)
        out[i] = (Panel){data, p->format, p->steep};
}

typedef struct PackJob {
    const CpuKernels *kernels;
    const QuantTensor *t;
    const CpuPart *part;
    uint8_t *dst;
    atomic_llong bad_row; /* one with a NaN scale, or -1 */
    atomic_bool steep;
} PackJob;

static int rows_of_panel(const PackJob *job, int64_t panel)
{
    int64_t rest = job->t->rows - panel * PANEL;
    return rest < PANEL ? (int)rest : PANEL;
}

/* Columns in runs of 64, so that what is read by rows and written by columns stays in the
 * first-level cache. */
static void pack_plain(const PackJob *job, int64_t panel, uint8_t *dst)
{
    const QuantTensor *t = job->t;
    size_t size = (size_t)t->format->unit_bytes;
    int rows = rows_of_panel(job, panel);
    const uint8_t *src = t->data + panel * PANEL * t->row_bytes;
    if (rows < PANEL)
        memset(dst, 0, job->part->panel_bytes);
    for (int64_t k0 = 0; k0 < t->cols; k0 += 64) {
        int64_t end = t->cols - k0 < 64 ? t->cols : k0 + 64;
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

static void pack_mxfp4(PackJob *job, int64_t panel, uint8_t *dst)
{
    const QuantTensor *t = job->t;
    int rows = rows_of_panel(job, panel);
    for (int64_t block = 0; block < t->cols / MX_BLOCK; block++, dst += MX_BLOCK_BYTES) {
        uint8_t codes[MX_BLOCK * PANEL] = {0}, *scales = dst + MX_BLOCK * PANEL / 2;
        memset(scales, 127, PANEL);
        for (int r = 0; r < rows; r++) {
            int64_t row = panel * PANEL + r;
            const uint8_t *from = t->data + row * t->row_bytes + block * (MX_BLOCK / 2);
            bool all_zero = true;
            for (int k = 0; k < MX_BLOCK; k++) {
                unsigned code = k % 2 ? from[k / 2] >> 4 : from[k / 2] & 15U;
                codes[k * PANEL + r] = (uint8_t)(code == 8 ? 0 : code); /* simd.h: no sum sees it */
                all_zero &= (code & 7) == 0;
            }
            uint8_t scale = t->scales[row * t->scale_row_bytes + block];
            if (scale == 255)
                atomic_store(&job->bad_row, row);
            if (all_zero) /* some writers give such blocks the smallest scale */
                continue;
            scales[r] = scale;
            if (scale < MX_LEAST || scale > MX_MOST)
                atomic_store(&job->steep, true);
        }
        job->kernels->pack_mxfp4(dst, codes);
    }
}

static void pack_panel(void *ctx, int task, int thread)
{
    (void)thread;
    PackJob *job = ctx;
    uint8_t *dst = job->dst + (size_t)task * job->part->panel_bytes;
    if (job->part->format == FORMAT_MXFP4)
        pack_mxfp4(job, task, dst);
    else
        pack_plain(job, task, dst);
}

/* A row's packed bytes: its blocks, then its scales. */
static void copy_row(void *ctx, int task, int thread)
{
    (void)thread;
    const PackJob *job = ctx;
    const QuantTensor *t = job->t;
    size_t size = (size_t)t->format->unit_bytes, n_units = (size_t)(t->cols / t->format->unit);
    uint8_t *dst = job->dst + (size_t)task * (size_t)quant_row_bytes(t->format, t->cols, t->group,
                                                                     t->scale_type);
    const uint8_t *src = t->data + task * t->row_bytes;
    if (t->unit_stride == t->format->unit_bytes)
        memcpy(dst, src, n_units * size);
    else
        for (size_t k = 0; k < n_units; k++)
            memcpy(dst + k * size, src + (int64_t)k * t->unit_stride, size);
    if (t->scales)
        memcpy(dst + n_units * size, t->scales + task * t->scale_row_bytes,
               (size_t)(t->cols / t->group) * (size_t)scale_bytes(t->scale_type));
}

Status cpu_weight_set(Backend *b, Weight *w, int mat, int part, const QuantTensor *t, Err *e)
{
    if (mat < 0 || mat >= w->n_mats || part < 0 || part >= w->n_parts)
        return err_set(e, ST_INPUT, "%s: has no matrix %d, part %d", w->name, mat, part);
    CpuPart *p = &w->part[part];
    if (t->format->id != p->format || t->rows != p->rows || t->cols != w->cols)
        return err_set(e, ST_INPUT,
                       "%s: matrix %d, part %d is %s [%lld, %lld], expected %s [%lld, %lld]",
                       w->name, mat, part, t->format->name, (long long)t->rows, (long long)t->cols,
                       quant_format(p->format)->name, (long long)p->rows, (long long)w->cols);
    PackJob job = {.kernels = b->kernels,
                   .t = t,
                   .part = p,
                   .dst = w->data + (size_t)mat * w->mat_bytes + p->offset,
                   .bad_row = -1};
    if (w->use == WEIGHT_LOOKUP)
        cpu_run(b, (int)p->rows, p->rows * w->cols, copy_row, &job);
    else
        cpu_run(b, (int)p->n_panels, p->rows * w->cols, pack_panel, &job);
    p->steep |= job.steep;
    if (job.bad_row >= 0)
        return err_set(e, ST_INPUT,
                       "%s: matrix %d, part %d, row %lld: a block scale is 0xFF, not a number",
                       w->name, mat, part, (long long)job.bad_row);
    return ST_OK;
}
