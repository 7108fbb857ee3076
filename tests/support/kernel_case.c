/* tests/support/kernel_case.c - see kernel_case.h. */
#include "tests/support/kernel_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void give_up(const char *what)
{
    fprintf(stderr, "test set-up failed: %s\n", what);
    exit(1);
}

int test_backends(const BackendOps *ops, TestBackend out[MAX_TEST_BACKENDS])
{
    int n = 0;
    Err e;
    for (IsaLevel isa = ISA_SCALAR; isa < N_ISA_LEVELS; isa++) {
        if (isa > isa_best()) {
            printf("skipped: %s, which this processor lacks\n", isa_name(isa));
            continue;
        }
        for (int threads = 1; threads <= 3; threads++) {
            TestBackend *t = &out[n++];
            snprintf(t->name, sizeof t->name, "%s, %d threads", isa_name(isa), threads);
            t->team = NULL;
            if (threads > 1 && team_create(&t->team, threads, &e) != ST_OK)
                give_up(e.text);
            BackendConfig config = {.team = t->team, .isa = isa};
            if (ops->create(&config, &t->b, &e) != ST_OK)
                give_up(e.text);
        }
    }
    return n;
}

void test_backends_free(const BackendOps *ops, TestBackend *t, int n)
{
    for (int i = 0; i < n; i++) {
        ops->destroy(t[i].b);
        team_destroy(t[i].team);
    }
}

void *test_alloc(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p)
        give_up("out of memory");
    return p;
}

uint32_t test_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
    uint64_t v = *seed ^ *seed >> 33;
    v *= 0xff51afd7ed558ccdULL;
    return (uint32_t)(v >> 32);
}

float *test_floats(int64_t n, uint64_t seed)
{
    float *v = test_alloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++)
        v[i] = (float)(int32_t)test_random(&seed) * 0x1p-31f;
    return v;
}

TestTensor test_tensor(FormatId format, int64_t rows, int64_t cols, uint64_t seed)
{
    const QuantFormat *f = quant_format(format);
    int64_t units = cols / f->unit, n = rows * units * f->unit_bytes, blocks = cols / 32;
    TestTensor t = {.data = test_alloc((size_t)n)};
    if (format == FORMAT_MXFP4) {
        for (int64_t i = 0; i < n; i++)
            ((uint8_t *)t.data)[i] = (uint8_t)test_random(&seed);
        t.scales = test_alloc((size_t)(rows * blocks));
        for (int64_t i = 0; i < rows * blocks; i++)
            ((uint8_t *)t.scales)[i] = (uint8_t)(118 + test_random(&seed) % 8);
    } else {
        for (int64_t i = 0; i < rows * cols; i++) {
            float v = (float)(int32_t)test_random(&seed) * 0x1p-31f;
            if (format == FORMAT_F32)
                ((float *)t.data)[i] = v;
            else if (format == FORMAT_BF16)
                ((uint16_t *)t.data)[i] = float_to_bf16(v);
            else /* sign, an exponent of 2^-8 .. 2^-1, any fraction */
                ((uint16_t *)t.data)[i] = (uint16_t)((test_random(&seed) & 0x9fffU) | 0x2000U);
        }
    }
    t.t = quant_plain(format, t.data, rows, cols);
    t.t.row_bytes = units * f->unit_bytes;
    if (t.scales) {
        t.t.scales = t.scales;
        t.t.scale_type = SCALE_E8M0;
        t.t.group = 32;
        t.t.scale_row_bytes = blocks;
        t.t.scale_col_bytes = 1;
    }
    t.value = test_alloc((size_t)(rows * cols) * sizeof *t.value);
    for (int64_t r = 0; r < rows; r++)
        f->decode(&t.t, r, 0, cols, t.value + r * cols);
    return t;
}

void test_tensor_free(TestTensor *t)
{
    free(t->data);
    free(t->scales);
    free(t->value);
}

Weight *test_weight(const BackendOps *ops, Backend *b, WeightUse use, int n_mats, int n_parts,
                    const TestTensor *t)
{
    WeightPart parts[MAX_PARTS];
    for (int i = 0; i < n_parts; i++)
        parts[i] = weight_part(&t[i].t);
    Weight *w = NULL;
    Err e;
    if (ops->weight_create(b, "test", use, n_mats, parts, n_parts, t[0].t.cols, &w, &e) != ST_OK)
        give_up(e.text);
    for (int m = 0; m < n_mats; m++)
        for (int i = 0; i < n_parts; i++)
            if (ops->weight_set(b, w, m, i, &t[m * n_parts + i].t, &e) != ST_OK)
                give_up(e.text);
    return w;
}

int check_bits(const char *name, const float *got, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(got + i, want + i, sizeof *got) != 0) {
            fprintf(stderr, "%s: value %lld is %.9g (%a), want %.9g (%a)\n", name, (long long)i,
                    got[i], got[i], want[i], want[i]);
            return 1;
        }
    return 0;
}

int check_close(const char *name, const float *got, const double *want, int64_t n, double tolerance)
{
    for (int64_t i = 0; i < n; i++) {
        double size = fabs(want[i]) > 1 ? fabs(want[i]) : 1;
        if (!(fabs(got[i] - want[i]) <= tolerance * size)) {
            fprintf(stderr, "%s: value %lld is %.9g, want %.9g within %.3g\n", name, (long long)i,
                    got[i], want[i], tolerance * size);
            return 1;
        }
    }
    return 0;
}
