/* jobs/backend_choice.c - see backend_choice.h. */
#include "jobs/backend_choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Found { /* plain data: ranks send it to each other */
    char host[64], device[BACKEND_DEVICE_NAME];
    char why[256]; /* not "": no device works here */
} Found;

static bool same_device(const Found *a, const Found *b)
{
    return strcmp(a->host, b->host) == 0 && strcmp(a->device, b->device) == 0;
}

/* The first two ranks that take one device. */
static bool find_shared(const Found *all, int n, int *first, int *second)
{
    for (*second = 0; *second < n; ++*second)
        for (*first = 0; *first < *second; ++*first)
            if (same_device(&all[*first], &all[*second]))
                return true;
    return false;
}

/* Why not every rank can have a device; the same on all. */
static Status refuse(const Found *all, int n, bool share, Err *e)
{
    int a, b;
    for (int r = 0; r < n; r++)
        if (all[r].why[0] && n == 1)
            return err_set(e, ST_DEVICE, "%s", all[r].why);
        else if (all[r].why[0])
            return err_set(e, ST_DEVICE, "rank %d (%s): %s", r, all[r].host, all[r].why);
    if (!share && find_shared(all, n, &a, &b))
        return err_set(
            e, ST_USAGE,
            "ranks %d and %d would share a GPU of %s (%s): start as many ranks on a node "
            "as it has GPUs (--share-gpu is for tests)",
            a, b, all[a].host, all[a].device);
    return ST_OK;
}

/* NCCL refuses two ranks on one device unless it takes them for ranks of different hosts, which
 * then talk over the loopback interface. It reads all this when its first communicator is made. */
static Status pretend_hosts(const Comm *comm, Err *e)
{
    char id[100];
    snprintf(id, sizeof id, "%s-%d", comm->host, comm->rank);
    bool one_node = comm->n_local == comm->size;
    if (setenv("NCCL_HOSTID", id, 1) != 0 ||
        (one_node &&
         (setenv("NCCL_SOCKET_IFNAME", "lo", 0) != 0 || setenv("NCCL_IB_DISABLE", "1", 0) != 0)))
        return err_set(e, ST_MEMORY, "no memory for the environment");
    return ST_OK;
}

/* Collective. */
static Status choose_device(Comm *comm, Found *all, bool share, BackendChoice *out, Err *e)
{
    Found mine = {.device = ""};
    Err why = {0};
    int a, b, n = comm->size;
    snprintf(mine.host, sizeof mine.host, "%s", comm->host);
    Status st = out->ops->can_run(comm->local_rank, mine.device, &why);
    if (st != ST_OK)
        snprintf(mine.why, sizeof mine.why, "%.255s", why.text);
    TRY(comm_allgather(comm, &mine, sizeof mine, all, e));
    TRY(refuse(all, n, share, e));
    out->n_sharing = 0;
    for (int r = 0; r < n; r++)
        out->n_sharing += same_device(&all[r], &all[comm->rank]);
    return find_shared(all, n, &a, &b) ? pretend_hosts(comm, e) : ST_OK;
}

Status backend_choose(Comm *comm, const char *name, bool share, BackendChoice *out, Err *e)
{
    bool any = strcmp(name, "auto") == 0;
    *out = (BackendChoice){.ops = backend_find(any ? "cuda" : name), .n_sharing = 1};
    if (!any && !out->ops)
        return err_set(e, ST_USAGE, "--backend %s: expected auto, cpu or cuda", name);
    if (out->ops && !out->ops->host_memory) {
        Found *all = calloc((size_t)comm->size, sizeof *all);
        TRY(dist_agree(comm, all ? ST_OK : err_set(e, ST_MEMORY, "out of memory: devices"), e));
        Err why = {0};
        Status st = choose_device(comm, all, share, out, &why);
        free(all);
        if (st == ST_OK)
            return ST_OK;
        if (!any || (st != ST_DEVICE && st != ST_USAGE)) {
            *e = why;
            return any ? st : err_in(e, "--backend %s", name);
        }
        if (!strstr(why.text, BACKEND_NO_DRIVER))
            snprintf(out->why, sizeof out->why, "%.399s", why.text);
    }
    if (any)
        out->ops = backend_find("cpu");
    out->n_sharing = 1;
    return out->ops->can_run(comm->local_rank, NULL, e);
}
