/* kernels/cuda/api.h - what the program asks of the plugin: memory, copies, and one launch function
 * per operation. Plain C, the only way into the .cu files.
 *
 * Every function returns a cudaError_t as an int, 0 when all is well; launches return once queued
 * on the stream. Pointers are device memory unless a name says host. Rows are bf16, strides count
 * values. Shapes were checked by the caller; zero rows are fine. */
#ifndef MB_KERNELS_CUDA_API_H
#define MB_KERNELS_CUDA_API_H

#include "kernels/backend.h"
#include "kernels/cuda/slabs.h"

typedef enum CudaCodes {            /* how a part's weights rest on the device */
                         CUDA_BF16, /* planes of them: the sum of the planes is the weight */
                         CUDA_E4M3,
                         CUDA_E2M1, /* two to a byte, the low half first */
                         CUDA_INT4, /* likewise, code - 8 */
                         CUDA_INT8,
                         N_CUDA_CODES
} CudaCodes;

enum {
    CUDA_TILE_ROWS = 64,
    CUDA_TILE_COLS = 64,
    CUDA_TILE_K = 32,     /* rows of codes are filled up to a multiple, with codes that give 0 */
    CUDA_MAX_GROUPS = 128 /* of a router */
};

typedef enum CudaLayout {
    CUDA_ROWS,  /* codes and scales row by row, as they are stored */
    CUDA_SLABS, /* slabs.h: codes are records, which hold the scales */
    CUDA_PAIRED /* slabs of gate and up together: both parts have the same codes */
} CudaLayout;

/* One part of a bank, for all its matrices. The weight of (row, k) is
 *   bf16(code * scale(row, k / group)) * row_scale[row]. */
typedef struct CudaPart {
    const uint8_t *codes, *scales; /* of matrix 0; scales NULL: none */
    const float *row_scale;        /* [rows] of matrix 0 */
    int64_t codes_mat, scales_mat; /* bytes from a matrix to the next */
    int64_t codes_row, scales_row; /* bytes from a row to the next; of slabs: from slab to slab */
    int64_t row_scale_mat;         /* floats */
    CudaCodes kind;
    ScaleType scale_type;
    int group, n_groups;
    int rows, first_row; /* first_row: among the outputs of all parts */
    CudaLayout layout;
    SlabCodec codec; /* of slabs */
    int half;        /* of CUDA_PAIRED: 0 gate, 1 up */
} CudaPart;

/* Rows of a part as they are stored, on their way into slabs. */
typedef struct CudaRepack {
    const uint8_t *codes,
        *scales; /* [rows], from a row to the next codes_row and scales_row bytes */
    int64_t codes_row, scales_row;
    const CudaPart *part; /* host: where they go */
    float *row_scale;     /* [rows] of these rows, in the bank: changed, and read if own_scales */
    bool own_scales;
    float whole_scale;    /* of every row, where there are no own_scales */
    int32_t *shift;       /* [rows], scratch */
    int mat, first, rows; /* row `first` of the part is the first here; a multiple of SLAB_ROWS */
    int k, k_padded, planes;
} CudaRepack;

typedef enum CudaEpilogue { CUDA_STORE, CUDA_GATED, CUDA_RELU2 } CudaEpilogue;

typedef struct CudaGemm { /* y[r, :] = W[mat] x[r, :] + bias[mat] */
    CudaPart part[MAX_PARTS];
    int n_parts, planes;
    int k, k_padded;
    const void *x, *x_up; /* x_up: what part 1 reads, of CUDA_GATED; NULL: x */
    int64_t x_stride, x_mat;
    const int32_t *x_row; /* row r reads x[x_row[r]]; NULL: r */
    void *x_room;         /* [n_rows, k] into which such rows may be put together first, or NULL */
    void *y;
    int64_t y_stride, y_mat;
    const int32_t *y_row; /* row r goes to y[y_row[r]]; NULL: r */
    bool y_float;         /* float32 results */
    const float *bias;    /* [outputs of all parts] of matrix 0, or NULL */
    int64_t bias_mat;
    const int32_t
        *first; /* [n_mats + 1], device: matrix m meets rows first[m] .. first[m + 1]-1, at
                             most n_rows altogether. NULL: every matrix of n_mats meets n_rows rows,
                             of which matrix m's lie m * x_mat and m * y_mat values further */
    int n_mats, n_rows;
    CudaEpilogue epilogue;
    ActSpec act;
    bool follows; /* of what this one reads the launch before it on the stream writes only x */
} CudaGemm;

