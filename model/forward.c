/* model/forward.c - one step: embedding, the layers, the final norm of the rows that need
 * logits, and the head.
 *
 * Reads only Arch and weights; what a family has of its own is data there. A failure inside the
 * expert layers travels in the exchange's counts, so that every rank leaves the step together. */
#include "io/clock.h"
#include "model/apply.h"
#include "model/attention.h"

#include <string.h>

typedef struct Pass { /* what a step carries from layer to layer */
    Model *m;
    const Step *step;
    /* rows still running: all, padding included, or the wanted ones once the last layer's attention
     * is done */
    int n_rows;
    const void *delta; /* what the residual stream still lacks; NULL: nothing */
    ExchangeStep agreed;
    double mark; /* clock at the last lap */
    Status mine; /* what happened on this rank; err has its message */
    Err err;
} Pass;

static void lap(Pass *p, double *sum)
{
    double now = clock_s();
    *sum += now - p->mark;
    p->mark = now;
}

/* Adds what the last sub-layer gave to the residual stream, and norms it. */
static Status norm_rows(Pass *p, const float *weight, Err *e)
{
    Model *m = p->m;
    const Arch *a = m->arch;
    const void *delta = p->delta;
    p->delta = NULL;
    return m->config.ops->add_norm(m->config.backend, m->normed, m->hidden, delta,
                                   a->residual_scale, weight, p->n_rows, a->hidden, a->eps, a->norm,
                                   e);
}

/* Drops the rows that need no logits: of them only the last layer's keys and values mattered.
 * *heads is the attention output of the rows that stay. */
static Status keep_wanted(Pass *p, void **heads, Err *e)
{
    Model *m = p->m;
    const BackendOps *ops = m->config.ops;
    int n = m->arrays.n_wanted;
    size_t head_bytes = (size_t)attention_out_width(m->arch) * (size_t)ops->act_bytes;
    if (n == p->step->n_rows)
        return ST_OK;
    /* ffn_out and qkv are free here: the kept rows move there, and hidden changes places with
     * ffn_out. */
    TRY(ops->gather(m->config.backend, m->ffn_out, m->hidden, m->arrays.wanted, n,
                    (size_t)m->arch->hidden * sizeof *m->hidden, e));
    void *swap = m->hidden;
    m->hidden = m->ffn_out;
    m->ffn_out = swap;
    TRY(ops->gather(m->config.backend, m->qkv, m->attn, m->arrays.wanted, n, head_bytes, e));
    *heads = m->qkv;
    p->n_rows = n;
    return ST_OK;
}

static Status attention(Pass *p, int layer, Err *e)
{
    static Status (*const kinds[])(Model * m, int n, int layer, Err *e) = {
        [ATTN_HEADS] = attention_heads, [ATTN_LATENT] = attention_latent};
    Model *m = p->m;
    const Arch *a = m->arch;
    const LayerWeights *w = &m->weights.layers[layer];
    void *heads = m->attn;
    TRY(norm_rows(p, w->attn_norm, e));
    TRY(kinds[a->attn](m, p->n_rows, layer, e));
    if (layer == a->n_layers - 1)
        TRY(keep_wanted(p, &heads, e));
    int width = attention_out_width(a);
    OBSERVE(m, layer, attn_out, heads, p->n_rows, width, width);
    TRY(apply_linear(m, m->ffn_out, heads, &w->o, p->n_rows, e));
    p->delta = m->ffn_out;
    return ST_OK;
}

static Status route(Pass *p, int layer, Err *e)
{
    Model *m = p->m;
    const BackendOps *ops = m->config.ops;
    const LayerWeights *w = &m->weights.layers[layer];
    const RouterSpec *spec = &m->arch->router;
    TRY(apply_logits(m, m->router_logits, m->normed, &w->router, p->n_rows, e));
    return ops->route(m->config.backend, m->expert, m->expert_weight,
                      m->load + (int64_t)layer * spec->n_experts, m->router_logits,
                      w->router_correction, p->n_rows, p->agreed.fixed ? m->arrays.live : NULL,
                      spec, e);
}

