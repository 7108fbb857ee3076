/* kernels/cuda/plugin.h - what the CUDA plugin shows to the program that opens it. Plain C, nothing
 * else included.
 *
 * The program has no CUDA dependency of its own: it opens moebatch_cuda.so at run time and asks it,
 * through the one symbol below, what it is. So one installation serves machines with and without
 * GPUs. */
#ifndef MB_KERNELS_CUDA_PLUGIN_H
#define MB_KERNELS_CUDA_PLUGIN_H

#include <stdint.h>

/* Goes up with every change of PluginInfo or of what it points to. The first field of PluginInfo
 * stays what it is, so that a program can refuse a plugin of another version. */
enum { PLUGIN_ABI = 11 };

typedef struct PluginDevice {
    char name[256];
    int major, minor; /* compute capability */
    int64_t memory_bytes;
    char bus_id[16]; /* "0000:1b:00.0", the same whatever CUDA_VISIBLE_DEVICES says */
} PluginDevice;

typedef struct PluginInfo {
    int32_t abi;
    const char *name;     /* "cuda" */
    const char *versions; /* "CUDA 13.0, NCCL 2.28.9", as found at run time */
    int driver_version;   /* 13000: the newest CUDA that the driver knows is 13.0; 0: no driver */
    int n_devices;        /* 0 where there is no GPU or no driver; why_no_device then says which */
    const PluginDevice *devices; /* [n_devices] */
    const char *why_no_device;   /* "" where there are devices */
    /* Runs a small kernel on a device and checks what it wrote: 0, or -1 with the reason in why (n
     * bytes). */
    int (*try_device)(int device, char *why, int n);
    const struct CudaApi *api; /* kernels/cuda/api.h */
    const struct CudaExchangeApi *exchange; /* kernels/cuda/exchange_api.h */
} PluginInfo;

/* The device of a rank that is the local_rank-th of its node; n_devices > 0. Slurm may show each rank
 * a single device of its own. */
static inline int plugin_device(const PluginInfo *p, int local_rank)
{
    return local_rank % p->n_devices;
}

#define PLUGIN_PROBE "moebatch_plugin_probe"
/* Never NULL; the plugin's own memory, filled by the first call. Not thread-safe. */
typedef const PluginInfo *PluginProbe(void);

#endif
