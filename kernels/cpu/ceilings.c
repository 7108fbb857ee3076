/* kernels/cpu/ceilings.c - see ceilings.h. */
#include "kernels/cpu/ceilings.h"

#include "kernels/cpu/cpu.h"

#include "io/clock.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Windows are a few milliseconds long: on a busy machine short ones are now and then left alone.
 * The buffer is read window after window, so that none is still in a cache when its turn comes
 * again. */
enum {
    CHUNKS = 192,
    CHUNK_BYTES = 2 << 20,
    WINDOW = 24,
    FMA_STEPS = 300000,
    CHAINS = 12,
    MAX_THREADS = 1024
};

struct CeilingProbe {
    Team *team;
    int n_threads;
    uint8_t *buffer;
    int first_chunk;            /* of the window being read */
    uint64_t sink[MAX_THREADS]; /* keeps results alive, one per thread */
};

typedef uint64_t Pair __attribute__((vector_size(16))); /* what every x86-64 loads at once */

/* Four streams, since one does not fill a core's prefetchers; two accumulators each. */
static void read_chunk(void *ctx, int task, int thread)
{
    CeilingProbe *p = ctx;
    enum { STREAM = CHUNK_BYTES / 4 / sizeof(Pair) };
    const Pair *at =
        (const Pair *)(void *)(p->buffer + (size_t)(p->first_chunk + task) * CHUNK_BYTES);
    Pair a = {0}, b = {0}, c = {0}, d = {0}, e = {0}, f = {0}, g = {0}, h = {0};
    for (size_t i = 0; i < STREAM; i += 2) {
        a ^= at[i];
        b ^= at[i + 1];
        c ^= at[i + STREAM];
        d ^= at[i + STREAM + 1];
        e ^= at[i + 2 * STREAM];
        f ^= at[i + 2 * STREAM + 1];
        g ^= at[i + 3 * STREAM];
        h ^= at[i + 3 * STREAM + 1];
    }
    a ^= b ^ c ^ d ^ e ^ f ^ g ^ h;
    p->sink[thread] ^= a[0] ^ a[1];
}

static void touch_chunk(void *ctx, int task, int thread)
{
    (void)thread;
    CeilingProbe *p = ctx;
    memset(p->buffer + (size_t)task * CHUNK_BYTES, task + 1, CHUNK_BYTES);
}

#if defined(__x86_64__)
/* Twelve independent chains: more than latency times throughput of any core so far, fewer than its
 * registers. */
__attribute__((target("avx2,fma"))) static void fma_avx2(void *ctx, int task, int thread)
{
    (void)task;
    __m256 acc[CHAINS], x = _mm256_set1_ps(0.5f), y = _mm256_set1_ps(1.0f);
#pragma GCC unroll 12
    for (int j = 0; j < CHAINS; j++)
        acc[j] = _mm256_set1_ps((float)j);
    for (int i = 0; i < FMA_STEPS; i++) {
#pragma GCC unroll 12
        for (int j = 0; j < CHAINS; j++)
            acc[j] = _mm256_fmadd_ps(acc[j], x, y);
    }
    float sum = 0;
#pragma GCC unroll 12
    for (int j = 0; j < CHAINS; j++)
        sum += _mm256_cvtss_f32(acc[j]);
    ((CeilingProbe *)ctx)->sink[thread] += (uint64_t)sum;
}

__attribute__((target("avx512f"))) static void fma_avx512(void *ctx, int task, int thread)
{
    (void)task;
    __m512 acc[CHAINS], x = _mm512_set1_ps(0.5f), y = _mm512_set1_ps(1.0f);
#pragma GCC unroll 12
    for (int j = 0; j < CHAINS; j++)
        acc[j] = _mm512_set1_ps((float)j);
    for (int i = 0; i < FMA_STEPS; i++) {
#pragma GCC unroll 12
        for (int j = 0; j < CHAINS; j++)
            acc[j] = _mm512_fmadd_ps(acc[j], x, y);
    }
    float sum = 0;
#pragma GCC unroll 12
    for (int j = 0; j < CHAINS; j++)
        sum += _mm512_cvtss_f32(acc[j]);
    ((CeilingProbe *)ctx)->sink[thread] += (uint64_t)sum;
}
#endif

Status ceilings_create(CeilingProbe **out, Team *team, Err *e)
{
    CeilingProbe *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ST_MEMORY, "out of memory: the probe of this machine's limits");
    p->team = team;
    p->n_threads = team ? team_size(team) : 1;
    p->buffer = aligned_alloc(CHUNK_BYTES, (size_t)CHUNKS * CHUNK_BYTES);
    if (!p->buffer || p->n_threads > MAX_THREADS) {
        ceilings_destroy(p);
        return err_set(e, ST_MEMORY, "out of memory: the probe of this machine's limits");
    }
    (void)madvise(p->buffer, (size_t)CHUNKS * CHUNK_BYTES, MADV_HUGEPAGE); /* as the weights have */
    team_run(team, CHUNKS, touch_chunk, p);
    *out = p;
    return ST_OK;
}

void ceilings_destroy(CeilingProbe *p)
{
    if (!p)
        return;
    free(p->buffer);
    free(p);
}

static double seconds_of(CeilingProbe *p, int n_tasks, void (*fn)(void *ctx, int task, int thread))
{
    double start = clock_s();
    team_run(p->team, n_tasks, fn, p);
    return clock_s() - start;
}

static void raise_to(double *best, double value)
{
    *best = value > *best ? value : *best;
}

void ceilings_measure(CeilingProbe *p, Ceilings *best)
{
    for (p->first_chunk = 0; p->first_chunk < CHUNKS; p->first_chunk += WINDOW)
        raise_to(&best->read_gbs,
                 (double)WINDOW * CHUNK_BYTES / seconds_of(p, WINDOW, read_chunk) * 1e-9);
#if defined(__x86_64__)
    static const struct {
        IsaLevel isa;
        void (*fn)(void *ctx, int task, int thread);
        int lanes;
    } probes[] = {{ISA_AVX2, fma_avx2, 8}, {ISA_AVX512, fma_avx512, 16}};
    for (size_t i = 0; i < sizeof probes / sizeof *probes; i++) {
        if (probes[i].isa > isa_best())
            continue;
        double flops = 2.0 * probes[i].lanes * CHAINS * FMA_STEPS * p->n_threads;
        for (int run = 0; run < 8; run++)
            raise_to(&best->fma_gflops[probes[i].isa],
                     flops / seconds_of(p, p->n_threads, probes[i].fn) * 1e-9);
    }
#endif
}

Status cpu_ceilings(Backend *b, BackendCeilings *out, Err *e)
{
    CeilingProbe *probe;
    Ceilings best = {0};
    TRY(ceilings_create(&probe, b->team, e));
    for (int run = 0; run < 3; run++)
        ceilings_measure(probe, &best);
    ceilings_destroy(probe);
    *out = (BackendCeilings){.memory_bytes_s = best.read_gbs * 1e9,
                             .flops = best.fma_gflops[b->isa] * 1e9,
                             .gemm = "FMA in registers"};
    return ST_OK;
}
