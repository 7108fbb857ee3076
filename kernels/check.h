/* kernels/check.h - what every backend refuses alike, in the same words. */
#ifndef MB_KERNELS_CHECK_H
#define MB_KERNELS_CHECK_H

#include "kernels/backend.h"

enum { ROUTER_MAX_EXPERTS = 1024, ROUTER_MAX_TOP_K = 32 };

/* ST_INPUT unless a router can be so, with at most max_groups groups. */
Status check_router(const RouterSpec *spec, int max_groups, Err *e);
/* ST_INPUT unless rows of width values are whole units of the format. */
Status check_row_format(const RowFormat *format, int width, Err *e);
/* ST_INPUT unless a bank has matrix mat, part part; name is the bank's in messages. */
Status check_place(const char *name, int n_mats, int n_parts, int mat, int part, Err *e);
/* ST_INPUT unless t, for matrix mat, part part of a bank, is [rows, cols] in that format. */
Status check_tensor(const char *name, int mat, int part, FormatId format, int64_t rows,
                    int64_t cols, const QuantTensor *t, Err *e);

#endif
