/* jobs/merge.c - the output file from the journal: rows in input order, whole or not at all. */
#include "jobs/marker.h"

#include "io/digest.h"
#include "io/durable.h"
#include "io/file.h"
#include "io/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    STAGE_BYTES = 4 << 20,
    OPEN_SEGMENTS =
        128 /* kept open at a time; a job of many runs has more than a process may open */
};

typedef struct Merge {
    const Job *job;
    JournalScan scan;
    struct {
        int segment, fd;
    } open[OPEN_SEGMENTS]; /* segment s can only be in place s % OPEN_SEGMENTS */
    int fd;                /* of OUT.tmp */
    char tmp[JOB_PATH_MAX];
    uint8_t *stage; /* [STAGE_BYTES], waiting to be written */
    size_t n_staged;
    Sha256 *sha;
} Merge;

static Status flush(Merge *m, Err *e)
{
    TRY(sha256_add(m->sha, m->stage, m->n_staged, e));
    TRY(durable_write(m->fd, m->tmp, m->stage, m->n_staged, e));
    m->n_staged = 0;
    return ST_OK;
}

static Status segment_fd(Merge *m, int segment, int *fd, Err *e)
{
    int place = segment % OPEN_SEGMENTS;
    if (m->open[place].segment != segment) {
        char path[JOB_PATH_MAX];
        TRY(job_path(path, m->job->dir, m->scan.segments[segment], e));
        if (m->open[place].fd >= 0)
            close(m->open[place].fd);
        m->open[place].segment = -1;
        m->open[place].fd = open(path, O_RDONLY | O_CLOEXEC);
        if (m->open[place].fd < 0)
            return err_errno(e, "%.300s", path);
        m->open[place].segment = segment;
    }
    *fd = m->open[place].fd;
    return ST_OK;
}

/* Fills out[0..len) from offset; a file that ended early is ST_IO. */
static Status read_at(Merge *m, int segment, uint64_t offset, uint8_t *out, size_t len, Err *e)
{
    int fd = -1;
    TRY(segment_fd(m, segment, &fd, e));
    Status st = file_read_at(fd, m->scan.segments[segment], offset, out, len, e);
    return st == ST_OK ? ST_OK : err_in(e, "%.300s", m->job->dir);
}

/* The scan has seen the record whole; what is copied is checked again, since a merge must not turn
 * a failing disk into a plausible output. */
static Status copy_row(Merge *m, int64_t row, Err *e)
{
    const RowPlace *place = &m->scan.rows[row];
    uint8_t head[RECORD_HEADER_BYTES];
    RecordHeader h;
    uint32_t crc = 0;
    TRY(read_at(m, place->segment, place->offset - sizeof head, head, sizeof head, e));
    if (!record_decode(head, &h) || h.row != row || h.bytes != place->bytes)
        return err_set(e, ST_IO, "%.300s/%s: the record of row %lld has changed", m->job->dir,
                       m->scan.segments[place->segment], (long long)row);
    for (uint64_t done = 0; done < h.bytes;) {
        if (m->n_staged == STAGE_BYTES)
            TRY(flush(m, e));
        uint64_t left = h.bytes - done;
        size_t room = STAGE_BYTES - m->n_staged, n = left < room ? (size_t)left : room;
        TRY(read_at(m, place->segment, place->offset + done, m->stage + m->n_staged, n, e));
        crc = crc32_of(crc, m->stage + m->n_staged, n);
        m->n_staged += n;
        done += n;
    }
    if (crc != h.payload_crc)
        return err_set(e, ST_IO, "%.300s/%s: the record of row %lld is damaged", m->job->dir,
                       m->scan.segments[place->segment], (long long)row);
    if (m->n_staged == STAGE_BYTES)
        TRY(flush(m, e));
    m->stage[m->n_staged++] = '\n';
    return ST_OK;
}

static Status all_rows_there(const Merge *m, Err *e)
{
    const JournalScan *s = &m->scan;
    for (int64_t row = 0; row < s->n_rows; row++)
        if (s->rows[row].kind != RECORD_RESULT)
            return err_set(e, ST_IO, "%.300s: %lld of %lld rows have no result, row %lld first",
                           m->job->dir, (long long)(s->n_rows - s->n_done), (long long)s->n_rows,
                           (long long)row);
    if (s->n_duplicates > 0)
        log_warn("%s: %lld results of rows that had one are ignored", m->job->dir,
                 (long long)s->n_duplicates);
    return ST_OK;
}

static Status create_tmp(Merge *m, Err *e)
{
    off_t total = 0;
    for (int64_t row = 0; row < m->scan.n_rows; row++)
        total += (off_t)(m->scan.rows[row].bytes + 1);
    m->fd = open(m->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (m->fd < 0)
        return err_errno(e, "%.300s", m->tmp);
    /* Asks for the space before the long copy; a file system that cannot say is found out by
     * writing. */
    if (total > 0 && fallocate(m->fd, 0, 0, total) != 0 &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
        return err_errno(e, "%.300s: %lld bytes", m->tmp, (long long)total);
    return ST_OK;
}

static Status write_rows(Merge *m, DoneMarker *done, Err *e)
{
    uint8_t digest[32];
    TRY(create_tmp(m, e));
    for (int64_t row = 0; row < m->scan.n_rows; row++)
        TRY(copy_row(m, row, e));
    TRY(flush(m, e));
    TRY(sha256_end(m->sha, digest, e));
    hex_of(digest, sizeof digest, done->sha256);
    if (fsync(m->fd) != 0)
        return err_errno(e, "%.300s: fsync", m->tmp);
    int fd = m->fd;
    m->fd = -1;
    if (close(fd) != 0)
        return err_errno(e, "%.300s: close", m->tmp);
    done->n_rows = m->scan.n_rows;
    done->n_failed = m->scan.n_failed;
    done->out = stamp_of(m->tmp);
    /* Before the rename, which changes nothing that the marker holds: so there is no moment at
     * which the output is there and nobody can tell whose it is. */
    return done_write(m->job->dir, done, e);
}

Status journal_merge(const Job *job, int64_t n_rows, int64_t *n_failed, Err *e)
{
    Merge m = {.job = job, .fd = -1};
    DoneMarker done;
    Status st = ST_OK;
    for (int i = 0; i < OPEN_SEGMENTS; i++)
        m.open[i].segment = m.open[i].fd = -1;
    snprintf(m.tmp, sizeof m.tmp, "%s.tmp", job->out);
    TRY_GOTO(journal_scan(job->dir, n_rows, &m.scan, e));
    TRY_GOTO(all_rows_there(&m, e));
    m.stage = malloc(STAGE_BYTES);
    if (!m.stage)
        TRY_GOTO(err_set(e, ST_MEMORY, "no memory to merge the results"));
    TRY_GOTO(sha256_create(&m.sha, e));
    st = write_rows(&m, &done, e);
    if (st == ST_OK)
        st = durable_rename(m.tmp, job->out, e);
    if (st != ST_OK) {
        unlink(m.tmp);
        err_in(e, "all results are in %.150s, the same command writes them once this is cured",
               job->dir);
        goto fail;
    }
    *n_failed = m.scan.n_failed;
fail:
    if (m.fd >= 0)
        close(m.fd);
    for (int i = 0; i < OPEN_SEGMENTS; i++)
        if (m.open[i].fd >= 0)
            close(m.open[i].fd);
    free(m.stage);
    sha256_free(m.sha);
    journal_scan_free(&m.scan);
    return st;
}
