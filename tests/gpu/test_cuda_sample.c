/* tests/gpu/test_cuda_sample.c - tokens chosen on the device are those that jobs/sampling.c chooses
 * from the same logits, over random requests of every kind; log-probabilities are within 1e-5, ranks
 * and best ids equal, and a row's bytes do not depend on the batch it is in.
 * Usage: test_cuda_sample [small [PART PARTS]]: for compute-sanitizer, a tenth of the rows. */
#include "jobs/logit_edits.h"
#include "jobs/sampling.h"
#include "tests/support/check.h"
#include "tests/support/cuda_case.h"
#include "tests/support/kernel_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LIST = 48 };

static CudaCase on;

typedef enum LogitKind {
    PEAKED, /* a few stand out, as a language model's do */
    FLAT,
    COARSE, /* many ties */
    EQUAL,  /* nothing but ties */
    BARRED, /* mostly -infinity */
    CLOSE,  /* differences at the end of float32 */
    HUGE_VALUES,
    NOT_NUMBERS,
    INFINITE,
    NOTHING,
    N_KINDS
} LogitKind;

static double uniform_of(uint64_t *seed)
{
    return ((double)test_random(seed) + 0.5) / 4294967296.0;
}

static double normal_of(uint64_t *seed) /* near enough */
{
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += uniform_of(seed);
    return (sum - 2) * 1.7320508;
}

static void fill_logits(LogitKind kind, float *x, int n, uint64_t *seed)
{
    for (int i = 0; i < n; i++)
        switch (kind) {
        case FLAT:
            x[i] = (float)(0.3 * normal_of(seed) - 100);
            break;
        case COARSE:
            x[i] = (float)(floor(3 * normal_of(seed)) / 2);
            break;
        case EQUAL:
            x[i] = -3.25f;
            break;
        case BARRED:
            x[i] = test_random(seed) % 16 ? -INFINITY : (float)(2 * normal_of(seed));
            break;
        case CLOSE:
            x[i] = 17 + (float)(test_random(seed) % 64) * 0x1p-19f;
            break;
        case HUGE_VALUES:
            x[i] = (float)(1e37 * normal_of(seed));
            break;
        case NOTHING:
            x[i] = -INFINITY;
            break;
        default:
            x[i] = (float)(2.5 * normal_of(seed));
        }
    if (kind == PEAKED)
        for (int i = 0; i < 40; i++)
            x[test_random(seed) % (uint32_t)n] = (float)(8 + 3 * normal_of(seed));
    if (kind == NOT_NUMBERS)
        x[test_random(seed) % (uint32_t)n] = NAN;
    if (kind == INFINITE)
        x[test_random(seed) % (uint32_t)n] = INFINITY;
}

/* A row of one prompt and one choice, with room for what its parameters point at. */
typedef struct Case {
    LogitKind kind;
    int32_t given; /* -1: chosen */
    Row row;
    Prompt prompt;
    Choice choice;
    int32_t prompt_ids[MAX_LIST], out_ids[MAX_LIST], allowed[MAX_LIST], stop[2], word[4];
    IdList words[3];
    LogitBias bias[6];
} Case;

static double pick(uint64_t *seed, const double *of, int n)
{
    return of[test_random(seed) % (uint32_t)n];
}
#define PICK(...)                                                                                  \
    pick(seed, (const double[]){__VA_ARGS__}, (int)(sizeof(double[]){__VA_ARGS__} / sizeof(double)))

static int32_t any_id(uint64_t *seed, const float *x, int vocab)
{
    int32_t id = (int32_t)(test_random(seed) % (uint32_t)vocab);
    for (int i = 0; i < 30; i++) { /* a good one, so that it matters */
        int32_t other = (int32_t)(test_random(seed) % (uint32_t)vocab);
        id = x[other] > x[id] ? other : id;
    }
    return id;
}

