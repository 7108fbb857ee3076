/* jobs/logit_scan.c - the passes for any processor, and the choice between the two. */
#include "jobs/logit_scan.inc"

#include "kernels/backend.h"

#include <stdatomic.h>

const LogitScan logit_scan_plain = {find_max, sum_of_exp, count_before, fill_weights};

const LogitScan *logit_scan_best(void)
{
    static _Atomic(const LogitScan *) best; /* asking the processor is slow under a hypervisor */
    const LogitScan *scan = atomic_load(&best);
    if (!scan) {
        scan = isa_best() >= ISA_AVX2 ? &logit_scan_avx2 : &logit_scan_plain;
        atomic_store(&best, scan);
    }
    return scan;
}
