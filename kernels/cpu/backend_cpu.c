/* kernels/cpu/backend_cpu.c - the CPU backend: its table of ops, its memory, and how it spreads
 * work over threads. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const CpuKernels *kernels_of(IsaLevel isa)
{
#if defined(__x86_64__)
    static const CpuKernels *const all[N_ISA_LEVELS] = {[ISA_SCALAR] = &cpu_kernels_scalar,
                                                        [ISA_AVX2] = &cpu_kernels_avx2,
                                                        [ISA_AVX512] = &cpu_kernels_avx512};
    return all[isa];
#else
    (void)isa;
    return &cpu_kernels_scalar;
#endif
}

/* From 2 MiB on, memory starts at a huge page: weights are read in long streams, where page walks
 * would show. */
Status cpu_alloc(Backend *b, size_t bytes, const char *what, void **out, Err *e)
{
    (void)b;
    size_t align = bytes >= (size_t)2 << 20 ? (size_t)2 << 20 : 64;
    size_t whole = (bytes + align - 1) / align * align;
    void *p = bytes > PTRDIFF_MAX / 2 ? NULL : aligned_alloc(align, whole ? whole : align);
    if (!p)
        return err_set(e, ST_MEMORY, "out of memory: %zu bytes for %s", bytes, what);
    if (align > 64)
        (void)madvise(p, whole, MADV_HUGEPAGE); /* only advice: small pages work as well */
    *out = p;
    return ST_OK;
}

void cpu_release(Backend *b, void *p)
{
    (void)b;
    free(p);
}

static Status copy(Backend *b, void *dst, const void *src, size_t bytes, Err *e)
{
    (void)b;
    (void)e;
    if (bytes)
        memcpy(dst, src, bytes);
    return ST_OK;
}

static void destroy(Backend *b)
{
    if (!b)
        return;
    cpu_release(b, b->scratch);
    free(b->task_first);
    free(b);
}

static Status can_run(int local_rank, char device[BACKEND_DEVICE_NAME], Err *e)
{
    if (device)
        *device = 0;
    (void)local_rank;
    (void)e;
    return ST_OK;
}

static Status create(const BackendConfig *config, Backend **out, Err *e)
{
    if (config->isa > isa_best())
        return err_set(e, ST_USAGE, "this processor has no %s; its best is %s",
                       isa_name(config->isa), isa_name(isa_best()));
    Backend *b = calloc(1, sizeof *b);
    if (!b)
        return err_set(e, ST_MEMORY, "out of memory: the CPU backend");
    b->team = config->team;
    b->n_threads = config->team ? team_size(config->team) : 1;
    b->isa = config->isa;
    b->kernels = kernels_of(config->isa);
    cpu_iq2_levels(config->isa, &b->levels);
    void *scratch = NULL;
    Status st = cpu_alloc(b, (size_t)b->n_threads * sizeof(Scratch), "the threads' scratch memory",
                          &scratch, e);
    b->scratch = scratch;
    b->task_first = malloc((MAX_GROUPS + 1) * sizeof *b->task_first);
    if (st == ST_OK && !b->task_first)
        st = err_set(e, ST_MEMORY, "out of memory: the CPU backend's task table");
    if (st != ST_OK) {
        destroy(b);
        return st;
    }
    *out = b;
    return ST_OK;
}

static Status wait_done(Backend *b, Err *e)
{
    (void)b; /* every op has finished when it returns */
    (void)e;
    return ST_OK;
}

int cpu_find_group(const int *first, int n, int task)
{
    int lo = 0, hi = n; /* first[lo] <= task < first[hi] */
    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;
        if (first[mid] <= task)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

void cpu_run(Backend *b, int n_tasks, int64_t values, void (*fn)(void *ctx, int task, int thread),
             void *ctx)
{
    if (n_tasks > 0)
        team_run(n_tasks > 1 && values >= 32768 ? b->team : NULL, n_tasks, fn, ctx);
}

int cpu_rows_per_task(const Backend *b, int n_rows)
{
    int rows = n_rows / (4 * b->n_threads);
    return rows > 0 ? rows : 1;
}

const BackendOps cpu_backend = {
    .name = "cpu",
    .act_bytes = sizeof(float),
    .host_memory = true,
    .can_run = can_run,
    .create = create,
    .destroy = destroy,
    .ceilings = cpu_ceilings,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .upload = copy,
    .download = copy,
    .stage = copy,
    .weight_create = cpu_weight_create,
    .weight_set = cpu_weight_set,
    .weight_destroy = cpu_weight_destroy,
    .weight_bytes = cpu_weight_bytes,
    .weight_layout = cpu_weight_layout,
    .weight_mat_bytes = cpu_weight_mat_bytes,
    .weight_save = cpu_weight_save,
    .weight_restore = cpu_weight_restore,
    .embed = cpu_embed,
    .add_norm = cpu_add_norm,
    .norm = cpu_norm,
    .matmul = cpu_matmul,
    .matmul_float = cpu_matmul_float,
    .round_rows = cpu_round_rows,
    .encode_rows = cpu_encode_rows,
    .decode_rows = cpu_decode_rows,
    .rope = cpu_rope,
    .list_create = cpu_list_create,
    .list_set = cpu_list_set,
    .list_destroy = cpu_list_destroy,
    .kv_page_bytes = cpu_kv_page_bytes,
    .kv_write = cpu_kv_write,
    .attention = cpu_attention,
    .latent_page_bytes = cpu_latent_page_bytes,
    .latent_write = cpu_latent_write,
    .latent_scratch_bytes = cpu_latent_scratch_bytes,
    .latent_attention = cpu_latent_attention,
    .route = cpu_route,
    .ffn_scratch_bytes = cpu_ffn_scratch_bytes,
    .ffn = cpu_ffn,
    .combine = cpu_combine,
    .gate_rows = cpu_gate_rows,
    .clamp = cpu_clamp,
    .gather = cpu_gather,
    .wait = wait_done,
};
