/* kernels/cuda/slabs_cuda.c - rows into slabs (slabs.h): staged on the device as they are stored, of which
 * kernels there make slabs.
 *
 * Two stagings take turns on the stream for copies, so that rows arrive in one while the backend's own
 * stream makes slabs of those in the other. Matrices whose rows take turns in a file (gate and up) come
 * one after the other and lie in the same bytes, which are sent once. */
#include "kernels/cuda/weight_rows.h"

#include <string.h>

enum { ALIGN = 256 };

static size_t round_up(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

void cuda_staging_forget(Backend *b)
{
    b->staging.holds = b->staging.announced = (StagedBytes){0};
    cuda_spans_forget(b);
}

void cuda_staging_close(Backend *b)
{
    Staging *s = &b->staging;
    for (int i = 0; i < 2; i++) {
        void *const events[] = {s->arrived[i], s->taken[i]};
        for (int k = 0; k < 2; k++)
            if (events[k])
                (void)b->api->event_destroy(events[k]);
        cuda_release(b, s->memory[i]);
    }
    *s = (Staging){0};
}

static Status open_turn(Backend *b, int turn, Err *e)
{
    Staging *s = &b->staging;
    void *memory;
    if (!s->arrived[turn])
        TRY(cuda_status(b, b->api->event_create(&s->arrived[turn]), "an event", e));
    if (!s->taken[turn])
        TRY(cuda_status(b, b->api->event_create(&s->taken[turn]), "an event", e));
    if (s->memory[turn])
        return ST_OK;
    TRY(cuda_alloc(b, SLAB_STAGING, "weights on their way", &memory, e));
    s->memory[turn] = memory;
    return ST_OK;
}

/* Some rows of a part, and where they are staged. */
typedef struct Stage {
    int64_t first, n;
    int64_t codes_row, scales_row; /* bytes from a row to the next */
    bool raw_codes, raw_scales;
} Stage;

static size_t scales_at(const Stage *g)
{
    return round_up((size_t)(g->n * g->codes_row));
}

static size_t shift_at(const Stage *g)
{
    return scales_at(g) + round_up((size_t)(g->n * g->scales_row));
}

static bool is_same(const UploadSpan *a, const UploadSpan *b)
{
    return a->file == b->file && a->src == b->src && a->bytes == b->bytes;
}

/* All of them come from files, and are there. */
static bool is_held(const StagedBytes *held, const StagedBytes *want)
{
    return want->codes.bytes > 0 && is_same(&held->codes, &want->codes) &&
           is_same(&held->scales, &want->scales);
}

/* How a part is staged, as many rows at a time as there is room for; 0: not even SLAB_ROWS of them. */
static int64_t plan(const Weight *w, int part, const QuantTensor *t, Stage *g)
{
    const CudaPart *p = &w->part[part];
    *g = (Stage){.raw_codes = rows_raw_codes(w, p, t), .raw_scales = rows_raw_scales(p, t)};
    g->codes_row = g->raw_codes ? t->row_bytes : w->row_bytes[part];
    g->scales_row = g->raw_scales ? t->scale_row_bytes : w->row_scale_bytes[part];
    int64_t most = (SLAB_STAGING - 3 * ALIGN) / (g->codes_row + g->scales_row + 4);
    return most / SLAB_ROWS * SLAB_ROWS;
}

/* What of them goes as it lies; *of_files: which is all, and lies in files. */
static int spans_of(const CudaPart *p, const QuantTensor *t, const Stage *g, UploadSpan *spans,
                    StagedBytes *of_files)
{
    int n = 0;
    *of_files = (StagedBytes){0};
    if (g->raw_codes)
        spans[n++] = rows_span(p, t, ROW_CODES, g->first, g->n);
    if (g->raw_scales)
        spans[n++] = rows_span(p, t, ROW_SCALES, g->first, g->n);
    if (!g->raw_codes || (!g->raw_scales && g->scales_row > 0))
        return n;
    if (spans[0].file && (n == 1 || spans[1].file))
        *of_files = (StagedBytes){spans[0], n == 2 ? spans[1] : (UploadSpan){0}};
    return n;
}

/* Sends the rows to the staging whose turn it is, and makes the backend's stream wait for them. */
static Status send(Backend *b, RowJob *job, const Stage *g, UploadSpan *spans, int n_spans, Err *e)
{
    Staging *s = &b->staging;
    const char *name = job->w->name;
    s->at = 1 - s->at;
    s->holds = (StagedBytes){0};
    TRY(open_turn(b, s->at, e));
    uint8_t *memory = s->memory[s->at];
    void *copies = b->upload.copies;
    TRY(cuda_status(b, b->api->stream_wait(copies, s->taken[s->at]), name, e));
    for (int i = 0; i < n_spans; i++)
        spans[i].dst = memory + (i == 0 && g->raw_codes ? 0 : scales_at(g));
    TRY(cuda_spans_send(b, spans, n_spans, copies, name, e));
    if (!g->raw_codes)
        TRY(rows_fill(b, job, ROW_CODES, g->first, g->n, g->codes_row, memory, copies, e));
    if (!g->raw_scales)
        TRY(rows_fill(b, job, ROW_SCALES, g->first, g->n, g->scales_row, memory + scales_at(g),
                      copies, e));
    TRY(cuda_status(b, b->api->event_record(s->arrived[s->at], copies), name, e));
    return cuda_status(b, b->api->stream_wait(b->stream, s->arrived[s->at]), name, e);
}

static Status stage_rows(Backend *b, RowJob *job, const Stage *g, Err *e)
{
    UploadSpan spans[2];
    StagedBytes of_files;
    int n = spans_of(job->p, job->t, g, spans, &of_files);
    if (is_held(&b->staging.holds, &of_files))
        return ST_OK;
    TRY(send(b, job, g, spans, n, e));
    b->staging.holds = of_files;
    return ST_OK;
}

static Status repack_rows(Backend *b, const RowJob *job, const Stage *g, int mat, float *whole,
                          bool own_scales, Err *e)
{
    const Weight *w = job->w;
    const QuantTensor *t = job->t;
    Staging *s = &b->staging;
    uint8_t *memory = s->memory[s->at];
    CudaRepack r = {.codes = memory + (g->raw_codes ? rows_lane_bytes(t, ROW_CODES) : 0),
                    .scales = memory + scales_at(g) +
                              (g->raw_scales ? rows_lane_bytes(t, ROW_SCALES) : 0),
                    .codes_row = g->codes_row,
                    .scales_row = g->scales_row,
                    .part = job->p,
                    .row_scale = whole + g->first,
                    .own_scales = own_scales,
                    .whole_scale = own_scales ? 0 : rows_whole_scale(job->p, t, 0),
                    .shift = (int32_t *)(void *)(memory + shift_at(g)),
                    .mat = mat,
                    .first = (int)g->first,
                    .rows = (int)g->n,
                    .k = (int)w->cols,
                    .k_padded = (int)w->cols_padded,
                    .planes = w->planes};
    TRY(cuda_status(b, b->api->repack(&r, b->stream), w->name, e));
    return cuda_status(b, b->api->event_record(s->taken[s->at], b->stream), w->name, e);
}

Status cuda_slabs_set(Backend *b, RowJob *job, int mat, int part, float *whole, Err *e)
{
    const Weight *w = job->w;
    const CudaPart *p = job->p;
    const QuantTensor *t = job->t;
    Stage g;
    int64_t most = plan(w, part, t, &g);
    if (most == 0)
        return err_set(e, ST_INPUT, "%s: rows of %lld bytes are too long", w->name,
                       (long long)g.codes_row);
    bool own_scales = !rows_share_scale(p, t);
    if (own_scales)
        TRY(rows_fill(b, job, ROW_WHOLE_SCALES, 0, p->rows, (int64_t)sizeof(float),
                      (uint8_t *)whole, b->stream, e));
    for (; g.first < p->rows; g.first += most) {
        g.n = p->rows - g.first < most ? p->rows - g.first : most;
        TRY(stage_rows(b, job, &g, e));
        TRY(repack_rows(b, job, &g, mat, whole, own_scales, e));
    }
    return ST_OK;
}

void cuda_slabs_ahead(Backend *b, const Weight *w, int part, const QuantTensor *t)
{
    const CudaPart *p = &w->part[part];
    UploadSpan spans[2];
    StagedBytes *last = &b->staging.announced, of_files;
    Stage g;
    Err ignored; /* then nothing is read ahead */
    int64_t most = plan(w, part, t, &g);
    for (; most > 0 && g.first < p->rows; g.first += most) {
        g.n = p->rows - g.first < most ? p->rows - g.first : most;
        int n = spans_of(p, t, &g, spans, &of_files);
        bool again = is_held(last, &of_files);
        for (int i = 0; i < n && !again; i++)
            if (spans[i].file && cuda_spans_announce(b, &spans[i], &ignored) != ST_OK)
                return;
        *last = of_files;
    }
}
