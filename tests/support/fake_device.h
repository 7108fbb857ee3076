/* tests/support/fake_device.h - a device without a device: a backend whose memory is the host's, and
 * whose exchange operations are those of exchange_ref.h with MPI in place of NCCL. What it does is
 * done when a call returns. */
#ifndef MB_TESTS_FAKE_DEVICE_H
#define MB_TESTS_FAKE_DEVICE_H

#include "dist/comm.h"
#include "kernels/backend.h"

/* alloc, release, upload, wait and exchange only; memory is filled with 0xa5. */
extern const BackendOps fake_device;

/* comm is borrowed. NULL when there is no memory. */
Backend *fake_device_create(Comm *comm);
void fake_device_destroy(Backend *b);
/* Calls of link_move and of wait_copy so far. */
int fake_device_moves(const Backend *b);
int fake_device_waits(const Backend *b);

#endif