static void make_case(Case *c, const float *x, int vocab, uint64_t *seed)
{
    SamplingParams *p = &c->row.params;
    c->row.prompts = &c->prompt;
    c->row.choices = &c->choice;
    c->row.n_prompts = c->row.n_choices = 1;
    for (int i = 0; i < 12; i++)
        c->row.key[i] = (uint8_t)test_random(seed);
    c->given = test_random(seed) % 5 ? -1 : any_id(seed, x, vocab);
    *p = (SamplingParams){.n = 1, .logprobs = (int)PICK(-1, -1, 0, 1, 5, 20)};
    p->temperature = PICK(0, 0, 1, 1, 0.7, 0.2, 5, 50, 1e-300, 1e30);
    p->top_k = (int)PICK(0, 0, 1, 4, 20, 50, 700, 20000, vocab - 1, vocab + 3);
    p->top_p = PICK(1, 1, 0.95, 0.5, 0.07, 1e-9, 0.999999, 1 - 1e-12);
    p->min_p = PICK(0, 0, 0, 0.05, 1e-6, 1);
    p->repetition_penalty = PICK(1, 1, 1, 1.3, 0.7, 1e30);
    p->presence_penalty = PICK(0, 0, 0.6, -0.3);
    p->frequency_penalty = PICK(0, 0, 0.35);
    c->prompt.ids = (TokenIds){c->prompt_ids, test_random(seed) % MAX_LIST, MAX_LIST};
    c->choice.out = (TokenIds){c->out_ids, test_random(seed) % MAX_LIST, MAX_LIST};
    for (int i = 0; i < MAX_LIST; i++) {
        c->prompt_ids[i] = any_id(seed, x, vocab);
        c->out_ids[i] = i % 3 ? any_id(seed, x, vocab) : c->out_ids[i / 3];
        c->allowed[i] = any_id(seed, x, vocab);
    }
    if (test_random(seed) % 5 == 0)
        p->allowed = (IdList){c->allowed, (int)PICK(1, 2, 20, MAX_LIST)};
    if (test_random(seed) % 3 == 0) {
        for (int i = 0; i < 6; i++)
            c->bias[i] = (LogitBias){(vocab - 1) * i / 5, (float)PICK(-100, 1, 5, 30, 0)};
        p->bias = c->bias;
        p->n_bias = vocab > 6 ? 6 : 0;
    }
    if (test_random(seed) % 3 == 0 && c->choice.out.n > 0) {
        for (int i = 0; i < 4; i++)
            c->word[i] = any_id(seed, x, vocab);
        c->word[2] = c->out_ids[c->choice.out.n - 1];
        for (int i = 0; i < 3; i++)
            c->words[i] = (IdList){c->word + i, i == 2 ? 2 : 1};
        p->bad_words = c->words;
        p->n_bad_words = 3;
    }
    c->stop[0] = any_id(seed, x, vocab);
    c->stop[1] = any_id(seed, x, vocab);
    p->stop_ids = (IdList){c->stop, 2};
    p->min_tokens = (int)PICK(0, 0, 20);
}

/* Thousands of rows over one vocabulary, n_ids of which may be chosen. */
typedef struct Table {
    Arch arch;
    RowContext context;
    int n, n_ids;
    float scale;
    float *raw; /* [n, vocab] before scale */
    Case *cases;
    SampleRow *ask;
    LogitEdit **edits;
    Sampled *got;
} Table;

static void make_table(Table *t, int vocab, int n_ids, int n, float scale, uint64_t seed)
{
    LogitEdits *lister;
    Err e;
    *t = (Table){.arch = {.vocab = vocab, .eos = {vocab / 2}, .n_eos = 1},
                 .n = n,
                 .n_ids = n_ids,
                 .scale = scale};
    t->context.arch = &t->arch;
    t->raw = test_alloc((size_t)n * (size_t)vocab * sizeof *t->raw);
    t->cases = test_alloc((size_t)n * sizeof *t->cases);
    t->ask = test_alloc((size_t)n * sizeof *t->ask);
    t->edits = test_alloc((size_t)n * sizeof *t->edits);
    t->got = test_alloc((size_t)n * sizeof *t->got);
    memset(t->cases, 0, (size_t)n * sizeof *t->cases);
    cuda_case_must(logit_edits_create(vocab, &lister, &e), &e);
    for (int i = 0; i < n; i++) {
        Case *c = &t->cases[i];
        SampleRow *ask = &t->ask[i];
        float *x = t->raw + (int64_t)i * vocab;
        /* Half of the rows are as models make them. */
        c->kind = test_random(&seed) % 2 ? PEAKED : (LogitKind)(test_random(&seed) % N_KINDS);
        fill_logits(c->kind, x, vocab, &seed);
        make_case(c, x, vocab, &seed);
        t->edits[i] = test_alloc(((size_t)logit_edits_most(&t->context, &c->row, &c->choice) + 1) *
                                 sizeof **t->edits);
        logit_edits_list(lister, &t->context, &c->row, &c->choice, t->edits[i], ask);
        int kept = 0; /* ids that the tokenizer lacks have no edits */
        for (int k = 0; k < ask->n_edits; k++)
            if (t->edits[i][k].id < n_ids)
                t->edits[i][kept++] = t->edits[i][k];
        ask->n_edits = kept;
        ask->given = c->given;
        ask->logprob = c->row.params.logprobs >= 0;
        ask->n_top = c->row.params.logprobs > 0 ? c->row.params.logprobs : 0;
    }
    logit_edits_free(lister);
}

