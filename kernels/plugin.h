/* kernels/plugin.h - opens the CUDA plugin, where there is one. */
#ifndef MB_KERNELS_PLUGIN_H
#define MB_KERNELS_PLUGIN_H

#include "io/err.h"
#include "kernels/cuda/plugin.h"

/* Looks for moebatch_cuda.so beside the executable, then in ../lib/moebatch (an installation) and
 * .. (a test in the build folder); or only in the folder that MOEBATCH_PLUGIN_DIR names. ST_DEVICE
 * with the reason when there is none or it cannot be used: a missing library of the CUDA toolkit,
 * another version of moebatch. A plugin that finds no GPU opens well, with n_devices 0. *out lives
 * as long as the process: a plugin is never closed, since the CUDA runtime keeps threads of its
 * own. Takes up to half a second. Not thread-safe. */
Status plugin_open(const PluginInfo **out, Err *e);
/* Where the file is that plugin_open found, whether it could be used or not; "": none. */
const char *plugin_path(void);

#endif
