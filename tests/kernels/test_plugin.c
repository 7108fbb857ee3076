/* tests/kernels/test_plugin.c - the plugin opens where it can, and says why where it cannot. */
#include "kernels/plugin.h"
#include "tests/support/check.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/moebatch-plugin-XXXXXX";
static char path[128];

static int refused(const char *name, const char *where, const char *why)
{
    const PluginInfo *info = NULL;
    Err e = {0};
    setenv("MOEBATCH_PLUGIN_DIR", where, 1);
    int failed = check_int(name, plugin_open(&info, &e), ST_DEVICE);
    failed += check_has(name, e.text, why);
    return failed + check_true(name, info == NULL);
}

static int check_broken(void)
{
    int failed = refused("no such folder", "/nowhere at all", "there is no CUDA plugin");
    failed += refused("empty folder", folder, "there is no CUDA plugin");
    failed += check_str("and no path", plugin_path(), "");
    FILE *f = fopen(path, "w");
    if (!f || fputs("not a library", f) < 0 || fclose(f) != 0)
        return check_true("writing a file", false);
    failed += refused("not a library", folder, "cannot be opened: ");
    unlink(path);
    /* Any library will do that is not ours. */
    double (*function)(double) = cos;
    void *address;
    memcpy(&address, &function, sizeof address);
    Dl_info libm;
    if (dladdr(address, &libm) == 0 || symlink(libm.dli_fname, path) != 0)
        return failed + check_true("linking to libm", false);
    failed += refused("another library", folder, "is not a moebatch plugin");
    unlink(path);
    return failed;
}

static int check_other_version(void)
{
    char fake[4096];
    const char *build = getenv("BUILD");
    snprintf(fake, sizeof fake, "%s/tests/fake_plugin", build ? build : ".");
    int failed = refused("another version", fake,
                         "belongs to another version of moebatch (interface 0, expected ");
    return failed + check_has("where it is", plugin_path(), "/tests/fake_plugin/moebatch_cuda.so");
}

static int check_real(void)
{
    const PluginInfo *info = NULL, *again = NULL;
    Err e = {0};
    unsetenv("MOEBATCH_PLUGIN_DIR");
    if (plugin_open(&info, &e) != ST_OK) {
        printf("no plugin to try: %s\n", e.text);
        return check_has("why there is none", e.text, "CUDA plugin");
    }
    printf("%s: %s, %d devices%s%s\n", info->name, info->versions, info->n_devices,
           info->n_devices ? "" : ": ", info->why_no_device);
    int failed = check_str("name", info->name, "cuda");
    failed += check_has("versions", info->versions, "NCCL 2.");
    failed += check_true("no device, with a reason",
                         (info->n_devices == 0) == (info->why_no_device[0] != 0));
    failed += check_int("once more", plugin_open(&again, &e), ST_OK);
    failed += check_true("the same", again == info);
    char why[256] = "";
    for (int i = 0; i < info->n_devices; i++) {
        printf("device %d: %s, sm_%d%d, %.1f GiB\n", i, info->devices[i].name,
               info->devices[i].major, info->devices[i].minor,
               (double)info->devices[i].memory_bytes / (1 << 30));
        if (check_int("a kernel runs", info->try_device(i, why, sizeof why), 0))
            failed += check_str("a kernel runs", why, "");
    }
    failed += check_int("no such device", info->try_device(info->n_devices, why, sizeof why), -1);
    failed += check_has("no such device", why, "device ");
    return failed;
}

int main(void)
{
    if (!mkdtemp(folder))
        return check_true(strerror(errno), false);
    snprintf(path, sizeof path, "%s/moebatch_cuda.so", folder);
    int failed = check_broken() + check_other_version() + check_real();
    rmdir(folder);
    return test_result(failed);
}
