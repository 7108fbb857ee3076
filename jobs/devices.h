/* jobs/devices.h - what each rank finds on its node: the plugin, the driver, the GPUs, and which one
 * it would take. */
#ifndef MB_JOBS_DEVICES_H
#define MB_JOBS_DEVICES_H

#include "dist/comm.h"
#include "kernels/backend.h"
#include "kernels/cuda/plugin.h"

enum { DEVICES_MAX = 16, DEVICE_TUNED_MAJOR = 9, DEVICE_TUNED_MINOR = 0 };

typedef enum DeviceTrial { DEVICE_NOT_TRIED, DEVICE_WORKS, DEVICE_FAILS } DeviceTrial;

typedef struct FoundDevice {
    PluginDevice is;
    DeviceTrial trial; /* of a small kernel, by any rank of the host */
    char why[256];     /* DEVICE_FAILS: what CUDA says */
    bool repeated;     /* a report before this one has it: same host, same bus id */
} FoundDevice;

/* Plain data: ranks send it to each other. */
typedef struct DeviceReport {
    int rank, local_rank, n_local;
    int n_cores;
    IsaLevel isa;
    char host[64];
    char plugin[512];   /* its path; "": none */
    char why[512];      /* the plugin cannot be used, or sees no device; else "" */
    char versions[128]; /* of CUDA and NCCL; "" without a usable plugin */
    char driver[64];    /* "580.95.05", as the kernel module says; "": none found */
    int driver_cuda;    /* 13000: what the driver supports; 0: no driver */
    int n_devices;      /* that this rank sees; device [min(n_devices, DEVICES_MAX)] */
    int mine;           /* the device that this rank would take; -1: none */
    FoundDevice device[DEVICES_MAX];
} DeviceReport;

/* Collective. Opens the plugin on every rank. A rank tries the device that it would take, and its
 * share of those that none would. all: [size], on rank 0 only, else NULL; the caller frees it. */
Status devices_find(Comm *comm, DeviceReport **all, Err *e);
/* Whether kernels were measured and tested on devices of this kind. */
bool device_is_tested(const PluginDevice *d);
/* The lowest rank that would take the same device as the one of report i; -1: none takes one. */
int device_first_rank(const DeviceReport *all, int i);

#endif
