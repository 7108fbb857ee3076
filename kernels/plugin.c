/* kernels/plugin.c - see plugin.h. */
#include "kernels/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char file_name[] = "moebatch_cuda.so";
static char found[PATH_MAX + 64];

static Status accept(void *library, const char *path, const PluginInfo **out, Err *e)
{
    /* ISO C has no conversion from an object pointer to a function pointer; POSIX promises that
     * this works. */
    PluginProbe *probe = NULL;
    void *symbol = dlsym(library, PLUGIN_PROBE);
    memcpy(&probe, &symbol, sizeof probe);
    if (!probe)
        return err_set(e, ST_DEVICE, "%s is not a moebatch plugin: it lacks %s", path,
                       PLUGIN_PROBE);
    const PluginInfo *info = probe();
    if (info->abi != PLUGIN_ABI)
        return err_set(e, ST_DEVICE,
                       "%s belongs to another version of moebatch (interface %d, expected %d)",
                       path, (int)info->abi, (int)PLUGIN_ABI);
    *out = info;
    return ST_OK;
}

const char *plugin_path(void)
{
    return found;
}

/* The executable's folder, without a slash at its end. */
static Status own_folder(char *out, size_t n, Err *e)
{
    ssize_t len = readlink("/proc/self/exe", out, n - 1);
    if (len < 0)
        return err_errno(e, "/proc/self/exe");
    out[len] = 0;
    char *slash = strrchr(out, '/');
    if (slash)
        *slash = 0;
    return ST_OK;
}

Status plugin_open(const PluginInfo **out, Err *e)
{
    static const char *const places[] = {"", "/../lib/moebatch", "/.."};
    char folder[PATH_MAX], path[PATH_MAX + 64];
    const char *given = getenv("MOEBATCH_PLUGIN_DIR");
    size_t n_places = given ? 1 : sizeof places / sizeof *places;
    *out = NULL;
    found[0] = 0;
    if (given)
        snprintf(folder, sizeof folder, "%s", given);
    else
        TRY(own_folder(folder, sizeof folder, e));
    for (size_t i = 0; i < n_places; i++) {
        snprintf(path, sizeof path, "%s%s/%s", folder, places[i], file_name);
        if (access(path, F_OK) != 0)
            continue;
        if (!realpath(path, found))
            snprintf(found, sizeof found, "%s", path);
        /* Local, so that the plugin's libraries cannot answer for the program's own symbols. */
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            const char *why = dlerror();
            return err_set(e, ST_DEVICE, "the CUDA plugin cannot be opened: %s", why ? why : path);
        }
        return accept(library, path, out, e);
    }
    return err_set(e, ST_DEVICE, "there is no CUDA plugin (%s) for the program in %s", file_name,
                   folder);
}
