/* dist/placement.c - see placement.h. */
#include "dist/placement.h"

#include <stdlib.h>
#include <string.h>

Status placement_create(Placement *out, int n_experts, int n_ranks, Err *e)
{
    memset(out, 0, sizeof *out);
    if (n_experts < 0 || n_ranks < 1)
        return err_set(e, ST_USAGE, "%d experts on %d ranks cannot be placed", n_experts, n_ranks);
    /* One block of memory holds the three tables; owner is its start. */
    int32_t *tables = calloc(2 * (size_t)n_experts + (size_t)n_ranks, sizeof *tables);
    if (!tables)
        return err_set(e, ST_MEMORY, "no memory to place %d experts on %d ranks", n_experts,
                       n_ranks);
    out->n_experts = n_experts;
    out->n_ranks = n_ranks;
    out->owner = tables;
    out->local_expert = tables + n_experts;
    out->n_local = tables + 2 * (size_t)n_experts;
    int expert = 0;
    for (int rank = 0; rank < n_ranks; rank++) {
        out->n_local[rank] = n_experts / n_ranks + (rank < n_experts % n_ranks);
        for (int i = 0; i < out->n_local[rank]; i++, expert++) {
            out->owner[expert] = rank;
            out->local_expert[expert] = i;
        }
    }
    return ST_OK;
}

void placement_free(Placement *p)
{
    if (!p)
        return;
    free(p->owner);
    memset(p, 0, sizeof *p);
}

int placement_expert(const Placement *p, int rank, int local_expert)
{
    for (int expert = 0; expert < p->n_experts; expert++)
        if (p->owner[expert] == rank && p->local_expert[expert] == local_expert)
            return expert;
    return -1;
}
