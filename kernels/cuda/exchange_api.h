/* kernels/cuda/exchange_api.h - what the program asks of the plugin for an exchange: NCCL, and the
 * kernels that pack and group rows. Like api.h: plain C; every function returns a code, 0
 * when all is well, and what it queues goes to the stream. */
#ifndef MB_KERNELS_CUDA_EXCHANGE_API_H
#define MB_KERNELS_CUDA_EXCHANGE_API_H

#include "kernels/exchange_ops.h"

typedef struct CudaExchangeApi {
    /* Of NCCL: codes are ncclResult_t. nccl_text may be called by any thread, also with NULL in
     * place of a communicator. */
    const char *(*nccl_text)(void *comm, int code);
    int (*nccl_id)(void *id_host);
    int (*nccl_open)(void **comm, const void *id_host, int rank, int size);
    int (*nccl_move)(void *comm, const LinkMove *moves, int n, void *stream);
    int (*nccl_gather)(void *comm, const void *mine, void *all, size_t bytes, void *stream);
    int (*nccl_trouble)(void *comm); /* any thread: the first asynchronous error, or 0 */
    int (*nccl_abort)(void *comm);   /* any thread */
    int (*nccl_close)(void *comm);

    /* Of CUDA: codes are cudaError_t. */
    int (*clear)(void *dst, size_t bytes, void *stream);
    int (*count)(const WindowSpec *w, void *stream);
    int (*pack)(const WindowSpec *w, void *stream);
    int (*group)(const GroupSpec *g, void *stream);
    int (*results)(const ResultSpec *r, void *stream);
} CudaExchangeApi;

#ifdef __cplusplus
extern "C" {
#endif
/* Of the .cu files, for the table in nccl.cu. */
int cuda_count_launch(const WindowSpec *w, void *stream);
int cuda_pack_launch(const WindowSpec *w, void *stream);
int cuda_group_launch(const GroupSpec *g, void *stream);
int cuda_results_launch(const ResultSpec *r, void *stream);
extern const CudaExchangeApi cuda_exchange_api;
#ifdef __cplusplus
}
#endif

#endif