typedef struct CudaFp8Part {
    int rows, first_row; /* multiples of 16; first_row: among the outputs of all parts */
    int first_block;     /* among the blocks of 128 rows; the last one of a part may be shorter */
} CudaFp8Part;

/* y[r, :] = W[mat] x[r, :] + bias[mat], both of E4M3 codes that are filled up to steps of 128 inputs
 * with zeros, and each with a scale per row, or per step. */
typedef struct CudaFp8Gemm {
    const uint8_t *codes; /* [n_mats, mat_rows, k_padded] */
    const float *scales;  /* of matrix 0: [mat_rows], or [blocks, k_padded / 128] */
    int64_t scales_mat;
    int blocks; /* of 128 rows, in all parts; 0: rows have a scale each */
    int k_padded, n_mats, mat_rows;
    CudaFp8Part part[MAX_PARTS];
    int n_parts;
    const void *x; /* rows of codes, x_pitch bytes apart, a multiple of 16 */
    int64_t x_pitch;
    const int32_t *x_row; /* row r reads x[x_row[r]]; NULL: r */
    int x_scales_at;      /* from a row to its float32 scales: one for each step, */
    bool x_scales_step;   /* or, not so, one for all; 0: none */
    float x_scale;        /* multiplies all of x */
    void *y;              /* 16-byte aligned */
    int64_t y_stride;     /* values, a multiple of 16 */
    bool y_codes;         /* of an activation: bytes, codes of y * y_scale, */
    float y_scale;
    int y_fill;        /* and zeros from the outputs' end to here; else 0 */
    const float *bias; /* [outputs of all parts] of matrix 0, or NULL */
    int64_t bias_mat;
    const int32_t
        *first; /* [n_mats + 1]: matrix m meets rows first[m] .. first[m+1]-1. NULL: there is
                             one, for all rows */
    int n_rows; /* at least as many as there are */
    CudaEpilogue epilogue;
    ActSpec act;
    int m_tiles;  /* the launch's own */
    bool grouped; /* likewise */
} CudaFp8Gemm;

typedef struct CudaRow { /* a row of a step, of one sequence */
    int32_t row, pos;    /* where it lies among the rows, its position; -1: padding */
    int32_t pages;       /* where its sequence's page numbers begin in the list */
} CudaRow;

/* Attention begins its sums anew at multiples of CUDA_SPLIT positions and merges the parts. */
enum { CUDA_SPLIT = 2048 };

/* Kinds of tiles of a prompt: CUDA_TILE_SIZES of 128 pairs of a row and a head, as many of 192, and
 * one of all sequences, also those of one row, for one head. */
enum { CUDA_TILE_SIZES = 4, CUDA_TILE_ALL = 2 * CUDA_TILE_SIZES, CUDA_TILE_KINDS };

/* Rows of a tile of each kind: those of a size go with 8, 4, 2, 1 heads. */
static inline int cuda_tile_rows(int kind)
{
    if (kind == CUDA_TILE_ALL)
        return 192;
    return (kind < CUDA_TILE_SIZES ? 16 : 24) << kind % CUDA_TILE_SIZES;
}

typedef struct CudaSplit { /* a row, or the positions of one split that it sees */
    int32_t row, pos, pages;
    int32_t split;  /* of a row: 0 */
    int32_t number; /* of the row among those of the list */
    /* splits of its rows that have several: how many the rows before it have, and itself */
    int32_t slot, n_slots;
    int32_t unused;
} CudaSplit;

typedef struct CudaQueries { /* rows row .. row+n-1 of one sequence, from position pos on */
    int32_t row, n, pos, pages;
} CudaQueries;

/* What a step captured once reads anew: numbers, and where arrays begin, in bytes from here. Rows
 * alone in their sequence are singles. The others come in tiles of up to cuda_tile_rows, and first
 * among the rows. Longest contexts first. */
