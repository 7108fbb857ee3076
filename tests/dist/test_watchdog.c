/* tests/dist/test_watchdog.c - a job whose ranks wait in vain ends by itself, says where, and asks
 * to be requeued.
 *
 * Started without arguments it starts itself under mpirun, one run for each case, and looks at how
 * that ended. */
#include "dist/comm_mpi.h"
#include "dist/watchdog.h"
#include "io/clock.h"
#include "tests/support/check.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct {
    const char *name; /* the word that picks it on the command line */
    int exit_code;
    const char *says[5];
    double deadline_s;
} cases[] = {
    {"asleep",
     75,
     {"moebatch: rank ", "MPI_Allreduce (agree)", "step 5, layer 2, expert load", "waited 1.",
      "hook ran"},
     30},
    {"stopped", 75, {"moebatch: rank ", "MPI_Barrier", "step 7; one of them", NULL}, 30},
    {"asleep-at-the-end", 75, {"the end of the job", NULL}, 30},
    {"released", 75, {"in a step on the GPU", "one of them is lost or stuck", NULL}, 30},
    {"abort", 3, {"moebatch: rank 1 (", "): device lost", NULL}, 30},
    {"slow-but-alive", 0, {"all is well", NULL}, 30},
};

static void say_hook(void *ctx)
{
    fprintf(stderr, "%s\n", (const char *)ctx);
}

static const char *no_trouble(void *ctx)
{
    (void)ctx;
    return NULL;
}

static void release(void *ctx)
{
    atomic_store((atomic_bool *)ctx, true);
}

/* A device that waits for the other ranks until the watchdog ends that. */
static void wait_for_device(Comm *c)
{
    static atomic_bool released;
    WatchedDevice device = {no_trouble, release, &released, NULL};
    Err e;
    watchdog_device(c->state->watchdog, &device);
    watchdog_enter(c->state->watchdog, "a step on the GPU");
    while (!atomic_load(&released))
        usleep(1000);
    err_set(&e, ST_DEVICE, "the device was aborted");
    dist_abort(c, 1, &e);
}

/* What each rank does in a case. */
static int play(const char *name, int argc, char **argv)
{
    static char hook_text[] = "hook ran";
    Comm c;
    Err e = {0};
    if (comm_start(&argc, &argv, &c, &e) != ST_OK ||
        comm_watch(&c, strcmp(name, "abort") == 0 ? 60 : 1, say_hook, hook_text, &e) != ST_OK) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    Status st = ST_OK;
    if (strcmp(name, "asleep") == 0) {
        comm_at(&c, 5, 2, "expert load");
        if (c.rank == 1)
            sleep(60);
        st = dist_agree(&c, ST_OK, &e);
    } else if (strcmp(name, "stopped") == 0) {
        /* Its own watchdog sleeps too, so it is the others who must notice. */
        comm_at(&c, 7, -1, NULL);
        if (c.rank == 1)
            raise(SIGSTOP);
        st = comm_barrier(&c, &e);
    } else if (strcmp(name, "asleep-at-the-end") == 0) {
        if (c.rank == 1)
            sleep(60);
    } else if (strcmp(name, "released") == 0) {
        if (c.rank == 1)
            sleep(60);
        wait_for_device(&c);
    } else if (strcmp(name, "abort") == 0) {
        err_set(&e, ST_DEVICE, "device lost");
        if (c.rank == 1)
            dist_abort(&c, 3, &e);
        st = comm_barrier(&c, &e);
    } else {
        /* Many short waits are longer together than the limit, and none of them alone. */
        for (int i = 0; i < 5 && st == ST_OK; i++) {
            if (c.rank == i % 2)
                usleep(400000);
            st = comm_barrier(&c, &e);
        }
        if (c.rank == 0 && st == ST_OK)
            puts("all is well");
    }
    comm_end(&c);
    return st == ST_OK ? 0 : 1;
}

static int run_case(size_t i, const char *self)
{
    char command[4096], text[16384];
    snprintf(command, sizeof command,
             "exec timeout -k 5 60 mpirun --oversubscribe -n 3 '%s' %s 2>&1", self, cases[i].name);
    double begin_s = clock_s();
    FILE *f = popen(command, "r");
    if (!f)
        return check_true("starting mpirun", false);
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    int status = pclose(f);
    int failed =
        check_int(cases[i].name, WIFEXITED(status) ? WEXITSTATUS(status) : -1, cases[i].exit_code);
    for (size_t s = 0; s < 5 && cases[i].says[s]; s++)
        failed += check_has(cases[i].name, text, cases[i].says[s]);
    return failed + check_true("in time", clock_s() - begin_s < cases[i].deadline_s);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return play(argv[1], argc, argv);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0); /* also when it is started by hand */
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    if (system("mpirun --version >/dev/null 2>&1") != 0)
        return test_skip("there is no mpirun");
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        failed += run_case(i, argv[0]);
    return test_result(failed);
}
