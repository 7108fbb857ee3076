/* kernels/cpu/latent_expanded.c - the expanded form of latent attention: a task is some pieces of
 * sequences and one head. It makes keys and values of that head for up to EXPAND_KEYS positions at
 * a time, of as many sequences as it has, by one matrix product each, and all its queries pass over
 * them: their running sums stay in the thread's memory meanwhile. */
#include "kernels/cpu/latent.h"

#include <math.h>
#include <string.h>

enum {
    LEAST_TILES = EXPAND_KEYS / PANEL, /* so that short sequences share a task */
    MAX_SLOTS = 64                     /* pages of which something is expanded at once */
};

/* Some keys of one page: all that its piece sees. */
typedef struct Slot {
    int piece, page, n_keys;
    int first_key;  /* among the expanded ones */
    int first_tile; /* of the piece, in the thread's memory */
} Slot;

typedef struct Expansion {
    const LatentJob *job;
    Scratch *scratch;
    int head, n_slots, n_keys;
    Slot slot[MAX_SLOTS];
    const float *latent[EXPAND_KEYS];
    /* [EXPAND_KEYS][kv_stride]: keys without rope lanes, from value_at on values; both whole
     * panels. */
    float *kv;
    int64_t kv_stride, value_at;
    /* Of all tiles of PANEL queries. */
    float *q, *o, *max, *sum;
    float *decoded; /* [EXPAND_KEYS] rows of pages that are not float32 */
    int q_dim, o_stride;
} Expansion;

static int rows_of_piece(const LatentPieces *p, int i)
{
    return p->row[i + 1] - p->row[i];
}

static int tiles_of(int n_rows)
{
    return (n_rows + PANEL - 1) / PANEL;
}

static size_t tile_floats(const LatentSpec *spec)
{
    return (size_t)PANEL * (size_t)(latent_query_dim(spec) + whole_panels(spec->v_dim) + 2);
}

size_t latent_expanded_thread_bytes(int n_rows, const LatentSpec *spec)
{
    int tiles = tiles_of(n_rows < EXPAND_ROWS ? n_rows : EXPAND_ROWS);
    size_t kv_stride = (size_t)(whole_panels(spec->nope_dim) + whole_panels(spec->v_dim));
    return ((size_t)(tiles > LEAST_TILES ? tiles : LEAST_TILES) * tile_floats(spec) +
            EXPAND_KEYS * kv_stride) *
               sizeof(float) +
           latent_decoded_bytes(EXPAND_KEYS, spec);
}

static void load_queries(Expansion *x, int piece, int first_tile)
{
    const LatentJob *job = x->job;
    const AttnSeq *s = &job->seqs[job->pieces.seq[piece]];
    int n = rows_of_piece(&job->pieces, piece), d = x->q_dim;
    const float *from = job->q + (s->row + job->pieces.query[piece]) * job->q_stride + x->head * d;
    for (int t = 0; t < tiles_of(n); t++) {
        float *to = x->q + (int64_t)(first_tile + t) * d * PANEL;
        int rows = n - t * PANEL < PANEL ? n - t * PANEL : PANEL;
        if (rows < PANEL)
            memset(to, 0, (size_t)d * PANEL * sizeof *to);
        for (int i = 0; i < rows; i++, from += job->q_stride)
            for (int k = 0; k < d; k++)
                to[k * PANEL + i] = from[k];
    }
    int rows = tiles_of(n) * PANEL, first = first_tile * PANEL;
    memset(x->o + (int64_t)first * x->o_stride, 0,
           (size_t)rows * (size_t)x->o_stride * sizeof *x->o);
    for (int i = first; i < first + rows; i++) {
        x->max[i] = -INFINITY;
        x->sum[i] = 0;
    }
}

static void store_outputs(const Expansion *x, int piece, int first_tile)
{
    const LatentJob *job = x->job;
    const AttnSeq *s = &job->seqs[job->pieces.seq[piece]];
    int v_dim = job->spec->v_dim;
    float *out = job->out + (s->row + job->pieces.query[piece]) * job->out_stride + x->head * v_dim;
    int64_t at = (int64_t)first_tile * PANEL;
    for (int i = 0; i < rows_of_piece(&job->pieces, piece); i++, at++, out += job->out_stride)
        for (int k = 0; k < v_dim; k++)
            out[k] = x->o[at * x->o_stride + k] / x->sum[at];
}

