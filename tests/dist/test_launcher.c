/* tests/dist/test_launcher.c - what the environment says about how a job was started. */
#include "dist/comm.h"
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
    "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",    "PMI_RANK", "PMIX_RANK", "SLURM_STEP_ID",
    "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"};

/* The last one starts MPI, which happens once in a process. */
static const struct {
    const char *name;
    const char *set[6]; /* name, value, ... */
    Status want;
    const char *says;
} cases[] = {
    {"alone", {NULL}, ST_OK, NULL},
    {"alone in a batch script", {"SLURM_NTASKS", "3"}, ST_OK, NULL},
    {"srun of one task", {"SLURM_STEP_ID", "0", "SLURM_STEP_NUM_TASKS", "1"}, ST_OK, NULL},
    {"srun without PMIx",
     {"SLURM_STEP_ID", "0", "SLURM_STEP_NUM_TASKS", "2"},
     ST_COMM,
     "srun started 2 tasks that cannot find each other: use srun --mpi=pmix"},
    {"another MPI's mpirun",
     {"PMI_SIZE", "2", "PMI_RANK", "1"},
     ST_COMM,
     "the launcher started 2 ranks, but MPI counts 1"},
};

int main(int argc, char **argv)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            unsetenv(names[k]);
        for (size_t k = 0; k < 6 && cases[i].set[k]; k += 2)
            setenv(cases[i].set[k], cases[i].set[k + 1], 1);
        Comm c;
        Err e = {0};
        failed += check_int(cases[i].name, comm_start(&argc, &argv, &c, &e), cases[i].want);
        failed += check_str(cases[i].name, e.text, cases[i].says ? e.text : "");
        if (cases[i].says)
            failed += check_has(cases[i].name, e.text, cases[i].says);
        failed += check_int(cases[i].name, c.size, 1);
        failed += check_int(cases[i].name, c.n_local, 1);
        comm_end(&c);
    }
    return test_result(failed);
}
