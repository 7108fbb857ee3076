/* jobs/metrics.h - the file of --metrics: what a run did and where its time went, as JSON. */
#ifndef MB_JOBS_METRICS_H
#define MB_JOBS_METRICS_H

#include "io/err.h"
#include "io/strbuf.h"

#include <stdbool.h>
#include <stdint.h>

/* Of one rank. Plain data, so that it can be gathered as bytes. Seconds of wall time. */
typedef struct RankMetrics {
    char host[64];
    int32_t n_threads;
    /* The phases of a run, one after another. */
    double start_s, input_s, load_s, run_s, finish_s;
    /* Parts of run_s. What is left of it is waiting for other ranks' openings and bookkeeping. */
    double embed_s, attention_s, router_s, dispatch_s, experts_s, combine_s, head_s, sample_s,
        schedule_s;
    int64_t rows, rows_failed;            /* finished here in this run */
    int64_t prompt_tokens, output_tokens; /* computed here; recomputed prompts count again */
    int64_t preemptions;
    int64_t loaded_bytes; /* of the checkpoint */
    int64_t kv_bytes;     /* budget */
    int64_t dispatch_bytes, combine_bytes, n_rounds;
    int64_t peak_rss_bytes;
} RankMetrics;

typedef struct JobMetrics {
    const char *version, *backend, *isa, *model, *input, *out;
    int run; /* number of this run of the job */
    bool stopped;
    int64_t rows, rows_done, rows_failed, rows_resumed; /* done includes failed and resumed */
    int64_t steps, idle_steps;
    double wall_s;
    int n_ranks;
    const RankMetrics *ranks; /* [n_ranks] */
    int n_layers, n_experts;
    const int64_t *expert_load; /* [n_layers, n_experts] (token, slot) pairs, summed over the ranks;
                                   NULL: none */
} JobMetrics;

/* Appends the JSON text. Sums over ranks, speeds and the load per layer (largest / mean over the
 * experts, null for a layer without pairs) are computed here. ST_MEMORY. */
Status metrics_format(const JobMetrics *m, StrBuf *out, Err *e);
/* Rank 0: the same into a file, replaced atomically. ST_IO. */
Status metrics_write(const char *path, const JobMetrics *m, Err *e);
/* Most memory that this process has had so far. */
int64_t metrics_peak_rss(void);

#endif