typedef struct CudaListHead {
    int32_t n_multiple; /* rows that are not singles */
    int32_t n_singles, n_splits, n_slots;
    int32_t rows_at, singles_at, splits_at, pages_at, tiles_at[CUDA_TILE_KINDS];
} CudaListHead;

typedef struct CudaList {
    const CudaListHead *head;
    const int32_t *row_of; /* [n_rows] CudaRow.row alone; of padding, its number */
    int n_rows;            /* with padding */
    int most_singles;      /* 0: there are none */
    int n_tiles[CUDA_TILE_KINDS];
} CudaList;

/* A page holds, for each KV head, KV_PAGE rows of keys and then of values; latents are one row that
 * is both. Lanes are filled up to a multiple of 16 with zeros; pages.cuh has how they lie. */
typedef struct CudaCache {
    void *pool;
    int64_t page_bytes, head_bytes; /* from a page to the next, from a head to the next */
    int lanes, n_kv_heads;
    KvFormat kv;
} CudaCache;

typedef struct CudaAttention {
    CudaCache cache;
    CudaList list;
    const void *q; /* heads of head_dim values, dense within a row */
    void *out;
    int64_t q_stride, out_stride;
    int n_heads, head_dim, window;
    float scale;
    const float *sinks;       /* [n_heads] or NULL */
    bool portable;            /* for tests: not by Hopper's own instructions */
    int tile;                 /* of CudaListHead.tiles_at: the kernel's to choose */
    float *partials, *states; /* most_floats of memory between kernels; states: the kernel's */
    int64_t most_floats;
    unsigned *counters; /* [most_counters] zeros, and again afterwards */
    int64_t most_counters;
} CudaAttention;

/* A page of latents has KV_PAGE rows that are both keys and values, in blocks of 64 lanes: those of the
 * latent in the cache's type, then the rope lanes in bf16, both filled up with zeros. */
typedef struct CudaLatents {
    void *pool;
    int64_t page_bytes;
    int latent_blocks, rope_blocks;
    KvFormat kv; /* k_scale 1 of bf16 */
    CudaList list;
} CudaLatents;

typedef struct CudaLatentAttention {
    CudaLatents cache;
    /* Row i of the list, those that are not singles first: n_heads heads of q_split lanes and then
     * q_rest rope lanes, and of out_dim values. */
    const void *q;
    void *out;
    int64_t q_stride, out_stride;
    int q_split, q_rest;
    int n_heads, out_dim;
    float scale;
    bool portable; /* as in CudaAttention, like the rest */
    float *partials;
    int64_t most_floats;
    unsigned *counters;
    int64_t most_counters;
} CudaLatentAttention;

/* The expanded form, of some heads: for a prompt's rows, against keys and values that were made from
 * latents. Heads of 192 lanes, of which the last 64 are rope lanes, and values of 128. */
typedef struct CudaExpandedAttention {
    CudaLatents cache;
    /* [positions of pages first_page .. end_page - 1 of the list, n_heads, 128 + 128]: keys without
     * rope lanes, then values; only sequences whose pages these are have their rows done */
    const void *kv;
    int first_page, end_page;
    const void *q; /* heads of 192 values, dense within a row; rows as in the step */
    void *out;     /* of 128 */
    int64_t q_stride, out_stride;
    int n_heads;
    float scale;
    float *partials;
    int64_t most_floats;
} CudaExpandedAttention;

enum {
    CUDA_SAMPLE_BLOCK = 256, /* weights per sum, as in jobs/logit_scan.h */
    CUDA_SAMPLE_UNIT = 1024, /* logits that one warp looks through */
    CUDA_SAMPLE_VOCAB = 1 << 19
};

typedef struct CudaUnit {
    float max, sum; /* of the logits as they are, and of exp(logit - max) */
    float best;     /* of those that may be chosen, after edits */
    int32_t before; /* logits that go before the given id */
    int32_t wrong;  /* not numbers: 1 the logits as they are, 2 after edits */
} CudaUnit;

typedef struct CudaSample {
    const float *logits; /* [n, vocab] */
    SampleRow *rows;     /* [n], whose edits lie on the device, too */
    Sampled *out;        /* [n] */
    CudaUnit *units;     /* [n, n_units] */
    double *sums;        /* [n, n_blocks] of weights */
    float *changed;      /* [n, vocab] logits after edits, of rows that have some */
    float *peaks;        /* [n, n_blocks] largest logits, as they are */
    float *choice_peaks; /* the same of those that may be chosen, after edits */
    int n, vocab, n_ids;
    int n_units, n_blocks; /* of a row */
    float scale;
} CudaSample;

