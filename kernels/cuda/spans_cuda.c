/* kernels/cuda/spans_cuda.c - see spans.h. */
#include "kernels/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

/* A span begins as far into a page of the window as into one of the file: the system copies page by page,
 * and the instruction that it does so with is faster where both sides are aligned alike. */
enum { PAGE = 4096 };

Status cuda_spans_create(Backend *b, Err *e)
{
    for (int i = 0; i < 2; i++) {
        SpanWindow *w = &b->spans.window[i];
        void *memory = NULL;
        TRY(cuda_status(b, b->api->take_host(&memory, SPAN_WINDOW_BYTES),
                        "pinned memory for weights", e));
        w->memory = memory;
        for (int s = 0; s < 2; s++)
            TRY(cuda_status(b, b->api->event_create(&w->event[s]), "an event", e));
        w->cut = malloc(SPAN_MAX_CUTS * sizeof *w->cut);
        if (!w->cut)
            return err_set(e, ST_MEMORY, "out of memory: what weights are read");
    }
    return ST_OK;
}

void cuda_spans_destroy(Backend *b)
{
    Spans *p = &b->spans;
    for (int i = 0; i < 2; i++) {
        SpanWindow *w = &p->window[i];
        for (int s = 0; s < 2; s++)
            if (w->event[s])
                (void)b->api->event_destroy(w->event[s]);
        if (w->memory)
            (void)b->api->release_host(w->memory);
        free(w->cut);
    }
    free(p->queue);
    *p = (Spans){0};
}

static bool is_same(const UploadSpan *a, const UploadSpan *b)
{
    return a->file == b->file && a->src == b->src && a->bytes == b->bytes;
}

Status cuda_spans_announce(Backend *b, const UploadSpan *span, Err *e)
{
    Spans *p = &b->spans;
    if (span->bytes == 0)
        return ST_OK;
    if (p->head == p->n_queued)
        p->head = p->n_queued = 0;
    if (p->n_queued == p->cap) {
        int cap = p->cap > 0 ? 2 * p->cap : 64;
        UploadSpan *queue = realloc(p->queue, (size_t)cap * sizeof *queue);
        if (!queue)
            return err_set(e, ST_MEMORY, "out of memory: what weights come next");
        p->queue = queue;
        p->cap = cap;
    }
    p->queue[p->n_queued++] = *span;
    return ST_OK;
}

void cuda_spans_forget(Backend *b)
{
    Spans *p = &b->spans;
    p->head = p->n_queued = 0;
    p->head_at = 0;
    for (int i = 0; i < 2; i++)
        p->window[i].taken = p->window[i].n_cuts;
}

/* --- reading --- */

static Status read_bytes(const UploadSpan *s, size_t at, size_t n, uint8_t *out, Err *e)
{
    TRY(file_map_read(s->file, s->src + at, out, n, e));
    bool bad = s->finite
                   ? finite_search(s->finite, out, (int64_t)n / s->finite->size) >= 0
                   : s->scales != SCALE_NONE &&
                         !scales_are_good(s->scales, out, (int64_t)n / scale_bytes(s->scales));
    return bad ? err_set(e, ST_INPUT, "holds a code or a scale that is not a finite number")
               : ST_OK;
}

static void read_task(void *ctx, int task, int thread)
{
    SpanWindow *w = ctx;
    int low = w->taken, high = w->n_cuts; /* the last cut that begins at task or before */
    (void)thread;
    task += w->cut[low].first_task;
    while (high - low > 1) {
        int mid = (low + high) / 2;
        if (w->cut[mid].first_task <= task)
            low = mid;
        else
            high = mid;
    }
    SpanCut *c = &w->cut[low];
    size_t at = (size_t)(task - c->first_task) * SPAN_TASK_BYTES, n = c->bytes - at;
    Err e;
    if (read_bytes(&c->span, c->at + at, n < SPAN_TASK_BYTES ? n : SPAN_TASK_BYTES, c->out + at,
                   &e) != ST_OK)
        atomic_store(&c->failed, true);
}

/* Room for the next of the queue: in this window if all of it fits, else in the other one, which is free
 * once what it holds has travelled. */
