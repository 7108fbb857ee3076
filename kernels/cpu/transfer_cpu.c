/* kernels/cpu/transfer_cpu.c - banks to and from files, in pieces that all threads share, so that
 * checksums cost no more time than the disk takes. */
#include "io/digest.h"
#include "io/file.h"
#include "kernels/cpu/cpu.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { PIECE_BYTES = 4 << 20 };

typedef struct TransferJob {
    const Weight *w;
    const BankFile *f;
    bool write;
    int n_pieces;  /* of a matrix */
    uint32_t *crc; /* [n_mats * n_pieces] */
    atomic_flag failed;
    Err *e; /* of the piece that failed first */
    atomic_int status;
} TransferJob;

static size_t piece_bytes(const TransferJob *job, int piece)
{
    size_t at = (size_t)piece * PIECE_BYTES, rest = job->w->mat_bytes - at;
    return rest < PIECE_BYTES ? rest : PIECE_BYTES;
}

static void move_piece(void *ctx, int task, int thread)
{
    (void)thread;
    TransferJob *job = ctx;
    int mat = task / job->n_pieces, piece = task % job->n_pieces;
    size_t at = (size_t)piece * PIECE_BYTES, n = piece_bytes(job, piece);
    uint8_t *data = job->w->data + (size_t)mat * job->w->mat_bytes + at;
    uint64_t offset = job->f->offset[mat] + at;
    Err e;
    if (atomic_load(&job->status) != ST_OK)
        return;
    Status st = job->write ? file_write_at(job->f->fd, job->f->path, offset, data, n, &e)
                           : file_read_at(job->f->fd, job->f->path, offset, data, n, &e);
    if (st == ST_OK)
        job->crc[task] = crc32_of(0, data, n);
    else if (!atomic_flag_test_and_set(&job->failed)) {
        *job->e = e;
        atomic_store(&job->status, (int)st);
    }
}

/* crc [n_mats] of whole matrices. */
static Status transfer(Backend *b, const Weight *w, const BankFile *f, bool write, uint32_t *crc,
                       Err *e)
{
    TransferJob job = {.w = w, .f = f, .write = write, .failed = ATOMIC_FLAG_INIT, .e = e};
    size_t n_pieces = (w->mat_bytes + PIECE_BYTES - 1) / PIECE_BYTES;
    if (n_pieces > (size_t)(INT32_MAX / w->n_mats))
        return err_set(e, ST_INPUT, "%s: too large to be moved", w->name);
    job.n_pieces = (int)n_pieces;
    job.crc = calloc((size_t)w->n_mats * n_pieces, sizeof *job.crc);
    if (!job.crc)
        return err_set(e, ST_MEMORY, "out of memory: checksums of %s", w->name);
    cpu_run(b, w->n_mats * job.n_pieces, INT64_MAX, move_piece, &job);
    Status st = (Status)atomic_load(&job.status);
    for (int mat = 0; mat < w->n_mats && st == ST_OK; mat++) {
        const uint32_t *pieces = job.crc + (size_t)mat * n_pieces;
        crc[mat] = pieces[0];
        for (int i = 1; i < job.n_pieces; i++)
            crc[mat] = crc32_join(crc[mat], pieces[i], piece_bytes(&job, i));
    }
    free(job.crc);
    return st;
}

Status cpu_weight_save(Backend *b, const Weight *w, const BankFile *f, uint32_t *crc, Err *e)
{
    return transfer(b, w, f, true, crc, e);
}

Status cpu_weight_restore(Backend *b, Weight *w, const BankFile *f, const uint32_t *crc, Err *e)
{
    uint32_t *got = malloc((size_t)w->n_mats * sizeof *got);
    if (!got)
        return err_set(e, ST_MEMORY, "out of memory: checksums of %s", w->name);
    Status st = transfer(b, w, f, false, got, e);
    for (int mat = 0; mat < w->n_mats && st == ST_OK; mat++)
        if (got[mat] != crc[mat])
            st = err_set(e, ST_INPUT,
                         "%s: %s: its bytes %llu to %llu have been altered: their CRC-32 is %08x, "
                         "expected %08x",
                         f->path, w->name, (unsigned long long)f->offset[mat],
                         (unsigned long long)(f->offset[mat] + w->mat_bytes - 1), got[mat],
                         crc[mat]);
    free(got);
    return st;
}
