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
#include "model/step_arrays.h"
#include "model/weights.h"

typedef struct ModelConfig {
    const char *dir;
    const Synthetic *synthetic; /* in place of dir; NULL: dir. Needed while loading */
    Precision precision;
    const BackendOps *ops; /* borrowed, with the backend */
    Backend *backend;
    Team *team;          /* the backend's; needed while loading */
    int max_rows;        /* per rank and step */
    int max_seqs;        /* per rank and step */
    int max_len;         /* positions of the rope table */
    size_t kv_bytes;     /* budget of this rank */
    int n_sharing;       /* ranks that divide this device's memory */
    bool kv_fits;        /* kv_bytes is the most: no more than fits beside the rest on a device */
    size_t round_bytes;  /* of the exchange */
    size_t logits_bytes; /* of the buffer of logits; at least one row is held */
} ModelConfig;

typedef struct ModelTimes { /* seconds since creation */
    double embed, attention, router, dispatch, experts, combine, head;
} ModelTimes;

enum { MAX_BUCKETS = 64 };

/* Layers recorded for steps of generated rows alone, by the number of rows that a step is padded
 * to. */
typedef struct StepGraphs {
    Graph *graph[MAX_BUCKETS];
    bool seen[MAX_BUCKETS];             /* ran once, unrecorded */
    ExchangeStats traffic[MAX_BUCKETS]; /* of one replay */
} StepGraphs;

typedef struct Model {
    const Arch *arch;
    ModelConfig config;
    Comm *comm;
    Placement placement;
    Exchange *exchange; /* NULL in a dense model */
    Weights weights;
    KvCache kv;
    RopeSpec rope;
    float *rope_table;   /* backend memory */
    bool normed_is_home; /* normed is the exchange's buffer; coded likewise */
    bool coded_is_home;
    float *hidden; /* [max_rows, hidden] the residual stream */
    /* act buffers, sized by max_rows; ffn_out is as large as hidden, whose place it can take */
    void *normed, *qkv, *attn, *ffn_out, *scratch;
    StepArrays arrays;
    StepGraphs graphs;
    /* ATTN_LATENT: [max_rows, q_lora], [max_rows, latent_dim + rope_dim] */
    void *q_low, *latent_rows;
    /* [max_rows, apply_widest] each where activations are rounded; else NULL */
    void *rounded, *rounded_up;
    void *coded;      /* [max_rows, most coded bytes] of rows that travel to the experts; or NULL */
    void *shared_out; /* [max_rows, hidden] where there are shared experts */
    float *router_logits, *logits;
    void *sample_scratch; /* where the backend samples */
    float *host_logits;   /* [logits_rows, vocab] where the backend's memory is not the host's */
    float *expert_weight; /* [max_rows, top_k] backend memory, like expert and load */
    int32_t *expert;      /* [max_rows, top_k] */
    uint64_t *load;       /* [n_layers, n_experts] choices of this rank's tokens */
    ExchangeShape exchange_shape;
    int logits_rows; /* most rows per model_logits */
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

/* Collective: loads the shard, plans and takes every buffer. arch and comm are borrowed. On
 * failure *out is NULL. */
Status model_create(Model **out, const Arch *arch, const ModelConfig *config, Comm *comm, Err *e);
void model_destroy(Model *m); /* NULL is fine */

/* Bytes of a row on its way to the experts of a layer; 0 where rows travel as they are. */
int model_coded_bytes(const Model *m, int layer);
/* Choices of this rank's tokens so far: out [n_layers, n_experts] on the host. */
Status model_expert_load(Model *m, int64_t *out, Err *e);

/* Collective. Afterwards the wanted rows' final hidden states are held, in row order. On failure
 * *e is this rank's message (it is also read, where step->mine says that this rank failed
 * before). *all_know: every rank returned a failure from this step; else it may be known to this
 * rank alone, which brings it to the next agreement. */
Status model_step(Model *m, const Step *step, bool *all_know, Err *e);
/* Logits of wanted rows first .. first+n-1 (n <= logits_rows), in the backend's memory until the
 * next call. Not collective, nor are those below. */
Status model_head(Model *m, int first, int n, Err *e);
/* Only where the backend's memory is not the host's: out[i] is what rows[i] asks of row i of the
 * model_head before. Ids from n_ids on are never chosen. Waits for all work that is queued. */
Status model_sample(Model *m, int n, int n_ids, const SampleRow *rows, Sampled *out, Err *e);
/* The n rows of the model_head before: host memory [n, vocab], valid until the next call; once for
 * each model_head. */
Status model_read_logits(Model *m, int n, const float **out, Err *e);
/* Both: model_head, read. */
Status model_logits(Model *m, int first, int n, const float **out, Err *e);

#endif
