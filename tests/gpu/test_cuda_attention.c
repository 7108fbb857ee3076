/* tests/gpu/test_cuda_attention.c - keys, values and latents in pages and attention over them,
 * against the CPU backend with the same cache format, and bit for bit however a prompt is cut: a
 * prompt's rows and single rows run in different kernels, on Hopper by different instructions.
 * Usage: test_cuda_attention [small [PART PARTS]]: without contexts of several splits and with few rows by
 * themselves, for compute-sanitizer. */
#include "tests/support/attn_list.h"
#include "tests/support/check.h"
#include "tests/support/cuda_case.h"
#include "tests/support/kernel_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CudaCase on;

/* Where rows by themselves begin, of a sequence of n: at the last ones of a long one, where all
 * would take long. */
static int first_alone(int n, int begin)
{
    int most = on.small ? 5 : n > 1000 ? 25 : n;
    return most < n ? n - most : begin;
}

enum { MOST_SEQS = 3, MOST_PAGES = 40 };

typedef struct Layout { /* sequences whole, their pages out of order */
    AttnSeq seqs[MOST_SEQS];
    int32_t pages[MOST_SEQS][MOST_PAGES];
    int n_seqs, n_rows, n_pages;
} Layout;

static Layout layout_of(const int *lengths)
{
    Layout l = {.n_seqs = 0};
    for (; l.n_seqs < MOST_SEQS && lengths[l.n_seqs]; l.n_seqs++) {
        int n = lengths[l.n_seqs];
        l.seqs[l.n_seqs] = (AttnSeq){l.n_rows, n, 0, NULL};
        l.n_rows += n;
        for (int p = 0; p * KV_PAGE < n; p++)
            l.pages[l.n_seqs][p] = l.n_pages++;
    }
    for (int i = 0; i < l.n_seqs; i++)
        for (int p = 0; p * KV_PAGE < lengths[i]; p++)
            l.pages[i][p] = l.n_pages - 1 - l.pages[i][p];
    return l;
}

static void point_at_pages(Layout *l)
{
    for (int i = 0; i < l->n_seqs; i++)
        l->seqs[i].pages = l->pages[i];
}

static void poison(const CudaCase *c, void *p, size_t bytes)
{
    uint8_t *nan = test_alloc(bytes);
    Err e;
    memset(nan, 0xff, bytes);
    cuda_case_must(c->cuda->upload(c->dev, p, nan, bytes, &e), &e);
    free(nan);
}

/* A pool of the device, all NaN, so that a read of what nobody wrote shows. */
static void *device_pool(size_t bytes)
{
    uint8_t *nan = test_alloc(bytes);
    memset(nan, 0xff, bytes);
    void *p = cuda_case_bytes(&on, nan, bytes);
    free(nan);
    return p;
}

typedef struct HeadCase {
    const char *name;
    int n_heads, n_kv_heads, head_dim, window;
    bool sinks;
    int lengths[MOST_SEQS];
} HeadCase;

static const HeadCase head_cases[] = {
    {"one key", 1, 1, 16, 0, false, {1}},
    {"odd sizes", 3, 1, 5, 0, true, {66}},
    {"four per kv head", 8, 2, 64, 0, false, {200, 1, 65}},
    {"gpt-oss like", 16, 2, 64, 128, true, {300, 5}},
    {"many heads", 20, 1, 24, 0, true, {67}},
    {"wide", 4, 2, 128, 0, false, {130, 64}},
    {"widest", 2, 1, 256, 0, true, {70}},
    {"window of one", 2, 1, 16, 1, true, {130}},
    {"window above a page", 6, 2, 80, 65, false, {200, 130}},
    {"window of a page", 4, 1, 64, 64, false, {200}},
};

/* Contexts of several splits. */
static const HeadCase long_cases[] = {
    {"two splits", 8, 1, 64, 0, true, {2100, 2049, 7}},
    {"two splits, wide", 4, 2, 128, 0, false, {2200}},
    {"window across splits", 8, 1, 64, 128, true, {2200, 30}},
};

typedef struct Heads {
    void *pool, *out;
    const void *q, *k, *v;
    int64_t stride;
    const AttnSpec *spec;
} Heads;

