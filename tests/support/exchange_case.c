/* tests/support/exchange_case.c - see exchange_case.h. */
#include "tests/support/exchange_case.h"

#include "tests/support/check.h"

uint64_t exchange_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

int32_t exchange_choose(Routing routing, int experts, int rank, int step, int token, int slot)
{
    uint64_t own = exchange_mix(exchange_mix((uint64_t)rank * 1000003 + (uint64_t)step) +
                                (uint64_t)token * 64),
             r = exchange_mix(own + (uint64_t)slot);
    int32_t walk = (int32_t)((own + (uint64_t)slot) % (uint64_t)experts); /* from a random start */
    switch (routing) {
    case RANDOM:
        return walk;
    case ONE_EXPERT:
        return slot == 0 ? experts - 1 : -1;
    case DROPPED:
        return r % 3 == 0 ? -1 : walk;
    case DUPLICATES:
        return r % 5 == 0 ? -1 : (int32_t)(r / 5 % (uint64_t)experts);
    case ALL_DROPPED:
        break;
    }
    return -1;
}

int exchange_tokens(int only_rank, int max_tokens, int rank, int step)
{
    if (only_rank >= 0 && only_rank != rank)
        return 0;
    if (step == 0)
        return max_tokens;
    uint64_t any = exchange_mix((uint64_t)rank * 77 + (uint64_t)step);
    return (int)(any % (uint64_t)(max_tokens + 1));
}

int exchange_check_groups(const char *name, const RecvRows *recv, int n_local, int max_tokens)
{
    int failed = check_int(name, recv->first[0], 0), wrong = 0;
    for (int x = 0; x < n_local; x++) {
        wrong += recv->first[x] > recv->first[x + 1];
        int own = -1, received = -1;
        for (int p = recv->first[x]; p < recv->first[x + 1]; p++) {
            int *last = recv->row_of[p] < max_tokens ? &own : &received;
            wrong += recv->row_of[p] < *last;
            *last = recv->row_of[p];
        }
    }
    return failed + check_int(name, wrong, 0);
}
