/* kernels/cpu/ceilings.h - what this machine can do at best, measured in the run that quotes it.
 */
#ifndef MB_KERNELS_CPU_CEILINGS_H
#define MB_KERNELS_CPU_CEILINGS_H

#include "io/err.h"
#include "io/team.h"
#include "kernels/backend.h"

typedef struct Ceilings {
    double read_gbs; /* GB/s: all threads read a buffer much larger than any cache */
    double
        fma_gflops[N_ISA_LEVELS]; /* float32 GFLOP/s in registers, all threads; 0: not measured */
} Ceilings;

typedef struct CeilingProbe CeilingProbe;

/* Takes 384 MiB, shared out over the team's threads (NULL: the caller alone), and touches it. */
Status ceilings_create(CeilingProbe **out, Team *team, Err *e);
void ceilings_destroy(CeilingProbe *p); /* NULL is fine */
/* Runs each probe once (some 50 ms in all) and raises the values of best that it beats. Neighbours
 * on a shared machine only ever lower a reading, so call it several times, before and after what is
 * to be compared. */
void ceilings_measure(CeilingProbe *p, Ceilings *best);

#endif
