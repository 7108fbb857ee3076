/* tests/jobs/test_sampling.c - Philox against its published vectors, exp and log against the C
 * library, the order of the logits pipeline, and the distribution of what is drawn (fixed seeds, so
 * the outcome never varies). */
#include "jobs/logit_scan.h"
#include "jobs/sampling.h"
#include "kernels/backend.h"
#include "kernels/exp_log.h"
#include "model/sampler.h"
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { V = 12 };

/* One row with one prompt and one choice, without any text. */
typedef struct Setup {
    Arch arch;
    RowContext context;
    Row row;
    Prompt prompt;
    Choice choice;
    SamplingScratch *scratch;
} Setup;

static Setup *setup_create(int vocab)
{
    Err e;
    Setup *s = calloc(1, sizeof *s);
    if (!s)
        abort();
    s->arch.vocab = vocab;
    s->context.arch = &s->arch;
    s->row.prompts = &s->prompt;
    s->row.choices = &s->choice;
    s->row.n_prompts = s->row.n_choices = 1;
    s->row.params = (SamplingParams){
        .n = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1, .prompt_logprobs = -1};
    if (sampling_scratch_create(vocab, &s->scratch, &e) != ST_OK)
        abort();
    return s;
}

static void setup_free(Setup *s)
{
    sampling_scratch_free(s->scratch);
    free(s);
}

