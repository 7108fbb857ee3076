/* app/cmd_devices.c - moebatch devices: the plugin, the driver and the GPUs that ranks find, whether a
 * kernel runs on them, and which rank would take which. */
#include "app/commands.h"
#include "app/job_options.h"
#include "io/strbuf.h"
#include "jobs/devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_first_of_host(const DeviceReport *all, int i)
{
    for (int k = 0; k < i; k++)
        if (strcmp(all[k].host, all[i].host) == 0)
            return false;
    return true;
}

static int n_shown(const DeviceReport *r)
{
    return r->n_devices < DEVICES_MAX ? r->n_devices : DEVICES_MAX;
}

/* --- for people --- */

static void tell_node(const DeviceReport *r, StrBuf *out)
{
    strbuf_fmt(out, "%s\n", r->host);
    if (r->versions[0])
        strbuf_fmt(out, "  plugin    %s (%s)\n", r->plugin, r->versions);
    else
        strbuf_fmt(out, "  plugin    none: %s\n", r->why);
    if (r->driver[0] || r->driver_cuda > 0)
        strbuf_fmt(out, "  driver    %s", r->driver[0] ? r->driver : "of unknown version");
    else
        strbuf_str(out, "  driver    none");
    if (r->driver_cuda > 0)
        strbuf_fmt(out, ", for CUDA up to %d.%d", r->driver_cuda / 1000,
                   r->driver_cuda % 1000 / 10);
    strbuf_str(out, "\n");
    if (r->versions[0] && r->n_devices == 0)
        strbuf_fmt(out, "  no device: %s\n", r->why);
}

static void tell_device(const FoundDevice *d, int index, StrBuf *out)
{
    static const char *const trials[] = {"not tried", "runs the test kernel", "FAILS"};
    strbuf_fmt(out, "  device %-2d %s, sm_%d%d, %.1f GiB, %s: %s%s%s%s\n", index, d->is.name,
               d->is.major, d->is.minor, (double)d->is.memory_bytes / (1 << 30), d->is.bus_id,
               trials[d->trial], d->why[0] ? ": " : "", d->why,
               device_is_tested(&d->is) ? "" : "; moebatch is untested on this kind");
}

static void tell_rank(const DeviceReport *all, int i, StrBuf *out)
{
    const DeviceReport *r = &all[i];
    int first = device_first_rank(all, i);
    strbuf_fmt(out, "  rank %-4d ", r->rank);
    if (r->mine < 0)
        strbuf_str(out, "no device");
    else
        strbuf_fmt(out, "device %d", r->mine);
    if (first >= 0 && first != r->rank)
        strbuf_fmt(out, ", which rank %d has too", first);
    strbuf_fmt(out, "; cpu %s, %d thread%s\n", isa_name(r->isa), r->n_cores,
               r->n_cores == 1 ? "" : "s");
}

static void tell(const DeviceReport *all, int n, StrBuf *out)
{
    strbuf_fmt(out, "moebatch %s\n", MOEBATCH_VERSION);
    for (int i = 0; i < n; i++) {
        if (!is_first_of_host(all, i))
            continue;
        tell_node(&all[i], out);
        for (int k = i; k < n; k++)
            for (int d = 0; strcmp(all[k].host, all[i].host) == 0 && d < n_shown(&all[k]); d++)
                if (!all[k].device[d].repeated)
                    tell_device(&all[k].device[d], d, out);
        for (int k = i; k < n; k++)
            if (strcmp(all[k].host, all[i].host) == 0)
                tell_rank(all, k, out);
    }
}

/* --- for programs --- */

static void json_text(StrBuf *out, const char *key, const char *text)
{
    strbuf_fmt(out, "\"%s\": ", key);
    if (text[0])
        strbuf_json_string(out, text, strlen(text));
    else
        strbuf_str(out, "null");
}

static void json_cuda(StrBuf *out, int version)
{
    if (version > 0)
        strbuf_fmt(out, "\"%d.%d\"", version / 1000, version % 1000 / 10);
    else
        strbuf_str(out, "null");
}

static void json_device(const FoundDevice *d, int index, bool first, StrBuf *out)
{
    static const char *const works[] = {"null", "true", "false"};
    strbuf_fmt(out, "%s\n    {\"index\": %d, ", first ? "" : ",", index);
    json_text(out, "name", d->is.name);
    strbuf_fmt(out, ", \"compute_capability\": \"%d.%d\", \"memory_bytes\": %lld, ", d->is.major,
               d->is.minor, (long long)d->is.memory_bytes);
    json_text(out, "bus_id", d->is.bus_id);
    strbuf_fmt(out, ", \"works\": %s, ", works[d->trial]);
    json_text(out, "error", d->why);
    strbuf_fmt(out, ", \"tested\": %s}", device_is_tested(&d->is) ? "true" : "false");
}

