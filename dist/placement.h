/* dist/placement.h - which rank owns which expert of a layer. */
#ifndef MB_DIST_PLACEMENT_H
#define MB_DIST_PLACEMENT_H

#include "io/err.h"

#include <stdint.h>

/* A table: expert -> owner rank and its index there. The same for all layers until a placement
 * file says otherwise. */
typedef struct Placement {
    int n_experts, n_ranks;
    int32_t *owner;        /* [n_experts] rank */
    int32_t *local_expert; /* [n_experts] index on its owner, in ascending order of expert */
    /* [n_ranks] experts of each rank; 0 where there are more ranks than experts */
    int32_t *n_local;
} Placement;

/* Contiguous blocks; the first n_experts % n_ranks ranks hold one more. */
Status placement_create(Placement *out, int n_experts, int n_ranks, Err *e);
void placement_free(Placement *p);
/* The expert that is number local_expert on rank, or -1. */
int placement_expert(const Placement *p, int rank, int local_expert);

#endif