typedef struct CudaApi {
    const char *(*error_text)(int code);
    bool (*is_out_of_memory)(int code);
    /* Makes the device current for this thread, for good, and a stream. */
    int (*open)(int device, void **stream);
    int (*stream_open)(void **out); /* another one, on the same device */
    int (*close)(void *stream);
    int (*ceilings)(BackendCeilings *out, void *stream);
    int (*memory)(size_t *free_bytes, size_t *total_bytes);
    int (*take)(void **out, size_t bytes);
    int (*release)(void *p);
    int (*take_host)(void **out, size_t bytes); /* pinned */
    int (*release_host)(void *p);
    int (*to_device)(void *dst, const void *src_host, size_t bytes, void *stream);
    int (*to_host)(void *dst_host, const void *src, size_t bytes, void *stream);
    int (*wait)(void *stream);
    int (*event_create)(void **out); /* for order only: without times */
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream); /* behind what is queued */
    int (*event_wait)(void *event);                 /* the host waits; at once if never recorded */
    int (*stream_wait)(void *stream, void *event);  /* likewise what is queued from now on */
    /* What is queued on the stream in between becomes a graph. On failure *graph is NULL. */
    int (*capture_begin)(void *stream);
    int (*capture_end)(void *stream, void **graph);
    int (*graph_launch)(void *graph, void *stream);
    int (*graph_destroy)(void *graph);

    int (*embed)(float *h, const void *table, const int32_t *ids, int n, int64_t cols, float scale,
                 void *stream);
    int (*add_norm)(void *y, float *h, const void *delta, float scale, const float *weight, int n,
                    int width, float eps, NormKind kind, void *stream);
    int (*norm)(void *y, const void *x, const float *weight, int n_rows, int n_groups, int width,
                int64_t stride, float eps, NormKind kind, void *stream);
    int (*rope)(void *x, int n_rows, int64_t stride, int n_heads, int head_dim,
                const int32_t *position, const RopeSpec *rope, void *stream);
    int (*combine)(void *y, const void *rows, const int32_t *slot, const float *weight,
                   const void *plus, int n, int top_k, int width, void *stream);
    int (*gate_rows)(void *y, const void *gate, int n, int width, void *stream);
    int (*clamp)(void *x, int n_rows, int64_t stride, int width, float limit, void *stream);
    int (*gather)(void *y, const void *x, const int32_t *row, int n, int64_t row_bytes,
                  void *stream);
    /* y[r * y_stride + h * y_head + i] = x[row[r] * x_stride + h * x_head + i], i < width; row NULL:
     * r */
    int (*copy_lanes)(void *y, int64_t y_stride, int64_t y_head, const void *x, int64_t x_stride,
                      int64_t x_head, const int32_t *row, int n, int n_heads, int width,
                      void *stream);
    /* coded [n, coded_bytes] and y are each optional: x -> codes -> y. x NULL: coded is read. */
    int (*code_rows)(void *y, int64_t y_stride, const void *x, int64_t x_stride, void *coded,
                     int64_t coded_bytes, int n, int width, const RowFormat *format, void *stream);
    int (*gemm)(const CudaGemm *g, void *stream);
    int (*repack)(const CudaRepack *r, void *stream);
    int (*has_sm90a)(void); /* whether gemm takes slabs, and fp8_gemm anything */
    /* coded [n, coded_bytes] from x: codes, filled up to steps of 128 with zeros, then the row's
     * scales, if any, then zeros. live: how many of the n rows there are; NULL: all. */
    int (*fp8_rows)(void *coded, int64_t coded_bytes, const void *x, int64_t x_stride, int n,
                    const int32_t *live, int width, const RowFormat *format, void *stream);
    int (*fp8_gemm)(const CudaFp8Gemm *g, void *stream);
    int (*write_keys)(const CudaCache *c, const CudaList *list, const void *k, const void *v,
                      int64_t stride, int dim, void *stream);
    int (*attention)(const CudaAttention *a, void *stream);
    int (*write_latents)(const CudaLatents *c, const void *rows, int64_t stride, int latent_dim,
                         int rope_dim, void *stream);
    int (*latent_attention)(const CudaLatentAttention *a, void *stream);
    /* rows [n_pages * KV_PAGE, dim] of bf16: the latents of the list's pages from first_page on */
    int (*read_latents)(void *rows, const CudaLatents *c, int first_page, int n_pages, int dim,
                        void *stream);
    /* Where has_sm90a. */
    int (*expanded_attention)(const CudaExpandedAttention *a, void *stream);
    /* *bad becomes the lowest row without weights, where it was higher. */
    int (*route)(int32_t *expert, float *weight, uint64_t *load, int32_t *bad, const float *logits,
                 const float *correction, int n, const int32_t *live, const RouterSpec *spec,
                 void *stream);
    /* weigh: some row may draw from the weights of all its ids. */
    int (*sample)(const CudaSample *s, bool weigh, void *stream);
} CudaApi;