/* The experts that every token goes to: at home, from the same rows as the router saw. */
static Status shared_experts(Pass *p, int layer, Err *e)
{
    Model *m = p->m;
    const BackendOps *ops = m->config.ops;
    const LayerWeights *w = &m->weights.layers[layer];
    if (!w->shared.w13)
        return ST_OK;
    TRY(apply_ffn(m, m->shared_out, m->normed, &w->shared, w->shared_rows, p->n_rows, e));
    OBSERVE(m, layer, shared_inner, m->scratch, p->n_rows, w->shared.inter, w->shared.inter);
    if (!w->shared_gate.w)
        return ST_OK;
    void *gate = m->router_logits; /* the choice is made, so its buffer is free */
    TRY(apply_linear(m, gate, m->normed, &w->shared_gate, p->n_rows, e));
    return ops->gate_rows(m->config.backend, m->shared_out, gate, p->n_rows, m->arch->hidden, e);
}

/* Inputs of each expert, and the products before its last matrix, which the op leaves in its
 * scratch memory. */
static void observe_experts(Model *m, int layer, const RecvRows *recv)
{
    LayerSeen *seen = &m->observer->layers[layer];
    int64_t hidden = m->arch->hidden, inter = m->arch->moe_inter;
    const float *rows = recv->rows, *inner = m->scratch;
    for (int i = 0; i < m->placement.n_local[m->comm->rank]; i++) {
        int expert = placement_expert(&m->placement, m->comm->rank, i), n = recv->first[i + 1];
        for (int p = recv->first[i]; p < n; p++)
            observe_rows(&seen->expert_in[expert], rows + recv->row_of[p] * hidden, 1, hidden,
                         hidden);
        observe_rows(&seen->expert_inner[expert], inner + recv->first[i] * inter,
                     n - recv->first[i], inter, inter);
    }
}

/* Whether the experts of a layer read rows in codes, as code_rows makes them. */
static bool read_codes(const Model *m, int layer)
{
    return m->weights.layers[layer].experts.rows.scheme != ROWS_AS_THEY_ARE;
}

/* Rounds the normed rows, which nothing but the experts reads any more; what travels to other ranks
 * is their encoding. */
static Status code_rows(Pass *p, int layer, Err *e)
{
    Model *m = p->m;
    const BackendOps *ops = m->config.ops;
    const RowFormat *format = &m->weights.layers[layer].expert_rows;
    int hidden = m->arch->hidden;
    if (format->scheme == ROWS_AS_THEY_ARE)
        return ST_OK;
    if (read_codes(m, layer))
        return ops->code_rows(m->config.backend, m->coded, m->normed, p->n_rows, hidden, format, e);
    if (m->comm->size == 1)
        return ops->round_rows(m->config.backend, m->normed, hidden, m->normed, hidden, p->n_rows,
                               hidden, format, e);
    TRY(ops->encode_rows(m->config.backend, m->coded, m->normed, p->n_rows, hidden, format, e));
    return ops->decode_rows(m->config.backend, m->normed, m->coded, p->n_rows, hidden, format, e);
}

static Status decode_received(Pass *p, int layer, const RecvRows *recv, Err *e)
{
    Model *m = p->m;
    for (int i = 0; i < recv->n_coded; i++)
        TRY(m->config.ops->decode_rows(m->config.backend, recv->coded[i].to, recv->coded[i].from,
                                       recv->coded[i].n, m->arch->hidden,
                                       &m->weights.layers[layer].expert_rows, e));
    return ST_OK;
}

/* Weighs and sums the results of the tokens that have theirs. */
static Status combine(Pass *p, int layer, const HomeRows *home, Err *e)
{
    Model *m = p->m;
    int width = m->arch->hidden, top_k = m->arch->router.top_k;
    int64_t first = home->first_token;
    const void *plus = m->weights.layers[layer].shared.w13
                           ? attention_lane(m, m->shared_out, first * width)
                           : NULL;
    return m->config.ops->combine(m->config.backend, attention_lane(m, m->ffn_out, first * width),
                                  home->rows, home->slot, m->expert_weight + first * top_k, plus,
                                  home->n_tokens, top_k, width, e);
}

