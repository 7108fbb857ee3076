/* kernels/exp_log.h - exp and log from plain double arithmetic, so that every machine gets the same
 * bits, a GPU too.
 *
 * The C library picks variants of exp and log by processor, and they may differ in the last bit.
 * Sampling and log-probabilities must not. No fused operations (-ffp-contract=off, -fmad=false); errors
 * stay below 1e-14 relative. */
#ifndef MB_KERNELS_EXP_LOG_H
#define MB_KERNELS_EXP_LOG_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define ON_HOST_AND_DEVICE __host__ __device__
#else
#define ON_HOST_AND_DEVICE
#endif

/* e^x for x <= 0; 0 below -708. Written without branches on values, so that loops over it become
 * vector code. */
ON_HOST_AND_DEVICE static inline double exp_of_negative(double x)
{
    const double shift =
        0x1.8p52; /* adding it rounds to an integer, which is then in the low bits */
    double low = x < -708.0 ? -708.0 : x;
    double k = low * 0x1.71547652b82fep+0 + shift;
    uint64_t bits;
    memcpy(&bits, &k, sizeof bits);
    k -= shift;
    /* ln 2 in two parts; the product with the first is exact */
    double r = low - k * 0x1.62e42feep-1;
    r -= k * 0x1.a39ef35793c76p-33;
    double y = 1.0 / 39916800;
    y = y * r + 1.0 / 3628800;
    y = y * r + 1.0 / 362880;
    y = y * r + 1.0 / 40320;
    y = y * r + 1.0 / 5040;
    y = y * r + 1.0 / 720;
    y = y * r + 1.0 / 120;
    y = y * r + 1.0 / 24;
    y = y * r + 1.0 / 6;
    y = y * r + 0.5;
    y = y * r + 1.0;
    y = y * r + 1.0;
    bits = (bits + 1023) << 52; /* 2^k, k >= -1022 */
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return x < -708.0 ? 0.0 : y * scale;
}

/* The natural logarithm of x, which is finite and at least 1. */
ON_HOST_AND_DEVICE static inline double log_of_sum(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int k = (int)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof m); /* 1 <= m < 2 */
    if (m > 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        k++;
    }
    double f = (m - 1) / (m + 1), f2 = f * f, sum = 0; /* |f| < 0.172, so 10 terms give 1e-16 */
    for (int i = 19; i >= 1; i -= 2)
        sum = sum * f2 + 1.0 / i;
    return 2 * f * sum + k * 0x1.62e42fefa39efp-1;
}

#endif
