/* dist/comm.c - see comm.h. */
#include "dist/comm.h"

#include "dist/comm_mpi.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int env_int(const char *name, int missing)
{
    const char *s = getenv(name);
    if (!s || !*s)
        return missing;
    char *end;
    errno = 0;
    long v = strtol(s, &end, 10);
    return errno || *end || v < 0 || v > INT_MAX ? missing : (int)v;
}

/* How many ranks the launcher says there are; 0: there is no launcher. srun without a process
 * manager sets only SLURM variables: every task would then take itself for the only one, or MPI
 * would end them all. */
static Status launcher_size(int *out, Err *e)
{
    static const char *const counts[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    int tasks =
        getenv("SLURM_STEP_ID") ? env_int("SLURM_STEP_NUM_TASKS", env_int("SLURM_NTASKS", 1)) : 1;
    *out = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (getenv(counts[i])) {
            *out = env_int(counts[i], 1);
            return ST_OK;
        }
    if (getenv("PMIX_RANK") || getenv("PMI_RANK"))
        *out = tasks;
    else if (tasks > 1)
        return err_set(e, ST_COMM,
                       "srun started %d tasks that cannot find each other: use srun --mpi=pmix",
                       tasks);
    return ST_OK;
}

int comm_launched_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]))
            return env_int(names[i], 0);
    return 0;
}

/* The most tasks that srun puts on one node: the largest number of "2(x3),1". 0: not under srun. */
static int slurm_tasks_on_a_node(void)
{
    const char *s = getenv("SLURM_STEP_TASKS_PER_NODE");
    if (!s)
        s = getenv("SLURM_TASKS_PER_NODE");
    int most = 0;
    while (s && *s) {
        int n = atoi(s);
        if (n > most)
            most = n;
        s = strchr(s, ',');
        if (s)
            s++;
    }
    return most;
}

/* The cores that a process may run on; 0: this process. False where there are more than a
 * cpu_set_t counts. */
static bool cores_of(pid_t pid, cpu_set_t *out)
{
    CPU_ZERO(out);
    return sched_getaffinity(pid, sizeof *out, out) == 0 && CPU_COUNT(out) > 0;
}

static int online_cores(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 && n < INT_MAX ? (int)n : 1;
}

/* mpirun binds one or two ranks to one core each where nobody told it how, which would leave
 * every thread of a rank on one core and the rest of the machine idle. Its own cores are those
 * of its parent, mpirun or its daemon. */
static void undo_default_binding(void)
{
    static const char *const told[] = {
        "OMPI_MCA_hwloc_base_binding_policy", "OMPI_MCA_rmaps_base_mapping_policy",
        "OMPI_MCA_rmaps_base_cpus_per_rank", "OMPI_MCA_rmaps_rank_file_path"};
    cpu_set_t mine, launcher, both;
    int ranks = env_int("OMPI_COMM_WORLD_SIZE", 0);
    if (ranks < 1 || ranks > 2 || !cores_of(0, &mine) || !cores_of(getppid(), &launcher))
        return;
    for (size_t i = 0; i < sizeof told / sizeof *told; i++)
        if (getenv(told[i]))
            return;
    CPU_AND(&both, &mine, &launcher);
    if (CPU_EQUAL(&both, &mine)) /* else some script in between has decided */
        sched_setaffinity(0, sizeof launcher, &launcher);
}

/* What MPI reads from the environment when it starts; whatever the user has set stays.
 *
 * Ranks that share cores must yield while they wait: a rank that spins keeps the one it waits for
 * off the core, and a small collective takes 20 ms instead of 50 us. Open MPI notices only some of
 * the cases. Yielding costs next to nothing where each rank has a core, so a rank that is bound to
 * few cores may say yes needlessly.
 *
 * hwloc's GL part asks for ten X servers on localhost, each time: where that name has to be looked
 * up, seconds. */
