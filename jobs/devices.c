/* jobs/devices.c - see devices.h. */
#include "jobs/devices.h"

#include "kernels/plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build ...": the first
 * word of digits and dots. */
static void read_driver(char *out, size_t n)
{
    char line[256];
    FILE *f = fopen("/proc/driver/nvidia/version", "r");
    out[0] = 0;
    if (!f)
        return;
    if (fgets(line, sizeof line, f)) {
        char *rest = NULL;
        for (char *word = strtok_r(line, " \t\n", &rest); word;
             word = strtok_r(NULL, " \t\n", &rest))
            if (strchr(word, '.') && strspn(word, "0123456789.") == strlen(word)) {
                snprintf(out, n, "%s", word);
                break;
            }
    }
    fclose(f);
}

static void try_devices(DeviceReport *r, const PluginInfo *plugin)
{
    for (int i = 0; i < r->n_devices && i < DEVICES_MAX; i++) {
        FoundDevice *d = &r->device[i];
        d->is = plugin->devices[i];
        bool spare = i >= r->n_local && i % r->n_local == r->local_rank;
        if (i != r->mine && !spare)
            continue;
        d->trial = plugin->try_device(i, d->why, sizeof d->why) == 0 ? DEVICE_WORKS : DEVICE_FAILS;
    }
}

static void find(const Comm *comm, DeviceReport *r)
{
    const PluginInfo *plugin;
    Err e = {0};
    *r = (DeviceReport){.rank = comm->rank,
                        .local_rank = comm->local_rank,
                        .n_local = comm->n_local,
                        .n_cores = comm->n_cores,
                        .isa = isa_best(),
                        .mine = -1};
    snprintf(r->host, sizeof r->host, "%s", comm->host);
    read_driver(r->driver, sizeof r->driver);
    Status st = plugin_open(&plugin, &e);
    snprintf(r->plugin, sizeof r->plugin, "%.511s", plugin_path());
    if (st != ST_OK) {
        snprintf(r->why, sizeof r->why, "%s", e.text);
        return;
    }
    snprintf(r->versions, sizeof r->versions, "%s", plugin->versions);
    snprintf(r->why, sizeof r->why, "%s", plugin->why_no_device);
    r->driver_cuda = plugin->driver_version;
    r->n_devices = plugin->n_devices;
    if (r->n_devices > 0)
        r->mine = plugin_device(plugin, r->local_rank);
    try_devices(r, plugin);
}

static bool same_device(const DeviceReport *a, int i, const DeviceReport *b, int j)
{
    return strcmp(a->host, b->host) == 0 &&
           strcmp(a->device[i].is.bus_id, b->device[j].is.bus_id) == 0;
}

/* A device that several ranks see is told once, with whatever any of them found out. */
static void merge(DeviceReport *all, int i, int device)
{
    FoundDevice *d = &all[i].device[device];
    for (int k = 0; k < i; k++)
        for (int j = 0; j < all[k].n_devices && j < DEVICES_MAX; j++) {
            FoundDevice *first = &all[k].device[j];
            if (first->repeated || !same_device(&all[k], j, &all[i], device))
                continue;
            d->repeated = true;
            if (d->trial > first->trial) {
                first->trial = d->trial;
                memcpy(first->why, d->why, sizeof first->why);
            }
            return;
        }
}

Status devices_find(Comm *comm, DeviceReport **all, Err *e)
{
    DeviceReport *mine = malloc(sizeof *mine), *gathered = NULL;
    *all = NULL;
    if (mine)
        find(comm, mine);
    if (comm->rank == 0)
        gathered = malloc((size_t)comm->size * sizeof *gathered);
    Status st = mine && (gathered || comm->rank != 0)
                    ? ST_OK
                    : err_set(e, ST_MEMORY, "out of memory: a report of devices");
    st = dist_agree(comm, st, e);
    if (st == ST_OK)
        st = comm_gather(comm, mine, sizeof *mine, gathered, 0, e);
    free(mine);
    if (st != ST_OK) {
        free(gathered);
        return st;
    }
    for (int i = 0; i < comm->size && gathered; i++)
        for (int d = 0; d < gathered[i].n_devices && d < DEVICES_MAX; d++)
            merge(gathered, i, d);
    *all = gathered;
    return ST_OK;
}

bool device_is_tested(const PluginDevice *d)
{
    return d->major == DEVICE_TUNED_MAJOR && d->minor == DEVICE_TUNED_MINOR;
}

int device_first_rank(const DeviceReport *all, int i)
{
    if (all[i].mine < 0 || all[i].mine >= DEVICES_MAX)
        return -1;
    for (int k = 0; k < i; k++)
        if (all[k].mine >= 0 && all[k].mine < DEVICES_MAX &&
            same_device(&all[k], all[k].mine, &all[i], all[i].mine))
            return all[k].rank;
    return all[i].rank;
}
