/* jobs/sampling.c - see sampling.h.
 *
 * Everything is a function of the logits, the row and the choice. Sums run in double over fixed
 * lanes, exp and log are our own (model/exp_log.h), so neither the processor nor the compiler's
 * vector width changes a bit. Without any request beyond temperature 0 the logits are read in
 * place. */
#include "jobs/sampling.h"

#include "jobs/logit_scan.h"
#include "model/exp_log.h"
#include "model/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Candidate {
    double weight; /* exp((logit - best) / temperature) */
    int32_t id;
} Candidate;

struct SamplingScratch {
    const LogitScan *scan;
    int vocab;
    float *logits;    /* [vocab] the row's own copy */
    double *weight;   /* [vocab] */
    int32_t *count;   /* [vocab] all 0 between calls */
    Candidate *found; /* [vocab] */
    double *block;    /* [ceil(vocab / WEIGHT_BLOCK)] sums of weight */
};

Status sampling_scratch_create(int vocab, SamplingScratch **out, Err *e)
{
    SamplingScratch *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return err_set(e, ST_MEMORY, "not enough memory to sample");
    size_t n = (size_t)vocab;
    s->vocab = vocab;
    s->scan = logit_scan_best();
    s->logits = malloc((n + 1) * sizeof *s->logits);
    s->weight = malloc((n + 1) * sizeof *s->weight);
    s->count = calloc(n + 1, sizeof *s->count);
    s->found = malloc((n + 1) * sizeof *s->found);
    s->block = malloc((n / WEIGHT_BLOCK + 1) * sizeof *s->block);
    if (!s->logits || !s->weight || !s->count || !s->found || !s->block) {
        sampling_scratch_free(s);
        return err_set(e, ST_MEMORY, "not enough memory to sample among %d tokens", vocab);
    }
    *out = s;
    return ST_OK;
}

void sampling_scratch_free(SamplingScratch *s)
{
    if (!s)
        return;
    free(s->logits);
    free(s->weight);
    free(s->count);
    free(s->found);
    free(s->block);
    free(s);
}

/* The largest value and its first index; ST_INPUT for NaN or infinite logits, or when all are
 * -inf. */
static Status find_max(const LogitScan *scan, const float *x, int n, float *max, int32_t *first,
                       Err *e)
{
    if (!scan->find_max(x, n, max, first))
        return err_set(e, ST_INPUT, "the model's logits are not numbers");
    if (*max == -INFINITY)
        return err_set(e, ST_USAGE, "the request leaves no token to choose from");
    return ST_OK;
}

/* Best first; a later index never passes an equal value. */
static int find_top(const float *x, int n, int n_top, int32_t *id)
{
    int have = 0;
    for (int i = 0; i < n && n_top > 0; i++) {
        if (have == n_top && x[i] <= x[id[have - 1]])
            continue;
        int at = have < n_top ? have++ : have - 1;
        for (; at > 0 && x[id[at - 1]] < x[i]; at--)
            id[at] = id[at - 1];
        id[at] = i;
    }
    return have;
}

Status sampling_logprobs(const float *logits, int vocab, int32_t id, int n_top, TokenLogprobs *out,
                         Err *e)
{
    const LogitScan *scan = logit_scan_best();
    float max;
    int32_t first;
    TRY(find_max(scan, logits, vocab, &max, &first, e));
    double log_sum = log_of_sum(scan->sum_of_exp(logits, vocab, max)); /* the largest term is 1 */
    out->logprob = (float)((double)logits[id] - (double)max - log_sum);
    out->rank = 1 + scan->count_before(logits, vocab, logits[id], id);
    out->n_top = find_top(logits, vocab, n_top < MAX_LOGPROBS ? n_top : MAX_LOGPROBS, out->top_id);
    for (int i = 0; i < out->n_top; i++)
        out->top_logprob[i] = (float)((double)logits[out->top_id[i]] - (double)max - log_sum);
    return ST_OK;
}

static bool in_force(const RowContext *context, const SamplingParams *p, const Choice *c)
{
    bool short_vocab =
        context->tokenizer && tokenizer_n_ids(context->tokenizer) < context->arch->vocab;
    return short_vocab || p->allowed.n || p->n_bad_words || p->n_bias ||
           c->out.n < (size_t)p->min_tokens || p->repetition_penalty != 1 ||
           p->presence_penalty != 0 || p->frequency_penalty != 0;
}

static void ban(float *x, int vocab, int32_t id)
{
    if (id >= 0 && id < vocab)
        x[id] = -INFINITY;
}

