/* tests/kernels/fake_plugin.c - plugins that have no GPU behind them, for test_plugin.c and
 * case_devices.sh: one of another version; with FAKE_DEVICES one with three devices, of which one
 * works, one works but is of a kind that nobody has tried, and one does not, or with the first
 * FAKE_DEVICES (in the environment) of them. */
#include "kernels/cuda/plugin.h"

#include <stdio.h>
#include <stdlib.h>

PluginProbe moebatch_plugin_probe;

#ifdef FAKE_DEVICES
static int try_device(int device, char *why, int n)
{
    if (device < 2)
        return 0;
    snprintf(why, (size_t)n, "device %d: no kernel image is available", device);
    return -1;
}

static const PluginDevice devices[] = {
    {"NVIDIA H200", 9, 0, (int64_t)139 << 30, "0000:1b:00.0"},
    {"NVIDIA A100-SXM4-40GB", 8, 0, (int64_t)40 << 30, "0000:5c:00.0"},
    {"Tesla T4", 7, 5, (int64_t)15 << 30, "0000:9d:00.0"},
};

const PluginInfo *moebatch_plugin_probe(void)
{
    const char *n = getenv("FAKE_DEVICES");
    static PluginInfo info = {.abi = PLUGIN_ABI,
                              .name = "cuda",
                              .versions = "CUDA 13.0, NCCL 2.28.9",
                              .driver_version = 13010,
                              .n_devices = 3,
                              .devices = devices,
                              .why_no_device = "",
                              .try_device = try_device};
    if (n)
        info.n_devices = atoi(n);
    return &info;
}
#else
const PluginInfo *moebatch_plugin_probe(void)
{
    static const PluginInfo info = {.abi = 0};
    return &info;
}
#endif