/* One part of kv_b_proj over all latents that are listed. */
static void expand_part(const Expansion *x, int part, float *to)
{
    const CpuKernels *kernels = x->job->b->kernels;
    const Weight *up = x->job->w->up;
    int64_t n_panels = up->part[part].n_panels;
    int n_blocks = (x->n_keys + kernels->block_rows - 1) / kernels->block_rows;
    for (int64_t p = 0; p < n_panels; p += MAX_BLOCK_PANELS) {
        int n = n_panels - p < MAX_BLOCK_PANELS ? (int)(n_panels - p) : MAX_BLOCK_PANELS;
        Panel panels[MAX_BLOCK_PANELS];
        cpu_weight_panels(up, x->head, part, p, n, panels);
        for (int block = 0; block < n_blocks; block++) {
            int from = block * x->n_keys / n_blocks, m = (block + 1) * x->n_keys / n_blocks - from;
            kernels->gemm(to + from * x->kv_stride + p * PANEL, x->kv_stride, x->latent + from, m,
                          panels, n, up->cols, x->scratch);
        }
    }
}

static void attend(const Expansion *x, const Slot *slot, int t)
{
    const LatentJob *job = x->job;
    const AttnSeq *s = &job->seqs[job->pieces.seq[slot->piece]];
    int n = rows_of_piece(&job->pieces, slot->piece) - t * PANEL;
    n = n < PANEL ? n : PANEL;
    int position = s->pos + job->pieces.query[slot->piece] + t * PANEL;
    if (latent_seen(position + n - 1, slot->page) <= 0)
        return;
    int seen[PANEL];
    for (int i = 0; i < n; i++) {
        seen[i] = latent_seen(position + i, slot->page);
        seen[i] = seen[i] > 0 ? seen[i] : 0;
    }
    int64_t tile = slot->first_tile + t;
    const float *kv = x->kv + slot->first_key * x->kv_stride;
    LatentTile at = {.q = x->q + tile * x->q_dim * PANEL,
                     .keys = kv,
                     .rope = x->latent[slot->first_key] + job->rope_at,
                     .key_stride = x->kv_stride,
                     .rope_stride = job->page_stride,
                     .key_dims = job->spec->nope_dim,
                     .rope_dims = job->spec->rope_dim,
                     .values = kv + x->value_at,
                     .value_stride = x->kv_stride,
                     .value_groups = x->o_stride / PANEL,
                     .scale = job->spec->scale,
                     .n_rows = n,
                     .seen = seen,
                     .o = x->o + tile * PANEL * x->o_stride,
                     .o_stride = x->o_stride,
                     .max = x->max + tile * PANEL,
                     .sum = x->sum + tile * PANEL};
    job->b->kernels->latent_tile(&at);
}

/* Expands what is listed; then each tile passes over the pages of its piece while it is in the
 * first-level cache. */
static void flush(Expansion *x)
{
    expand_part(x, 0, x->kv);
    expand_part(x, 1, x->kv + x->value_at);
    for (int i = 0, end; i < x->n_slots; i = end) {
        for (end = i + 1; end < x->n_slots && x->slot[end].piece == x->slot[i].piece;)
            end++;
        int tiles = tiles_of(rows_of_piece(&x->job->pieces, x->slot[i].piece));
        for (int t = 0; t < tiles; t++)
            for (int k = i; k < end; k++)
                attend(x, &x->slot[k], t);
    }
    x->n_slots = x->n_keys = 0;
}

static void list_page(Expansion *x, int piece, int page, int first_tile)
{
    const LatentJob *job = x->job;
    const AttnSeq *s = &job->seqs[job->pieces.seq[piece]];
    int last = s->pos + job->pieces.query[piece] + rows_of_piece(&job->pieces, piece) - 1;
    int n_keys = latent_seen(last, page);
    if (x->n_slots == MAX_SLOTS || x->n_keys + n_keys > EXPAND_KEYS)
        flush(x);
    x->slot[x->n_slots++] = (Slot){piece, page, n_keys, x->n_keys, first_tile};
    const float *row = latent_rows(job, s, page, n_keys, x->decoded + x->n_keys * job->page_stride);
    for (int j = 0; j < n_keys; j++, row += job->page_stride)
        x->latent[x->n_keys++] = row;
}

