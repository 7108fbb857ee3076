/* jobs/bench_run.h - how fast a whole job runs on a model of a published shape with random weights, and
 * how fast a checkpoint is loaded, beside what the device and the files give at best. */
#ifndef MB_JOBS_BENCH_RUN_H
#define MB_JOBS_BENCH_RUN_H

#include "jobs/engine.h"
#include "jobs/roofline.h"

typedef struct BenchConfig {
    EngineConfig engine; /* model_dir, synthetic, max_model_len and kv_bytes are filled in */
    const char *shape;   /* synthetic.h; NULL: only load is measured */
    const char *load;    /* a checkpoint directory; NULL: only the shape is run */
    int n_layers;        /* 0: as published */
    int prompt_tokens, output_tokens;
    int batch;     /* sequences in flight per rank; 0: as many as fit, at most sequences */
    int sequences; /* per rank; 0: batch, or 2048 at most where that is 0 too */
} BenchConfig;

typedef struct BenchPhase {
    int64_t steps, prompt_tokens, output_tokens; /* of this rank */
    double seconds;
    Roofline roof;
} BenchPhase;

enum { BENCH_PREFILL, BENCH_DECODE, N_BENCH_PHASES }; /* steps with prompt rows, and all others */

typedef struct BenchResult { /* of this rank, where nothing else is said */
    BackendCeilings limits;
    char model_type[64];
    int n_layers, batch, sequences, prefill_chunk, n_ranks;
    int64_t weight_bytes, loaded_bytes, kv_bytes;
    double load_s;
    BenchPhase phase[N_BENCH_PHASES];
    double schedule_s, sample_s; /* within the phases */
    int64_t preemptions;
    double busiest; /* the largest share of an expert over the mean, mean over layers, all ranks */
    /* load: bytes of all files, seconds of reading them the first time and again, all ranks at once */
    int64_t file_bytes;
    double first_read_s, read_s;
} BenchResult;

/* Collective. ST_USAGE names an unknown shape. */
Status bench_run(const BenchConfig *config, Comm *comm, BenchResult *out, Err *e);
/* Collective. Reads the files twice, then loads them. */
Status bench_load(const BenchConfig *config, Comm *comm, BenchResult *out, Err *e);

#endif