/* Collective: what happened on this rank so far goes along, so a failure is known to all when
 * this returns. */
static Status experts(Pass *p, int layer, Err *e)
{
    Model *m = p->m;
    const BackendOps *ops = m->config.ops;
    const LayerWeights *w = &m->weights.layers[layer];
    const FfnSpec *spec = &w->experts;
    int n_rounds = 0, n_local = m->placement.n_local[m->comm->rank];
    bool codes = read_codes(m, layer);
    ExchangeRows travelling = {.rows = codes ? m->coded : m->normed, .codes_read = codes};
    if (p->mine == ST_OK)
        p->mine = code_rows(p, layer, &p->err);
    if (w->expert_rows.scheme != ROWS_AS_THEY_ARE && m->comm->size > 1) {
        travelling.coded = m->coded;
        travelling.coded_bytes = model_coded_bytes(m, layer);
    }
    comm_at(m->comm, p->step->number, layer, "dispatch");
    TRY(exchange_begin(m->exchange, travelling, m->expert, p->n_rows, p->agreed, p->mine, &n_rounds,
                       e));
    for (int round = 0; round < n_rounds; round++) {
        RecvRows recv;
        HomeRows home;
        TRY(exchange_dispatch(m->exchange, round, &recv, e));
        if (p->mine == ST_OK)
            p->mine = decode_received(p, layer, &recv, &p->err);
        lap(p, &m->times.dispatch);
        if (p->mine == ST_OK && recv.max_pairs > 0)
            p->mine = ops->ffn(m->config.backend, recv.out, recv.rows, NULL, recv.row_of,
                               recv.first, n_local, recv.max_pairs, spec, m->scratch, &p->err);
        if (recv.max_pairs > 0 && m->observer)
            observe_experts(m, layer, &recv);
        lap(p, &m->times.experts);
        comm_at(m->comm, p->step->number, layer, "combine");
        TRY(exchange_combine(m->exchange, round, p->mine, &home, e));
        if (p->mine == ST_OK && home.n_tokens > 0)
            p->mine = combine(p, layer, &home, &p->err);
        lap(p, &m->times.combine);
        comm_at(m->comm, p->step->number, layer, "dispatch");
    }
    return ST_OK;
}

static Status dense_ffn(Pass *p, int layer, Err *e)
{
    Model *m = p->m;
    const LayerWeights *w = &m->weights.layers[layer];
    TRY(apply_ffn(m, m->ffn_out, m->normed, &w->dense, w->dense_rows, p->n_rows, e));
    OBSERVE(m, layer, dense_inner, m->scratch, p->n_rows, w->dense.inter, w->dense.inter);
    return ST_OK;
}

/* Everything of a layer up to the exchange, which is this rank's own affair. */
static Status layer_front(Pass *p, int layer, Err *e)
{
    Model *m = p->m;
    TRY(attention(p, layer, e));
    TRY(norm_rows(p, m->weights.layers[layer].ffn_norm, e));
    OBSERVE(m, layer, ffn_in, m->normed, p->n_rows, m->arch->hidden, m->arch->hidden);
    lap(p, &m->times.attention);
    if (!m->arch->layers[layer].moe)
        return dense_ffn(p, layer, e);
    TRY(route(p, layer, e));
    if (m->comm->size > 1) /* counts of rows travel while the shared experts run */
        TRY(exchange_announce(m->exchange, m->expert, p->n_rows, p->agreed, e));
    lap(p, &m->times.router);
    Status st = shared_experts(p, layer, e);
    lap(p, &m->times.experts);
    return st;
}

