/* tests/support/late_device.c - see late_device.h. */
#include "tests/support/late_device.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_WORK = 1 << 15, MAX_EVENTS = 32, QUEUE_IS_FULL = 1, OUT_OF_MEMORY };

typedef enum WorkKind { WORK_COPY, WORK_REPACK, WORK_WAIT } WorkKind;

typedef struct Work {
    WorkKind kind;
    void *dst;
    const void *src;
    size_t bytes;
    CudaRepack repack;
    int stream, upto; /* WORK_WAIT: of that stream */
} Work;

static Work work[2][MAX_WORK];
static int n_queued[2], n_done[2];
static struct Event {
    int stream, upto;
} events[MAX_EVENTS];

LateDevice late;

static void run_to(int stream, int upto)
{
    while (n_done[stream] < upto) {
        Work *w = &work[stream][n_done[stream]++];
        if (w->kind == WORK_COPY)
            memcpy(w->dst, w->src, w->bytes);
        else if (w->kind == WORK_REPACK)
            late.repacked(&w->repack);
        else
            run_to(w->stream, w->upto);
    }
}

static int number_of(const void *stream)
{
    return stream == &late.streams[1];
}

static int put(const void *stream, Work w)
{
    int s = number_of(stream);
    if (late.full || n_queued[s] == MAX_WORK)
        return QUEUE_IS_FULL;
    work[s][n_queued[s]++] = w;
    if (late.soon && s == 1)
        run_to(1, n_queued[1]);
    return 0;
}

static int to_device(void *dst, const void *src, size_t bytes, void *stream)
{
    late.sent += bytes;
    return put(stream, (Work){.kind = WORK_COPY, .dst = dst, .src = src, .bytes = bytes});
}

static int repack(const CudaRepack *r, void *stream)
{
    return put(stream, (Work){.kind = WORK_REPACK, .repack = *r});
}

static int stream_wait(void *stream, void *event)
{
    const struct Event *v = event;
    return put(stream, (Work){.kind = WORK_WAIT, .stream = v->stream, .upto = v->upto});
}

static int event_create(void **out)
{
    events[late.n_events] = (struct Event){0, 0};
    *out = &events[late.n_events++];
    return 0;
}

static int event_destroy(void *event)
{
    (void)event;
    late.n_events--;
    return 0;
}

static int event_record(void *event, void *stream)
{
    *(struct Event *)event = (struct Event){number_of(stream), n_queued[number_of(stream)]};
    return 0;
}

static int event_wait(void *event)
{
    const struct Event *v = event;
    late.n_waits++;
    run_to(v->stream, v->upto);
    return 0;
}

static int stream_open(void **out)
{
    *out = &late.streams[1];
    return 0;
}

static int stream_done(void *stream)
{
    run_to(number_of(stream), n_queued[number_of(stream)]);
    return 0;
}

static int take(void **out, size_t bytes)
{
    *out = malloc(bytes);
    return *out ? 0 : OUT_OF_MEMORY;
}

static int take_host(void **out, size_t bytes)
{
    late.host += bytes;
    return take(out, bytes);
}

static int release(void *p)
{
    free(p);
    return 0;
}

static int yes(void)
{
    return 1;
}

static const char *error_text(int code)
{
    return code == QUEUE_IS_FULL ? "the queue is full" : "out of memory";
}

static bool is_out_of_memory(int code)
{
    return code == OUT_OF_MEMORY;
}

const CudaApi late_device = {.error_text = error_text,
                             .is_out_of_memory = is_out_of_memory,
                             .take = take,
                             .release = release,
                             .take_host = take_host,
                             .release_host = release,
                             .to_device = to_device,
                             .repack = repack,
                             .stream_open = stream_open,
                             .stream_wait = stream_wait,
                             .close = stream_done,
                             .wait = stream_done,
                             .event_create = event_create,
                             .event_destroy = event_destroy,
                             .event_record = event_record,
                             .event_wait = event_wait,
                             .has_sm90a = yes};

void late_device_reset(void)
{
    late = (LateDevice){0};
    memset(n_queued, 0, sizeof n_queued);
    memset(n_done, 0, sizeof n_done);
}

void late_device_finish(void)
{
    for (int s = 0; s < 2; s++)
        run_to(s, n_queued[s]);
}
