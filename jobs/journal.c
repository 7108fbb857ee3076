/* jobs/journal.c - reading what segments hold: every valid record, and per row the one that counts.
 */
#include "jobs/marker.h"

#include "io/digest.h"
#include "io/file.h"
#include "io/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WINDOW_BYTES = 4 << 20, SEARCH_BYTES = 64 << 10 };

/* ---- the segments of a directory ---- */

/* True for "segment-RUN-RANK.bin", as segment_create writes it. */
static bool segment_name(const char *name, int *run, int *rank)
{
    char again[SEGMENT_NAME_MAX];
    if (strlen(name) >= sizeof again || sscanf(name, "segment-%9d-%9d.bin", run, rank) != 2 ||
        *run < 0 || *rank < 0)
        return false;
    snprintf(again, sizeof again, "segment-%04d-%04d.bin", *run, *rank);
    return strcmp(name, again) == 0;
}

static int by_run_and_rank(const void *a, const void *b)
{
    int run_a = 0, run_b = 0, rank_a = 0, rank_b = 0;
    segment_name(a, &run_a, &rank_a);
    segment_name(b, &run_b, &rank_b);
    if (run_a != run_b)
        return run_a < run_b ? -1 : 1;
    return rank_a < rank_b ? -1 : rank_a > rank_b;
}

Status journal_segments(const char *dir, char (**out)[SEGMENT_NAME_MAX], int *n, Err *e)
{
    Status st = ST_OK;
    char(*names)[SEGMENT_NAME_MAX] = NULL;
    int count = 0, cap = 0, run, rank;
    DIR *d = opendir(dir);
    if (!d)
        return err_errno(e, "%.300s", dir);
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(d);
        if (!entry && errno)
            TRY_GOTO(err_errno(e, "%.300s", dir));
        if (!entry)
            break;
        if (!segment_name(entry->d_name, &run, &rank))
            continue;
        if (count == cap) {
            cap = cap ? cap * 2 : 64;
            void *more = realloc(names, (size_t)cap * sizeof *names);
            if (!more)
                TRY_GOTO(err_set(e, ST_MEMORY, "%.300s: no memory for %d segment names", dir, cap));
            names = more;
        }
        strcpy(names[count++], entry->d_name); /* segment_name has seen that it fits */
    }
    closedir(d);
    if (count > 0)
        qsort(names, (size_t)count, sizeof *names, by_run_and_rank);
    *out = names;
    *n = count;
    return ST_OK;
fail:
    closedir(d);
    free(names);
    return st;
}

/* ---- the records of a segment ---- */

typedef struct Window { /* the part of a file that is in memory */
    int fd;
    const char *path;
    uint8_t *buf; /* [WINDOW_BYTES] */
    uint64_t at;  /* in the file */
    size_t len;
} Window;

/* *p: the bytes at offset at, *have of them: want, or fewer at the end of the file or of the
 * window. */
static Status window_at(Window *w, uint64_t at, uint64_t want, const uint8_t **p, size_t *have,
                        Err *e)
{
    if (want > WINDOW_BYTES)
        want = WINDOW_BYTES;
    if (at < w->at || at - w->at > w->len || w->len - (at - w->at) < want) {
        w->at = at;
        w->len = 0;
        while (w->len < WINDOW_BYTES) {
            ssize_t n = pread(w->fd, w->buf + w->len, WINDOW_BYTES - w->len, (off_t)(at + w->len));
            if (n < 0 && errno == EINTR)
                continue;
            if (n < 0)
                return err_errno(e, "%.300s", w->path);
            if (n == 0)
                break;
            w->len += (size_t)n;
        }
    }
    size_t left = w->len - (size_t)(at - w->at);
    *p = w->buf + (at - w->at);
    *have = left < want ? left : (size_t)want;
    return ST_OK;
}

static Status payload_holds(Window *w, uint64_t at, const RecordHeader *h, bool *holds, Err *e)
{
    uint32_t crc = 0;
    for (uint64_t done = 0; done < h->bytes;) {
        const uint8_t *p;
        size_t have;
        TRY(window_at(w, at + done, h->bytes - done, &p, &have, e));
        if (have == 0) { /* the file became shorter */
            *holds = false;
            return ST_OK;
        }
        crc = crc32_of(crc, p, have);
        done += have;
    }
    *holds = crc == h->payload_crc;
    return ST_OK;
}

/* The next place at or behind at, below end, where a record may begin; end if there is none. */
static Status find_magic(Window *w, uint64_t at, uint64_t end, uint64_t *found, Err *e)
{
    while (at < end) {
        const uint8_t *p;
        size_t have;
        TRY(window_at(w, at, end - at < SEARCH_BYTES ? end - at : SEARCH_BYTES, &p, &have, e));
        if (have < sizeof record_magic)
            break;
        const uint8_t *hit = memmem(p, have, record_magic, sizeof record_magic);
        if (hit) {
            *found = at + (uint64_t)(hit - p);
            return ST_OK;
        }
        at += have - (sizeof record_magic - 1);
    }
    *found = end;
    return ST_OK;
}

