/* jobs/logit_scan_avx2.c - the passes compiled for AVX2. */
#include "jobs/logit_scan.inc"

const LogitScan logit_scan_avx2 = {find_max, sum_of_exp, count_before, fill_weights};
