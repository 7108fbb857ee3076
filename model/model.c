/* model/model.c - loading a model and planning every buffer that its steps use; see model.h. */
#include "model/model.h"

#include "model/apply.h"
#include "model/attention.h"

#include <stdlib.h>
#include <string.h>

typedef struct Plan { /* bytes of each backend buffer */
    size_t rows, stream, qkv, attn, q_low, latent, rounded, shared, router, scratch, logits, sample;
    size_t rope;
} Plan;

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static Plan plan_buffers(const Model *m, int max_pairs)
{
    const Arch *a = m->arch;
    const BackendOps *ops = m->config.ops;
    size_t act = (size_t)ops->act_bytes, rows = (size_t)m->config.max_rows;
    size_t out_width = (size_t)attention_out_width(a);
    Plan p = {0};
    p.rows = rows * (size_t)a->hidden * act;
    p.stream = rows * (size_t)a->hidden * sizeof(float);
    /* holds the kept rows' heads, too */
    p.qkv = rows * max_size((size_t)attention_qkv_width(a), out_width) * act;
    p.attn = rows * out_width * act;
    if (m->config.precision.activations == ACTIVATIONS_STORED ||
        m->config.precision.activations == ACTIVATIONS_NATIVE)
        p.rounded = rows * (size_t)apply_widest(a) * act;
    p.shared = a->shared_inter > 0 ? p.rows : 0;
    /* the gate of shared experts is there, too */
    p.router = rows * (size_t)max_size((size_t)a->router.n_experts, 1) * sizeof(float);
    if (a->dense_inter > 0)
        p.scratch = ops->ffn_scratch_bytes(m->config.backend, m->config.max_rows, a->dense_inter);
    if (a->shared_inter > 0)
        p.scratch =
            max_size(p.scratch, ops->ffn_scratch_bytes(m->config.backend, m->config.max_rows,
                                                       a->shared_inter));
    if (a->attn == ATTN_LATENT) {
        p.q_low = rows * (size_t)a->q_lora * act;
        p.latent = rows * (size_t)(a->latent.latent_dim + a->latent.rope_dim) * act;
        p.scratch =
            max_size(p.scratch, ops->latent_scratch_bytes(m->config.backend, m->config.max_rows,
                                                          m->config.max_len, &a->latent));
    }
    if (a->moe_inter > 0)
        p.scratch =
            max_size(p.scratch, ops->ffn_scratch_bytes(m->config.backend, max_pairs, a->moe_inter));
    p.logits = (size_t)m->logits_rows * (size_t)a->vocab * sizeof(float);
    if (ops->sample)
        p.sample = ops->sample_scratch_bytes(m->config.backend, m->logits_rows, a->vocab);
    p.rope = (size_t)m->config.max_len * (size_t)a->rope.rotary_dim * sizeof(float);
    return p;
}

static Status take(Model *m, size_t bytes, const char *what, void **out, Err *e)
{
    m->buffer_bytes += bytes;
    return m->config.ops->alloc(m->config.backend, max_size(bytes, 64), what, out, e);
}

static size_t load_size(const Arch *a)
{
    return (size_t)a->n_layers * (size_t)a->router.n_experts;
}

static Status clear_load(Model *m, Err *e)
{
    size_t n = load_size(m->arch);
    uint64_t *zeros = calloc(n + 1, sizeof *zeros);
    if (!zeros)
        return err_set(e, ST_MEMORY, "out of memory for the loads of %zu experts", n);
    Status st = m->config.ops->upload(m->config.backend, m->load, zeros, n * sizeof *zeros, e);
    free(zeros);
    return st;
}