static void free_table(Table *t)
{
    for (int i = 0; i < t->n; i++)
        free(t->edits[i]);
    free(t->raw);
    free(t->cases);
    free(t->ask);
    free(t->edits);
    free(t->got);
}

/* Rows from .. from+n-1 in one call. */
static void sample_rows(const Table *t, const float *logits_dev, void *scratch, int from, int n,
                        Sampled *out)
{
    SampleSpec spec = {t->arch.vocab, t->n_ids, t->scale};
    Err e;
    memset(out, 0, (size_t)n * sizeof *out);
    cuda_case_must(on.cuda->sample(on.dev, out, logits_dev + (int64_t)from * t->arch.vocab, n,
                                   &spec, t->ask + from, scratch, &e),
                   &e);
}

static int same_logprobs(const char *name, const TokenLogprobs *got, const TokenLogprobs *want)
{
    int failed = check_int(name, got->rank, want->rank) + check_int(name, got->n_top, want->n_top);
    bool equal = got->logprob == want->logprob; /* infinite ones */
    failed += equal ? 0 : check_near(name, got->logprob, want->logprob, 1e-5);
    for (int k = 0; k < want->n_top && !failed; k++) {
        failed += check_int(name, got->top_id[k], want->top_id[k]);
        equal = got->top_logprob[k] == want->top_logprob[k];
        failed += equal ? 0 : check_near(name, got->top_logprob[k], want->top_logprob[k], 1e-5);
    }
    return failed;
}

/* One row against the CPU. Logits that the tokenizer has no id for are allowed to nobody there. */
static int check_row(const Table *t, int i, float *x, const int32_t *all_ids,
                     SamplingScratch *scratch)
{
    Case *c = &t->cases[i];
    SamplingParams *p = &c->row.params;
    const Sampled *got = &t->got[i];
    TokenLogprobs want;
    int32_t id = c->given;
    char name[200];
    Err e;
    Status st;
    int vocab = t->arch.vocab, n_allowed = 0;
    int32_t kept[MAX_LIST];
    for (int k = 0; k < vocab; k++)
        x[k] = t->raw[(int64_t)i * vocab + k] * t->scale;
    snprintf(name, sizeof name,
             "vocabulary %d, row %d, kind %d, given %d, temperature %g, top_k %d, top_p %g, min_p "
             "%g, edits %d, logprobs %d",
             vocab, i, (int)c->kind, (int)c->given, p->temperature, p->top_k, p->top_p, p->min_p,
             t->ask[i].n_edits, p->logprobs);
    if (c->given >= 0) {
        st = sampling_logprobs(x, vocab, c->given, t->ask[i].n_top, &want, &e);
    } else {
        for (int k = 0; k < p->allowed.n; k++)
            if (p->allowed.ids[k] < t->n_ids)
                kept[n_allowed++] = p->allowed.ids[k];
        if (p->allowed.n > 0 && n_allowed == 0)
            return 0; /* the CPU's row cannot say that none of its ids is left */
        if (p->allowed.n > 0)
            p->allowed = (IdList){kept, n_allowed};
        else if (t->n_ids < vocab)
            p->allowed = (IdList){all_ids, t->n_ids};
        st = sampling_pick(&t->context, &c->row, &c->choice, x, scratch, &id,
                           p->logprobs >= 0 ? &want : NULL, &e);
    }
    Err told;
    int failed = check_int(name, sampling_status(got->status, &told), st);
    if (failed || st != ST_OK)
        return failed;
    failed += check_int(name, got->id, id);
    if (!failed && (c->given >= 0 || p->logprobs >= 0))
        failed += same_logprobs(name, &got->lp, &want);
    return failed;
}

