/* jobs/queue.c - see queue.h. The file: a header, the segment names, the records. */
#include "jobs/queue.h"

#include "io/durable.h"
#include "io/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct QueueHeader {
    char magic[8];
    int64_t n_records, n_segments;
    char pad[40]; /* records stay 64-byte aligned, since names are 64 bytes long */
} QueueHeader;
_Static_assert(sizeof(QueueHeader) == 64, "names and records follow aligned");

static const char MAGIC[8] = "mbqueue1";

typedef struct SortKey {
    uint64_t bytes;
    int64_t row;
} SortKey;

static int longest_first(const void *a, const void *b)
{
    const SortKey *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->row < y->row ? -1 : x->row > y->row;
}

static Status write_records(FILE *f, const SortKey *keys, int64_t n, const JournalScan *scan)
{
    for (int64_t i = 0; i < n; i++) {
        const RowPlace *p = &scan->rows[keys[i].row];
        QueueRecord r = {.row = keys[i].row, .segment = -1};
        if (p->segment >= 0)
            r = (QueueRecord){keys[i].row, p->segment, 0, p->offset, p->bytes};
        if (fwrite(&r, sizeof r, 1, f) != 1)
            return ST_IO;
    }
    return ST_OK;
}

Status queue_write(const char *dir, const Input *input, const JournalScan *scan, Err *e)
{
    char path[1100], tmp[1110];
    snprintf(path, sizeof path, "%s/queue", dir);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    SortKey *keys = malloc((size_t)(input->n_rows ? input->n_rows : 1) * sizeof *keys);
    if (!keys)
        return err_set(e, ST_MEMORY, "out of memory for the queue of %lld rows",
                       (long long)input->n_rows);
    int64_t n = 0;
    for (int64_t row = 0; row < input->n_rows; row++)
        if (scan->rows[row].segment < 0 || scan->rows[row].kind != RECORD_RESULT)
            keys[n++] = (SortKey){input->records[row].bytes, row};
    qsort(keys, (size_t)n, sizeof *keys, longest_first);

    QueueHeader h = {.n_records = n, .n_segments = scan->n_segments};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    FILE *f = fopen(tmp, "wb");
    Status st = ST_OK;
    if (!f || fwrite(&h, sizeof h, 1, f) != 1 ||
        (scan->n_segments &&
         fwrite(scan->segments, 64, (size_t)scan->n_segments, f) != (size_t)scan->n_segments) ||
        write_records(f, keys, n, scan) != ST_OK || fflush(f) != 0 || fsync(fileno(f)) != 0)
        st = err_errno(e, "%s", tmp);
    if (f && fclose(f) != 0 && st == ST_OK)
        st = err_errno(e, "%s", tmp);
    if (st == ST_OK)
        st = durable_rename(tmp, path, e);
    free(keys);
    return st;
}

Status queue_open(const char *dir, Queue *out, Err *e)
{
    char path[1100];
    snprintf(path, sizeof path, "%s/queue", dir);
    *out = (Queue){0};
    snprintf(out->dir, sizeof out->dir, "%s", dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        Status failed = err_errno(e, "%s", path);
        if (fd >= 0)
            close(fd);
        return failed;
    }
    out->map_bytes = (size_t)st.st_size;
    out->map = out->map_bytes >= sizeof(QueueHeader)
                   ? mmap(NULL, out->map_bytes, PROT_READ, MAP_SHARED, fd, 0)
                   : MAP_FAILED;
    close(fd);
    if (out->map == MAP_FAILED) {
        out->map = NULL;
        return err_set(e, ST_IO, "%s: cannot be mapped (%zu bytes)", path, out->map_bytes);
    }
    const QueueHeader *h = out->map;
    uint64_t rest = out->map_bytes - sizeof *h;
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0 || h->n_segments < 0 || h->n_records < 0 ||
        (uint64_t)h->n_segments > rest / 64 ||
        (uint64_t)h->n_records != (rest - (uint64_t)h->n_segments * 64) / sizeof(QueueRecord)) {
        queue_close(out);
        return err_set(e, ST_IO, "%s: is damaged", path);
    }
    out->n_segments = (int)h->n_segments;
    out->segments = (char(*)[64])((char *)out->map + sizeof *h);
    out->records = (const QueueRecord *)(out->segments + out->n_segments);
    out->n = h->n_records;
    return ST_OK;
}

void queue_close(Queue *q)
{
    if (q->map)
        munmap(q->map, q->map_bytes);
    *q = (Queue){0};
}

Status queue_read_partial(const Queue *q, int64_t i, StrBuf *out, Err *e)
{
    const QueueRecord *r = &q->records[i];
    strbuf_clear(out);
    if (r->segment < 0)
        return ST_OK;
    if (r->segment >= q->n_segments)
        return err_set(e, ST_IO, "%s/queue: is damaged", q->dir);
    char path[1200];
    snprintf(path, sizeof path, "%s/%.63s", q->dir, q->segments[r->segment]);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, "%s", path);
    Status st = file_append_at(fd, path, r->offset, r->bytes, out, e);
    close(fd);
    return st;
}

int queue_deal(int64_t n_records, int64_t *cursor, const int64_t *wanted, int n_ranks, int first,
               int rank, int64_t *mine)
{
    int n = 0;
    bool dealt = true;
    for (int64_t round = 0; dealt && *cursor < n_records; round++) {
        dealt = false;
        for (int i = 0; i < n_ranks && *cursor < n_records; i++) {
            int r = (first + i) % n_ranks;
            if (wanted[r] <= round)
                continue;
            if (r == rank)
                mine[n++] = *cursor;
            ++*cursor;
            dealt = true;
        }
    }
    return n;
}
