/* kernels/cuda/cuda.h - what the files of the CUDA backend share on the host's side.
 *
 * These files belong to the program; all that needs the CUDA toolkit is behind the plugin's table
 * (api.h). Operations are queued on one stream and return. What the host knows of a step travels
 * through a ring of pinned memory before its first layer; after that nothing comes or goes. */
#ifndef MB_KERNELS_CUDA_CUDA_H
#define MB_KERNELS_CUDA_CUDA_H

#include "kernels/cuda/api.h"
#include "kernels/cuda/backend_cuda.h"
#include "kernels/cuda/exchange_api.h"
#include "kernels/cuda/spans.h"
#include "kernels/cuda/upload.h"

typedef struct Ring { /* pinned memory, filled from the front */
    char *host;
    size_t cap, at;
} Ring;

struct AttnList {
    void *memory; /* on the device */
    int max_rows, max_seqs, max_pages;
    int n_seqs;
    int32_t *first_page; /* [max_seqs + 1] of each sequence, among the list's pages; the end */
    CudaList list;
};

/* Bytes of files; none: all zero. */
typedef struct StagedBytes {
    UploadSpan codes, scales;
} StagedBytes;

/* Rows on their way into slabs (slabs_cuda.c). */
typedef struct Staging {
    uint8_t *memory[2]; /* device, SLAB_STAGING each; from the first rows on */
    void *arrived[2];   /* events: rows are there, */
    void *taken[2];     /* slabs are made of them */
    int at;             /* the one that was filled last */
    StagedBytes holds,
        announced; /* what is in it, and what is announced of the last rows that were */
} Staging;

struct Backend {
    const CudaApi *api;
    const CudaExchangeApi *exchange;
    void *stream;
    Ring ring;
    Team *team; /* borrowed; NULL: the caller alone */
    Upload upload;
    Spans spans;
    Staging staging;
    bool warned;      /* of weights that are rounded */
    int32_t *bad;     /* on the device: the lowest row that a router found no weights for */
    LogitEdit *edits; /* [edits_cap] on the device: of the rows being sampled */
    size_t edits_cap;
    float *partials; /* work memory of attention, and its counters */
    unsigned *counters;
};

enum { SLAB_STAGING = 40 << 20 };

struct Weight {
    char name[128];
    WeightUse use;
    int n_mats, n_parts, planes;
    int64_t cols, cols_padded, rows; /* rows: outputs of all parts */
    CudaPart part[MAX_PARTS];        /* a lookup bank is one part in bf16, its rows not filled up */
    FormatId format[MAX_PARTS];
    int64_t group[MAX_PARTS];   /* as created: columns that share a scale */
    ScaleType scale[MAX_PARTS]; /* as created */
    int64_t row_bytes[MAX_PARTS], row_scale_bytes[MAX_PARTS]; /* of a row as it is staged */
    /* where matrix 0 of each part lies in data */
    size_t codes_at[MAX_PARTS], scales_at[MAX_PARTS], row_scale_at[MAX_PARTS];
    CudaFp8Gemm fp8; /* WEIGHT_CODED: its half of a product; scales_at[0]: of all scales */
    uint8_t *data;
    size_t bytes;
};

/* ST_MEMORY or ST_DEVICE, "op: what CUDA says", unless code is 0. */
Status cuda_status(const Backend *b, int code, const char *op, Err *e);
/* Room for takes of bytes altogether, n of them: what an op does first that takes more than once,
 * so that no take moves what the one before it has given. Waits for the device where the ring is
 * full. */
Status cuda_ring_reserve(Backend *b, size_t bytes, int n, Err *e);
/* bytes of the ring, which the caller fills at *host and then sends. */
Status cuda_ring_take(Backend *b, size_t bytes, void **host, Err *e);
Status cuda_ring_send(Backend *b, void *dst, const void *host, size_t bytes, Err *e);

/* For all that is queued; then what backend.h says of wait. */
Status cuda_wait(Backend *b, Err *e);

Status cuda_alloc(Backend *b, size_t bytes, const char *what, void **out, Err *e);
void cuda_release(Backend *b, void *p);

Status cuda_weight_create(Backend *b, const char *name, WeightUse use, int n_mats,
                          const WeightPart *parts, int n_parts, int64_t cols, Weight **out, Err *e);
