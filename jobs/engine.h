/* jobs/engine.h - everything that commands which run a model have in common: ranks, backend,
 * threads, checkpoint, tokenizer, memory plan. */
#ifndef MB_JOBS_ENGINE_H
#define MB_JOBS_ENGINE_H

#include "io/team.h"
#include "jobs/row.h"
#include "jobs/scheduler.h"
#include "model/model.h"

typedef struct EngineConfig {
    const char *model_dir;
    const Synthetic *synthetic;   /* in place of model_dir; borrowed; NULL: none */
    const char *backend;          /* "cpu", "cuda" or "auto" */
    bool share_gpu;               /* ranks may share a GPU */
    bool computes_nothing;        /* the backend is named, and need not work here */
    const char *isa;              /* "auto", "scalar", "avx2", "avx512" */
    int threads;                  /* per rank; 0: cores / ranks on the node */
    int max_batch, prefill_chunk; /* 0: engine_open puts in the backend's usual ones */
    int max_model_len;            /* 0: the config's */
    /* 0: what max_batch full contexts need, within half of the free memory, or most of a GPU's */
    size_t kv_bytes;
    bool kv_fits;        /* kv_bytes is the most: no more than fits beside the rest on a GPU */
    size_t round_bytes;  /* of the exchange; 0: the backend's usual */
    Precision precision; /* engine_open puts in what the defaults mean */
    bool use_generation_config;
    const char *const *accept_keys; /* --accept-config-key */
    int n_accept_keys;
    double wait_timeout_s;
} EngineConfig;

typedef struct Engine {
    EngineConfig config;
    Comm *comm; /* borrowed */
    Arch arch;
    GenerationDefaults generation;
    Tokenizer *tokenizer; /* NULL: the model has none */
    TokenizerCache *tokenizer_cache;
    IsaLevel isa; /* the same on all ranks */
    Team *team;
    int threads;
    const BackendOps *ops;
    int n_sharing; /* ranks on this rank's device */
    Backend *backend;
    Model *model;
    RowContext context;
    char model_name[256]; /* base name of the directory */
    double load_s;
} Engine;

/* Collective. Reads config and tokenizer and agrees on the ISA level; no weights yet. comm is
 * borrowed. */
Status engine_open(Engine *out, const EngineConfig *config, Comm *comm, Err *e);
/* Collective. At most this level (a resumed job's); ST_INPUT naming the rank that cannot provide
 * it. */
Status engine_use_isa(Engine *g, const char *isa, Err *e);
/* Collective. Threads and the backend alone, for who wants to ask it something before the rest. */
Status engine_start(Engine *g, Err *e);
/* Collective. Backend (unless it was started), weights, buffers. */
Status engine_load(Engine *g, Err *e);
void engine_close(Engine *g); /* all zero is fine */

#endif