/* Bans the last token of a word whose other tokens have just been generated. */
static void ban_word(const IdList *word, const TokenIds *out, float *x, int vocab)
{
    size_t lead = (size_t)word->n - 1;
    if (lead <= out->n &&
        (lead == 0 || memcmp(out->ids + out->n - lead, word->ids, lead * sizeof *word->ids) == 0))
        ban(x, vocab, word->ids[lead]);
}

static void apply_masks(const RowContext *context, const SamplingParams *p, const Choice *c,
                        const float *logits, float *x)
{
    int vocab = context->arch->vocab;
    if (p->allowed.n) {
        for (int i = 0; i < vocab; i++)
            x[i] = -INFINITY;
        for (int i = 0; i < p->allowed.n; i++)
            x[p->allowed.ids[i]] = logits[p->allowed.ids[i]];
    } else {
        memcpy(x, logits, (size_t)vocab * sizeof *x);
    }
    for (int i = context->tokenizer ? tokenizer_n_ids(context->tokenizer) : vocab; i < vocab; i++)
        x[i] = -INFINITY;
    for (int i = 0; i < p->n_bad_words; i++)
        ban_word(&p->bad_words[i], &c->out, x, vocab);
    if (c->out.n < (size_t)p->min_tokens) {
        for (int i = 0; i < context->arch->n_eos; i++)
            ban(x, vocab, context->arch->eos[i]);
        for (int i = 0; i < p->stop_ids.n; i++)
            ban(x, vocab, p->stop_ids.ids[i]);
    }
    for (int i = 0; i < p->n_bias; i++)
        x[p->bias[i].id] += p->bias[i].bias;
}

static void repeat_once(int32_t id, float penalty, int32_t *seen, float *x)
{
    if (seen[id]++ == 0)
        x[id] = x[id] > 0 ? x[id] / penalty : x[id] * penalty;
}

/* Each id of prompt and output once. */
static void apply_repetition(const TokenIds *prompt, const TokenIds *out, float penalty,
                             int32_t *seen, float *x)
{
    for (size_t i = 0; i < prompt->n; i++)
        repeat_once(prompt->ids[i], penalty, seen, x);
    for (size_t i = 0; i < out->n; i++)
        repeat_once(out->ids[i], penalty, seen, x);
    for (size_t i = 0; i < prompt->n; i++)
        seen[prompt->ids[i]] = 0;
    for (size_t i = 0; i < out->n; i++)
        seen[out->ids[i]] = 0;
}

static void apply_counts(const TokenIds *out, float presence, float frequency, int32_t *count,
                         float *x)
{
    for (size_t i = 0; i < out->n; i++)
        count[out->ids[i]]++;
    for (size_t i = 0; i < out->n; i++) {
        int32_t id = out->ids[i];
        if (count[id])
            x[id] -= frequency * (float)count[id] + presence;
        count[id] = 0;
    }
}

/* Inverse distribution function over the ids in ascending order: first the block, then the token.
 */
static int32_t draw_from_all(const SamplingScratch *s, double target)
{
    int32_t last = 0;
    for (int from = 0; from < s->vocab; from += WEIGHT_BLOCK) {
        int end = from + WEIGHT_BLOCK < s->vocab ? from + WEIGHT_BLOCK : s->vocab;
        bool here = target < s->block[from / WEIGHT_BLOCK];
        for (int i = from; i < end && here; i++) {
            if (s->weight[i] > 0)
                last = i;
            target -= s->weight[i];
            if (target < 0)
                return i;
        }
        if (here)
            return last; /* rounding left a little over */
        if (s->block[from / WEIGHT_BLOCK] > 0)
            for (int i = from; i < end; i++)
                last = s->weight[i] > 0 ? i : last;
        target -= s->block[from / WEIGHT_BLOCK];
    }
    return last;
}

static bool is_worse(const Candidate *a, const Candidate *b)
{
    return a->weight < b->weight || (a->weight == b->weight && a->id > b->id);
}

static void sift_down(Candidate *heap, int n, int at)
{
    for (;;) {
        int child = 2 * at + 1;
        if (child >= n)
            return;
        if (child + 1 < n && is_worse(&heap[child + 1], &heap[child]))
            child++;
        if (!is_worse(&heap[child], &heap[at]))
            return;
        Candidate t = heap[at];
        heap[at] = heap[child];
        heap[child] = t;
        at = child;
    }
}

/* The k best into found, in any order; a heap with the worst on top. */
static int select_top_k(SamplingScratch *s, int k)
{
    Candidate *heap = s->found;
    int n = 0;
    for (int i = 0; i < s->vocab; i++) {
        Candidate c = {s->weight[i], i};
        if (c.weight == 0)
            continue;
        if (n < k) {
            heap[n++] = c;
            for (int at = n / 2 - 1; n == k && at >= 0; at--)
                sift_down(heap, n, at);
        } else if (is_worse(&heap[0], &c)) {
            heap[0] = c;
            sift_down(heap, n, 0);
        }
    }
    return n;
}

