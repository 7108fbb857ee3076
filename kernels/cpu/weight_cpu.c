/* kernels/cpu/weight_cpu.c - banks of weight matrices, repacked for the kernels.
 *
 * Each part of each matrix is a PartNote and then its panels (cpu.h), of which the last is filled
 * up with zeros. A lookup bank keeps its rows as they are instead: codes, then scales. */
#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number changes with the order of bytes in a panel. */
const char *const cpu_layouts[N_ISA_LEVELS] = {"cpu-scalar-1", "cpu-avx2-1", "cpu-avx512-1"};

static Status check_part(const char *name, int n_mats, const WeightPart *part, int index,
                         int64_t cols, Err *e)
{
    const QuantFormat *f = quant_format(part->format);
    if ((unsigned)part->scale >= N_SCALE_TYPES || !quant_scale_fits(part->format, part->scale) ||
        part->group < 1)
        return err_set(e, ST_INPUT, "%s: part %d has scales that %s has not", name, index, f->name);
    /* All parts of all matrices, filled up to panels and every group to a unit, must stay
     * countable: at most 8 times their stored size. */
    if (quant_row_bytes(f, cols, part->group, part->scale) >
        PTRDIFF_MAX / 32 / n_mats / (part->rows + 2 * PANEL))
        return err_set(e, ST_MEMORY, "%s: %d x [%lld, %lld] is more than any memory holds", name,
                       n_mats, (long long)part->rows, (long long)cols);
    if (part->format == FORMAT_MXFP4 && (cols % MX_BLOCK || part->group != MX_BLOCK))
        return err_set(e, ST_INPUT, "%s: %lld inputs are not whole %s blocks of %d", name,
                       (long long)cols, f->name, MX_BLOCK);
    return ST_OK;
}

Status cpu_check_shape(const char *name, int n_mats, const WeightPart *parts, int n_parts,
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
        TRY(check_part(name, n_mats, &parts[i], i, cols, e));
    }
    return ST_OK;
}

size_t cpu_bank_shape(WeightUse use, const WeightPart *parts, int n_parts, int64_t cols,
                      CpuPart out[MAX_PARTS])
{
    size_t at = 0;
    int64_t rows = 0;
    for (int i = 0; i < n_parts; i++) {
        CpuPart *p = &out[i];
        *p = (CpuPart){.format = parts[i].format,
                       .group = parts[i].group < cols ? parts[i].group : cols,
                       .rows = parts[i].rows,
                       .first_row = rows,
                       .n_panels = (parts[i].rows + PANEL - 1) / PANEL,
                       .offset = at};
        if (use == WEIGHT_LOOKUP) {
            p->scale = parts[i].scale;
            p->panel_bytes =
                (size_t)quant_row_bytes(quant_format(p->format), cols, p->group, p->scale);
        } else {
            cpu_panel_shape(p, cols, parts[i].scale);
        }
        rows += p->rows;
        size_t bytes = (size_t)(use == WEIGHT_LOOKUP ? p->rows : p->n_panels) * p->panel_bytes;
        at += PANEL_ALIGN + (bytes + PANEL_ALIGN - 1) / PANEL_ALIGN * PANEL_ALIGN;
    }
    return at;
}

