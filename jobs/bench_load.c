/* jobs/bench_load.c - see bench_run.h: the files of a checkpoint read as they are, and loaded. */
#include "jobs/bench_run.h"

#include "io/clock.h"
#include "io/tensor_set.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { PIECE = 8 << 20 };

typedef struct Piece {
    int part;
    int64_t at, n;
} Piece;

/* Every rank reads its share of the pieces, on all threads. */
typedef struct ReadJob {
    const TensorSet *files;
    int *fd; /* [files->n_parts] */
    Piece *pieces;
    int n_pieces, rank, n_ranks;
    char **buffer; /* [threads] */
    int n_threads;
    atomic_int failed; /* 1 + the piece that could not be read */
} ReadJob;

static void read_piece(void *ctx, int task, int thread)
{
    ReadJob *j = ctx;
    int i = task * j->n_ranks + j->rank;
    Err e;
    if (i >= j->n_pieces)
        return;
    const Piece *p = &j->pieces[i];
    if (file_read_at(j->fd[p->part], j->files->parts[p->part].name, (uint64_t)p->at,
                     j->buffer[thread], (size_t)p->n, &e) != ST_OK)
        atomic_store(&j->failed, 1 + i);
}

static void close_job(ReadJob *j)
{
    for (int i = 0; j->fd && i < j->files->n_parts; i++)
        if (j->fd[i] >= 0)
            close(j->fd[i]);
    for (int i = 0; j->buffer && i < j->n_threads; i++)
        free(j->buffer[i]);
    free(j->fd);
    free(j->pieces);
    free(j->buffer);
}

static Status open_job(ReadJob *j, const char *dir, Err *e)
{
    const TensorSet *files = j->files;
    size_t n = 0;
    for (int i = 0; i < files->n_parts; i++)
        n += files->parts[i].map.len / PIECE + 1;
    j->fd = malloc((size_t)files->n_parts * sizeof *j->fd);
    j->pieces = malloc(n * sizeof *j->pieces);
    j->buffer = calloc((size_t)j->n_threads, sizeof *j->buffer);
    bool enough = j->fd && j->pieces && j->buffer;
    for (int i = 0; enough && i < j->n_threads; i++)
        enough = (j->buffer[i] = malloc(PIECE)) != NULL;
    for (int i = 0; j->fd && i < files->n_parts; i++)
        j->fd[i] = -1;
    if (!enough)
        return err_set(e, ST_MEMORY, "out of memory: buffers to read files");
    for (int i = 0; i < files->n_parts; i++) {
        char path[FILE_PATH_MAX];
        int64_t len = (int64_t)files->parts[i].map.len;
        TRY(file_join(path, dir, files->parts[i].name, e));
        j->fd[i] = open(path, O_RDONLY | O_CLOEXEC);
        if (j->fd[i] < 0)
            return err_errno(e, "%s", path);
        for (int64_t at = 0; at < len; at += PIECE)
            j->pieces[j->n_pieces++] = (Piece){i, at, len - at < PIECE ? len - at : PIECE};
    }
    return ST_OK;
}

/* Seconds until the last rank has read its share. */
static Status read_once(ReadJob *j, Engine *g, double *seconds, Err *e)
{
    TRY(comm_barrier(g->comm, e));
    double start = clock_s();
    team_run(g->team, (j->n_pieces + j->n_ranks - 1) / j->n_ranks, read_piece, j);
    int bad = atomic_load(&j->failed);
    Status st = bad == 0 ? ST_OK
                         : err_set(e, ST_IO, "%s cannot be read",
                                   j->files->parts[j->pieces[bad - 1].part].name);
    TRY(dist_agree(g->comm, st, e));
    *seconds = clock_s() - start;
    return ST_OK;
}

static Status read_files(const char *dir, Engine *g, BenchResult *out, Err *e)
{
    TensorSet files;
    TRY(dist_agree(g->comm, tensor_set_open(dir, &files, e), e));
    ReadJob j = {.files = &files,
                 .rank = g->comm->rank,
                 .n_ranks = g->comm->size,
                 .n_threads = g->team ? team_size(g->team) : 1};
    Status st = files.pack ? err_set(e, ST_USAGE, "--load %s: is a pack, not a directory", dir)
                           : open_job(&j, dir, e);
    st = dist_agree(g->comm, st, e);
    if (st == ST_OK)
        st = read_once(&j, g, &out->first_read_s, e);
    if (st == ST_OK)
        st = read_once(&j, g, &out->read_s, e);
    for (int i = 0; i < files.n_parts; i++)
        out->file_bytes += (int64_t)files.parts[i].map.len;
    close_job(&j);
    tensor_set_close(&files);
    return st;
}

static Status run(const BenchConfig *config, Comm *comm, Engine *g, BenchResult *out, Err *e)
{
    EngineConfig engine = config->engine;
    engine.model_dir = config->load;
    TRY(engine_open(g, &engine, comm, e));
    TRY(engine_start(g, e));
    TRY(dist_agree(comm, g->ops->ceilings(g->backend, &out->limits, e), e));
    TRY(read_files(config->load, g, out, e));
    TRY(engine_load(g, e));
    const Model *m = g->model;
    int64_t nanoseconds = (int64_t)(1e9 * g->load_s);
    out->loaded_bytes = m->weights.bytes_read;
    out->weight_bytes = m->weights.dense_bytes + m->weights.expert_bytes;
    out->n_layers = m->arch->n_layers;
    TRY(comm_sum_int64(comm, &out->loaded_bytes, 1, e));
    TRY(comm_max_int64(comm, &nanoseconds, 1, e));
    out->load_s = (double)nanoseconds * 1e-9;
    return ST_OK;
}

Status bench_load(const BenchConfig *config, Comm *comm, BenchResult *out, Err *e)
{
    Engine g = {0};
    *out = (BenchResult){.n_ranks = comm->size};
    Status st = run(config, comm, &g, out, e);
    engine_close(&g);
    return st;
}