static Status prepare_environment(Err *e)
{
    int n_local = env_int("OMPI_COMM_WORLD_LOCAL_SIZE", slurm_tasks_on_a_node());
    cpu_set_t mine;
    bool crowded = n_local > (cores_of(0, &mine) ? CPU_COUNT(&mine) : online_cores());
    if ((crowded && setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0) != 0) ||
        setenv("HWLOC_COMPONENTS", "-gl", 0) != 0)
        return err_set(e, ST_MEMORY, "no memory for the environment");
    return ST_OK;
}

Status comm_mpi_error(Err *e, int code, const char *call)
{
    char text[MPI_MAX_ERROR_STRING + 1];
    int n = 0;
    if (MPI_Error_string(code, text, &n) != MPI_SUCCESS || n <= 0)
        return err_set(e, ST_COMM, "%s: MPI error %d", call, code);
    return err_set(e, ST_COMM, "%s: %.*s", call, n, text);
}

Status comm_waited(Comm *c, Err *e, const char *call_name, int code)
{
    watchdog_leave(c->state->watchdog);
    return code == MPI_SUCCESS ? ST_OK : comm_mpi_error(e, code, call_name);
}

/* A core that several ranks may run on counts for each of them in part. */
static Status share_cores(Comm *c, MPI_Comm node, Err *e)
{
    Status st = ST_OK;
    cpu_set_t mine, *all = calloc((size_t)c->n_local, sizeof *all);
    if (!all)
        return err_set(e, ST_MEMORY, "no memory for the cores of %d ranks", c->n_local);
    bool known = cores_of(0, &mine);
    int code = MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, node);
    if (code != MPI_SUCCESS)
        st = comm_mpi_error(e, code, "MPI_Allgather");
    double share = 0;
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        int users = 0;
        for (int r = 0; r < c->n_local && CPU_ISSET(core, &mine); r++)
            users += CPU_ISSET(core, &all[r]) != 0;
        share += users > 0 ? 1.0 / users : 0;
    }
    if (!known)
        share = (double)online_cores() / c->n_local;
    c->n_cores = share < 1 ? 1 : (int)(share + 1e-6);
    free(all);
    return st;
}

static Status start_mpi(Comm *c, int *argc, char ***argv, int said, Err *e)
{
    undo_default_binding();
    TRY(prepare_environment(e));
    int already = 0, provided = 0, code;
    MPI_Initialized(&already);
    if (already)
        return err_set(e, ST_COMM, "MPI was started before");
    if ((code = MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided)) != MPI_SUCCESS)
        return comm_mpi_error(e, code, "MPI_Init_thread");
    c->state->mpi_started = true;
    if (provided < MPI_THREAD_FUNNELED)
        return err_set(e, ST_COMM, "this MPI allows no threads (level %d, needed %d)", provided,
                       MPI_THREAD_FUNNELED);
    /* By default an error inside MPI ends the process without a word from us. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if ((code = MPI_Comm_dup(MPI_COMM_WORLD, &c->state->mpi)) != MPI_SUCCESS)
        return comm_mpi_error(e, code, "MPI_Comm_dup");
    MPI_Comm_set_errhandler(c->state->mpi, MPI_ERRORS_RETURN);
    MPI_Comm_rank(c->state->mpi, &c->rank);
    MPI_Comm_size(c->state->mpi, &c->size);
    if (c->size != said)
        return err_set(e, ST_COMM,
                       "the launcher started %d ranks, but MPI counts %d: start with Open MPI's "
                       "mpirun or with "
                       "srun --mpi=pmix",
                       said, c->size);

    MPI_Comm node;
    code = MPI_Comm_split_type(c->state->mpi, MPI_COMM_TYPE_SHARED, c->rank, MPI_INFO_NULL, &node);
    if (code != MPI_SUCCESS)
        return comm_mpi_error(e, code, "MPI_Comm_split_type");
    MPI_Comm_rank(node, &c->local_rank);
    MPI_Comm_size(node, &c->n_local);
    Status st = share_cores(c, node, e);
    code = MPI_Comm_free(&node);
    return st == ST_OK && code != MPI_SUCCESS ? comm_mpi_error(e, code, "MPI_Comm_free") : st;
}

static void release(Comm *c)
{
    if (c->state->mpi != MPI_COMM_NULL)
        MPI_Comm_free(&c->state->mpi);
    if (c->state->mpi_started)
        MPI_Finalize();
    watchdog_destroy(c->state->watchdog);
    free(c->state);
    c->state = NULL;
}

Status comm_start(int *argc, char ***argv, Comm *out, Err *e)
{
    memset(out, 0, sizeof *out);
    cpu_set_t mine;
    out->size = out->n_local = 1;
    out->n_cores = cores_of(0, &mine) ? CPU_COUNT(&mine) : online_cores();
    if (gethostname(out->host, sizeof out->host - 1) != 0)
        snprintf(out->host, sizeof out->host, "?");
    out->state = calloc(1, sizeof *out->state);
    if (!out->state)
        return err_set(e, ST_MEMORY, "no memory for the communicator");
    out->state->mpi = MPI_COMM_NULL;
    out->state->piece_bytes = (size_t)1 << 30;
    out->state->by_mpirun = getenv("OMPI_COMM_WORLD_SIZE") != NULL;

    Status st;
    TRY_GOTO(watchdog_create(&out->state->watchdog, out, e));
    int said;
    TRY_GOTO(launcher_size(&said, e));
    if (said > 0)
        TRY_GOTO(start_mpi(out, argc, argv, said, e));
    return ST_OK;
fail:
    if (e)
        e->rank = out->rank;
    release(out);
    return st;
}

void comm_end(Comm *c)
{
    if (!c || !c->state)
        return;
    /* Under the watchdog's eye: MPI_Finalize waits for the others, too. */
    watchdog_enter(c->state->watchdog, "the end of the job");
    if (c->state->mpi != MPI_COMM_NULL)
        MPI_Barrier(c->state->mpi);
    watchdog_leave(c->state->watchdog);
    release(c);
}