Status segment_each(const char *path, void (*fn)(void *ctx, const RecordHeader *h, uint64_t at),
                    void *ctx, int64_t *dropped, Err *e)
{
    Status st = ST_OK;
    struct stat info;
    uint64_t at = 0, whole = 0; /* whole: the end of the last valid record */
    Window w = {.fd = open(path, O_RDONLY | O_CLOEXEC), .path = path, .buf = malloc(WINDOW_BYTES)};
    *dropped = 0;
    if (w.fd < 0)
        TRY_GOTO(err_errno(e, "%.300s", path));
    if (!w.buf)
        TRY_GOTO(err_set(e, ST_MEMORY, "%.300s: no memory to read it", path));
    if (fstat(w.fd, &info) != 0)
        TRY_GOTO(err_errno(e, "%.300s", path));
    uint64_t end = (uint64_t)info.st_size;
    while (end - at >= RECORD_HEADER_BYTES) {
        const uint8_t *p;
        size_t have;
        RecordHeader h;
        bool holds = false;
        TRY_GOTO(window_at(&w, at, RECORD_HEADER_BYTES, &p, &have, e));
        uint64_t payload = at + RECORD_HEADER_BYTES;
        if (have == RECORD_HEADER_BYTES && record_decode(p, &h) && h.bytes <= end - payload)
            TRY_GOTO(payload_holds(&w, payload, &h, &holds, e));
        if (!holds) {
            TRY_GOTO(find_magic(&w, at + 1, end, &at, e));
            continue;
        }
        if (at > whole)
            log_warn("%s: %llu damaged bytes at offset %llu are skipped", path,
                     (unsigned long long)(at - whole), (unsigned long long)whole);
        fn(ctx, &h, payload);
        at = whole = payload + h.bytes;
    }
    *dropped = (int64_t)(end - whole);
fail:
    if (w.fd >= 0)
        close(w.fd);
    free(w.buf);
    return st;
}

/* ---- what counts for each row ---- */

typedef struct ScanStep {
    JournalScan *scan;
    int32_t segment;
    int64_t strangers; /* records of rows that the input does not have */
} ScanStep;

static void note_record(void *ctx, const RecordHeader *h, uint64_t at)
{
    ScanStep *step = ctx;
    JournalScan *s = step->scan;
    if (h->kind == RECORD_LOGITS)
        return; /* beside a result, not instead of one */
    if (h->row < 0 || h->row >= s->n_rows) {
        step->strangers++;
        return;
    }
    RowPlace *place = &s->rows[h->row];
    if (place->kind == RECORD_RESULT) {
        s->n_duplicates += h->kind == RECORD_RESULT;
        return;
    }
    bool failed = h->kind == RECORD_RESULT && h->flags & RECORD_FAILED;
    s->n_partial += (h->kind == RECORD_PARTIAL) - (place->kind == RECORD_PARTIAL);
    s->n_done += h->kind == RECORD_RESULT;
    s->n_failed += failed;
    *place = (RowPlace){.segment = step->segment,
                        .kind = h->kind,
                        .failed = failed,
                        .offset = at,
                        .bytes = h->bytes};
}

Status journal_scan(const char *dir, int64_t n_rows, JournalScan *out, Err *e)
{
    Status st = ST_OK;
    char path[JOB_PATH_MAX];
    JournalScan s = {.n_rows = n_rows};
    TRY_GOTO(journal_segments(dir, &s.segments, &s.n_segments, e));
    s.rows = malloc(n_rows > 0 ? (size_t)n_rows * sizeof *s.rows : 1);
    if (!s.rows)
        TRY_GOTO(err_set(e, ST_MEMORY, "%.300s: no memory for the places of %lld rows", dir,
                         (long long)n_rows));
    for (int64_t i = 0; i < n_rows; i++)
        s.rows[i] = (RowPlace){.segment = -1};
    for (int i = 0; i < s.n_segments; i++) {
        ScanStep step = {.scan = &s, .segment = i};
        int64_t dropped;
        TRY_GOTO(job_path(path, dir, s.segments[i], e));
        TRY_GOTO(segment_each(path, note_record, &step, &dropped, e));
        s.dropped_bytes += dropped;
        if (step.strangers > 0)
            log_warn("%s: %lld records of rows past the input's %lld are skipped", path,
                     (long long)step.strangers, (long long)n_rows);
    }
    *out = s;
    return ST_OK;
fail:
    journal_scan_free(&s);
    return st;
}

void journal_scan_free(JournalScan *s)
{
    free(s->rows);
    free(s->segments);
    *s = (JournalScan){.n_rows = 0};
}

Status journal_read(const char *dir, const JournalScan *s, int64_t row, StrBuf *out, Err *e)
{
    Status st = ST_OK;
    char path[JOB_PATH_MAX];
    uint8_t head[RECORD_HEADER_BYTES];
    RecordHeader h;
    if (row < 0 || row >= s->n_rows || s->rows[row].kind == 0)
        return err_set(e, ST_IO, "%.300s: row %lld has no record", dir, (long long)row);
    const RowPlace *place = &s->rows[row];
    TRY(job_path(path, dir, s->segments[place->segment], e));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, "%.300s", path);
    strbuf_clear(out);
    TRY_GOTO(file_read_at(fd, path, place->offset - sizeof head, head, sizeof head, e));
    if (!record_decode(head, &h) || h.row != row || h.bytes != place->bytes)
        TRY_GOTO(
            err_set(e, ST_IO, "%.300s: the record of row %lld has changed", path, (long long)row));
    TRY_GOTO(file_append_at(fd, path, place->offset, h.bytes, out, e));
    if (crc32_of(0, out->data, out->len) != h.payload_crc)
        TRY_GOTO(
            err_set(e, ST_IO, "%.300s: the record of row %lld is damaged", path, (long long)row));
fail:
    close(fd);
    return st;
}
