/* jobs/backend_choice.h - which backend a job's ranks run on: the same on all of them. */
#ifndef MB_JOBS_BACKEND_CHOICE_H
#define MB_JOBS_BACKEND_CHOICE_H

#include "dist/comm.h"
#include "kernels/backend.h"

typedef struct BackendChoice {
    const BackendOps *ops;
    int n_sharing; /* ranks that take this rank's device, itself included; 1 on the CPU */
    char why[400]; /* "auto" became the CPU although there is a driver: because; else "" */
} BackendChoice;

/* Collective. name: "cpu", "cuda", or "auto" for cuda where every rank finds a device of its own
 * that works, else cpu. Asked for by name, a device that is missing, fails or is taken by two ranks
 * is an error that names the rank. share: ranks may share a device (for tests: NCCL is told that
 * they are on different hosts, through the environment, where that has not said otherwise). */
Status backend_choose(Comm *comm, const char *name, bool share, BackendChoice *out, Err *e);

#endif
