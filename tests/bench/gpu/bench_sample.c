/* tests/bench/gpu/bench_sample.c - the time that rows of logits take to become tokens, beside that of reading
 * the logits once at the speed of a device copy of this run.
 *
 *   bench_sample [--rows 256] [--vocab 151936]
 *
 * A row of output: what is asked of every row of logits, the median time of a call's kernels, and the
 * share of it that one pass over the logits would take. Logits are normal, a few dozen of each row stand
 * out as a language model's do. What is drawn is checked by test_cuda_sample. */
#include "kernels/cuda/api.h"
#include "tests/support/kernel_case.h"

#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 15, EDITS = 1500 };

typedef struct Asked {
    const char *name;
    SampleRow row;
    bool edited;
} Asked;

static void must(cudaError_t err)
{
    if (err == cudaSuccess)
        return;
    fprintf(stderr, "bench_sample: %s\n", cudaGetErrorString(err));
    exit(1);
}

static void *take(size_t bytes)
{
    void *p;
    must(cudaMalloc(&p, bytes));
    return p;
}

static int by_size(const void *a, const void *b)
{
    const float *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static float median_ms(cudaError_t (*fn)(void *ctx), void *ctx)
{
    float ms[RUNS];
    cudaEvent_t start, stop;
    must(cudaEventCreate(&start));
    must(cudaEventCreate(&stop));
    for (int i = -2; i < RUNS; i++) {
        must(cudaEventRecord(start, NULL));
        must(fn(ctx));
        must(cudaEventRecord(stop, NULL));
        must(cudaEventSynchronize(stop));
        if (i >= 0)
            must(cudaEventElapsedTime(&ms[i], start, stop));
    }
    must(cudaEventDestroy(start));
    must(cudaEventDestroy(stop));
    qsort(ms, RUNS, sizeof *ms, by_size);
    return ms[RUNS / 2];
}

typedef struct Copy {
    char *to, *from;
    size_t bytes;
} Copy;

static cudaError_t run_copy(void *ctx)
{
    Copy *c = ctx;
    return cudaMemcpyAsync(c->to, c->from, c->bytes, cudaMemcpyDeviceToDevice, NULL);
}

typedef struct Call {
    const CudaSample *s;
    bool weigh;
} Call;

static cudaError_t run_sample(void *ctx)
{
    const Call *c = ctx;
    return (cudaError_t)cuda_sample_launch(c->s, c->weigh, NULL);
}

static void fill(CudaSample *s, const float *some)
{
    size_t n = (size_t)s->n, vocab = (size_t)s->vocab, row_bytes = vocab * sizeof(float);
    float *row = test_alloc(row_bytes), *logits = take(n * row_bytes);
    uint64_t seed = 7;
    for (size_t r = 0; r < n; r++) {
        /* Every row begins elsewhere in the same values, and has other good ids. */
        memcpy(row, some + test_random(&seed) % vocab, row_bytes);
        for (int k = 0; k < 40; k++)
            row[test_random(&seed) % vocab] = 5.0f + (float)(test_random(&seed) % 1000) / 200;
        must(cudaMemcpy(logits + r * vocab, row, row_bytes, cudaMemcpyHostToDevice));
    }
    free(row);
    s->logits = logits;
    s->n_units = (s->vocab + CUDA_SAMPLE_UNIT - 1) / CUDA_SAMPLE_UNIT;
    s->n_blocks = (s->vocab + CUDA_SAMPLE_BLOCK - 1) / CUDA_SAMPLE_BLOCK;
    size_t blocks = n * (size_t)s->n_blocks;
    s->rows = take(n * sizeof *s->rows);
    s->out = take(n * sizeof *s->out);
    s->units = take(n * (size_t)s->n_units * sizeof *s->units);
    s->sums = take(blocks * sizeof *s->sums);
    s->peaks = take(blocks * sizeof *s->peaks);
    s->choice_peaks = take(blocks * sizeof *s->choice_peaks);
    s->changed = take(n * row_bytes);
}

static void ask_all(const CudaSample *s, const Asked *asked, const LogitEdit *edits)
{
    SampleRow *rows = test_alloc((size_t)s->n * sizeof *rows);
    for (int i = 0; i < s->n; i++) {
        rows[i] = asked->row;
        rows[i].uniform = (i + 0.5) / s->n;
        rows[i].edits = edits;
        rows[i].n_edits = asked->edited ? EDITS : 0;
    }
    must(cudaMemcpy(s->rows, rows, (size_t)s->n * sizeof *rows, cudaMemcpyHostToDevice));
    free(rows);
}

static LogitEdit *make_edits(int vocab)
{
    LogitEdit *edits = test_alloc(EDITS * sizeof *edits), *dev = take(EDITS * sizeof *edits);
    for (int i = 0; i < EDITS; i++)
        edits[i] = (LogitEdit){.id = (int32_t)((int64_t)i * vocab / EDITS), .repeated = true};
    must(cudaMemcpy(dev, edits, EDITS * sizeof *edits, cudaMemcpyHostToDevice));
    free(edits);
    return dev;
}

int main(int argc, char **argv)
{
    static const SampleRow base = {.given = -1, .repetition = 1.1f, .top_p = 1};
    CudaSample s = {.n = 256, .vocab = 151936, .scale = 1};
    for (int i = 1; i + 1 < argc; i += 2)
        *(strcmp(argv[i], "--rows") == 0 ? &s.n : &s.vocab) = atoi(argv[i + 1]);
    s.n_ids = s.vocab - 267;
    float *some = test_alloc(2 * (size_t)s.vocab * sizeof *some);
    uint64_t seed = 1;
    for (int i = 0; i < 2 * s.vocab; i++) { /* near enough to normal */
        uint32_t u = test_random(&seed), v = test_random(&seed);
        some[i] =
            3.0f * (float)((u & 0xffff) + (u >> 16) + (v & 0xffff) + (v >> 16)) / 37837 - 10.4f;
    }
    fill(&s, some);
    LogitEdit *edits = make_edits(s.vocab);
    Copy copy = {take(1 << 30), take(1 << 30), 1 << 30};
    double per_ms = 2 * (double)copy.bytes / (double)median_ms(run_copy, &copy),
           bytes = (double)s.n * s.vocab * sizeof(float), ideal_us = 1e3 * bytes / per_ms;
    printf("%d rows of %d logits; copy %.0f GB/s, once over the logits %.1f us\n", s.n, s.vocab,
           per_ms * 1e-6, ideal_us);
    Asked cases[] = {
        {"greedy", base, false},           {"greedy, logprobs", base, false},
        {"a given id", base, false},       {"greedy, 20 logprobs", base, false},
        {"greedy, penalties", base, true}, {"temperature 1", base, false},
        {"temperature 0.6", base, false},  {"top_k 20, top_p 0.95", base, false},
        {"top_p 0.95", base, false},       {"min_p 0.05", base, false},
        {"all of it", base, true},
    };
    cases[1].row.logprob = cases[3].row.logprob = cases[10].row.logprob = true;
    cases[2].row.given = 17;
    cases[3].row.n_top = cases[10].row.n_top = 20;
    cases[5].row.temperature = 1;
    for (int i = 6; i < 11; i++)
        cases[i].row.temperature = 0.6;
    cases[7].row.top_k = cases[10].row.top_k = 20;
    cases[7].row.top_p = cases[8].row.top_p = cases[10].row.top_p = 0.95;
    cases[9].row.min_p = 0.05;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ask_all(&s, &cases[i], edits);
        Call call = {&s, cases[i].row.given < 0 && cases[i].row.temperature > 0};
        double us = 1e3 * (double)median_ms(run_sample, &call);
        printf("%-24s %8.1f us  %3.0f%% of one pass\n", cases[i].name, us, 100 * ideal_us / us);
    }
    free(some);
    return 0;
}