/* Fails only when the exchange did, on every rank alike; p->mine is this rank's own outcome. */
static Status run_layers(Pass *p, Err *e)
{
    Model *m = p->m;
    const Arch *a = m->arch;
    if (p->mine == ST_OK)
        p->mine = m->config.ops->embed(m->config.backend, m->hidden, m->weights.embed,
                                       m->arrays.ids, p->n_rows, a->embed_scale, &p->err);
    lap(p, &m->times.embed);
    for (int layer = 0; layer < a->n_layers; layer++) {
        if (p->mine == ST_OK)
            p->mine = layer_front(p, layer, &p->err);
        if (a->layers[layer].moe)
            TRY(experts(p, layer, e));
        p->delta = m->ffn_out;
    }
    if (p->mine == ST_OK)
        p->mine = norm_rows(p, m->weights.final_norm, &p->err);
    return ST_OK;
}

/* --- steps that can be recorded --- */

/* The number of rows that a step of n is padded to: powers of two, then multiples of 32, then of
 * 256. */
static int bucket_rows(const Model *m, int bucket)
{
    int most = m->config.max_rows < m->config.max_seqs ? m->config.max_rows : m->config.max_seqs;
    int n = bucket < 6 ? 1 << bucket : bucket < 21 ? (bucket - 4) * 32 : (bucket - 18) * 256;
    return n < most ? n : most;
}

static int bucket_of(const Model *m, int n)
{
    int bucket = 0;
    while (bucket < MAX_BUCKETS && bucket_rows(m, bucket) < n)
        bucket++;
    return bucket < MAX_BUCKETS ? bucket : -1;
}

/* What all ranks must know before the first layer of a device backend, whose exchange tells the
 * host nothing. Collective. *bucket is -1 where the step is not to be recorded. */
static Status agree(Pass *p, int *bucket, Err *e)
{
    enum { ROWS, OTHER_THAN_DECODE, FAILED, N_VALUES };
    Model *m = p->m;
    int64_t v[N_VALUES] = {p->step->n_rows, p->step->n_rows > 0 && !step_is_decode(p->step),
                           p->mine != ST_OK};
    if (m->comm->size > 1)
        TRY(comm_max_int64(m->comm, v, N_VALUES, e));
    if (v[FAILED])
        return err_set(e, ST_COMM, "another rank failed in this step");
    *bucket = v[OTHER_THAN_DECODE] || v[ROWS] == 0 ? -1 : bucket_of(m, (int)v[ROWS]);
    p->agreed.fixed = *bucket >= 0;
    p->agreed.most_tokens = *bucket >= 0 ? bucket_rows(m, *bucket) : (int)v[ROWS];
    return ST_OK;
}

static ExchangeStats traffic_of(const Model *m)
{
    return m->exchange ? exchange_stats(m->exchange) : (ExchangeStats){0};
}

/* The first step of a bucket runs as it is, since what is loaded when first used cannot be
 * recorded. */
static Status run_recorded(Pass *p, int bucket, Err *e)
{
    Model *m = p->m;
    const BackendOps *ops = m->config.ops;
    StepGraphs *g = &m->graphs;
    if (!g->seen[bucket]) {
        g->seen[bucket] = true;
        return run_layers(p, e);
    }
    if (!g->graph[bucket]) {
        ExchangeStats before = traffic_of(m);
        TRY(ops->capture_begin(m->config.backend, e));
        Status st = run_layers(p, e);
        Graph *graph = NULL;
        Err trouble = {0};
        Status ended = ops->capture_end(m->config.backend, &graph, &trouble);
        if (st != ST_OK || p->mine != ST_OK || ended != ST_OK) {
            ops->graph_destroy(m->config.backend, graph);
            if (st == ST_OK && p->mine == ST_OK)
                *e = trouble;
            return st != ST_OK ? st : p->mine != ST_OK ? ST_OK : ended;
        }
        g->graph[bucket] = graph;
        ExchangeStats after = traffic_of(m);
        g->traffic[bucket] =
            (ExchangeStats){.dispatch_bytes = after.dispatch_bytes - before.dispatch_bytes,
                            .combine_bytes = after.combine_bytes - before.combine_bytes,
                            .n_rounds = after.n_rounds - before.n_rounds};
    } else if (m->exchange) {
        exchange_count_replay(m->exchange, &g->traffic[bucket]);
    }
    comm_at(m->comm, p->step->number, -1, "a recorded step");
    return ops->graph_launch(m->config.backend, g->graph[bucket], e);
}