static Status take_buffers(Model *m, Err *e)
{
    const Arch *a = m->arch;
    const BackendOps *ops = m->config.ops;
    size_t rows = (size_t)m->config.max_rows;
    Plan p = plan_buffers(m, m->exchange ? exchange_max_pairs(m->exchange) : 0);
    void *hidden = NULL;
    TRY(take(m, p.stream, "hidden states", &hidden, e));
    m->hidden = hidden;
    /* Rows that stay at home are normed right into the exchange's buffer. */
    void *home = m->exchange ? exchange_home_rows(m->exchange) : NULL;
    m->normed_is_home = home != NULL;
    if (m->normed_is_home)
        m->normed = home;
    else
        TRY(take(m, p.rows, "normed rows", &m->normed, e));
    TRY(take(m, p.stream, "FFN output", &m->ffn_out, e));
    TRY(take(m, p.qkv, "queries, keys and values", &m->qkv, e));
    TRY(take(m, p.attn, "attention output", &m->attn, e));
    if (a->attn == ATTN_LATENT) {
        TRY(take(m, p.q_low, "low-rank queries", &m->q_low, e));
        TRY(take(m, p.latent, "latents", &m->latent_rows, e));
    }
    if (p.rounded > 0) {
        TRY(take(m, p.rounded, "rounded rows", &m->rounded, e));
        TRY(take(m, p.rounded, "rounded rows", &m->rounded_up, e));
    }
    void *codes = m->exchange ? exchange_home_codes(m->exchange) : NULL;
    m->coded_is_home = codes != NULL;
    if (m->coded_is_home)
        m->coded = codes;
    else if (m->exchange_shape.coded_bytes > 0)
        TRY(take(m, rows * (size_t)m->exchange_shape.coded_bytes, "coded rows", &m->coded, e));
    if (a->shared_inter > 0)
        TRY(take(m, p.shared, "shared experts' output", &m->shared_out, e));
    void *rope = NULL, *router_logits = NULL, *logits = NULL;
    TRY(take(m, p.router, "router logits", &router_logits, e));
    m->router_logits = router_logits;
    TRY(take(m, p.scratch, "FFN scratch", &m->scratch, e));
    TRY(take(m, p.logits, "logits", &logits, e));
    m->logits = logits;
    if (p.sample > 0)
        TRY(take(m, p.sample, "sampling", &m->sample_scratch, e));
    if (!ops->host_memory) {
        m->host_logits = malloc(p.logits);
        if (!m->host_logits)
            return err_set(e, ST_MEMORY, "out of memory: %zu bytes of logits", p.logits);
    }
    TRY(take(m, p.rope, "rope table", &rope, e));
    m->rope_table = rope;

    void *expert = NULL, *weight = NULL, *load = NULL;
    size_t pairs = rows * (size_t)a->router.top_k, load_bytes = load_size(a) * sizeof *m->load;
    TRY(take(m, pairs * sizeof *m->expert, "expert choices", &expert, e));
    m->expert = expert;
    TRY(take(m, pairs * sizeof *m->expert_weight, "weights of experts", &weight, e));
    m->expert_weight = weight;
    TRY(take(m, load_bytes, "loads of experts", &load, e));
    m->load = load;
    return clear_load(m, e);
}

Status model_expert_load(Model *m, int64_t *out, Err *e)
{
    return m->config.ops->download(m->config.backend, out, m->load,
                                   load_size(m->arch) * sizeof *out, e);
}

static Status make_rope(Model *m, Err *e)
{
    size_t n = (size_t)m->config.max_len * (size_t)m->arch->rope.rotary_dim;
    float *table = malloc(n * sizeof *table);
    if (!table)
        return err_set(e, ST_MEMORY, "out of memory for a rope table of %d positions",
                       m->config.max_len);
    rope_fill_table(&m->arch->rope, m->config.max_len, table);
    Status st =
        m->config.ops->upload(m->config.backend, m->rope_table, table, n * sizeof *table, e);
    free(table);
    m->rope = (RopeSpec){m->rope_table, m->arch->rope.rotary_dim, m->arch->rope.layout};
    return st;
}

int model_coded_bytes(const Model *m, int layer)
{
    const LayerWeights *w = &m->weights.layers[layer];
    RowScheme scheme = w->expert_rows.scheme;
    if (scheme == ROWS_AS_THEY_ARE)
        return 0;
    return w->experts.rows.scheme != ROWS_AS_THEY_ARE
               ? (int)m->config.ops->code_row_bytes(scheme, m->arch->hidden)
               : (int)row_encoded_bytes(scheme, m->arch->hidden);
}