static void json_rank(const DeviceReport *all, int i, bool first, StrBuf *out)
{
    const DeviceReport *r = &all[i];
    int has = device_first_rank(all, i);
    strbuf_fmt(out, "%s\n    {\"rank\": %d, \"local_rank\": %d, \"device\": ", first ? "" : ",",
               r->rank, r->local_rank);
    if (r->mine < 0)
        strbuf_str(out, "null");
    else
        strbuf_fmt(out, "%d", r->mine);
    strbuf_fmt(out, ", \"shared\": %s, \"cpu\": \"%s\", \"threads\": %d}",
               has >= 0 && has != r->rank ? "true" : "false", isa_name(r->isa), r->n_cores);
}

static void json_node(const DeviceReport *all, int n, int i, bool first, StrBuf *out)
{
    const DeviceReport *r = &all[i];
    bool one = true;
    strbuf_fmt(out, "%s\n  {", first ? "" : ",");
    json_text(out, "host", r->host);
    strbuf_str(out, ", \"plugin\": {");
    json_text(out, "path", r->plugin);
    strbuf_str(out, ", ");
    json_text(out, "versions", r->versions);
    strbuf_str(out, ", ");
    json_text(out, "error", r->why);
    strbuf_str(out, "},\n   \"driver\": {");
    json_text(out, "version", r->driver);
    strbuf_str(out, ", \"cuda\": ");
    json_cuda(out, r->driver_cuda);
    strbuf_str(out, "},\n   \"devices\": [");
    for (int k = i; k < n; k++)
        for (int d = 0; strcmp(all[k].host, r->host) == 0 && d < n_shown(&all[k]); d++)
            if (!all[k].device[d].repeated) {
                json_device(&all[k].device[d], d, one, out);
                one = false;
            }
    strbuf_str(out, "],\n   \"ranks\": [");
    for (int k = i; k < n; k++)
        if (strcmp(all[k].host, r->host) == 0)
            json_rank(all, k, k == i, out);
    strbuf_str(out, "]}");
}

static void tell_json(const DeviceReport *all, int n, StrBuf *out)
{
    strbuf_fmt(out, "{\"version\": \"%s\", \"nodes\": [", MOEBATCH_VERSION);
    for (int i = 0; i < n; i++)
        if (is_first_of_host(all, i))
            json_node(all, n, i, i == 0, out);
    strbuf_str(out, "]}\n");
}

/* --- the command --- */

static bool any_fails(const DeviceReport *all, int n)
{
    for (int i = 0; i < n; i++)
        for (int d = 0; d < n_shown(&all[i]); d++)
            if (all[i].device[d].trial == DEVICE_FAILS)
                return true;
    return false;
}

static int run(void *ctx, Comm *comm, Status *st, Err *e)
{
    const bool *json = ctx;
    DeviceReport *all;
    StrBuf out = {0};
    int64_t code = 0;
    *st = devices_find(comm, &all, e);
    if (*st != ST_OK)
        return 1;
    if (all) {
        (*json ? tell_json : tell)(all, comm->size, &out);
        fputs(out.failed ? "" : out.data, stdout);
        code = any_fails(all, comm->size);
        strbuf_free(&out);
        free(all);
    }
    *st = comm_bcast(comm, &code, sizeof code, 0, e);
    return (int)code;
}

int cmd_devices(int argc, char **argv)
{
    Err e;
    bool json = false, help;
    const Option options[] = {
        {"--json", NULL, OPTION_FLAG, &json, NULL, 0, 0, NULL, "for programs"},
    };
    Status st = options_parse(options, sizeof options / sizeof *options, argc, argv, NULL, 0, NULL,
                              &help, &e);
    if (st != ST_OK)
        return app_usage("devices", &e);
    if (help) {
        puts(
            "Usage: [mpirun -n RANKS] moebatch devices [--json]\n\n"
            "What each rank finds on its node: the CUDA plugin or why there is none, the driver, "
            "the GPUs,\nwhether a small kernel runs on them, and the GPU that the rank would take: "
            "its number on the\nnode modulo the GPUs that it sees. Only sm_90 is tuned and "
            "tested.\nExit: 0, 1 when a GPU was found that does not work, 2 usage.\n");
        options_print(options, sizeof options / sizeof *options);
        return 0;
    }
    return app_with_ranks(argc, argv, run, &json);
}
