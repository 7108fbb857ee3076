/* kernels/cpu/latent.h - what the two forms of latent attention share: the layout of a page, how a
 * step's rows are cut into pieces, and what the scratch memory holds.
 *
 * A page of a layer is one row per position: in float32 the latent, then the rope lanes, then zeros
 * up to whole panels. In fewer bits both parts are whole panels, of codes of the latent (BF16 or
 * E4M3) and of BF16 rope lanes; such rows are decoded into the thread's memory, to float32 rows of
 * both parts, before anything reads them. */
#ifndef MB_CPU_LATENT_H
#define MB_CPU_LATENT_H

#include "kernels/cpu/cpu.h"

enum {
    EXPAND_ROWS = 4096, /* of one task: keys are expanded again for the next rows of a sequence */
    EXPAND_KEYS = 256,  /* expanded at once: they stay in a second-level cache with their values */
    ABSORB_ROWS = 256,  /* of one run: bounds the memory for their latent queries */
    ABSORB_TILES = 8    /* of one task: they share one read of a page */
};

/* Rows of the step's sequences, cut so that none is longer than a task takes. Rows without gaps:
 * row[i] .. row[i+1]-1 count piece i's among those of all pieces. */
typedef struct LatentPieces {
    int n;
    int *seq, *query; /* the sequence; how many of its rows come before the piece */
    int *row;         /* [n + 1] */
    int *task; /* [n + 1]: expanded, each bundle's first piece; absorbed, each piece's first task */
} LatentPieces;

typedef struct LatentJob {
    Backend *b;
    float *out;
    const float *q;
    const char *pool;
    const AttnSeq *seqs;
    int n_seqs, n_rows; /* of all sequences */
    const LatentSpec *spec;
    const LatentWeights *w;
    int64_t q_stride, out_stride;
    int64_t page_stride, rope_at; /* of float32 rows: from one to the next; the first rope lane */
    size_t page_bytes;
    LatentPieces pieces;
    int n_bundles; /* expanded */
    float *rows;   /* [ABSORB_ROWS, n_heads, latent_dim]: latent queries, then latent outputs */
    char *threads; /* of thread_bytes each */
    size_t thread_bytes;
} LatentJob;

/* Whole panels, so that kernels need no masks. */
static inline int whole_panels(int n)
{
    return (n + PANEL - 1) / PANEL * PANEL;
}

static inline int latent_query_dim(const LatentSpec *spec)
{
    return spec->nope_dim + spec->rope_dim;
}

/* Bytes of a row of a page. */
static inline size_t latent_row_bytes(int latent_dim, int rope_dim, KvDtype dtype)
{
    if (dtype == KV_F32)
        return cpu_kv_bytes(KV_F32, (size_t)whole_panels(latent_dim + rope_dim));
    return cpu_kv_bytes(dtype, (size_t)whole_panels(latent_dim)) +
           cpu_kv_bytes(KV_BF16, (size_t)whole_panels(rope_dim));
}

static inline const char *latent_page(const LatentJob *job, const AttnSeq *s, int page)
{
    return job->pool + (size_t)s->pages[page] * job->page_bytes;
}

/* Bytes of a thread's memory for n decoded rows. */
static inline size_t latent_decoded_bytes(int n, const LatentSpec *spec)
{
    size_t row = (size_t)(whole_panels(spec->latent_dim) + whole_panels(spec->rope_dim));
    return spec->kv.dtype == KV_F32 ? 0 : (size_t)n * row * sizeof(float);
}

/* The first n rows of a page as float32: where they lie, or decoded into memory. */
const float *latent_rows(const LatentJob *job, const AttnSeq *s, int page, int n, float *memory);

/* How many keys of a page the query at this position sees, or none or fewer. */
static inline int latent_seen(int position, int page)
{
    int seen = position + 1 - page * KV_PAGE;
    return seen < KV_PAGE ? seen : KV_PAGE;
}

/* Adds rows query .. query+n-1 of a sequence. */
void latent_piece_add(LatentPieces *p, int seq, int query, int n);

/* Bytes of one thread's memory, for steps of n_rows rows. */
size_t latent_expanded_thread_bytes(int n_rows, const LatentSpec *spec);
size_t latent_absorbed_thread_bytes(const LatentSpec *spec);
void latent_expanded(LatentJob *job);
void latent_absorbed(LatentJob *job);

#endif
