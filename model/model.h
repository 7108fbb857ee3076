/* model/model.h - one rank's model: weights, buffers, and the step that runs a batch of rows
 * through every layer.
 *
 * model_step is collective in a model with experts: ranks without rows take part with zero
 * counts. */
#ifndef MB_MODEL_MODEL_H
#define MB_MODEL_MODEL_H

#include "dist/comm.h"
#include "dist/exchange.h"
#include "dist/placement.h"
#include "model/arch.h"
#include "model/kv_cache.h"
#include "model/observe.h"
#include "model/precision.h"
#include "model/weights.h"

typedef struct ModelConfig {
    const char *dir;
    Precision precision;
    const BackendOps *ops; /* borrowed, with the backend */
    Backend *backend;
    Team *team;          /* the backend's; needed while loading */
    int max_rows;        /* per rank and step */
    int max_seqs;        /* per rank and step */
    int max_len;         /* positions of the rope table */
    size_t kv_bytes;     /* budget of this rank */
    size_t round_bytes;  /* of the exchange */
    size_t logits_bytes; /* of the buffer of logits; at least one row is held */
} ModelConfig;

typedef struct ModelTimes { /* seconds since creation */
    double embed, attention, router, dispatch, experts, combine, head;
} ModelTimes;

typedef struct Model {
    const Arch *arch;
    ModelConfig config;
    Comm *comm;
    Placement placement;
    Exchange *exchange; /* NULL in a dense model */
    Weights weights;
    KvCache kv;
    RopeSpec rope;
    float *rope_table;                                      /* backend memory */
    bool normed_is_home;                                    /* normed is the exchange's buffer */
    void *hidden, *normed, *qkv, *attn, *ffn_out, *scratch; /* act buffers, sized by max_rows */
    /* ATTN_LATENT: [max_rows, q_lora], [max_rows, latent_dim + rope_dim] */
    void *q_low, *latent_rows;
    /* [max_rows, apply_widest] each where activations are rounded; else NULL */
    void *rounded, *rounded_up;
    void *coded;      /* [max_rows, most coded bytes] of rows that travel to the experts; or NULL */
    void *shared_out; /* [max_rows, hidden] where there are shared experts */
    float *router_logits, *logits;
    float *host_logits;   /* [logits_rows, vocab] where the backend's memory is not the host's */
    void *results;        /* what the experts give, likewise */
    float *expert_weight; /* [max_rows, top_k] */
    int32_t *expert;      /* [max_rows, top_k] */
    int32_t *wanted;      /* [max_rows] scratch: rows that the last layer keeps */
    AttnSeq *seqs;        /* [max_seqs] scratch */
    ExchangeShape exchange_shape;
    int logits_rows;      /* most rows per model_logits */
    int64_t *expert_load; /* [n_layers * n_experts] tokens routed by this rank */
    size_t buffer_bytes;
    /* While not NULL, steps note what meets each layer; only where the backend works in host
     * memory. Borrowed. */
    Observer *observer;
    ModelTimes times;
} Model;

/* Notes n rows of x (act, stride apart) as what a layer's FIELD of LayerSeen met. */
#define OBSERVE(m, layer, field, x, n, width, stride)                                              \
    do {                                                                                           \
        if ((m)->observer)                                                                         \
            observe_rows(&(m)->observer->layers[layer].field, x, n, width, stride);                \
    } while (0)

/* One sequence's rows of this step. */
typedef struct StepSeq {
    int row, n_rows; /* rows row .. row+n_rows-1 of the step */
    int pos;         /* position of the first */
    int n_wanted;    /* how many of its last rows need logits */
    int n_prompt;    /* positions below it are the sequence's prompt */
    const KvSeq *kv; /* extended to hold them */
} StepSeq;

typedef struct Step {
    int64_t number;
    const int32_t *ids;      /* [n_rows] */
    const int32_t *position; /* [n_rows] */
    int n_rows;
    const StepSeq *seqs; /* in row order, covering all rows */
    int n_seqs;
    /* not ST_OK: this rank failed before the step, computes nothing, and tells the others */
    Status mine;
} Step;

/* Collective: loads the shard, plans and takes every buffer. arch and comm are borrowed. On
 * failure *out is NULL. */
Status model_create(Model **out, const Arch *arch, const ModelConfig *config, Comm *comm, Err *e);
void model_destroy(Model *m); /* NULL is fine */

/* Collective. Afterwards the wanted rows' final hidden states are held, in row order. On failure
 * *e is this rank's message (it is also read, where step->mine says that this rank failed
 * before). *all_know: every rank returned a failure from this step; else it may be known to this
 * rank alone, which brings it to the next agreement. */
Status model_step(Model *m, const Step *step, bool *all_know, Err *e);
/* Logits of wanted rows first .. first+n-1 (n <= logits_rows): host memory [n, vocab], valid
 * until the next call. Not collective. */
Status model_logits(Model *m, int first, int n, const float **out, Err *e);

#endif
