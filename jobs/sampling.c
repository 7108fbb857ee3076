/* jobs/sampling.c - see sampling.h.
 *
 * Everything is a function of the logits, the row and the choice. Sums run in double over fixed
 * lanes, exp and log are our own (kernels/exp_log.h), so neither the processor nor the compiler's
 * vector width changes a bit. Without any request beyond temperature 0 the logits are read in
 * place. */
#include "jobs/sampling.h"

#include "jobs/logit_edits.h"
#include "jobs/logit_scan.h"

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
    float *logits; /* [vocab] the row's own copy */
    LogitEdits *edits;
    LogitEdit *edit;  /* [vocab] */
    double *weight;   /* [vocab] */
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
    s->edit = malloc((n + 1) * sizeof *s->edit);
    s->found = malloc((n + 1) * sizeof *s->found);
    s->block = malloc((n / WEIGHT_BLOCK + 1) * sizeof *s->block);
    if (!s->logits || !s->weight || !s->edit || !s->found || !s->block) {
        sampling_scratch_free(s);
        return err_set(e, ST_MEMORY, "not enough memory to sample among %d tokens", vocab);
    }
    Status st = logit_edits_create(vocab, &s->edits, e);
    if (st != ST_OK) {
        sampling_scratch_free(s);
        return st;
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
    logit_edits_free(s->edits);
    free(s->edit);
    free(s->found);
    free(s->block);
    free(s);
}

Status sampling_status(int status, Err *e)
{
    if (status == SAMPLE_NOT_NUMBERS)
        return err_set(e, ST_INPUT, "the model's logits are not numbers");
    if (status == SAMPLE_NOTHING_LEFT)
        return err_set(e, ST_USAGE, "the request leaves no token to choose from");
    return ST_OK;
}

/* The largest value and its first index; ST_INPUT for NaN or infinite logits, or when all are
 * -inf. */
static Status find_max(const LogitScan *scan, const float *x, int n, float *max, int32_t *first,
                       Err *e)
{
    if (!scan->find_max(x, n, max, first))
        return sampling_status(SAMPLE_NOT_NUMBERS, e);
    return sampling_status(*max == -INFINITY ? SAMPLE_NOTHING_LEFT : SAMPLE_OK, e);
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

/* The row's own logits, of which the first n_ids may be chosen. */
static void apply_edits(const SampleRow *ask, int n_ids, const float *logits, SamplingScratch *s)
{
    if (!ask->only_edited)
        memcpy(s->logits, logits, (size_t)n_ids * sizeof *logits);
    for (int i = ask->only_edited ? 0 : n_ids; i < s->vocab; i++)
        s->logits[i] = -INFINITY;
    for (int i = 0; i < ask->n_edits; i++) {
        const LogitEdit *edit = &ask->edits[i];
        s->logits[edit->id] = logit_edit_apply(edit, ask, logits[edit->id]);
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

static int32_t draw(SamplingScratch *s, const float *x, float max, const SampleRow *p)
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
    return draw_from_all(s, p->uniform * total);
}

Status sampling_pick(const RowContext *context, const Row *r, const Choice *c, const float *logits,
                     SamplingScratch *s, int32_t *id, TokenLogprobs *lp, Err *e)
{
    const float *x = logits;
    float max;
    int32_t best;
    SampleRow ask;
    int n_ids = logit_edits_n_ids(context);
    TRY(find_max(s->scan, logits, s->vocab, &max, &best, e));
    logit_edits_list(s->edits, context, r, c, s->edit, &ask);
    if (ask.n_edits > 0 || ask.only_edited || n_ids < s->vocab) {
        apply_edits(&ask, n_ids, logits, s);
        x = s->logits;
        TRY(find_max(s->scan, x, s->vocab, &max, &best, e));
    }
    *id = ask.temperature == 0 ? best : draw(s, x, max, &ask);
    return lp ? sampling_logprobs(logits, s->vocab, *id, r->params.logprobs, lp, e) : ST_OK;
}
