/* kernels/cpu/latent.h - what the two forms of latent attention share: the layout of a page, how a
 * step's rows are cut into pieces, and what the scratch memory holds.
 *
 * A page of a layer is [KV_PAGE][latent_stride(width)] float32, one row per position: the latent,
 * then the rope lanes, then zeros. */
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
    int64_t q_stride, out_stride, page_stride; /* in values */
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

static inline const float *latent_page(const LatentJob *job, const AttnSeq *s, int page)
{
    return (const float *)(const void *)(job->pool + (size_t)s->pages[page] * job->page_bytes);
}

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
