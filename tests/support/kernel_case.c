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

static void random_codes(FormatId format, uint8_t *data, int64_t n, uint64_t *seed)
{
    int block = quant_format(format)->unit > 2 ? quant_format(format)->unit_bytes : 0;
    for (int64_t i = 0; i < n; i++) {
        data[i] = (uint8_t)test_random(seed);
        if (format == FORMAT_FP8 || format == FORMAT_MXFP8) {
            if ((data[i] & 0x7fU) == 0x7fU)
                data[i] ^= 0x40U;
            if ((data[i] & 0x78U) == 0 && i % 64) /* subnormals are rare, as they are in weights */
                data[i] |= 0x30U;
        }
    }
    for (int64_t i = 0; block && i < n; i += block) { /* d: 2^-10 .. 2^-7 */
        uint16_t d = (uint16_t)(0x1400U + (test_random(seed) & 0x0bffU));
        memcpy(data + i, &d, sizeof d);
    }
}

static void random_scale(ScaleType type, FormatId format, uint8_t *p, uint64_t *seed)
{
    /* Codes reach 448, 6 or 8. */
    float top = format == FORMAT_FP8 || format == FORMAT_MXFP8 ? 0x1p-8f : 0x1p-2f;
    float v = top * (0.25f + (float)(test_random(seed) & 0xffffffU) * 0x0.cp-24f);
    uint16_t half = type == SCALE_BF16 ? float_to_bf16(v) : float_to_f16(v);
    switch (type) {
    case SCALE_F32:
        memcpy(p, &v, sizeof v);
        break;
    case SCALE_BF16:
    case SCALE_F16:
        memcpy(p, &half, sizeof half);
        break;
    case SCALE_E4M3: /* 0 .. 448 */
        *p = (uint8_t)(test_random(seed) % 0x7fU);
        break;
    default: /* 2^-9 .. 2^-2, or less for wide codes */
        *p = (uint8_t)((top < 0.1f ? 110U : 118U) + test_random(seed) % 8U);
    }
}

static TestScales usual_scales(FormatId format, TestScales s)
{
    static const TestScales usual[N_FORMATS] = {[FORMAT_FP8] = {SCALE_F32, 128, 128},
                                                [FORMAT_NVFP4] = {SCALE_E4M3, 16, 1},
                                                [FORMAT_MXFP8] = {SCALE_E8M0, 32, 1},
                                                [FORMAT_MXFP4] = {SCALE_E8M0, 32, 1},
                                                [FORMAT_INT4] = {SCALE_BF16, 32, 1}};
    TestScales u = usual[format];
    return (TestScales){s.type ? s.type : u.type, s.group ? s.group : u.group,
                        s.rows ? s.rows : u.rows};
}

void test_tensor_decode(TestTensor *t)
{
    quant_decode(&t->t, t->value);
}

TestTensor test_scaled(FormatId format, TestScales scales, int64_t rows, int64_t cols,
                       uint64_t seed)
{
    const QuantFormat *f = quant_format(format);
    int64_t units = (cols + f->unit - 1) / f->unit, n = rows * units * f->unit_bytes;
    TestTensor t = {.data = test_alloc((size_t)n)};
    scales = usual_scales(format, scales);
    scales.group = scales.group == TEST_ALL ? cols : scales.group;
    scales.rows = scales.rows == TEST_ALL ? rows : scales.rows;
    if (f->unit > 1 || scales.type != SCALE_NONE)
        random_codes(format, t.data, n, &seed);
    else
        for (int64_t i = 0; i < rows * cols; i++) {
            float v = (float)(int32_t)test_random(&seed) * 0x1p-31f;
            if (format == FORMAT_F32)
                ((float *)t.data)[i] = v;
            else if (format == FORMAT_BF16)
                ((uint16_t *)t.data)[i] = float_to_bf16(v);
            else /* sign, an exponent of 2^-8 .. 2^-1, any fraction */
                ((uint16_t *)t.data)[i] = (uint16_t)((test_random(&seed) & 0x9fffU) | 0x2000U);
        }
    t.t = quant_plain(format, t.data, rows, cols);
    t.t.row_bytes = units * f->unit_bytes;
    if (scales.type != SCALE_NONE) {
        int bytes = scale_bytes(scales.type);
        int64_t groups = (cols + scales.group - 1) / scales.group;
        int64_t n_scales = groups * ((rows + scales.rows - 1) / scales.rows);
        t.scales = test_alloc((size_t)(n_scales * bytes));
        for (int64_t i = 0; i < n_scales; i++)
            random_scale(scales.type, format, (uint8_t *)t.scales + i * bytes, &seed);
        t.t.scales = t.scales;
        t.t.scale_type = scales.type;
        t.t.group = scales.group;
        t.t.scale_rows = scales.rows;
        t.t.scale_row_bytes = groups * bytes;
        t.t.scale_col_bytes = bytes;
        t.t.global = 0.0123f / 16; /* block scales are 16 on average */
    }
    t.value = test_alloc((size_t)(rows * cols) * sizeof *t.value);
    test_tensor_decode(&t);
    return t;
}

TestTensor test_tensor(FormatId format, int64_t rows, int64_t cols, uint64_t seed)
{
    return test_scaled(format, (TestScales){SCALE_NONE, 0, 0}, rows, cols, seed);
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

float test_chains(const float *x, const float *w, int64_t n)
{
    float sum = 0;
    for (int64_t k0 = 0; k0 < n; k0 += 128) {
        float chain = 0;
        for (int64_t k = k0; k < n && k < k0 + 128; k++)
            chain = fmaf(x[k], w[k], chain);
        sum += chain;
    }
    return sum;
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