/* Rows pos .. pos+n-1 of every sequence that has them. */
static void run_step(const Heads *h, const Layout *l, int pos, int n, int padding)
{
    AttnSeq step[MOST_SEQS];
    AttnList *list = NULL;
    Err e;
    int n_seqs = 0, n_rows = 0;
    for (int i = 0; i < l->n_seqs; i++) {
        int rest = l->seqs[i].n_rows - pos, rows = rest < n ? rest : n;
        if (rest <= 0)
            continue;
        step[n_seqs++] = (AttnSeq){l->seqs[i].row + pos, rows, pos, l->pages[i]};
        n_rows += rows;
    }
    cuda_case_must(on.cuda->list_create(on.dev, n_rows + padding, n_seqs, MOST_PAGES, &list, &e),
                   &e);
    cuda_case_must(
        on.cuda->list_set(on.dev, list, step, n_seqs, padding > 0 ? n_seqs + padding : 0, &e), &e);
    cuda_case_must(on.cuda->kv_write(on.dev, h->pool, h->k, h->v, h->stride, list, h->spec, &e),
                   &e);
    cuda_case_must(on.cuda->attention(on.dev, h->out, h->q, h->stride, h->pool, list, h->spec, &e),
                   &e);
    cuda_case_must(on.cuda->wait(on.dev, &e), &e);
    on.cuda->list_destroy(on.dev, list);
}

static int check_heads(const HeadCase *c, KvFormat kv)
{
    Layout l = layout_of(c->lengths);
    point_at_pages(&l);
    int64_t stride = (int64_t)(c->n_heads + 2 * c->n_kv_heads) * c->head_dim,
            q = (int64_t)c->n_heads * c->head_dim, kv_width = (int64_t)c->n_kv_heads * c->head_dim,
            n_out = l.n_rows * q;
    float *x = cuda_case_floats(l.n_rows * stride, 5), *sinks = test_floats(c->n_heads, 6),
          *want = test_alloc((size_t)n_out * sizeof *want),
          *slack = test_alloc((size_t)n_out * sizeof *slack);
    AttnSpec spec = {
        c->n_heads, c->n_kv_heads,           c->head_dim, 2.0f / sqrtf((float)c->head_dim),
        c->window,  c->sinks ? sinks : NULL, kv};
    Err e;
    size_t page_bytes = on.cuda->kv_page_bytes(on.dev, c->n_kv_heads, c->head_dim, kv.dtype);
    void *pool = test_alloc((size_t)l.n_pages *
                            on.cpu->kv_page_bytes(on.host, c->n_kv_heads, c->head_dim, kv.dtype));
    cuda_case_must(test_kv_write(on.cpu, on.host, pool, x + q, x + q + kv_width, stride, l.seqs,
                                 l.n_seqs, &spec, &e),
                   &e);
    cuda_case_must(
        test_attention(on.cpu, on.host, want, x, stride, pool, l.seqs, l.n_seqs, &spec, &e), &e);
    void *x_dev = cuda_case_rows(&on, x, l.n_rows * stride),
         *sinks_dev = cuda_case_bytes(&on, sinks, (size_t)c->n_heads * sizeof *sinks),
         *out_dev = device_pool((size_t)n_out * 2),
         *pool_dev = device_pool((size_t)l.n_pages * page_bytes);
    char *k_dev = (char *)x_dev + q * 2, *v_dev = k_dev + kv_width * 2;
    spec.sinks = c->sinks ? sinks_dev : NULL;
    cuda_case_must(
        test_kv_write(on.cuda, on.dev, pool_dev, k_dev, v_dev, stride, l.seqs, l.n_seqs, &spec, &e),
        &e);
    cuda_case_must(test_attention(on.cuda, on.dev, out_dev, x_dev, stride, pool_dev, l.seqs,
                                  l.n_seqs, &spec, &e),
                   &e);
    float *got = cuda_case_read(&on, out_dev, n_out);
    /* Weights are rounded to bf16, in the outputs and in what these are divided by: each by 2^-9 of
     * values up to 1 at most. On the whole such errors cancel. */
    for (int64_t i = 0; i < n_out; i++)
        slack[i] = 0x1p-8f;
    int failed = cuda_case_near(c->name, got, want, n_out, slack, 1.01 * BF16_HALF) +
                 cuda_case_l2(c->name, got, want, n_out, BF16_HALF);
    /* Cut otherwise, all sequences together, into another pool and over what was there. */
    static const struct {
        const char *name;
        int first, chunk, padding; /* rows of the first step, and of the others */
    } cuts[] = {{"chunks", 37, 37, 0}, {"rows", 1, 1, 0}, {"rows, padded", 0, 1, 3}};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        int most = c->lengths[0], first = cuts[i].first;
        if (cuts[i].chunk == 1)
            first = first_alone(most, first);
        Heads h = {pool_dev, out_dev, x_dev, k_dev, v_dev, stride, &spec};
        poison(&on, pool_dev, (size_t)l.n_pages * page_bytes);
        poison(&on, out_dev, (size_t)n_out * 2);
        for (int pos = 0, n = first > 0 ? first : 1; pos < most; pos += n, n = cuts[i].chunk)
            run_step(&h, &l, pos, n, n == 1 ? cuts[i].padding : 0);
        float *steps = cuda_case_read(&on, out_dev, n_out);
        char name[80];
        snprintf(name, sizeof name, "%s, %s", c->name, cuts[i].name);
        failed += check_bits(name, steps, got, n_out);
        free(steps);
    }
    void *on_dev[] = {x_dev, sinks_dev, out_dev, pool_dev};
    for (size_t i = 0; i < sizeof on_dev / sizeof *on_dev; i++)
        on.cuda->release(on.dev, on_dev[i]);
    void *on_host[] = {x, sinks, want, slack, pool, got};
    for (size_t i = 0; i < sizeof on_host / sizeof *on_host; i++)
        free(on_host[i]);
    return failed;
}