static int most_coded_bytes(const Model *m)
{
    int most = 0;
    for (int i = 0; i < m->weights.n_layers; i++) {
        int bytes = model_coded_bytes(m, i);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Once all else is there: nine tenths of what is left, so that graphs and libraries have room. */
static size_t fitting_kv_bytes(const Model *m)
{
    size_t most = m->config.kv_bytes, n = (size_t)m->config.n_sharing;
    if (!m->config.kv_fits || m->config.ops->host_memory)
        return most;
    size_t room = m->config.ops->free_memory(m->config.backend) / 10 * 9 / (n > 0 ? n : 1);
    return most < room ? most : room;
}

/* This rank's part of model_create, up to the shared outcome. */
static Status create_local(Model *m, Err *e)
{
    const Arch *a = m->arch;
    size_t row_bytes = (size_t)a->vocab * sizeof(float);
    size_t rows = m->config.logits_bytes / row_bytes;
    m->logits_rows = rows < 1                            ? 1
                     : rows > (size_t)m->config.max_rows ? m->config.max_rows
                                                         : (int)rows;
    TRY(placement_create(&m->placement, a->router.n_experts, m->comm->size, e));
    WeightsConfig w = {.dir = m->config.dir,
                       .synthetic = m->config.synthetic,
                       .arch = a,
                       .precision = &m->config.precision,
                       .placement = &m->placement,
                       .rank = m->comm->rank,
                       .ops = m->config.ops,
                       .backend = m->config.backend,
                       .team = m->config.team};
    TRY(weights_load(&w, &m->weights, e));
    if (a->router.n_experts > 0) {
        m->exchange_shape = (ExchangeShape){.top_k = a->router.top_k,
                                            .hidden = a->hidden,
                                            .row_bytes = a->hidden * m->config.ops->act_bytes,
                                            .max_tokens = m->config.max_rows,
                                            .round_bytes = m->config.round_bytes,
                                            .coded_bytes = most_coded_bytes(m)};
        if (!m->config.ops->host_memory) {
            m->exchange_shape.ops = m->config.ops;
            m->exchange_shape.backend = m->config.backend;
        }
        TRY(exchange_create(&m->exchange, m->comm, &m->placement, &m->exchange_shape, e));
    }
    TRY(take_buffers(m, e));
    return make_rope(m, e);
}

/* What the others' memory leaves: they may share the device. Collective. */
static Status create_cache(Model *m, Err *e)
{
    const Arch *a = m->arch;
    m->config.kv_bytes = fitting_kv_bytes(m);
    TRY(dist_agree(m->comm, ST_OK, e)); /* all have looked before one takes any */
    TRY(kv_create(&m->kv, a, m->config.precision.kv, m->config.ops, m->config.backend,
                  m->config.kv_bytes, e));
    return step_arrays_create(&m->arrays, a, &m->kv, m->config.ops, m->config.backend,
                              m->config.max_rows, m->config.max_seqs, m->config.max_len, e);
}

/* The largest input scales of each layer's experts over all ranks, since rows are rounded before
 * they are dispatched. Positive floats are ordered like their bits. Collective. */
static Status share_input_scales(Model *m, Err *e)
{
    int n = 2 * m->weights.n_layers;
    int64_t *bits = calloc((size_t)n, sizeof *bits);
    Status st =
        bits ? ST_OK
             : err_set(e, ST_MEMORY, "out of memory for the input scales of %d layers", n / 2);
    st = dist_agree(m->comm, st, e); /* nobody waits for a rank that has no memory */
    for (int i = 0; i < n && st == ST_OK; i++) {
        const LayerWeights *w = &m->weights.layers[i / 2];
        const RowFormat *f = i % 2 ? &w->experts.inner : &w->expert_rows;
        uint32_t u;
        memcpy(&u, &f->input_scale, sizeof u);
        bits[i] = u;
    }
    if (st == ST_OK)
        st = comm_max_int64(m->comm, bits, n, e);
    for (int i = 0; i < n && st == ST_OK; i++) {
        LayerWeights *w = &m->weights.layers[i / 2];
        RowFormat *f = i % 2 ? &w->experts.inner : &w->expert_rows;
        uint32_t u = (uint32_t)bits[i];
        memcpy(&f->input_scale, &u, sizeof u);
        if (i % 2 == 0 && w->experts.rows.scheme != ROWS_AS_THEY_ARE)
            w->experts.rows = *f;
        if (u == 0 && (f->scheme == ROWS_FP8_STATIC || f->scheme == ROWS_NVFP4_STATIC))
            st = err_set(e, ST_INPUT, "layer %d: no expert has an input_scale", i / 2);
    }
    free(bits);
    return st;
}

Status model_create(Model **out, const Arch *arch, const ModelConfig *config, Comm *comm, Err *e)
{
    *out = NULL;
    Model *m = calloc(1, sizeof *m);
    Status st = m ? ST_OK : err_set(e, ST_MEMORY, "out of memory for the model");
    if (m) {
        m->arch = arch;
        m->config = *config;
        m->comm = comm;
        st = create_local(m, e);
    }
    st = dist_agree(comm, st, e);
    if (st == ST_OK)
        st = dist_agree(comm, share_input_scales(m, e), e);
    if (st == ST_OK && m->exchange)
        st = exchange_connect(m->exchange, e);
    if (st == ST_OK)
        st = dist_agree(comm, create_cache(m, e), e);
    if (st != ST_OK) {
        model_destroy(m);
        return st;
    }
    *out = m;
    return ST_OK;
}

void model_destroy(Model *m)
{
    if (!m)
        return;
    const BackendOps *ops = m->config.ops;
    for (int i = 0; i < MAX_BUCKETS && ops->graph_destroy; i++)
        ops->graph_destroy(m->config.backend, m->graphs.graph[i]);
    step_arrays_free(&m->arrays);
    kv_free(&m->kv);
    void *buffers[] = {m->hidden,        m->normed_is_home ? NULL : m->normed,
                       m->ffn_out,       m->qkv,
                       m->attn,          m->q_low,
                       m->latent_rows,   m->coded_is_home ? NULL : m->coded,
                       m->rounded,       m->rounded_up,
                       m->shared_out,    m->router_logits,
                       m->scratch,       m->logits,
                       m->rope_table,    m->expert,
                       m->expert_weight, m->load,
                       m->sample_scratch};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (buffers[i])
            ops->release(m->config.backend, buffers[i]);
    free(m->host_logits);
    exchange_destroy(m->exchange);
    weights_free(&m->weights);
    placement_free(&m->placement);
    free(m);
}
