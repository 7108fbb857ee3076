/* kernels/cuda/upload_cuda.c - see upload.h.
 *
 * A piece is left once it is full: its event is recorded behind its last copy, and the ring goes on to
 * the next piece, whose event is waited for. So small parts (scales, biases) share a piece, and a part
 * larger than a piece is cut. Copies run in the order in which they were queued, at the speed of the
 * bus; filling is memory copies on all threads, which is faster as long as the files are in memory. */
#include "kernels/cuda/cuda.h"

#include <string.h>

enum {
    PIECE_ALIGN = 256,     /* of what shares a piece */
    TASK_BYTES = 64 << 10, /* less than this is not worth a task of its own, */
    TASK_ROWS = 512        /* unless it is so many rows */
};

Status cuda_upload_create(Backend *b, Err *e)
{
    TRY(cuda_status(b, b->api->stream_open(&b->upload.copies), "a stream", e));
    for (int i = 0; i < UPLOAD_PIECES; i++) {
        void *piece = NULL;
        TRY(cuda_status(b, b->api->take_host(&piece, UPLOAD_PIECE_BYTES),
                        "pinned memory for weights", e));
        b->upload.piece[i] = piece;
        for (int s = 0; s < 2; s++)
            TRY(cuda_status(b, b->api->event_create(&b->upload.event[i][s]), "an event", e));
    }
    return ST_OK;
}

void cuda_upload_destroy(Backend *b)
{
    Upload *u = &b->upload;
    if (u->copies)
        (void)b->api->wait(u->copies);
    for (int i = 0; i < UPLOAD_PIECES; i++) {
        for (int s = 0; s < 2; s++)
            if (u->event[i][s])
                (void)b->api->event_destroy(u->event[i][s]);
        if (u->piece[i])
            (void)b->api->release_host(u->piece[i]);
    }
    if (u->copies)
        (void)b->api->close(u->copies);
    *u = (Upload){0};
}

static Status next_piece(Backend *b, const char *what, Err *e)
{
    Upload *u = &b->upload;
    void *const streams[2] = {b->stream, u->copies};
    for (int s = 0; s < 2; s++)
        TRY(cuda_status(b, b->api->event_record(u->event[u->at][s], streams[s]), what, e));
    u->travels[u->at] = true;
    u->at = (u->at + 1) % UPLOAD_PIECES;
    u->used = 0;
    for (int s = 0; s < 2 && u->travels[u->at]; s++)
        TRY(cuda_status(b, b->api->event_wait(u->event[u->at][s]), what, e));
    u->travels[u->at] = false;
    return ST_OK;
}

typedef struct FillRun {
    UploadFill *fill;
    void *ctx;
    uint8_t *out;
    int64_t first_row, n_rows, row_bytes, task_rows;
} FillRun;

static void fill_task(void *ctx, int task, int thread)
{
    const FillRun *r = ctx;
    int64_t row = task * r->task_rows;
    int64_t end = row + r->task_rows < r->n_rows ? row + r->task_rows : r->n_rows;
    for (; row < end; row++)
        r->fill(r->ctx, r->first_row + row, thread, r->out + row * r->row_bytes);
}

static void fill_rows(Backend *b, FillRun *r)
{
    r->task_rows = r->row_bytes < TASK_BYTES ? TASK_BYTES / r->row_bytes : 1;
    r->task_rows = r->task_rows > TASK_ROWS ? TASK_ROWS : r->task_rows;
    int n_tasks = (int)((r->n_rows + r->task_rows - 1) / r->task_rows);
    team_run(n_tasks > 1 ? b->team : NULL, n_tasks, fill_task, r);
}

Status cuda_upload_rows(Backend *b, void *dst, int64_t n_rows, int64_t row_bytes, UploadFill *fill,
                        void *ctx, void *stream, const char *what, Err *e)
{
    Upload *u = &b->upload;
    if (n_rows == 0 || row_bytes == 0)
        return ST_OK;
    if (row_bytes > UPLOAD_ROW_MAX)
        return err_set(e, ST_INPUT, "%s: rows of %lld bytes are too long", what,
                       (long long)row_bytes);
    for (int64_t row = 0; row < n_rows;) {
        int64_t n = (int64_t)(UPLOAD_PIECE_BYTES - u->used) / row_bytes;
        if (n == 0) {
            TRY(next_piece(b, what, e));
            continue;
        }
        n = n < n_rows - row ? n : n_rows - row;
        FillRun run = {.fill = fill,
                       .ctx = ctx,
                       .out = (uint8_t *)u->piece[u->at] + u->used,
                       .first_row = row,
                       .n_rows = n,
                       .row_bytes = row_bytes};
        fill_rows(b, &run);
        size_t bytes = (size_t)(n * row_bytes);
        TRY(cuda_status(b,
                        b->api->to_device((uint8_t *)dst + row * row_bytes, run.out, bytes, stream),
                        what, e));
        u->used += (bytes + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
        row += n;
    }
    return ST_OK;
}

typedef struct Bytes {
    const uint8_t *from;
    int64_t row_bytes;
} Bytes;

static void copy_row(void *ctx, int64_t row, int thread, uint8_t *out)
{
    const Bytes *bytes = ctx;
    (void)thread;
    memcpy(out, bytes->from + row * bytes->row_bytes, (size_t)bytes->row_bytes);
}

Status cuda_upload_bytes(Backend *b, void *dst, const void *src, size_t bytes, const char *what,
                         Err *e)
{
    size_t whole = bytes / TASK_BYTES * TASK_BYTES;
    Bytes rows = {.from = src, .row_bytes = TASK_BYTES};
    TRY(cuda_upload_rows(b, dst, (int64_t)(bytes / TASK_BYTES), TASK_BYTES, copy_row, &rows,
                         b->stream, what, e));
    rows = (Bytes){.from = rows.from + whole, .row_bytes = (int64_t)(bytes - whole)};
    return cuda_upload_rows(b, (uint8_t *)dst + whole, 1, rows.row_bytes, copy_row, &rows,
                            b->stream, what, e);
}