static int check_table(int vocab, int n_ids, int n, float scale, uint64_t seed)
{
    Table t;
    SamplingScratch *scratch;
    Err e;
    int failed = 0, n_ok = 0;
    make_table(&t, vocab, n_ids, n, scale, seed);
    size_t bytes = (size_t)n * (size_t)vocab * sizeof *t.raw;
    float *logits_dev = cuda_case_bytes(&on, t.raw, bytes);
    void *work;
    cuda_case_must(on.cuda->alloc(on.dev, on.cuda->sample_scratch_bytes(on.dev, n, vocab), "a test",
                                  &work, &e),
                   &e);
    sample_rows(&t, logits_dev, work, 0, n, t.got);
    cuda_case_must(sampling_scratch_create(vocab, &scratch, &e), &e);
    float *x = test_alloc((size_t)vocab * sizeof *x);
    int32_t *all_ids = test_alloc((size_t)vocab * sizeof *all_ids);
    for (int i = 0; i < vocab; i++)
        all_ids[i] = i;
    for (int i = 0; i < n && failed < 20; i++) {
        failed += check_row(&t, i, x, all_ids, scratch);
        n_ok += t.got[i].status == SAMPLE_OK;
    }
    failed += check_true("most rows have a token", n_ok > n / 2);
    /* Alone, and in batches of seven. */
    Sampled *again = test_alloc((size_t)n * sizeof *again);
    for (int i = 0; i < n / 4; i++)
        sample_rows(&t, logits_dev, work, i, 1, again + i);
    for (int i = n / 4; i < n; i += 7)
        sample_rows(&t, logits_dev, work, i, n - i < 7 ? n - i : 7, again + i);
    for (int i = 0; i < n; i++)
        if (memcmp(&again[i], &t.got[i], sizeof *again) != 0) {
            failed += check_int("the row whose result depends on its batch", i, -1);
            break;
        }
    printf("%d rows of %d logits: %d tokens\n", n, vocab, n_ok);
    free(again);
    free(x);
    free(all_ids);
    sampling_scratch_free(scratch);
    on.cuda->release(on.dev, logits_dev);
    on.cuda->release(on.dev, work);
    free_table(&t);
    return failed;
}

static int check_limits(void)
{
    SampleSpec spec = {(1 << 19) + 1, 1, 1};
    SampleRow row = {0};
    Sampled out;
    Err e;
    int failed =
        check_int("no rows", on.cuda->sample(on.dev, NULL, NULL, 0, &spec, NULL, NULL, &e), ST_OK);
    failed += check_int("too many tokens",
                        on.cuda->sample(on.dev, &out, NULL, 1, &spec, &row, NULL, &e), ST_INPUT);
    return failed;
}

int main(int argc, char **argv)
{
    static const struct {
        int vocab, n_ids, n;
        float scale;
    } tables[] = {
        {5, 5, 3000, 1},         {5, 3, 500, 1},           {1, 1, 50, 1},
        {1000, 1000, 3000, 1},   {1000, 998, 500, 0.125f}, {257, 257, 500, 1},
        {8193, 8192, 300, 3.5f}, {151936, 151669, 150, 1}, {201088, 201088, 150, 1},
    };
    int failed = cuda_case_open(&on);
    if (failed)
        return failed;
    cuda_case_arguments(&on, argc, argv);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (cuda_case_due(&on))
            failed +=
                check_table(tables[i].vocab, tables[i].n_ids,
                            on.small ? tables[i].n / 10 : tables[i].n, tables[i].scale, 1234 + i);
    failed += check_limits();
    cuda_case_close(&on);
    return test_result(failed);
}
