/* kernels/cuda/cuda.h - what the files of the CUDA backend share on the host's side.
 *
 * These files belong to the program; all that needs the CUDA toolkit is behind the plugin's table
 * (api.h). Operations are queued on one stream and return. Index arrays come from the host, as
 * backend.h says, and travel through a ring of pinned memory; what the router chose is waited for,
 * once a layer. That round trip keeps steps from being captured whole, and is to go when the model
 * keeps its index arrays on the device. */
#ifndef MB_KERNELS_CUDA_CUDA_H
#define MB_KERNELS_CUDA_CUDA_H

#include "kernels/cuda/api.h"
#include "kernels/cuda/backend_cuda.h"
#include "kernels/cuda/upload.h"

typedef struct Ring { /* pinned memory and its copy on the device, filled from the front */
    char *host, *dev;
    size_t cap, at;
} Ring;

struct Backend {
    const CudaApi *api;
    void *stream;
    Ring ring;
    Team *team; /* borrowed; NULL: the caller alone */
    Upload upload;
    bool warned; /* of weights that are rounded */
};

struct Weight {
    char name[128];
    WeightUse use;
    int n_mats, n_parts, planes;
    int64_t cols, cols_padded, rows; /* rows: outputs of all parts */
    CudaPart part[MAX_PARTS];        /* a lookup bank is one part in bf16, its rows not filled up */
    FormatId format[MAX_PARTS];
    int64_t group[MAX_PARTS];   /* as created: columns that share a scale */
    ScaleType scale[MAX_PARTS]; /* as created */
    /* where matrix 0 of each part lies in data */
    size_t codes_at[MAX_PARTS], scales_at[MAX_PARTS], row_scale_at[MAX_PARTS];
    uint8_t *data;
    size_t bytes;
};

/* ST_MEMORY or ST_DEVICE, "op: what CUDA says", unless code is 0. */
Status cuda_status(const Backend *b, int code, const char *op, Err *e);
/* Room for takes of bytes altogether, n of them: what an op does first that takes more than once,
 * so that no take moves what the one before it has given. Waits for the device where the ring is
 * full. */
Status cuda_ring_reserve(Backend *b, size_t bytes, int n, Err *e);
/* bytes of the ring, which the caller fills at *host before cuda_ring_send; *dev is where the
 * device has them, until the ring has gone round. */
Status cuda_ring_take(Backend *b, size_t bytes, void **host, void **dev, Err *e);
Status cuda_ring_send(Backend *b, const void *host, void *dev, size_t bytes, Err *e);
/* Both: an array of the host, as the device will see it. */
Status cuda_ring_copy(Backend *b, const void *from, size_t bytes, const void **dev, Err *e);

Status cuda_alloc(Backend *b, size_t bytes, const char *what, void **out, Err *e);
void cuda_release(Backend *b, void *p);

Status cuda_weight_create(Backend *b, const char *name, WeightUse use, int n_mats,
                          const WeightPart *parts, int n_parts, int64_t cols, Weight **out, Err *e);
Status cuda_weight_set(Backend *b, Weight *w, int mat, int part, const QuantTensor *t, Err *e);
void cuda_weight_destroy(Backend *b, Weight *w);
size_t cuda_weight_bytes(const Weight *w);

Status cuda_matmul(Backend *b, void *y, const void *x, const Weight *w, int part, const float *bias,
                   int n, Err *e);
Status cuda_matmul_float(Backend *b, float *y, const void *x, const Weight *w, const float *bias,
                         int n, Err *e);
size_t cuda_ffn_scratch_bytes(const Backend *b, int n_pairs, int64_t inter);
Status cuda_ffn(Backend *b, void *y, const void *x, const void *x_up, const int32_t *row_of,
                const int32_t *first, int n_experts, const FfnSpec *spec, void *scratch, Err *e);

size_t cuda_kv_page_bytes(const Backend *b, int n_kv_heads, int head_dim, KvDtype dtype);
Status cuda_kv_write(Backend *b, void *pool, const void *k, const void *v, int64_t stride,
                     const AttnSeq *seqs, int n_seqs, const AttnSpec *spec, Err *e);
Status cuda_attention(Backend *b, void *out, const void *q, int64_t stride, const void *pool,
                      const AttnSeq *seqs, int n_seqs, const AttnSpec *spec, Err *e);
size_t cuda_latent_page_bytes(const Backend *b, int latent_dim, int rope_dim, KvDtype dtype);
Status cuda_latent_write(Backend *b, void *pool, const void *rows, int64_t stride,
                         const AttnSeq *seqs, int n_seqs, const LatentSpec *spec, Err *e);
size_t cuda_latent_scratch_bytes(const Backend *b, int n_rows, const LatentSpec *spec);
Status cuda_latent_attention(Backend *b, void *out, const void *q, const void *pool,
                             const AttnSeq *seqs, int n_seqs, const LatentSpec *spec,
                             const LatentWeights *w, LatentForm form, void *scratch, Err *e);

#endif