/* --- latents --- */

typedef struct LatentCase {
    const char *name;
    int n_heads, nope_dim, rope_dim, v_dim, latent_dim;
    int lengths[MOST_SEQS];
} LatentCase;

static const LatentCase latent_cases[] = {
    {"small", 2, 16, 8, 16, 32, {70, 3}},
    {"odd", 3, 12, 4, 20, 36, {130}},
    {"deepseek like", 16, 128, 64, 128, 512, {66, 1, 150}},
};

static const LatentCase long_latents = {"deepseek like, long", 6, 128, 64, 128, 256, {2250, 20}};

/* Rows first .. of all sequences, n at a time, over what out holds. */
static void latent_steps(void *out, const void *q, const void *pool, const Layout *l, int first,
                         int n, const LatentSpec *spec, const LatentWeights *w, LatentForm form,
                         void *scratch)
{
    Err e;
    for (int i = 0; i < l->n_seqs; i++)
        for (int pos = first; pos < l->seqs[i].n_rows; pos += n) {
            int rest = l->seqs[i].n_rows - pos;
            AttnSeq step = {l->seqs[i].row + pos, rest < n ? rest : n, pos, l->pages[i]};
            cuda_case_must(test_latent_attention(on.cuda, on.dev, out, q, pool, &step, 1, spec, w,
                                                 form, scratch, &e),
                           &e);
        }
}

