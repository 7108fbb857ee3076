/* kernels/cuda/probe.cu - the plugin's one symbol: which devices there are, and whether a kernel
 * runs on them. Tile    one thread per value, 256 to a block. Budget  4 bytes read and 4 written
 * per value; it runs once, on 64 KiB, so the launch decides. Why     a driver older than the
 * toolkit, or a card older than the build, shows only when a kernel is launched. */
#include "kernels/cuda/api.h"
#include "kernels/cuda/exchange_api.h"
#include "kernels/cuda/plugin.h"

#include <cuda_runtime.h>
#include <nccl.h>
#include <stdio.h>

namespace
{

constexpr int max_devices = 64;
constexpr int n_values = 16384;

PluginDevice devices[max_devices];
char versions[128];
char why_no_device[256];
PluginInfo info;

/* Every bit of the result depends on the index and on the input, so memory that was not written
 * shows. */
__host__ __device__ inline uint32_t probe_value(uint32_t x, uint32_t i)
{
    return (x ^ i * 2654435761u) * 2246822519u + i;
}

__global__ void probe_kernel(uint32_t *y, const uint32_t *x, int n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        y[i] = probe_value(x[i], (uint32_t)i);
}

cudaError_t run_probe(uint32_t *host, uint32_t *dev)
{
    const size_t bytes = n_values * sizeof *host;
    cudaError_t err = cudaMemcpy(dev, host, bytes, cudaMemcpyHostToDevice);
    if (err != cudaSuccess)
        return err;
    probe_kernel<<<(n_values + 255) / 256, 256>>>(dev + n_values, dev, n_values);
    err = cudaGetLastError();
    if (err != cudaSuccess)
        return err;
    return cudaMemcpy(host, dev + n_values, bytes, cudaMemcpyDeviceToHost);
}

int try_device(int device, char *why, int n)
{
    static uint32_t host[n_values];
    for (uint32_t i = 0; i < n_values; i++)
        host[i] = i * 7 + 1;
    uint32_t *dev = nullptr;
    cudaError_t err = cudaSetDevice(device);
    if (err == cudaSuccess)
        err = cudaMalloc(&dev, 2 * n_values * sizeof *dev);
    if (err == cudaSuccess)
        err = run_probe(host, dev);
    cudaFree(dev);
    if (err != cudaSuccess) {
        snprintf(why, (size_t)n, "device %d: %s", device, cudaGetErrorString(err));
        return -1;
    }
    for (uint32_t i = 0; i < n_values; i++)
        if (host[i] != probe_value(i * 7 + 1, i)) {
            snprintf(why, (size_t)n, "device %d: the test kernel computed a wrong value at %u",
                     device, i);
            return -1;
        }
    return 0;
}

void describe_versions()
{
    int runtime = 0, nccl = 0;
    cudaDriverGetVersion(&info.driver_version);
    cudaRuntimeGetVersion(&runtime);
    ncclGetVersion(&nccl);
    snprintf(versions, sizeof versions, "CUDA %d.%d, NCCL %d.%d.%d", runtime / 1000,
             runtime % 1000 / 10, nccl / 10000, nccl % 10000 / 100, nccl % 100);
}

void describe_devices()
{
    if (info.driver_version == 0) {
        snprintf(why_no_device, sizeof why_no_device, "there is no CUDA driver (libcuda.so.1)");
        return;
    }
    int n = 0; /* the call may leave it untouched when it fails */
    cudaError_t err = cudaGetDeviceCount(&n);
    if (err != cudaSuccess) {
        snprintf(why_no_device, sizeof why_no_device, "%s", cudaGetErrorString(err));
        return;
    }
    for (int i = 0; i < n && i < max_devices; i++) {
        cudaDeviceProp prop;
        err = cudaGetDeviceProperties(&prop, i);
        if (err != cudaSuccess) {
            snprintf(why_no_device, sizeof why_no_device, "device %d: %s", i,
                     cudaGetErrorString(err));
            info.n_devices = 0;
            return;
        }
        snprintf(devices[i].name, sizeof devices[i].name, "%s", prop.name);
        devices[i].major = prop.major;
        devices[i].minor = prop.minor;
        devices[i].memory_bytes = (int64_t)prop.totalGlobalMem;
        snprintf(devices[i].bus_id, sizeof devices[i].bus_id, "%04x:%02x:%02x.0",
                 (unsigned)prop.pciDomainID & 0xffff, (unsigned)prop.pciBusID & 0xff,
                 (unsigned)prop.pciDeviceID & 0xff);
        info.n_devices = i + 1;
    }
    if (n == 0)
        snprintf(why_no_device, sizeof why_no_device, "the driver sees no device");
}

} // namespace

extern "C" __attribute__((visibility("default"))) const PluginInfo *moebatch_plugin_probe(void)
{
    if (info.abi == PLUGIN_ABI)
        return &info;
    info.name = "cuda";
    info.versions = versions;
    info.devices = devices;
    info.why_no_device = why_no_device;
    info.try_device = try_device;
    info.api = &cuda_api;
    info.exchange = &cuda_exchange_api;
    describe_versions();
    describe_devices();
    info.abi = PLUGIN_ABI;
    return &info;
}
