/* kernels/check.h - what every backend refuses alike, in the same words. */
#ifndef MB_KERNELS_CHECK_H
#define MB_KERNELS_CHECK_H

#include "kernels/backend.h"

enum { ROUTER_MAX_EXPERTS = 1024, ROUTER_MAX_TOP_K = 32 };

/* ST_INPUT unless a router can be so, with at most max_groups groups. */
Status check_router(const RouterSpec *spec, int max_groups, Err *e);
/* ST_INPUT unless rows of width values are whole units of the format. */
Status check_row_format(const RowFormat *format, int width, Err *e);

#endif