static Status make_room(Backend *b, const char *what, Err *e)
{
    Spans *p = &b->spans;
    SpanWindow *w = &p->window[p->at];
    void *const streams[2] = {b->stream, b->upload.copies};
    if (p->queue[p->head].bytes - p->head_at + PAGE <= SPAN_WINDOW_BYTES - w->used &&
        w->n_cuts < SPAN_MAX_CUTS)
        return ST_OK;
    for (int s = 0; s < 2; s++)
        TRY(cuda_status(b, b->api->event_record(w->event[s], streams[s]), what, e));
    w->travels = true;
    p->at = 1 - p->at;
    w = &p->window[p->at];
    for (int s = 0; s < 2 && w->travels; s++)
        TRY(cuda_status(b, b->api->event_wait(w->event[s]), what, e));
    w->travels = false;
    w->used = 0;
    w->n_cuts = w->taken = w->n_tasks = 0;
    return ST_OK;
}

/* As much of the queue as there is room for, in one run. What lies in the window was taken. */
static Status read_on(Backend *b, const char *what, Err *e)
{
    Spans *p = &b->spans;
    TRY(make_room(b, what, e));
    SpanWindow *w = &p->window[p->at];
    int before = w->n_tasks;
    w->taken = w->n_cuts;
    while (p->head < p->n_queued && w->n_cuts < SPAN_MAX_CUTS) {
        const UploadSpan *s = &p->queue[p->head];
        size_t into = ((uintptr_t)s->src + p->head_at) % PAGE;
        size_t at = w->used + (into + PAGE - w->used % PAGE) % PAGE, bytes = s->bytes - p->head_at;
        size_t room = at < SPAN_WINDOW_BYTES ? SPAN_WINDOW_BYTES - at : 0;
        if (bytes > room)
            bytes = room / SPAN_TASK_BYTES * SPAN_TASK_BYTES;
        if (bytes == 0)
            break;
        SpanCut *c = &w->cut[w->n_cuts++];
        *c = (SpanCut){*s, p->head_at, bytes, w->memory + at, w->n_tasks, false};
        w->n_tasks += (int)((bytes + SPAN_TASK_BYTES - 1) / SPAN_TASK_BYTES);
        w->used = at + bytes;
        p->head_at += bytes;
        if (p->head_at < s->bytes)
            break;
        p->head++;
        p->head_at = 0;
    }
    int n = w->n_tasks - before;
    team_run(n > 1 ? b->team : NULL, n, read_task, w);
    return ST_OK;
}

/* --- sending --- */

/* The part of a span that begins with byte at. */
static Status find_cut(Backend *b, const UploadSpan *s, size_t at, const char *what, SpanCut **out,
                       Err *e)
{
    Spans *p = &b->spans;
    SpanWindow *w = &p->window[p->at];
    for (int i = w->taken; i < w->n_cuts; i++)
        if (is_same(&w->cut[i].span, s) && w->cut[i].at == at) {
            w->taken = i + 1;
            *out = &w->cut[i];
            return ST_OK;
        }
    int i = p->head;
    while (i < p->n_queued && !is_same(&p->queue[i], s))
        i++;
    if (i == p->n_queued || at != (i == p->head ? p->head_at : 0)) { /* nobody said so */
        cuda_spans_forget(b);
        TRY(cuda_spans_announce(b, s, e));
        p->head_at = at;
    } else if (i > p->head) {
        p->head = i;
        p->head_at = 0;
    }
    TRY(read_on(b, what, e));
    w = &p->window[p->at];
    *out = &w->cut[w->taken++];
    return ST_OK;
}

/* Again what failed, one part after the other: says why, if it still does. */
static Status read_again(const SpanCut *c, Err *e)
{
    for (size_t at = 0; at < c->bytes; at += SPAN_TASK_BYTES) {
        size_t n = c->bytes - at < SPAN_TASK_BYTES ? c->bytes - at : SPAN_TASK_BYTES;
        TRY(read_bytes(&c->span, c->at + at, n, c->out + at, e));
    }
    return ST_OK;
}

static Status send(Backend *b, const UploadSpan *s, void *stream, const char *what, Err *e)
{
    for (size_t at = 0; at < s->bytes;) {
        SpanCut *c;
        TRY(find_cut(b, s, at, what, &c, e));
        if (atomic_load(&c->failed))
            TRY(read_again(c, e));
        TRY(cuda_status(b, b->api->to_device((uint8_t *)s->dst + at, c->out, c->bytes, stream),
                        what, e));
        at += c->bytes;
    }
    return ST_OK;
}

Status cuda_spans_send(Backend *b, const UploadSpan *spans, int n, void *stream, const char *what,
                       Err *e)
{
    Status st = ST_OK;
    for (int i = 0; i < n && st == ST_OK; i++)
        st = send(b, &spans[i], stream, what, e);
    if (st != ST_OK)
        cuda_spans_forget(b);
    return st;
}
