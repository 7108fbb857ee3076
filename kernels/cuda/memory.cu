/* kernels/cuda/memory.cu - the device, its memory and copies, and the table of everything that the
 * program may ask of the plugin. */
#include "kernels/cuda/api.h"
#include "kernels/cuda/arch.cuh"

#include <cuda_runtime.h>

namespace
{

const char *error_text(int code)
{
    return cudaGetErrorString((cudaError_t)code);
}

bool is_out_of_memory(int code)
{
    return code == cudaErrorMemoryAllocation;
}

int open_device(int device, void **stream)
{
    cudaStream_t s = nullptr;
    cudaError_t err = cudaSetDevice(device);
    (void)cuda_has_sm90a(); /* asks the device now, so that no launch has to */
    if (err == cudaSuccess)
        err = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    *stream = s;
    return err;
}

int stream_open(void **out)
{
    cudaStream_t s = nullptr;
    cudaError_t err = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    *out = s;
    return err;
}

int close_stream(void *stream)
{
    return cudaStreamDestroy((cudaStream_t)stream);
}

int memory(size_t *free_bytes, size_t *total_bytes)
{
    return cudaMemGetInfo(free_bytes, total_bytes);
}

/* A failed allocation must not look like a failed launch later. */
int take(void **out, size_t bytes)
{
    cudaError_t err = cudaMalloc(out, bytes);
    if (err != cudaSuccess)
        (void)cudaGetLastError();
    return err;
}

int release(void *p)
{
    return cudaFree(p);
}

int take_host(void **out, size_t bytes)
{
    cudaError_t err = cudaMallocHost(out, bytes);
    if (err != cudaSuccess)
        (void)cudaGetLastError();
    return err;
}

int release_host(void *p)
{
    return cudaFreeHost(p);
}

int to_device(void *dst, const void *src_host, size_t bytes, void *stream)
{
    return cudaMemcpyAsync(dst, src_host, bytes, cudaMemcpyHostToDevice, (cudaStream_t)stream);
}

int to_host(void *dst_host, const void *src, size_t bytes, void *stream)
{
    return cudaMemcpyAsync(dst_host, src, bytes, cudaMemcpyDeviceToHost, (cudaStream_t)stream);
}

int wait_stream(void *stream)
{
    return cudaStreamSynchronize((cudaStream_t)stream);
}

int event_create(void **out)
{
    cudaEvent_t event = nullptr;
    cudaError_t err = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    *out = event;
    return err;
}

int event_destroy(void *event)
{
    return cudaEventDestroy((cudaEvent_t)event);
}

int event_record(void *event, void *stream)
{
    return cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream);
}

int event_wait(void *event)
{
    return cudaEventSynchronize((cudaEvent_t)event);
}

int stream_wait(void *stream, void *event)
{
    return cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0);
}

int capture_begin(void *stream)
{
    return cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal);
}

int capture_end(void *stream, void **graph)
{
    cudaGraph_t recorded = nullptr;
    cudaGraphExec_t ready = nullptr;
    cudaError_t err = cudaStreamEndCapture((cudaStream_t)stream, &recorded);
    if (err == cudaSuccess)
        err = cudaGraphInstantiate(&ready, recorded, 0);
    if (recorded)
        cudaGraphDestroy(recorded);
    *graph = err == cudaSuccess ? ready : nullptr;
    return err;
}

int graph_launch(void *graph, void *stream)
{
    return cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream);
}

int graph_destroy(void *graph)
{
    return cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

int has_sm90a()
{
    return cuda_has_sm90a();
}

} // namespace

extern "C" const CudaApi cuda_api = {
    error_text,
    is_out_of_memory,
    open_device,
    stream_open,
    close_stream,
    cuda_ceilings,
    memory,
    take,
    release,
    take_host,
    release_host,
    to_device,
    to_host,
    wait_stream,
    event_create,
    event_destroy,
    event_record,
    event_wait,
    stream_wait,
    capture_begin,
    capture_end,
    graph_launch,
    graph_destroy,
    cuda_embed_launch,
    cuda_add_norm_launch,
    cuda_norm_launch,
    cuda_rope_launch,
    cuda_combine_launch,
    cuda_gate_rows_launch,
    cuda_clamp_launch,
    cuda_gather_launch,
    cuda_copy_lanes_launch,
    cuda_code_rows_launch,
    cuda_gemm_launch,
    cuda_repack_launch,
    has_sm90a,
    cuda_fp8_rows_launch,
    cuda_fp8_gemm_launch,
    cuda_write_keys_launch,
    cuda_attention_launch,
    cuda_write_latents_launch,
    cuda_latent_attention_launch,
    cuda_read_latents_launch,
    cuda_expanded_attention_launch,
    cuda_route_launch,
    cuda_sample_launch,
};