Status cpu_weight_create(Backend *b, const char *name, WeightUse use, int n_mats,
                         const WeightPart *parts, int n_parts, int64_t cols, Weight **out, Err *e)
{
    TRY(cpu_check_shape(name, n_mats, parts, n_parts, cols, e));
    Weight *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ST_MEMORY, "out of memory: %s", name);
    snprintf(w->name, sizeof w->name, "%s", name);
    w->use = use;
    w->n_mats = n_mats;
    w->n_parts = n_parts;
    w->cols = cols;
    w->mat_bytes = cpu_bank_shape(use, parts, n_parts, cols, w->part);
    for (int i = 0; i < n_parts; i++) {
        w->part[i].levels = &b->levels;
        w->rows += w->part[i].rows;
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

size_t cpu_weight_mat_bytes(const Weight *w)
{
    return w->mat_bytes;
}

const char *cpu_weight_layout(const Backend *b)
{
    return cpu_layouts[b->kernels->isa];
}

size_t cpu_weight_bytes(const Weight *w)
{
    return (size_t)w->n_mats * w->mat_bytes;
}

static PartNote note_of(const Weight *w, int mat, const CpuPart *p)
{
    PartNote note;
    memcpy(&note, w->data + (size_t)mat * w->mat_bytes + p->offset, sizeof note);
    return note;
}

void cpu_weight_panels(const Weight *w, int mat, int part, int64_t first, int n, Panel *out)
{
    const CpuPart *p = &w->part[part];
    const PartNote note = note_of(w, mat, p);
    const uint8_t *data = w->data + (size_t)mat * w->mat_bytes + p->offset + PANEL_ALIGN +
                          (size_t)first * p->panel_bytes;
    for (int i = 0; i < n; i++, data += p->panel_bytes)
        out[i] = (Panel){.data = data,
                         .format = p->format,
                         .scale = p->scale,
                         .steep = note.steep,
                         .divides = note.divides,
                         .global = note.global,
                         .group = p->group,
                         .group_bytes = p->group_bytes,
                         .bytes = p->panel_bytes,
                         .levels = p->levels};
}

QuantTensor cpu_weight_row(const Weight *w, int64_t row)
{
    const CpuPart *p = &w->part[0];
    const QuantFormat *f = quant_format(p->format);
    const uint8_t *data = w->data + p->offset + PANEL_ALIGN + (size_t)row * p->panel_bytes;
    QuantTensor t = quant_plain(p->format, data, 1, w->cols);
    t.group = p->group;
    if (p->scale != SCALE_NONE) {
        PartNote note = note_of(w, 0, p);
        t.scales = data + (w->cols + f->unit - 1) / f->unit * f->unit_bytes;
        t.scale_type = p->scale;
        t.scale_col_bytes = scale_bytes(p->scale);
        t.global = note.global;
        t.global_divides = note.divides;
    }
    return t;
}

/* A bank with float32 scales takes others too; one with a finer grid takes a coarser one. */
static bool scales_match(const Weight *w, const CpuPart *p, const QuantTensor *t)
{
    if (p->format == FORMAT_F32 || p->format == FORMAT_BF16 || p->format == FORMAT_F16 ||
        t->format->unit > 2)
        return !t->scales;
    if (!t->scales || t->group < 1 || t->scale_rows < 1 || t->first_row < 0)
        return false;
    int64_t group = t->group < w->cols ? t->group : w->cols;
    bool same = t->scale_type == p->scale && group == p->group;
    bool finer = w->use != WEIGHT_LOOKUP && p->scale == SCALE_F32 &&
                 quant_scale_fits(p->format, t->scale_type) &&
                 (group % p->group == 0 || group == w->cols);
    return same || finer;
}

Status cpu_weight_set(Backend *b, Weight *w, int mat, int part, const QuantTensor *t, Err *e)
{
    TRY(check_place(w->name, w->n_mats, w->n_parts, mat, part, e));
    CpuPart *p = &w->part[part];
    TRY(check_tensor(w->name, mat, part, p->format, p->rows, w->cols, t, e));
    if (!scales_match(w, p, t))
        return err_set(e, ST_INPUT,
                       "%s: matrix %d, part %d has scales of other columns or another type than "
                       "the rest",
                       w->name, mat, part);
    char where[200];
    snprintf(where, sizeof where, "%s: matrix %d, part %d", w->name, mat, part);
    return cpu_pack(b, p, t, w->data + (size_t)mat * w->mat_bytes + p->offset,
                    w->use == WEIGHT_LOOKUP, where, e);
}
