/* tests/support/exchange_case.h - what the tests of both exchanges share: who has how many tokens, which
 * experts these choose, and the order of the pairs that an expert is given. */
#ifndef MB_TESTS_EXCHANGE_CASE_H
#define MB_TESTS_EXCHANGE_CASE_H

#include "dist/exchange.h"

typedef enum Routing {
    RANDOM,     /* different experts for the choices of a token */
    ONE_EXPERT, /* the last one, once for each token */
    DROPPED,    /* random, a third of the choices dropped */
    DUPLICATES, /* any expert for any choice, a fifth of them dropped */
    ALL_DROPPED
} Routing;

uint64_t exchange_mix(uint64_t x);
/* What a token chooses, from these numbers alone; -1: dropped. */
int32_t exchange_choose(Routing routing, int experts, int rank, int step, int token, int slot);
/* Tokens of a rank in a step: the most in step 0, then any number up to it. only_rank: the one rank with
 * tokens; -1: all of them. */
int exchange_tokens(int only_rank, int max_tokens, int rank, int step);
/* Pairs of an expert ascend: own rows, and received ones, each in their order. Rows hold no source, so
 * this looks at the owner's own. */
int exchange_check_groups(const char *name, const RecvRows *recv, int n_local, int max_tokens);

#endif
