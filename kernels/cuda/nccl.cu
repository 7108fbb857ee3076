/* kernels/cuda/nccl.cu - NCCL, and the table of what the program may ask of the plugin for an
 * exchange. No kernels: messages are bytes, queued on the backend's stream. */
#include "kernels/cuda/exchange_api.h"

#include <cuda_runtime.h>
#include <nccl.h>
#include <string.h>

static_assert(sizeof(ncclUniqueId) == LINK_ID_BYTES, "an id travels as that many bytes");

namespace
{

const char *nccl_text(void *comm, int code)
{
    const char *last = ncclGetLastError((ncclComm_t)comm);
    return last && *last ? last : ncclGetErrorString((ncclResult_t)code);
}

int nccl_id(void *id_host)
{
    ncclUniqueId id;
    ncclResult_t r = ncclGetUniqueId(&id);
    memcpy(id_host, &id, sizeof id);
    return r;
}

/* Blocking calls: the caller's watchdog ends a job whose ranks do not all come. */
int nccl_open(void **comm, const void *id_host, int rank, int size)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    memcpy(&id, id_host, sizeof id);
    config.blocking = 1;
    return ncclCommInitRankConfig((ncclComm_t *)comm, size, id, rank, &config);
}

int nccl_move(void *comm, const LinkMove *moves, int n, void *stream)
{
    ncclComm_t c = (ncclComm_t)comm;
    cudaStream_t s = (cudaStream_t)stream;
    ncclResult_t r = ncclGroupStart();
    for (int i = 0; i < n && r == ncclSuccess; i++) {
        const LinkMove *m = &moves[i];
        if (m->bytes == 0)
            continue;
        r = m->send ? ncclSend(m->at, m->bytes, ncclUint8, m->peer, c, s)
                    : ncclRecv(m->at, m->bytes, ncclUint8, m->peer, c, s);
    }
    ncclResult_t end = ncclGroupEnd();
    return r != ncclSuccess ? r : end;
}

int nccl_gather(void *comm, const void *mine, void *all, size_t bytes, void *stream)
{
    return ncclAllGather(mine, all, bytes, ncclUint8, (ncclComm_t)comm, (cudaStream_t)stream);
}

int nccl_trouble(void *comm)
{
    ncclResult_t state = ncclSuccess, r = ncclCommGetAsyncError((ncclComm_t)comm, &state);
    if (r != ncclSuccess)
        return r;
    return state == ncclInProgress ? ncclSuccess : state;
}

int nccl_abort(void *comm)
{
    return ncclCommAbort((ncclComm_t)comm);
}

int nccl_close(void *comm)
{
    ncclResult_t r = ncclCommFinalize((ncclComm_t)comm), d = ncclCommDestroy((ncclComm_t)comm);
    return r != ncclSuccess ? r : d;
}

int clear(void *dst, size_t bytes, void *stream)
{
    return cudaMemsetAsync(dst, 0, bytes, (cudaStream_t)stream);
}

} // namespace

extern "C" const CudaExchangeApi cuda_exchange_api = {
    nccl_text,
    nccl_id,
    nccl_open,
    nccl_move,
    nccl_gather,
    nccl_trouble,
    nccl_abort,
    nccl_close,
    clear,
    cuda_count_launch,
    cuda_pack_launch,
    cuda_group_launch,
    cuda_results_launch,
};
