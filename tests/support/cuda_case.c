/* tests/support/cuda_case.c - see cuda_case.h. */
#include "tests/support/cuda_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cuda_case_must(Status st, const Err *e)
{
    if (st == ST_OK)
        return;
    fprintf(stderr, "a call failed: %s\n", e->text);
    exit(1);
}

int cuda_case_open(CudaCase *c)
{
    Err e;
    *c = (CudaCase){.cpu = backend_find("cpu"), .cuda = backend_find("cuda"), .parts = 1};
    if (c->cuda->can_run(0, NULL, &e) != ST_OK) {
        printf("skipped: no CUDA device: %s\n", e.text);
        return 77;
    }
    BackendConfig config = {.isa = isa_best()};
    cuda_case_must(c->cpu->create(&config, &c->host, &e), &e);
    cuda_case_must(c->cuda->create(&config, &c->dev, &e), &e);
    return 0;
}

void cuda_case_close(CudaCase *c)
{
    c->cpu->destroy(c->host);
    c->cuda->destroy(c->dev);
}

void cuda_case_arguments(CudaCase *c, int argc, char **argv)
{
    c->small = argc > 1 && strcmp(argv[1], "small") == 0;
    if (argc == 4) {
        c->part = atoi(argv[2]);
        c->parts = atoi(argv[3]);
    }
    bool known = argc == 1 || (c->small && (argc == 2 || argc == 4));
    if (!known || c->part < 0 || c->part >= c->parts) {
        fprintf(stderr, "usage: %s [small [PART PARTS]]\n", argv[0]);
        exit(2);
    }
}

bool cuda_case_due(CudaCase *c)
{
    return c->asked++ % c->parts == c->part;
}

float *cuda_case_floats(int64_t n, uint64_t seed)
{
    float *v = test_floats(n, seed);
    for (int64_t i = 0; i < n; i++)
        v[i] = bf16_to_float(float_to_bf16(v[i]));
    return v;
}

void *cuda_case_bytes(const CudaCase *c, const void *from, size_t bytes)
{
    void *p;
    Err e;
    cuda_case_must(c->cuda->alloc(c->dev, bytes ? bytes : 1, "a test", &p, &e), &e);
    if (bytes)
        cuda_case_must(c->cuda->upload(c->dev, p, from, bytes, &e), &e);
    return p;
}

void *cuda_case_rows(const CudaCase *c, const float *x, int64_t n)
{
    uint16_t *bits = test_alloc((size_t)n * sizeof *bits);
    for (int64_t i = 0; i < n; i++)
        bits[i] = float_to_bf16(x[i]);
    void *p = cuda_case_bytes(c, bits, (size_t)n * sizeof *bits);
    free(bits);
    return p;
}

float *cuda_case_read_floats(const CudaCase *c, const void *dev, int64_t n)
{
    float *v = test_alloc((size_t)n * sizeof *v);
    Err e;
    cuda_case_must(c->cuda->download(c->dev, v, dev, (size_t)n * sizeof *v, &e), &e);
    return v;
}

float *cuda_case_read(const CudaCase *c, const void *dev, int64_t n)
{
    uint16_t *bits = test_alloc((size_t)n * sizeof *bits);
    float *v = test_alloc((size_t)n * sizeof *v);
    Err e;
    cuda_case_must(c->cuda->download(c->dev, bits, dev, (size_t)n * sizeof *bits, &e), &e);
    for (int64_t i = 0; i < n; i++)
        v[i] = bf16_to_float(bits[i]);
    free(bits);
    return v;
}

void cuda_experts_make(const CudaCase *c, CudaExperts *x)
{
    int64_t n13 = (int64_t)x->n * x->per * x->host.inter, n2 = (int64_t)x->n * x->host.hidden;
    x->dev = x->host;
    x->host.w13 = test_weight(c->cpu, c->host, WEIGHT_GATED, x->n, x->per, x->w13);
    x->host.w2 = test_weight(c->cpu, c->host, WEIGHT_MATMUL, x->n, 1, x->w2);
    x->dev.w13 = test_weight(c->cuda, c->dev, x->use[0], x->n, x->per, x->w13);
    x->dev.w2 = test_weight(c->cuda, c->dev, x->use[1], x->n, 1, x->w2);
    if (!x->bias)
        return;
    float *b13 = test_floats(n13, 33), *b2 = test_floats(n2, 34);
    x->dev.b13 = x->biases_dev[0] = cuda_case_bytes(c, b13, (size_t)n13 * sizeof *b13);
    x->dev.b2 = x->biases_dev[1] = cuda_case_bytes(c, b2, (size_t)n2 * sizeof *b2);
    x->host.b13 = b13;
    x->host.b2 = b2;
}

float *cuda_experts_want(const CudaCase *c, const CudaExperts *x, const float *rows,
                         const float *rows_up, const int32_t *row_of, const int32_t *first, int n)
{
    float *want = test_alloc((size_t)(n * x->host.hidden) * sizeof *want);
    void *scratch = test_alloc(c->cpu->ffn_scratch_bytes(c->host, n, x->host.inter));
    Err e;
    cuda_case_must(
        c->cpu->ffn(c->host, want, rows, rows_up, row_of, first, x->n, n, &x->host, scratch, &e),
        &e);
    free(scratch);
    return want;
}

void cuda_experts_free(const CudaCase *c, CudaExperts *x)
{
    c->cpu->weight_destroy(c->host, (Weight *)(uintptr_t)x->host.w13);
    c->cpu->weight_destroy(c->host, (Weight *)(uintptr_t)x->host.w2);
    c->cuda->weight_destroy(c->dev, (Weight *)(uintptr_t)x->dev.w13);
    c->cuda->weight_destroy(c->dev, (Weight *)(uintptr_t)x->dev.w2);
    for (int i = 0; i < 2; i++)
        if (x->biases_dev[i])
            c->cuda->release(c->dev, x->biases_dev[i]);
    free((void *)(uintptr_t)x->host.b13);
    free((void *)(uintptr_t)x->host.b2);
    for (int i = 0; i < x->n * x->per; i++)
        test_tensor_free(&x->w13[i]);
    for (int i = 0; i < x->n; i++)
        test_tensor_free(&x->w2[i]);
}

int cuda_case_near(const char *name, const float *got, const float *want, int64_t n,
                   const float *slack, double relative)
{
    for (int64_t i = 0; i < n; i++) {
        double most = (slack ? (double)slack[i] : 0) + relative * fabs((double)want[i]);
        if (!(fabs((double)got[i] - (double)want[i]) <= most)) {
            fprintf(stderr, "%s: value %lld of %lld is %.9g, want %.9g within %.3g\n", name,
                    (long long)i, (long long)n, got[i], want[i], most);
            return 1;
        }
    }
    return 0;
}

int cuda_case_l2(const char *name, const float *got, const float *want, int64_t n, double limit)
{
    double apart = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        apart += d * d;
        squares += (double)want[i] * (double)want[i];
    }
    double l2 = sqrt(apart / squares);
    if (l2 < limit)
        return 0;
    fprintf(stderr, "%s: relative L2 %.4g, limit %.4g\n", name, l2, limit);
    return 1;
}
