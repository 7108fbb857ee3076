/* kernels/cuda/upload.h - weights on their way to the device: a ring of pinned pieces, so that one
 * piece is filled by the team while others travel. Host memory is the ring's, whatever is sent. */
#ifndef MB_KERNELS_CUDA_UPLOAD_H
#define MB_KERNELS_CUDA_UPLOAD_H

#include "io/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Backend Backend;

enum { UPLOAD_PIECES = 4, UPLOAD_PIECE_BYTES = 16 << 20, UPLOAD_ROW_MAX = UPLOAD_PIECE_BYTES };

typedef struct Upload {
    char *piece[UPLOAD_PIECES];  /* pinned */
    void *event[UPLOAD_PIECES];  /* its last copy is done */
    bool travels[UPLOAD_PIECES]; /* the event was recorded and not waited for */
    int at;                      /* the piece that is being filled */
    size_t used;                 /* of it, from the front */
} Upload;

Status cuda_upload_create(Backend *b, Err *e);
void cuda_upload_destroy(Backend *b); /* also after create failed half-way */

/* Rows 0 .. n_rows-1 of row_bytes each, one behind the other at dst on the device. fill writes a whole
 * row at out, on any of the team's threads (thread 0 is the caller, thread < team_size), rows in any
 * order. What it reads is not needed once this returns; the copies are queued on the backend's stream,
 * and nothing is waited for unless the whole ring travels. ST_INPUT where row_bytes is more than
 * UPLOAD_ROW_MAX. what: for messages. */
typedef void UploadFill(void *ctx, int64_t row, int thread, uint8_t *out);
Status cuda_upload_rows(Backend *b, void *dst, int64_t n_rows, int64_t row_bytes, UploadFill *fill,
                        void *ctx, const char *what, Err *e);
/* The same of bytes as they are. */
Status cuda_upload_bytes(Backend *b, void *dst, const void *src, size_t bytes, const char *what,
                         Err *e);

#endif
