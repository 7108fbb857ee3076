/* tests/kernels/test_slabs.c - rows on their way into slabs, with a device of two streams that makes
 * slabs as late as it may, and copies as late or as soon as it may: what the kernel that makes slabs
 * is given must be the rows that were set, whether they lie in memory or in a file, alone or in turns
 * with others. */
#include "kernels/cuda/weight_rows.h"
#include "model/linear.h"
#include "tests/support/check.h"
#include "tests/support/kernel_case.h"
#include "tests/support/late_device.h"
#include "tests/support/temp_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- what was set --- */

enum { MAX_MATS = 4 };

static const Weight *bank;
static QuantTensor set[MAX_MATS][2];
static int64_t rows_seen, rows_wrong;

/* Whether what the kernel is given for a row is what its matrix says. */
static bool is_row(const CudaRepack *r, const QuantTensor *t, int row)
{
    const CudaPart *p = r->part;
    const uint8_t *codes = r->codes + row * r->codes_row, *scales = r->scales + row * r->scales_row;
    int64_t at = r->first + row, unit = t->format->id == FORMAT_Q8_0 ? 32 : t->format->unit_bytes;
    int n = scale_bytes(p->scale_type), skip = t->format->id == FORMAT_Q8_0 ? 2 : 0;
    for (int64_t u = 0; u < t->cols / t->format->unit; u++)
        if (memcmp(codes + u * unit, t->data + at * t->row_bytes + u * t->unit_stride + skip,
                   (size_t)unit) != 0)
            return false;
    for (int g = 0; g < p->n_groups && n > 0; g++) {
        const uint8_t *want = skip ? t->data + at * t->row_bytes + g * t->unit_stride
                                   : t->scales +
                                         (t->first_row + at) / t->scale_rows * t->scale_row_bytes +
                                         (int64_t)g * p->group / t->group * t->scale_col_bytes;
        if (memcmp(scales + g * n, want, (size_t)n) != 0)
            return false;
    }
    float whole = r->own_scales ? r->row_scale[row] : r->whole_scale;
    return whole == rows_whole_scale(p, t, at);
}

static void repacked(const CudaRepack *r)
{
    const QuantTensor *t = &set[r->mat][r->part - bank->part];
    for (int row = 0; row < r->rows; row++, rows_seen++)
        rows_wrong += !is_row(r, t, row);
    memset(r->shift, 0xff, (size_t)r->rows * sizeof *r->shift); /* is the kernel's to write */
}

/* --- cases --- */

typedef enum Layout { ALONE, TURNS, HALVES } Layout; /* of two matrices in one tensor */

static const struct Case {
    const char *name;
    FormatId format;
    TestScales scales;
    Layout layout;
    bool file;
    int n_mats;
    int64_t rows, cols; /* of one matrix */
    int64_t sent;       /* bytes that travel; 0: not looked at */
} cases[] = {
    {"MXFP4 in turns", FORMAT_MXFP4, {0}, TURNS, true, 4, 96, 320, 4LL * 2 * 96 * (160 + 10)},
    {"the same in memory", FORMAT_MXFP4, {0}, TURNS, false, 4, 96, 320, 0},
    {"MXFP4 in halves", FORMAT_MXFP4, {0}, HALVES, true, 3, 100, 320, 3LL * 2 * 100 * (160 + 10)},
    {"MXFP4 in turns, more than a staging", FORMAT_MXFP4, {0}, TURNS, true, 2, 20000, 2048, 0},
    {"bf16 in turns", FORMAT_BF16, {0}, TURNS, true, 2, 64, 72, 2LL * 2 * 64 * 144},
    {"bf16 alone, more than two stagings", FORMAT_BF16, {0}, ALONE, true, 1, 30000, 1600, 0},
    {"NVFP4 in turns", FORMAT_NVFP4, {0}, TURNS, true, 2, 40, 64, 2LL * 2 * 40 * (32 + 4)},
    {"FP8 in blocks", FORMAT_FP8, {0}, HALVES, true, 2, 256, 256, 0},
    {"FP8 of rows", FORMAT_FP8, {SCALE_F32, TEST_ALL, 1}, ALONE, true, 2, 72, 64, 0},
    {"MXFP8", FORMAT_MXFP8, {0}, ALONE, true, 2, 72, 64, 2LL * 72 * (64 + 2)},
    {"int4", FORMAT_INT4, {0}, ALONE, true, 2, 72, 64, 2LL * 72 * (32 + 4)},
    {"Q8_0", FORMAT_Q8_0, {0}, ALONE, true, 2, 72, 64, 0},
};

static size_t scales_of(const QuantTensor *t)
{
    int64_t rows = t->scale_row_bytes ? (t->rows - 1) / t->scale_rows + 1 : 1;
    return !t->scales ? 0 : (size_t)(rows * (t->scale_row_bytes ? t->scale_row_bytes : 4));
}