static int test_philox(void)
{
    /* Salmon et al., Random123, kat_vectors: philox4x32, 10 rounds. */
    static const struct {
        const char *name;
        uint32_t counter[4], key[2], want[4];
    } cases[] = {
        {"zeros", {0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {"ones",
         {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {"pi",
         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t got[4];
        sampler_philox(cases[i].counter, cases[i].key, got);
        failed += check_true(cases[i].name, memcmp(got, cases[i].want, sizeof got) == 0);
    }
    return failed;
}

/* Every part of the address changes the number, and the numbers spread evenly. */
static int test_uniform(void)
{
    uint8_t key[32] = {1, 2, 3}, other[32] = {1, 2, 3, [11] = 1};
    double base = sampler_uniform(5, key, 0, 0), sum = 0;
    int failed = check_true("same again", base == sampler_uniform(5, key, 0, 0));
    failed += check_true("seed", base != sampler_uniform(6, key, 0, 0));
    failed += check_true("seed, high half", base != sampler_uniform(5 + (1LL << 40), key, 0, 0));
    failed += check_true("row key", base != sampler_uniform(5, other, 0, 0));
    failed += check_true("choice", base != sampler_uniform(5, key, 1, 0));
    failed += check_true("token", base != sampler_uniform(5, key, 0, 1));
    failed += check_true("token, high half", base != sampler_uniform(5, key, 0, 1LL << 32));
    int bins[16] = {0}, out = 0;
    for (int i = 0; i < 16000; i++) {
        double u = sampler_uniform(-1, key, i % 3, i);
        out += u < 0 || u >= 1;
        sum += u;
        bins[(int)(u * 16)]++;
    }
    double chi = 0;
    for (int i = 0; i < 16; i++)
        chi += (bins[i] - 1000.0) * (bins[i] - 1000.0) / 1000;
    failed += check_int("in [0, 1)", out, 0);
    failed += check_near("mean", sum / 16000, 0.5, 0.01);
    failed += check_true("chi-square of 15 degrees below the 99.9 percentile", chi < 37.7);
    return failed;
}

static int test_exp_log(void)
{
    double worst_exp = 0, worst_log = 0;
    for (double x = 0; x > -700; x -= 0.3711) {
        double want = exp(x), off = fabs(exp_of_negative(x) - want) / want;
        worst_exp = off > worst_exp ? off : worst_exp;
    }
    for (double x = 1; x < 1e12; x *= 1.0371) {
        double want = log(x), off = fabs(log_of_sum(x) - want) / (want > 1 ? want : 1);
        worst_log = off > worst_log ? off : worst_log;
    }
    int failed = check_near("exp, relative", worst_exp, 0, 1e-14);
    failed += check_near("log", worst_log, 0, 1e-15);
    failed += check_true("exp(0)", exp_of_negative(0) == 1);
    failed +=
        check_true("exp far below", exp_of_negative(-1e6) == 0 && exp_of_negative(-INFINITY) == 0);
    failed += check_true("log(1)", log_of_sum(1) == 0);
    return failed;
}

static void fill_logits(float *x, int n)
{
    uint32_t state = 12345;
    for (int i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)((int32_t)state >> 16) / 4096.0f; /* coarse, so that equal values occur */
    }
}

static int test_logprobs(void)
{
    static const int sizes[] = {1, 2, 7, 8, 9, 20, 257, 4099};
    int failed = 0;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int n = sizes[k];
        char name[40];
        float *x = malloc((size_t)n * sizeof *x);
        TokenLogprobs lp;
        Err e;
        if (!x)
            abort();
        fill_logits(x, n);
        double sum = 0;
        for (int i = 0; i < n; i++)
            sum += exp((double)x[i]);
        snprintf(name, sizeof name, "log-probabilities of %d", n);
        for (int id = 0; id < n; id += 1 + n / 5) {
            failed += check_int(name, sampling_logprobs(x, n, id, 30, &lp, &e), ST_OK);
            failed += check_near(name, lp.logprob, (double)x[id] - log(sum), 1e-5);
            int rank = 1;
            for (int i = 0; i < n; i++)
                rank += x[i] > x[id] || (x[i] == x[id] && i < id);
            failed += check_int(name, lp.rank, rank);
        }
        failed += check_int(name, lp.n_top, n < MAX_LOGPROBS ? n : MAX_LOGPROBS);
        for (int t = 0; t < lp.n_top; t++) {
            TokenLogprobs one;
            failed += check_int(name, sampling_logprobs(x, n, lp.top_id[t], 0, &one, &e), ST_OK);
            failed += check_int(name, one.rank, t + 1);
            failed += check_true(name, one.logprob == lp.top_logprob[t]);
            failed += check_int(name, one.n_top, 0);
        }
        free(x);
    }
    return failed;
}

/* Both compilations of the passes give the same bits. */
static int test_same_bits(void)
{
    static const int sizes[] = {1, 7, 8, 255, 256, 1025, 5003};
    int failed = 0;
    if (isa_best() < ISA_AVX2) {
        printf("skipped: the passes for AVX2, which this processor lacks\n");
        return 0;
    }
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int n = sizes[k];
        const LogitScan *scan[2] = {&logit_scan_plain, &logit_scan_avx2};
        float *x = malloc((size_t)n * sizeof *x), max[2];
        double *w[2], *block[2], total[2], sum[2];
        int32_t first[2], before[2];
        if (!x)
            abort();
        fill_logits(x, n);
        for (int i = 0; i < 2; i++) {
            w[i] = malloc((size_t)n * sizeof **w);
            block[i] = malloc(((size_t)n / WEIGHT_BLOCK + 1) * sizeof **block);
            if (!w[i] || !block[i])
                abort();
            failed += check_true("numbers", scan[i]->find_max(x, n, &max[i], &first[i]));
            sum[i] = scan[i]->sum_of_exp(x, n, max[i]);
            before[i] = scan[i]->count_before(x, n, x[n / 2], n / 2);
            total[i] = scan[i]->fill_weights(x, n, max[i], 0.7, 0.01, w[i], block[i]);
        }
        failed += check_true("maximum",
                             max[0] == max[1] && first[0] == first[1] && x[first[0]] == max[0]);
        failed += check_true("sums", sum[0] == sum[1] && total[0] == total[1]);
        failed += check_int("before", before[0], before[1]);
        failed += check_true("weights", memcmp(w[0], w[1], (size_t)n * sizeof **w) == 0);
        for (int i = 0; i < 2; i++) {
            free(w[i]);
            free(block[i]);
        }
        free(x);
    }
    return failed;
}

static int test_odd_logits(void)
{
    static const struct {
        const char *name;
        float x[10];
        int n;
        Status want;
        int id;
    } cases[] = {
        {"one token", {-3}, 1, ST_OK, 0},
        {"ties go to the lowest id", {1, 2, 2, 0, 2}, 5, ST_OK, 1},
        {"a tie across lanes", {0, 0, 0, 0, 0, 0, 0, 5, 5}, 9, ST_OK, 7},
        {"minus zero ties with zero", {-0.0f, 0, -1}, 3, ST_OK, 0},
        {"the last one", {0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 10, ST_OK, 9},
        {"some are ruled out", {-INFINITY, -7, -INFINITY}, 3, ST_OK, 1},
        {"NaN", {0, NAN, 1}, 3, ST_INPUT, 0},
        {"NaN in a full lane", {0, 0, 0, NAN, 0, 0, 0, 0, 1}, 9, ST_INPUT, 0},
        {"infinity", {0, INFINITY, 1}, 3, ST_INPUT, 0},
        {"nothing left", {-INFINITY, -INFINITY}, 2, ST_USAGE, 0},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Setup *s = setup_create(cases[i].n);
        Err e;
        int32_t id = 0;
        TokenLogprobs lp;
        Status st =
            sampling_pick(&s->context, &s->row, &s->choice, cases[i].x, s->scratch, &id, &lp, &e);
        failed += check_int(cases[i].name, st, cases[i].want);
        failed += check_int(cases[i].name, id, cases[i].id);
        if (st == ST_OK) {
            s->row.params.temperature = 1e-300; /* so cold that only the best has a chance */
            failed += check_int(cases[i].name,
                                sampling_pick(&s->context, &s->row, &s->choice, cases[i].x,
                                              s->scratch, &id, NULL, &e),
                                ST_OK);
            failed += check_true(cases[i].name, cases[i].x[id] == cases[i].x[cases[i].id]);
        }
        setup_free(s);
    }
    return failed;
}

/* Greedy choices that show which step comes first. Ids 0.. have logits {1, 2, 3, 4, 5, ...}/2
 * unless x says otherwise. */
static int test_pipeline(void)
{
    static const int32_t one[] = {1}, high[] = {10, 11}, low[] = {2, 3}, word[] = {5, 11},
                         best[] = {11};
    static const LogitBias to_zero[] = {{0, 100}}, small[] = {{10, 1.0f}},
                           both[] = {{10, 0.75f}, {11, -100}};
    static const IdList single[] = {{best, 1}}, pair[] = {{word, 2}};
    static const struct {
        const char *name;
        SamplingParams p;
        int32_t prompt[4], out[4];
        int n_prompt, n_out, want;
    } cases[] = {
        {"nothing", {0}, {0}, {0}, 0, 0, 11},
        {"allowed", {.allowed = {low, 2}}, {0}, {0}, 0, 0, 3},
        {"bias", {.bias = to_zero, .n_bias = 1}, {0}, {0}, 0, 0, 0},
        {"allowed before bias",
         {.allowed = {low, 2}, .bias = to_zero, .n_bias = 1},
         {0},
         {0},
         0,
         0,
         3},
        {"bias adds", {.bias = small, .n_bias = 1}, {0}, {0}, 0, 0, 10},
        {"biases", {.bias = both, .n_bias = 2}, {0}, {0}, 0, 0, 10},
        {"bad word of one token", {.bad_words = single, .n_bad_words = 1}, {0}, {0}, 0, 0, 10},
        {"bad word before bias cannot be brought back",
         {.bad_words = single, .n_bad_words = 1, .bias = both, .n_bias = 1},
         {0},
         {0},
         0,
         0,
         10},
        {"bad word of two after its first",
         {.bad_words = pair, .n_bad_words = 1},
         {0},
         {4, 5},
         0,
         2,
         10},
        {"bad word of two elsewhere", {.bad_words = pair, .n_bad_words = 1}, {0}, {5, 4}, 0, 2, 11},
        {"the prompt does not start a bad word",
         {.bad_words = pair, .n_bad_words = 1},
         {5},
         {0},
         1,
         0,
         11},
        {"min_tokens bans stop ids", {.min_tokens = 2, .stop_ids = {high, 2}}, {0}, {4}, 0, 1, 9},
        {"min_tokens reached", {.min_tokens = 2, .stop_ids = {high, 2}}, {0}, {4, 4}, 0, 2, 11},
        {"min_tokens bans eos", {.min_tokens = 1}, {0}, {0}, 0, 0, 10},
        {"min_tokens bans eos though ignored",
         {.min_tokens = 1, .ignore_eos = true},
         {0},
         {0},
         0,
         0,
         10},
        {"an ignored eos may come", {.ignore_eos = true}, {0}, {0}, 0, 0, 11},
        {"repetition over the prompt", {.repetition_penalty = 2}, {11, 11}, {0}, 2, 0, 10},
        {"repetition over the output", {.repetition_penalty = 2}, {0}, {11}, 0, 1, 10},
        {"repetition once per id", {.repetition_penalty = 1.05}, {11, 11, 11}, {11, 11}, 3, 2, 11},
        {"reward of repetition", {.repetition_penalty = 0.5}, {6}, {0}, 1, 0, 6},
        {"bias before repetition",
         {.repetition_penalty = 2, .bias = both, .n_bias = 1},
         {10},
         {0},
         1,
         0,
         11},
        {"presence over the output", {.presence_penalty = 0.6}, {0}, {11}, 0, 1, 10},
        {"presence counts once", {.presence_penalty = 0.6}, {0}, {11, 11, 11}, 0, 3, 10},
        {"frequency counts each", {.frequency_penalty = 0.35}, {0}, {11, 9, 11}, 0, 3, 10},
        {"the prompt has no presence",
         {.presence_penalty = 2, .frequency_penalty = 2},
         {11},
         {0},
         1,
         0,
         11},
        {"everything banned",
         {.allowed = {one, 1}, .min_tokens = 3, .stop_ids = {one, 1}},
         {0},
         {0},
         0,
         0,
         -1},
    };
    int failed = 0;
    float x[V];
    for (int i = 0; i < V; i++)
        x[i] = (float)(i + 1) / 2;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int again = 0; again < 2;
             again++) { /* the second time shows that the scratch is left clean */
            Setup *s = setup_create(V);
            Err e;
            int32_t id = -1;
            SamplingParams *p = &s->row.params;
            *p = cases[i].p;
            p->n = 1;
            p->top_p = 1;
            p->repetition_penalty = p->repetition_penalty != 0 ? p->repetition_penalty : 1;
            s->arch.eos[0] = p->stop_ids.n ? 7 : 11;
            s->arch.n_eos = 1;
            s->prompt.ids = (TokenIds){(int32_t *)cases[i].prompt, (size_t)cases[i].n_prompt, 4};
            s->choice.out = (TokenIds){(int32_t *)cases[i].out, (size_t)cases[i].n_out, 4};
            for (int k = 0; k <= again; k++)
                failed += check_int(
                    cases[i].name,
                    sampling_pick(&s->context, &s->row, &s->choice, x, s->scratch, &id, NULL, &e),
                    cases[i].want < 0 ? ST_USAGE : ST_OK);
            failed += check_int(cases[i].name, id, cases[i].want);
            setup_free(s);
        }
    }
    return failed;
}

/* What the parameters say, written down once more the slow way. */
static void expected(const float *x, int n, const SamplingParams *p, double *prob)
{
    double max = -INFINITY, sum = 0;
    int *order = malloc((size_t)n * sizeof *order);
    if (!order)
        abort();
    for (int i = 0; i < n; i++)
        max = fmax(max, (double)x[i]);
    for (int i = 0; i < n; i++) {
        prob[i] = exp(((double)x[i] - max) / p->temperature);
        prob[i] = prob[i] < p->min_p ? 0 : prob[i];
        order[i] = i;
    }
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && prob[order[j]] > prob[order[j - 1]]; j--) {
            int t = order[j];
            order[j] = order[j - 1];
            order[j - 1] = t;
        }
    for (int i = p->top_k; p->top_k > 0 && i < n; i++)
        prob[order[i]] = 0;
    for (int i = 0; i < n; i++)
        sum += prob[i];
    double reached = 0, kept = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && reached >= p->top_p * sum)
            prob[order[i]] = 0;
        reached += prob[order[i]];
    }
    for (int i = 0; i < n; i++)
        kept += prob[i];
    for (int i = 0; i < n; i++)
        prob[i] /= kept;
    free(order);
}

