/* jobs/logits_file.c - see logits_file.h. A record: the number of ids and the vocabulary
 * (int32), ids, logits. */
#include "jobs/logits_file.h"

#include "io/file.h"
#include "io/h5.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Place {
    int segment; /* -1: none */
    uint64_t at, bytes;
} Place;

typedef struct Places {
    Place *rows;
    int64_t n_rows;
    int segment;
} Places;

Status logits_file_check(const char *path, Err *e)
{
    H5Out *h = NULL;
    TRY(h5_create(path, &h, e));
    h5_abandon(h);
    return ST_OK;
}

Status logits_file_add(Segment *segment, const Row *row, int vocab, Err *e)
{
    const TokenIds *ids = &row->prompts[0].ids;
    int32_t head[2] = {(int32_t)ids->n, vocab};
    size_t id_bytes = ids->n * sizeof *ids->ids,
           bytes = ids->n * (size_t)vocab * sizeof *row->logits;
    StrBuf b = {0};
    strbuf_add(&b, head, sizeof head);
    strbuf_add(&b, ids->ids, id_bytes);
    strbuf_add(&b, row->logits, bytes);
    Status st = b.failed
                    ? err_set(e, ST_MEMORY, "out of memory for the logits of line %lld",
                              (long long)row->line)
                    : segment_append(segment, RECORD_LOGITS, row->index, false, b.data, b.len, e);
    strbuf_free(&b);
    return st;
}

static void note_place(void *ctx, const RecordHeader *h, uint64_t at)
{
    Places *p = ctx;
    if (h->kind == RECORD_LOGITS && h->row >= 0 && h->row < p->n_rows &&
        p->rows[h->row].segment < 0)
        p->rows[h->row] = (Place){p->segment, at, h->bytes};
}

static Status read_all(const char *path, uint64_t at, uint64_t bytes, char *out, Err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, "%s", path);
    Status st = file_read_at(fd, path, at, out, bytes, e);
    close(fd);
    return st;
}

static Status write_row(H5Out *h, const char *path, int64_t row, const Place *p, Err *e)
{
    char name[64];
    char *data = malloc(p->bytes ? p->bytes : 1);
    if (!data)
        return err_set(e, ST_MEMORY, "out of memory for %llu bytes of logits",
                       (unsigned long long)p->bytes);
    Status st = read_all(path, p->at, p->bytes, data, e);
    int32_t head[2] = {0, 0};
    if (st == ST_OK && p->bytes >= sizeof head)
        memcpy(head, data, sizeof head);
    uint64_t n = head[0] > 0 ? (uint64_t)head[0] : 0, vocab = head[1] > 0 ? (uint64_t)head[1] : 0;
    if (st == ST_OK && (n == 0 || vocab == 0 || p->bytes != sizeof head + 4 * n + 4 * n * vocab))
        st = err_set(e, ST_IO, "%s: logits of row %lld are damaged", path, (long long)row);
    if (st == ST_OK) {
        const char *ids = data + sizeof head, *logits = ids + 4 * n;
        int64_t shape[2] = {(int64_t)n, (int64_t)vocab};
        snprintf(name, sizeof name, "/rows/%lld/input_ids", (long long)row);
        st = h5_write(h, name, H5_INT32, 1, shape, ids, e);
        snprintf(name, sizeof name, "/rows/%lld/logits", (long long)row);
        if (st == ST_OK)
            st = h5_write(h, name, H5_FLOAT32, 2, shape, logits, e);
    }
    free(data);
    return st;
}

static Status find_places(const char *dir, char (*segments)[SEGMENT_NAME_MAX], int n, Places *p,
                          Err *e)
{
    for (p->segment = 0; p->segment < n; p->segment++) {
        char path[JOB_PATH_MAX];
        int64_t dropped;
        snprintf(path, sizeof path, "%s/%s", dir, segments[p->segment]);
        TRY(segment_each(path, note_place, p, &dropped, e));
    }
    return ST_OK;
}

Status logits_file_write(const char *dir, const char *path, int64_t n_rows, Err *e)
{
    Status st = ST_OK;
    H5Out *h = NULL;
    char(*segments)[SEGMENT_NAME_MAX] = NULL;
    int n_segments = 0;
    Places p = {.rows = malloc((size_t)(n_rows ? n_rows : 1) * sizeof *p.rows), .n_rows = n_rows};
    if (!p.rows) {
        st = err_set(e, ST_MEMORY, "out of memory for the places of %lld rows", (long long)n_rows);
        goto fail;
    }
    for (int64_t i = 0; i < n_rows; i++)
        p.rows[i].segment = -1;
    TRY_GOTO(journal_segments(dir, &segments, &n_segments, e));
    TRY_GOTO(find_places(dir, segments, n_segments, &p, e));
    TRY_GOTO(h5_create(path, &h, e));
    for (int64_t i = 0; i < n_rows; i++) {
        if (p.rows[i].segment < 0)
            continue;
        char segment[JOB_PATH_MAX];
        snprintf(segment, sizeof segment, "%s/%s", dir, segments[p.rows[i].segment]);
        TRY_GOTO(write_row(h, segment, i, &p.rows[i], e));
    }
    st = h5_commit(h, e);
    h = NULL;
fail:
    h5_abandon(h);
    free(segments);
    free(p.rows);
    return st;
}