/* Candidates that top_p can keep: all lighter ones together weigh less than what it leaves out. */
static int select_heavy(SamplingScratch *s, double total, double top_p)
{
    double least = (1 - top_p) * total / s->vocab;
    int n = 0;
    for (int i = 0; i < s->vocab; i++)
        if (s->weight[i] > 0 && s->weight[i] >= least)
            s->found[n++] = (Candidate){s->weight[i], i};
    return n;
}

static void swap(Candidate *a, Candidate *b)
{
    Candidate t = *a;
    *a = *b;
    *b = t;
}

/* The middle one of the first, the middle and the last. */
static Candidate middle_of(const Candidate *c, int n)
{
    const Candidate *a = &c[0], *b = &c[n / 2], *d = &c[n - 1];
    if (is_worse(a, b) == is_worse(b, d))
        return *b;
    return is_worse(b, a) == is_worse(a, d) ? *a : *d;
}

/* The last of the shortest run, best first, that holds target. Parts around a pivot instead of
 * sorting: a flat distribution has a hundred thousand candidates. The last few are put in order. */
static Candidate find_last(Candidate *c, int n, double target)
{
    double before = 0;
    while (n > 8) {
        Candidate pivot = middle_of(c, n);
        double heavy = 0;
        int m = 0;
        for (int i = 0; i < n; i++)
            if (!is_worse(&c[i], &pivot)) {
                heavy += c[i].weight;
                swap(&c[i], &c[m++]);
            }
        if (before + heavy >= target) {
            n = m;
        } else {
            before += heavy;
            c += m;
            n -= m;
        }
    }
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && is_worse(&c[k - 1], &c[k]); k--)
            swap(&c[k - 1], &c[k]);
    int i = 0;
    while (i < n - 1 && (before += c[i].weight) < target)
        i++;
    return c[i];
}

/* Rules out what is worse than last; the sum of what is left. */
static double keep_until(SamplingScratch *s, const Candidate *last)
{
    double total = 0;
    for (int at = 0; at < s->vocab; at += WEIGHT_BLOCK) {
        int end = at + WEIGHT_BLOCK < s->vocab ? at + WEIGHT_BLOCK : s->vocab;
        double sum = 0;
        for (int i = at; i < end; i++) {
            double w = s->weight[i];
            bool out = w < last->weight || (w == last->weight && i > last->id);
            sum += s->weight[i] = out ? 0 : w;
        }
        total += s->block[at / WEIGHT_BLOCK] = sum;
    }
    return total;
}

static int32_t draw(SamplingScratch *s, const float *x, float max, const SamplingParams *p,
                    double uniform)
{
    double total =
        s->scan->fill_weights(x, s->vocab, max, p->temperature, p->min_p, s->weight, s->block);
    if (p->top_k > 0 && p->top_k < s->vocab) {
        int n = select_top_k(s, p->top_k);
        if (n == p->top_k)
            total = keep_until(s, &s->found[0]);
    }
    if (p->top_p < 1) {
        Candidate last = find_last(s->found, select_heavy(s, total, p->top_p), p->top_p * total);
        total = keep_until(s, &last);
    }
    return draw_from_all(s, uniform * total);
}

Status sampling_pick(const RowContext *context, const Row *r, const Choice *c, const float *logits,
                     SamplingScratch *s, int32_t *id, TokenLogprobs *lp, Err *e)
{
    const SamplingParams *p = &r->params;
    const TokenIds *prompt = &r->prompts[c->prompt].ids;
    const float *x = logits;
    float max;
    int32_t best;
    TRY(find_max(s->scan, logits, s->vocab, &max, &best, e));
    if (in_force(context, p, c)) {
        apply_masks(context, p, c, logits, s->logits);
        if (p->repetition_penalty != 1)
            apply_repetition(prompt, &c->out, (float)p->repetition_penalty, s->count, s->logits);
        if (p->presence_penalty != 0 || p->frequency_penalty != 0)
            apply_counts(&c->out, (float)p->presence_penalty, (float)p->frequency_penalty, s->count,
                         s->logits);
        x = s->logits;
        TRY(find_max(s->scan, x, s->vocab, &max, &best, e));
    }
    if (p->temperature == 0) {
        *id = best;
    } else {
        int index = c->prompt * p->n + c->sample;
        double uniform = sampler_uniform(p->seed, r->key, index, (int64_t)c->out.n);
        *id = draw(s, x, max, p, uniform);
    }
    return lp ? sampling_logprobs(logits, s->vocab, *id, p->logprobs, lp, e) : ST_OK;
}