Status comm_watch(Comm *c, double seconds, void (*hook)(void *ctx), void *ctx, Err *e)
{
    return watchdog_run(c->state->watchdog, seconds, hook, ctx, e);
}

void comm_at(Comm *c, int64_t step, int layer, const char *name)
{
    watchdog_at(c->state->watchdog, step, layer, name);
}

void comm_wait_begin(Comm *c, const char *name)
{
    watchdog_enter(c->state->watchdog, name);
}

void comm_wait_end(Comm *c)
{
    (void)watchdog_leave(c->state->watchdog);
}

Status dist_agree(Comm *c, Status mine, Err *e)
{
    Err none = {ST_OK, 0, ""}, *mail = e ? e : &none;
    if (mine != ST_OK) {
        mail->code = mine;
        mail->rank = c->rank;
    }
    if (c->size <= 1)
        return mine;
    /* ST_COMM usually says only that some other rank failed; that other rank's own words are worth
     * more, so such a bid comes after all the others. */
    int bid = mine == ST_OK     ? INT_MAX
              : mine == ST_COMM ? c->size + c->rank
                                : c->rank,
        first = INT_MAX;
    TRY(COMM_WAIT(c, e, "MPI_Allreduce (agree)",
                  MPI_Allreduce(&bid, &first, 1, MPI_INT, MPI_MIN, c->state->mpi)));
    if (first == INT_MAX)
        return ST_OK;
    TRY(comm_bcast(c, mail, sizeof *mail, first % c->size, e));
    mail->text[sizeof mail->text - 1] = 0;
    return mail->code;
}

void comm_print_error(const Comm *c, const Err *e)
{
    char line[sizeof e->text + sizeof c->host + 64];
    int n = snprintf(line, sizeof line, "moebatch: rank %d (%s): %s\n", c->rank, c->host, e->text);
    size_t left = n < 0 ? 0 : (size_t)n < sizeof line ? (size_t)n : sizeof line - 1;
    for (const char *p = line; left > 0;) {
        ssize_t w = write(STDERR_FILENO, p, left);
        if (w <= 0)
            break;
        p += w;
        left -= (size_t)w;
    }
}