/* Matrices one behind the other in a file, then their scales, from an odd byte on. */
static FileMap write_file(const TestTensor *t, int n)
{
    size_t codes = (size_t)(t->t.rows * t->t.row_bytes), scales = scales_of(&t->t);
    uint8_t *bytes = test_alloc(1 + (size_t)n * (codes + scales));
    FileMap map;
    Err e;
    for (int i = 0; i < n; i++) {
        memcpy(bytes + 1 + (size_t)i * codes, t[i].t.data, codes);
        if (scales > 0)
            memcpy(bytes + 1 + (size_t)n * codes + (size_t)i * scales, t[i].t.scales, scales);
    }
    temp_dir_put("weights", bytes, 1 + (size_t)n * (codes + scales));
    free(bytes);
    if (file_map_open("weights", &map, &e) != ST_OK) {
        printf("%s\n", e.text);
        exit(1);
    }
    return map;
}

static void into_file(QuantTensor *t, const FileMap *map, int mat, int n)
{
    size_t codes = (size_t)(t->rows * t->row_bytes), scales = scales_of(t);
    t->data = map->data + 1 + (size_t)mat * codes;
    t->data_file = map;
    if (t->scales) {
        t->scales = map->data + 1 + (size_t)n * codes + (size_t)mat * scales;
        t->scales_file = map;
    }
}

static void view_all(const struct Case *c, const TestTensor *t, const FileMap *map)
{
    for (int m = 0; m < c->n_mats; m++) {
        QuantTensor whole = t[m].t;
        if (map)
            into_file(&whole, map, m, c->n_mats);
        for (int i = 0; i < (c->layout == ALONE ? 1 : 2); i++)
            set[m][i] = c->layout == ALONE   ? whole
                        : c->layout == TURNS ? linear_rows(&whole, i, 2, c->rows)
                                             : linear_rows(&whole, i * c->rows, 1, c->rows);
    }
}

/* What is said beforehand: nothing, all of it, or matrices that do not come and not all that do. */
typedef enum Ahead { NOTHING, ALL, OTHERS, N_AHEAD } Ahead;

static int set_all(Backend *b, const struct Case *c, Weight *w, Ahead ahead)
{
    int n_parts = c->layout == ALONE ? 1 : 2, failed = 0;
    Err e = {0};
    for (int m = 0; m < c->n_mats && ahead != NOTHING; m++)
        for (int i = 0; i < n_parts && !(ahead == OTHERS && m == 1); i++)
            cuda_weight_ahead(b, w, i, &set[m][i]);
    for (int m = ahead == OTHERS && c->n_mats > 3 ? 1 : 0; m < c->n_mats; m++)
        for (int i = 0; i < n_parts; i++)
            failed += check_int(c->name, cuda_weight_set(b, w, m, i, &set[m][i], &e), ST_OK);
    return failed;
}

static int check_case(Backend *b, const struct Case *c, Ahead ahead)
{
    int n_parts = c->layout == ALONE ? 1 : 2, failed = 0;
    TestTensor t[MAX_MATS];
    FileMap map = {0};
    Weight *w = NULL;
    Err e = {0};
    for (int m = 0; m < c->n_mats; m++)
        t[m] = test_scaled(c->format, c->scales, n_parts * c->rows, c->cols, (uint64_t)m + 7);
    if (c->file)
        map = write_file(t, c->n_mats);
    WeightPart parts[2] = {weight_part(&t[0].t), weight_part(&t[0].t)};
    parts[0].rows = parts[1].rows = c->rows;
    failed += check_int(c->name,
                        cuda_weight_create(b, c->name, n_parts == 2 ? WEIGHT_GATED : WEIGHT_MATMUL,
                                           c->n_mats, parts, n_parts, c->cols, &w, &e),
                        ST_OK);
    if (failed)
        return check_str(c->name, e.text, "");
    bank = w;
    rows_seen = rows_wrong = 0;
    late.sent = 0;
    view_all(c, t, c->file ? &map : NULL);
    failed += set_all(b, c, w, ahead);
    late_device_finish();
    failed += check_int(c->name, rows_wrong, 0);
    int n_set = ahead == OTHERS && c->n_mats > 3 ? c->n_mats - 1 : c->n_mats;
    failed += check_int(c->name, rows_seen, n_set * n_parts * c->rows);
    if (c->sent > 0)
        failed += check_int(c->name, (int64_t)late.sent, c->sent / c->n_mats * n_set);
    cuda_weight_destroy(b, w);
    file_unmap(&map);
    for (int m = 0; m < c->n_mats; m++)
        test_tensor_free(&t[m]);
    return failed;
}

int main(void)
{
    int failed = 0;
    Err e = {0};
    temp_dir_enter();
    for (int threads = 1; threads <= 3; threads += 2) {
        late_device_reset();
        late.repacked = repacked;
        late.soon = threads > 1;
        Backend b = {.api = &late_device, .stream = &late.streams[0]};
        if (team_create(&b.team, threads, &e) != ST_OK || cuda_upload_create(&b, &e) != ST_OK ||
            cuda_spans_create(&b, &e) != ST_OK)
            return check_str("create", e.text, "");
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            for (int ahead = 0; ahead < N_AHEAD; ahead++)
                failed += check_case(&b, &cases[i], (Ahead)ahead);
        cuda_spans_destroy(&b);
        cuda_upload_destroy(&b);
        cuda_staging_close(&b);
        failed += check_int("events left", late.n_events, 0);
        team_destroy(b.team);
    }
    return test_result(failed);
}