static int check_latents(const LatentCase *c, KvFormat kv, LatentForm form)
{
    Layout l = layout_of(c->lengths);
    point_at_pages(&l);
    int head = c->nope_dim + c->rope_dim, width = c->latent_dim + c->rope_dim, longest = 0;
    for (int i = 0; i < l.n_seqs; i++)
        longest = l.seqs[i].n_rows > longest ? l.seqs[i].n_rows : longest;
    int64_t n_q = (int64_t)l.n_rows * c->n_heads * head,
            n_out = (int64_t)l.n_rows * c->n_heads * c->v_dim;
    LatentSpec spec = {c->n_heads, c->nope_dim,   c->rope_dim,
                       c->v_dim,   c->latent_dim, 1.0f / sqrtf((float)head),
                       kv};
    TestTensor *up = test_alloc(2 * (size_t)c->n_heads * sizeof *up),
               *turned = test_alloc((size_t)c->n_heads * sizeof *turned);
    for (int h = 0; h < c->n_heads; h++) {
        up[2 * h] = test_tensor(FORMAT_BF16, c->nope_dim, c->latent_dim, (uint64_t)h + 1);
        up[2 * h + 1] = test_tensor(FORMAT_BF16, c->v_dim, c->latent_dim, (uint64_t)h + 101);
        turned[h] = up[2 * h];
        turned[h].t.rows = c->latent_dim;
        turned[h].t.cols = c->nope_dim;
        turned[h].t.row_bytes = 2;
        turned[h].t.unit_stride = 2 * c->latent_dim;
    }
    float *q = cuda_case_floats(n_q, 7), *rows = cuda_case_floats((int64_t)l.n_rows * width, 8),
          *want = test_alloc((size_t)n_out * sizeof *want);
    LatentWeights here = {test_weight(on.cpu, on.host, WEIGHT_MATMUL, c->n_heads, 2, up),
                          test_weight(on.cpu, on.host, WEIGHT_MATMUL, c->n_heads, 1, turned)},
                  there = {test_weight(on.cuda, on.dev, WEIGHT_MATMUL, c->n_heads, 2, up),
                           test_weight(on.cuda, on.dev, WEIGHT_MATMUL, c->n_heads, 1, turned)};
    Err e;
    void *pool = test_alloc((size_t)l.n_pages * on.cpu->latent_page_bytes(on.host, c->latent_dim,
                                                                          c->rope_dim, kv.dtype)),
         *scratch = test_alloc(on.cpu->latent_scratch_bytes(on.host, l.n_rows, longest, &spec));
    cuda_case_must(
        test_latent_write(on.cpu, on.host, pool, rows, width, l.seqs, l.n_seqs, &spec, &e), &e);
    cuda_case_must(test_latent_attention(on.cpu, on.host, want, q, pool, l.seqs, l.n_seqs, &spec,
                                         &here, form, scratch, &e),
                   &e);
    void *q_dev = cuda_case_rows(&on, q, n_q),
         *rows_dev = cuda_case_rows(&on, rows, (int64_t)l.n_rows * width),
         *out_dev = device_pool((size_t)n_out * 2),
         *scratch_dev =
             device_pool(on.cuda->latent_scratch_bytes(on.dev, l.n_rows, longest, &spec)),
         *pool_dev =
             device_pool((size_t)l.n_pages *
                         on.cuda->latent_page_bytes(on.dev, c->latent_dim, c->rope_dim, kv.dtype));
    cuda_case_must(
        test_latent_write(on.cuda, on.dev, pool_dev, rows_dev, width, l.seqs, l.n_seqs, &spec, &e),
        &e);
    cuda_case_must(test_latent_attention(on.cuda, on.dev, out_dev, q_dev, pool_dev, l.seqs,
                                         l.n_seqs, &spec, &there, form, scratch_dev, &e),
                   &e);
    float *got = cuda_case_read(&on, out_dev, n_out);
    /* Latent queries, latent outputs and results are each rounded to bf16, or keys, values and
     * results; the first moves scores of a few units, of which softmax makes relative changes of
     * weights. */
    int failed = cuda_case_l2(c->name, got, want, n_out, 3 * BF16_HALF);
    static const struct {
        const char *name;
        int rows;
    } cuts[] = {{"chunks", 37}, {"rows", 1}};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        int first = longest > 1000 ? longest - 40 : cuts[i].rows == 1 ? first_alone(longest, 0) : 0;
        if (first == 0)
            poison(&on, out_dev, (size_t)n_out * 2);
        latent_steps(out_dev, q_dev, pool_dev, &l, first, cuts[i].rows, &spec, &there, form,
                     scratch_dev);
        float *steps = cuda_case_read(&on, out_dev, n_out);
        char name[80];
        snprintf(name, sizeof name, "%s, %s, form %d", c->name, cuts[i].name, (int)form);
        failed += check_bits(name, steps, got, n_out);
        free(steps);
    }
    void *on_dev[] = {q_dev, rows_dev, out_dev, scratch_dev, pool_dev};
    for (size_t i = 0; i < sizeof on_dev / sizeof *on_dev; i++)
        on.cuda->release(on.dev, on_dev[i]);
    on.cpu->weight_destroy(on.host, (Weight *)(uintptr_t)here.up);
    on.cpu->weight_destroy(on.host, (Weight *)(uintptr_t)here.absorb);
    on.cuda->weight_destroy(on.dev, (Weight *)(uintptr_t)there.up);
    on.cuda->weight_destroy(on.dev, (Weight *)(uintptr_t)there.absorb);
    for (int h = 0; h < 2 * c->n_heads; h++)
        test_tensor_free(&up[h]);
    void *on_host[] = {up, turned, q, rows, want, pool, scratch, got};
    for (size_t i = 0; i < sizeof on_host / sizeof *on_host; i++)
        free(on_host[i]);
    return failed;
}

int main(int argc, char **argv)
{
    const KvFormat bf16 = {KV_BF16, 1, 1}, fp8 = {KV_FP8, 0.013f, 0.021f},
                   nvfp4 = {KV_NVFP4, 0.0015f, 0.0021f};
    int failed = cuda_case_open(&on);
    if (failed)
        return failed;
    cuda_case_arguments(&on, argc, argv);
    for (size_t i = 0; i < sizeof head_cases / sizeof *head_cases; i++) {
        if (!cuda_case_due(&on))
            continue;
        failed += check_heads(&head_cases[i], bf16);
        failed += check_heads(&head_cases[i], fp8);
        if (head_cases[i].head_dim % 16 == 0)
            failed += check_heads(&head_cases[i], nvfp4);
    }
    for (size_t i = 0; !on.small && i < sizeof long_cases / sizeof *long_cases; i++) {
        failed += check_heads(&long_cases[i], bf16);
        failed += check_heads(&long_cases[i], fp8);
    }
    for (int form = LATENT_EXPANDED; form <= LATENT_ABSORBED; form++) {
        for (size_t i = 0; i < sizeof latent_cases / sizeof *latent_cases; i++) {
            if (!cuda_case_due(&on))
                continue;
            failed += check_latents(&latent_cases[i], bf16, (LatentForm)form);
            failed += check_latents(&latent_cases[i], fp8, (LatentForm)form);
        }
        if (!on.small) {
            failed += check_latents(&long_latents, bf16, (LatentForm)form);
            failed += check_latents(&long_latents, fp8, (LatentForm)form);
        }
    }
    cuda_case_close(&on);
    return test_result(failed);
}