Status cuda_weight_set(Backend *b, Weight *w, int mat, int part, const QuantTensor *t, Err *e);
int cuda_weight_checks(const Weight *w, int part, const QuantTensor *t);
void cuda_weight_ahead(Backend *b, const Weight *w, int part, const QuantTensor *t);
/* Other files may come: what the staging holds is sent again when it is wanted. */
void cuda_staging_forget(Backend *b);
void cuda_staging_close(Backend *b); /* the device is done */
void cuda_weight_destroy(Backend *b, Weight *w);
size_t cuda_weight_bytes(const Weight *w);

Status cuda_matmul(Backend *b, void *y, const void *x, const Weight *w, int part, const float *bias,
                   int n, Err *e);
Status cuda_matmul_float(Backend *b, float *y, const void *x, const Weight *w, const float *bias,
                         int n, Err *e);
/* fp8_cuda.c: banks and rows of WEIGHT_CODED. */
bool cuda_takes_codes(const Backend *b, const WeightPart *parts, int n_parts, int64_t cols,
                      const RowFormat *rows);
/* Plans a bank whose parts are known; gives its bytes. */
size_t cuda_fp8_lay_out(Weight *w);
size_t cuda_code_row_bytes(RowScheme scheme, int64_t width);
Status cuda_code_rows(Backend *b, void *coded, const void *x, int n, int width,
                      const RowFormat *format, Err *e);
Status cuda_matmul_codes(Backend *b, void *y, const void *coded, const Weight *w, const float *bias,
                         int n, const RowFormat *rows, Err *e);
/* The two products of an FFN, where W13 or W2 is WEIGHT_CODED; what they pass on is in scratch, of
 * which products are act [max_pairs, inter] and codes cuda_ffn_codes_bytes. */
typedef struct FfnScratch {
    void *products, *codes;
} FfnScratch;
size_t cuda_ffn_codes_bytes(int max_pairs, int64_t inter);
/* The first one gives codes where W2 wants them and their scale is known beforehand. */
Status cuda_ffn_codes_first(Backend *b, const void *coded, const int32_t *row_of,
                            const int32_t *first, int n_experts, int max_pairs, const FfnSpec *spec,
                            const FfnScratch *s, Err *e);
Status cuda_ffn_codes_second(Backend *b, void *y, const int32_t *first, int n_experts,
                             int max_pairs, const FfnSpec *spec, const FfnScratch *s, Err *e);

size_t cuda_ffn_scratch_bytes(const Backend *b, int max_pairs, int64_t inter);
Status cuda_ffn(Backend *b, void *y, const void *x, const void *x_up, const int32_t *row_of,
                const int32_t *first, int n_experts, int max_pairs, const FfnSpec *spec,
                void *scratch, Err *e);

/* The work memory of attention: states of rows between splits of their positions. */
enum { ATTENTION_FLOATS = 32 << 20, ATTENTION_COUNTERS = 1 << 18 };
Status cuda_attention_open(Backend *b, Err *e);
void cuda_attention_close(Backend *b);
Status cuda_check_kv(const KvFormat *kv, Err *e);
Status cuda_list_create(Backend *b, int max_rows, int max_seqs, int max_pages, AttnList **out,
                        Err *e);
Status cuda_list_set(Backend *b, AttnList *l, const AttnSeq *seqs, int n_seqs, int n_padded,
                     Err *e);
void cuda_list_destroy(Backend *b, AttnList *l);

extern const ExchangeOps cuda_exchange;

size_t cuda_kv_page_bytes(const Backend *b, int n_kv_heads, int head_dim, KvDtype dtype);
Status cuda_kv_write(Backend *b, void *pool, const void *k, const void *v, int64_t stride,
                     const AttnList *list, const AttnSpec *spec, Err *e);
Status cuda_attention(Backend *b, void *out, const void *q, int64_t stride, const void *pool,
                      const AttnList *list, const AttnSpec *spec, Err *e);
size_t cuda_latent_page_bytes(const Backend *b, int latent_dim, int rope_dim, KvDtype dtype);
Status cuda_latent_write(Backend *b, void *pool, const void *rows, int64_t stride,
                         const AttnList *list, const LatentSpec *spec, Err *e);
size_t cuda_latent_scratch_bytes(const Backend *b, int n_rows, int n_positions,
                                 const LatentSpec *spec);
Status cuda_latent_attention(Backend *b, void *out, const void *q, const void *pool,
                             const AttnList *list, const LatentSpec *spec, const LatentWeights *w,
                             LatentForm form, void *scratch, Err *e);

size_t cuda_sample_scratch_bytes(const Backend *b, int n, int vocab);
Status cuda_sample(Backend *b, Sampled *out, const float *logits, int n, const SampleSpec *spec,
                   const SampleRow *rows, void *scratch, Err *e);

#endif
