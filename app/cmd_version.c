/* app/cmd_version.c - moebatch --version: what is in this build, and what this machine adds. */
#include "app/commands.h"
#include "kernels/backend.h"
#include "kernels/plugin.h"

#include <stdio.h>

int cmd_version(void)
{
    const PluginInfo *plugin = NULL;
    Err e;
    printf("moebatch %s\n", MOEBATCH_VERSION);
    printf("cpu: %s\n", isa_name(isa_best()));
    if (plugin_open(&plugin, &e) != ST_OK) {
        printf("cuda: not available: %s\n", e.text);
        return 0;
    }
    printf("cuda: %s (%s)\n", plugin_path(), plugin->versions);
    if (plugin->driver_version > 0)
        printf("  driver for CUDA up to %d.%d\n", plugin->driver_version / 1000,
               plugin->driver_version % 1000 / 10);
    for (int i = 0; i < plugin->n_devices; i++)
        printf("  device %d: %s, sm_%d%d, %.1f GiB\n", i, plugin->devices[i].name,
               plugin->devices[i].major, plugin->devices[i].minor,
               (double)plugin->devices[i].memory_bytes / (1 << 30));
    if (plugin->n_devices == 0)
        printf("  no device: %s\n", plugin->why_no_device);
    return 0;
}
