/* kernels/cuda/spans.h - bytes of files and of memory on their way to the device, as they lie: two pinned
 * windows take turns, so that one is read into while what the other holds travels. Host memory is the
 * windows', whatever is sent: 64 MB.
 *
 * Every run of the team waits for its last thread. So what will be sent is announced, in its order, and
 * a run reads a window full. */
#ifndef MB_KERNELS_CUDA_SPANS_H
#define MB_KERNELS_CUDA_SPANS_H

#include "quant/finite.h"

#include <stdatomic.h>

typedef struct Backend Backend;

enum { SPAN_WINDOW_BYTES = 32 << 20, SPAN_TASK_BYTES = 256 << 10, SPAN_MAX_CUTS = 256 };

typedef struct UploadSpan {
    void *dst; /* device; of no concern while it is announced */
    const uint8_t *src;
    const FileMap *file; /* whose mapping src is in; NULL: memory */
    size_t bytes;
    /* What is looked at on the way: codes, where there is a test, or scales; else SCALE_NONE. */
    const NotFinite *finite;
    ScaleType scales;
} UploadSpan;

/* Part of a span that a window holds. */
typedef struct SpanCut {
    UploadSpan span;
    size_t at, bytes; /* of the span */
    uint8_t *out;
    int first_task;
    atomic_bool failed;
} SpanCut;

typedef struct SpanWindow {
    uint8_t *memory; /* pinned */
    void *event[2];  /* its last copies are done, on either stream */
    bool travels;    /* the events were recorded and not waited for */
    size_t used;     /* from the front */
    SpanCut *cut;    /* [SPAN_MAX_CUTS] */
    int n_cuts, taken, n_tasks;
} SpanWindow;

typedef struct Spans {
    SpanWindow window[2];
    int at; /* the one that is read into */
    /* What was announced and is not in a window; of queue[head] head_at bytes are. */
    UploadSpan *queue;
    int head, n_queued, cap;
    size_t head_at;
} Spans;

Status cuda_spans_create(Backend *b, Err *e);
void cuda_spans_destroy(Backend *b); /* also after create failed half-way */

/* The span will be sent; its file stays open until then, or until all is forgotten. */
Status cuda_spans_announce(Backend *b, const UploadSpan *span, Err *e);
void cuda_spans_forget(Backend *b);
/* Queues the copies of n spans on stream, one of the backend's two (upload.h). Read by now, or read now;
 * what was announced before them and is not yet sent no longer counts. ST_IO where a file ends too early
 * or cannot be read, ST_INPUT where a code or a scale is no finite number; then nothing is announced. */
Status cuda_spans_send(Backend *b, const UploadSpan *spans, int n, void *stream, const char *what,
                       Err *e);

#endif
