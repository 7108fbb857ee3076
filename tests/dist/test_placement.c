/* tests/dist/test_placement.c - contiguous blocks for any number of ranks and experts. */
#include "dist/placement.h"
#include "tests/support/check.h"

#include <stdio.h>

static const struct {
    const char *name;
    int experts, ranks, expert, owner, local;
} cases[] = {
    {"one rank owns all", 8, 1, 7, 0, 7},
    {"even split", 8, 4, 5, 2, 1},
    {"spare expert stays low", 10, 4, 2, 0, 2},
    {"second spare", 10, 4, 5, 1, 2},
    {"first rank without a spare", 10, 4, 6, 2, 0},
    {"last of all", 10, 4, 9, 3, 1},
    {"8 experts on 3 ranks, first", 8, 3, 0, 0, 0},
    {"8 experts on 3 ranks, last", 8, 3, 7, 2, 1},
    {"more ranks than experts", 2, 4, 1, 1, 0},
    {"4 experts on 7 ranks", 4, 7, 3, 3, 0},
    {"one expert", 1, 5, 0, 0, 0},
    {"128 experts on 3 ranks", 128, 3, 43, 1, 0},
};

/* Every expert has one place, and the way back from it leads to the expert. */
static int check_whole(int experts, int ranks)
{
    char name[64];
    snprintf(name, sizeof name, "%d experts on %d ranks", experts, ranks);
    Err e;
    Placement p;
    int failed = check_int(name, placement_create(&p, experts, ranks, &e), ST_OK);
    if (failed)
        return failed;
    int total = 0, most = 0, least = experts;
    for (int r = 0; r < ranks; r++) {
        int n = p.n_local[r];
        total += n;
        most = n > most ? n : most;
        least = n < least ? n : least;
        for (int i = 0; i < n; i++) {
            int expert = placement_expert(&p, r, i);
            failed += check_true(name, expert >= 0 && p.owner[expert] == r &&
                                           p.local_expert[expert] == i);
        }
        failed += check_int(name, placement_expert(&p, r, n), -1);
        failed += check_int(name, placement_expert(&p, r, -1), -1);
    }
    for (int expert = 1; expert < experts; expert++)
        failed += check_true(name, p.owner[expert] >= p.owner[expert - 1]);
    failed += check_int(name, total, experts);
    failed += check_true(name, most - least <= 1);
    failed += check_int(name, placement_expert(&p, ranks, 0), -1);
    placement_free(&p);
    return failed;
}

int main(void)
{
    int failed = 0;
    Err e;
    Placement p;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        failed += check_int(cases[i].name,
                            placement_create(&p, cases[i].experts, cases[i].ranks, &e), ST_OK);
        failed += check_int(cases[i].name, p.owner[cases[i].expert], cases[i].owner);
        failed += check_int(cases[i].name, p.local_expert[cases[i].expert], cases[i].local);
        placement_free(&p);
    }
    for (int experts = 0; experts <= 17; experts++)
        for (int ranks = 1; ranks <= 9; ranks++)
            failed += check_whole(experts, ranks);
    failed += check_int("no ranks", placement_create(&p, 4, 0, &e), ST_USAGE);
    failed += check_int("fewer than no experts", placement_create(&p, -1, 2, &e), ST_USAGE);
    placement_free(&p);
    placement_free(NULL);
    return test_result(failed);
}