#ifdef __cplusplus
extern "C" {
#endif
/* Of the .cu files, for the table in memory.cu. */
int cuda_ceilings(BackendCeilings *out, void *stream);
int cuda_embed_launch(float *h, const void *table, const int32_t *ids, int n, int64_t cols,
                      float scale, void *stream);
int cuda_add_norm_launch(void *y, float *h, const void *delta, float scale, const float *weight,
                         int n, int width, float eps, NormKind kind, void *stream);
int cuda_norm_launch(void *y, const void *x, const float *weight, int n_rows, int n_groups,
                     int width, int64_t stride, float eps, NormKind kind, void *stream);
int cuda_rope_launch(void *x, int n_rows, int64_t stride, int n_heads, int head_dim,
                     const int32_t *position, const RopeSpec *rope, void *stream);
int cuda_combine_launch(void *y, const void *rows, const int32_t *slot, const float *weight,
                        const void *plus, int n, int top_k, int width, void *stream);
int cuda_gate_rows_launch(void *y, const void *gate, int n, int width, void *stream);
int cuda_clamp_launch(void *x, int n_rows, int64_t stride, int width, float limit, void *stream);
int cuda_gather_launch(void *y, const void *x, const int32_t *row, int n, int64_t row_bytes,
                       void *stream);
int cuda_copy_lanes_launch(void *y, int64_t y_stride, int64_t y_head, const void *x,
                           int64_t x_stride, int64_t x_head, const int32_t *row, int n, int n_heads,
                           int width, void *stream);
int cuda_code_rows_launch(void *y, int64_t y_stride, const void *x, int64_t x_stride, void *coded,
                          int64_t coded_bytes, int n, int width, const RowFormat *format,
                          void *stream);
int cuda_gemm_launch(const CudaGemm *g, void *stream);
int cuda_repack_launch(const CudaRepack *r, void *stream);
int cuda_fp8_rows_launch(void *coded, int64_t coded_bytes, const void *x, int64_t x_stride, int n,
                         const int32_t *live, int width, const RowFormat *format, void *stream);
int cuda_fp8_gemm_launch(const CudaFp8Gemm *g, void *stream);
int cuda_write_keys_launch(const CudaCache *c, const CudaList *list, const void *k, const void *v,
                           int64_t stride, int dim, void *stream);
int cuda_attention_launch(const CudaAttention *a, void *stream);
int cuda_write_latents_launch(const CudaLatents *c, const void *rows, int64_t stride,
                              int latent_dim, int rope_dim, void *stream);
int cuda_latent_attention_launch(const CudaLatentAttention *a, void *stream);
int cuda_read_latents_launch(void *rows, const CudaLatents *c, int first_page, int n_pages, int dim,
                             void *stream);
int cuda_expanded_attention_launch(const CudaExpandedAttention *a, void *stream);
int cuda_route_launch(int32_t *expert, float *weight, uint64_t *load, int32_t *bad,
                      const float *logits, const float *correction, int n, const int32_t *live,
                      const RouterSpec *spec, void *stream);
int cuda_sample_launch(const CudaSample *s, bool weigh, void *stream);
extern const CudaApi cuda_api;
#ifdef __cplusplus
}
#endif

#endif