static Status run_on_device(Pass *p, Err *e)
{
    Model *m = p->m;
    int bucket = -1;
    TRY(agree(p, &bucket, e));
    if (bucket >= 0)
        p->n_rows = bucket_rows(m, bucket);
    /* The queue may be full, or a layer wait for counts. */
    comm_wait_begin(m->comm, "a step on the GPU");
    p->mine = step_arrays_set(&m->arrays, p->step, bucket >= 0 ? p->n_rows : 0, &p->err);
    bool recorded = bucket >= 0 && p->mine == ST_OK;
    Status st = recorded ? run_recorded(p, bucket, e) : run_layers(p, e);
    comm_wait_end(m->comm);
    /* Nothing, or half of it, was queued, and the other ranks' devices wait for it. */
    if (recorded && m->comm->size > 1 && (st != ST_OK || p->mine != ST_OK)) {
        Err *why = st != ST_OK ? e : &p->err;
        err_in(why, "step %lld", (long long)p->step->number);
        dist_abort(m->comm, 1, why);
    }
    return st;
}

Status model_step(Model *m, const Step *step, bool *all_know, Err *e)
{
    Pass p = {.m = m,
              .step = step,
              .n_rows = step->n_rows,
              .mark = clock_s(),
              .mine = step->mine,
              .err = *e};
    Status all;
    if (m->config.ops->capture_begin) {
        all = run_on_device(&p, e);
    } else {
        if (p.mine == ST_OK)
            p.mine = step_arrays_set(&m->arrays, step, 0, &p.err);
        all = run_layers(&p, e);
    }
    if (all == ST_OK && p.mine == ST_OK && m->observer)
        observe_rows(&m->observer->head_in, m->normed, p.n_rows, m->arch->hidden, m->arch->hidden);
    *all_know = all != ST_OK;
    lap(&p, &m->times.head);
    if (p.mine != ST_OK) { /* its own message says more than the exchange's */
        *e = p.err;
        return p.mine;
    }
    return all;
}

Status model_head(Model *m, int first, int n, Err *e)
{
    double start = clock_s();
    const void *rows = attention_lane(m, m->normed, (int64_t)first * m->arch->hidden);
    Status st = apply_logits(m, m->logits, rows, &m->weights.head, n, e);
    m->times.head += clock_s() - start;
    return st;
}

Status model_sample(Model *m, int n, int n_ids, const SampleRow *rows, Sampled *out, Err *e)
{
    double start = clock_s();
    SampleSpec spec = {m->arch->vocab, n_ids, m->arch->logits_scale};
    comm_wait_begin(m->comm, "the GPU's part of a step");
    Status st = m->config.ops->sample(m->config.backend, out, m->logits, n, &spec, rows,
                                      m->sample_scratch, e);
    comm_wait_end(m->comm);
    m->times.head += clock_s() - start;
    return st;
}

Status model_read_logits(Model *m, int n, const float **out, Err *e)
{
    const Arch *a = m->arch;
    const BackendOps *ops = m->config.ops;
    double start = clock_s();
    float *values = m->logits;
    comm_wait_begin(m->comm, "the GPU's part of a step");
    Status st = ops->wait(m->config.backend, e);
    if (st == ST_OK && !ops->host_memory) {
        values = m->host_logits;
        st = ops->download(m->config.backend, values, m->logits,
                           (size_t)n * (size_t)a->vocab * sizeof *values, e);
    }
    comm_wait_end(m->comm);
    TRY(st);
    if (a->logits_scale != 1.0f)
        for (int64_t i = 0; i < (int64_t)n * a->vocab; i++)
            values[i] *= a->logits_scale;
    *out = values;
    m->times.head += clock_s() - start;
    return ST_OK;
}

Status model_logits(Model *m, int first, int n, const float **out, Err *e)
{
    TRY(model_head(m, first, n, e));
    return model_read_logits(m, n, out, e);
}