void comm_leave(const Comm *c, int exit_code)
{
    if (c->state && c->state->mpi_started && !c->state->by_mpirun)
        MPI_Abort(MPI_COMM_WORLD, exit_code);
    _exit(exit_code);
}

void dist_abort(Comm *c, int exit_code, const Err *e)
{
    if (c->state && c->state->watchdog)
        watchdog_let_end(c->state->watchdog);
    fflush(NULL);
    comm_print_error(c, e);
    comm_leave(c, exit_code);
}

Status comm_bcast(Comm *c, void *data, size_t bytes, int root, Err *e)
{
    if (c->size <= 1)
        return ST_OK;
    for (size_t at = 0; at < bytes;) {
        size_t n = bytes - at < c->state->piece_bytes ? bytes - at : c->state->piece_bytes;
        TRY(COMM_WAIT(c, e, "MPI_Bcast",
                      MPI_Bcast((char *)data + at, (int)n, MPI_BYTE, root, c->state->mpi)));
        at += n;
    }
    return ST_OK;
}

Status comm_allgather(Comm *c, const void *mine, size_t bytes, void *all, Err *e)
{
    if (bytes == 0)
        return ST_OK;
    if (c->size <= 1) {
        memcpy(all, mine, bytes);
        return ST_OK;
    }
    if (bytes <= c->state->piece_bytes)
        return COMM_WAIT(
            c, e, "MPI_Allgather",
            MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, c->state->mpi));
    memcpy((char *)all + (size_t)c->rank * bytes, mine, bytes);
    for (int root = 0; root < c->size; root++)
        TRY(comm_bcast(c, (char *)all + (size_t)root * bytes, bytes, root, e));
    return ST_OK;
}

Status comm_gather(Comm *c, const void *mine, size_t bytes, void *all, int root, Err *e)
{
    if (bytes == 0)
        return ST_OK;
    if (c->size <= 1) {
        memcpy(all, mine, bytes);
        return ST_OK;
    }
    if (bytes <= c->state->piece_bytes)
        return COMM_WAIT(
            c, e, "MPI_Gather",
            MPI_Gather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, root, c->state->mpi));
    if (c->rank == root)
        memcpy((char *)all + (size_t)root * bytes, mine, bytes);
    for (int from = 0; from < c->size; from++) {
        if (from == root || (c->rank != root && c->rank != from))
            continue;
        for (size_t at = 0; at < bytes;) {
            size_t left = bytes - at,
                   n = left < c->state->piece_bytes ? left : c->state->piece_bytes;
            if (c->rank == from)
                TRY(COMM_WAIT(
                    c, e, "MPI_Send (gather)",
                    MPI_Send((const char *)mine + at, (int)n, MPI_BYTE, root, 0, c->state->mpi)));
            else
                TRY(COMM_WAIT(c, e, "MPI_Recv (gather)",
                              MPI_Recv((char *)all + (size_t)from * bytes + at, (int)n, MPI_BYTE,
                                       from, 0, c->state->mpi, MPI_STATUS_IGNORE)));
            at += n;
        }
    }
    return ST_OK;
}

static Status reduce_int64(Comm *c, int64_t *values, int n, MPI_Op op, Err *e)
{
    if (c->size <= 1 || n <= 0)
        return ST_OK;
    return COMM_WAIT(c, e, "MPI_Allreduce",
                     MPI_Allreduce(MPI_IN_PLACE, values, n, MPI_INT64_T, op, c->state->mpi));
}

Status comm_min_int64(Comm *c, int64_t *values, int n, Err *e)
{
    return reduce_int64(c, values, n, MPI_MIN, e);
}

Status comm_max_int64(Comm *c, int64_t *values, int n, Err *e)
{
    return reduce_int64(c, values, n, MPI_MAX, e);
}

Status comm_sum_int64(Comm *c, int64_t *values, int n, Err *e)
{
    return reduce_int64(c, values, n, MPI_SUM, e);
}

Status comm_barrier(Comm *c, Err *e)
{
    if (c->size <= 1)
        return ST_OK;
    return COMM_WAIT(c, e, "MPI_Barrier", MPI_Barrier(c->state->mpi));
}
