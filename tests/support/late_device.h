/* tests/support/late_device.h - a device without a device, for tests of what goes there: two streams of
 * copies and of rows to be made slabs, which are done as late as they may, that is where somebody waits
 * for them or for an event behind them. */
#ifndef MB_TESTS_LATE_DEVICE_H
#define MB_TESTS_LATE_DEVICE_H

#include "kernels/cuda/cuda.h"

typedef struct LateDevice {
    int n_events; /* that there are */
    int n_waits;  /* for events */
    size_t host;  /* pinned bytes that were taken */
    size_t sent;  /* bytes of copies */
    bool soon;    /* what the second stream is given is done at once */
    bool full;    /* copies fail: "the queue is full" */
    void
        *streams[2]; /* the first one is for Backend.stream; the second is what stream_open gives */
    void (*repacked)(const CudaRepack *r); /* rows that are made slabs now; NULL: none are */
} LateDevice;

extern LateDevice late;
/* take, release, take_host, release_host, to_device, repack, streams and events; is Hopper. */
extern const CudaApi late_device;

/* Nothing was counted and nothing is under way; the streams are there. */
void late_device_reset(void);
/* All that is under way is done, on the first stream before the rest of the second: what the first one
 * should have waited for there and did not comes too late. */
void late_device_finish(void);

#endif
