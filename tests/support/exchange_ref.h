/* tests/support/exchange_ref.h - count, pack, group and results of kernels/exchange_ops.h, one row
 * after the other, in host memory: what the kernels are held to, and a device's stand-in where there
 * is none. */
#ifndef MB_TESTS_EXCHANGE_REF_H
#define MB_TESTS_EXCHANGE_REF_H

#include "kernels/exchange_ops.h"

void exchange_ref_count(const WindowSpec *w);
void exchange_ref_pack(const WindowSpec *w);
void exchange_ref_group(const GroupSpec *g);
void exchange_ref_results(const ResultSpec *r);

#endif
