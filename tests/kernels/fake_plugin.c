/* tests/kernels/fake_plugin.c - a plugin of another version, for test_plugin.c. */
#include "kernels/cuda/plugin.h"

PluginProbe moebatch_plugin_probe;

const PluginInfo *moebatch_plugin_probe(void)
{
    static const PluginInfo info = {.abi = 0};
    return &info;
}
