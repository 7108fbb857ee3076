/* jobs/logit_scan.h - the passes over all logits of a position, which are what sampling costs.
 *
 * Written once, compiled twice: every sum runs over fixed lanes and nothing is fused, so both
 * give the same bits. */
#ifndef MB_JOBS_LOGIT_SCAN_H
#define MB_JOBS_LOGIT_SCAN_H

#include <stdbool.h>
#include <stdint.h>

enum { WEIGHT_BLOCK = 256 }; /* weights per sum */

typedef struct LogitScan {
    /* The largest of x[0..n), n >= 1, and the first index that has it. False when any is NaN or
     * +infinity. */
    bool (*find_max)(const float *x, int n, float *max, int32_t *first);
    /* Sum of exp(x - max). */
    double (*sum_of_exp)(const float *x, int n, float max);
    /* How many of x[0..n) are above v, and how many of x[0..id) equal it. */
    int32_t (*count_before)(const float *x, int n, float v, int32_t id);
    /* weight[i] = exp((x[i] - max) / temperature), or 0 where that is below min_p; block[k]: sum
     * of the weights of block k. Returns the sum of all. */
    double (*fill_weights)(const float *x, int n, float max, double temperature, double min_p,
                           double *weight, double *block);
} LogitScan;

extern const LogitScan logit_scan_plain, logit_scan_avx2;

/* The faster one that this processor runs. */
const LogitScan *logit_scan_best(void);

#endif