/* Upper bound of the 99.9 percentile of chi-square (Wilson and Hilferty). */
static double chi_limit(int degrees)
{
    double h = 2.0 / (9 * degrees), c = 1 - h + 3.0902 * sqrt(h);
    return degrees * c * c * c;
}

static int test_distribution(void)
{
    static const struct {
        const char *name;
        int vocab;
        SamplingParams p;
    } cases[] = {
        {"temperature 1", 10, {.temperature = 1, .top_p = 1}},
        {"temperature 0.4", 10, {.temperature = 0.4, .top_p = 1}},
        {"temperature 5, several blocks", 700, {.temperature = 5, .top_p = 1}},
        {"top_k 1", 10, {.temperature = 1, .top_p = 1, .top_k = 1}},
        {"top_k 4", 10, {.temperature = 1, .top_p = 1, .top_k = 4}},
        {"top_k of all", 10, {.temperature = 1, .top_p = 1, .top_k = 10}},
        {"top_k 33 of many", 700, {.temperature = 2, .top_p = 1, .top_k = 33}},
        {"top_p 0.5", 10, {.temperature = 1.5, .top_p = 0.5}},
        {"top_p 0.9 of many", 700, {.temperature = 2, .top_p = 0.9}},
        {"top_p 0.99 of nearly equal ones", 700, {.temperature = 50, .top_p = 0.99}},
        {"top_p next to nothing", 10, {.temperature = 1, .top_p = 1e-9}},
        {"min_p 0.2", 10, {.temperature = 1, .top_p = 1, .min_p = 0.2}},
        {"min_p 1", 10, {.temperature = 1, .top_p = 1, .min_p = 1}},
        {"min_p, top_k and top_p",
         300,
         {.temperature = 1.7, .top_p = 0.8, .top_k = 20, .min_p = 0.05}},
    };
    enum { DRAWS = 20000 };
    int failed = 0;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        int n = cases[k].vocab, wrong = 0, degrees = -1;
        Setup *s = setup_create(n);
        float *x = malloc((size_t)n * sizeof *x);
        double *prob = malloc((size_t)n * sizeof *prob), chi = 0, rest = 0, rest_seen = 0;
        int *seen = calloc((size_t)n, sizeof *seen);
        if (!x || !prob || !seen)
            abort();
        fill_logits(x, n);
        s->row.params = cases[k].p;
        s->row.params.n = 1;
        s->row.params.repetition_penalty = 1;
        expected(x, n, &cases[k].p, prob);
        for (int i = 0; i < DRAWS; i++) {
            int32_t id = 0;
            Err e;
            s->row.key[0] = (uint8_t)i;
            s->row.key[5] = (uint8_t)(i >> 8);
            wrong += sampling_pick(&s->context, &s->row, &s->choice, x, s->scratch, &id, NULL,
                                   &e) != ST_OK;
            wrong += prob[id] == 0;
            seen[id]++;
        }
        for (int i = 0; i < n; i++) {
            if (prob[i] * DRAWS < 8) { /* too rare for the statistic by itself */
                rest += prob[i] * DRAWS;
                rest_seen += seen[i];
                continue;
            }
            chi += (seen[i] - prob[i] * DRAWS) * (seen[i] - prob[i] * DRAWS) / (prob[i] * DRAWS);
            degrees++;
        }
        if (rest > 8) {
            chi += (rest_seen - rest) * (rest_seen - rest) / rest;
            degrees++;
        }
        failed += check_int(cases[k].name, wrong, 0);
        if (degrees > 0 && chi > chi_limit(degrees))
            failed += check_near(cases[k].name, chi, 0, chi_limit(degrees));
        free(x);
        free(prob);
        free(seen);
        setup_free(s);
    }
    return failed;
}

int main(void)
{
    int failed = test_philox();
    failed += test_uniform();
    failed += test_exp_log();
    failed += test_logprobs();
    failed += test_same_bits();
    failed += test_odd_logits();
    failed += test_pipeline();
    failed += test_distribution();
    return test_result(failed);
}