static void expanded_task(void *ctx, int task, int thread)
{
    const LatentJob *job = ctx;
    const LatentSpec *spec = job->spec;
    const LatentPieces *p = &job->pieces;
    /* The last bundle first, since its rows see most: the last to finish ends the step. */
    int bundle = job->n_bundles - 1 - task / spec->n_heads;
    int from = p->task[bundle], to = p->task[bundle + 1];
    Expansion x = {.job = job,
                   .scratch = &job->b->scratch[thread],
                   .head = task % spec->n_heads,
                   .value_at = whole_panels(spec->nope_dim),
                   .q_dim = latent_query_dim(spec),
                   .o_stride = whole_panels(spec->v_dim)};
    x.kv_stride = x.value_at + x.o_stride;
    int tiles = 0;
    for (int i = from; i < to; i++)
        tiles += tiles_of(rows_of_piece(p, i));
    x.kv = (float *)(void *)(job->threads + (size_t)thread * job->thread_bytes);
    x.o = x.kv + EXPAND_KEYS * x.kv_stride;
    x.q = x.o + (int64_t)tiles * PANEL * x.o_stride;
    x.max = x.q + (int64_t)tiles * PANEL * x.q_dim;
    x.sum = x.max + (int64_t)tiles * PANEL;
    x.decoded = x.sum + (int64_t)tiles * PANEL;
    for (int i = from, tile = 0; i < to; tile += tiles_of(rows_of_piece(p, i)), i++)
        load_queries(&x, i, tile);
    for (int i = from, tile = 0; i < to; tile += tiles_of(rows_of_piece(p, i)), i++) {
        int last = job->seqs[p->seq[i]].pos + p->query[i] + rows_of_piece(p, i) - 1;
        for (int page = 0; page <= last / KV_PAGE; page++)
            list_page(&x, i, page, tile);
    }
    flush(&x);
    for (int i = from, tile = 0; i < to; tile += tiles_of(rows_of_piece(p, i)), i++)
        store_outputs(&x, i, tile);
}

static int pieces_of(int n_rows, int most)
{
    return (n_rows + most - 1) / most;
}

/* Long sequences are cut only where the team would not have work otherwise. */
static void cut(LatentJob *job)
{
    int most = EXPAND_ROWS;
    for (; most > EXPAND_KEYS; most /= 2) {
        int64_t n = 0;
        for (int i = 0; i < job->n_seqs; i++)
            n += pieces_of(job->seqs[i].n_rows, most);
        if (n * job->spec->n_heads >= 2 * (int64_t)job->b->n_threads)
            break;
    }
    for (int i = 0; i < job->n_seqs; i++) {
        int n_rows = job->seqs[i].n_rows, n = pieces_of(n_rows, most);
        for (int k = 0; k < n; k++) {
            int from = (int)((int64_t)n_rows * k / n), to = (int)((int64_t)n_rows * (k + 1) / n);
            latent_piece_add(&job->pieces, i, from, to - from);
        }
    }
}

static int64_t keys_of(const LatentJob *job, int piece)
{
    const LatentPieces *p = &job->pieces;
    return (int64_t)job->seqs[p->seq[piece]].pos + p->query[piece] + rows_of_piece(p, piece);
}

/* Pieces that see few keys share a task, so that their latents share a matrix product. */
static void bundle_pieces(LatentJob *job, int64_t n_keys)
{
    LatentPieces *p = &job->pieces;
    int64_t bundles =
        (4 * (int64_t)job->b->n_threads + job->spec->n_heads - 1) / job->spec->n_heads;
    int64_t most = n_keys / bundles < EXPAND_KEYS ? n_keys / bundles : EXPAND_KEYS, keys = 0;
    int tiles = 0;
    for (int i = 0; i < p->n; i++) {
        int more = tiles_of(rows_of_piece(p, i));
        if (i == 0 || keys + keys_of(job, i) > most || tiles + more > LEAST_TILES) {
            p->task[job->n_bundles++] = i;
            keys = tiles = 0;
        }
        keys += keys_of(job, i);
        tiles += more;
    }
    p->task[job->n_bundles] = p->n;
}

void latent_expanded(LatentJob *job)
{
    cut(job);
    int64_t n_keys = 0;
    for (int i = 0; i < job->pieces.n; i++)
        n_keys += keys_of(job, i);
    bundle_pieces(job, n_keys);
    cpu_run(job->b, job->n_bundles * job->spec->n_heads,
            n_keys * job->spec->n_heads * job->w->up->rows * job->spec->latent_dim, expanded_task,
            job);
}
