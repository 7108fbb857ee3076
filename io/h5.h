/* io/h5.h - the one place that knows HDF5: files written as a whole and renamed into place. */
#ifndef MB_IO_H5_H
#define MB_IO_H5_H

#include "io/err.h"

#include <stdint.h>

typedef struct H5Out H5Out;

typedef enum H5Type { H5_FLOAT32, H5_INT32, H5_INT64 } H5Type;

/* Creates PATH.tmp. */
Status h5_create(const char *path, H5Out **out, Err *e);
/* A contiguous dataset; groups on the way are made. data: dims[0] * ... * dims[rank-1] values,
 * row-major; rank 1..4. */
Status h5_write(H5Out *h, const char *name, H5Type type, int rank, const int64_t *dims,
                const void *data, Err *e);
/* Closes, syncs and renames to PATH. Frees h also on failure; then PATH.tmp is gone. */
Status h5_commit(H5Out *h, Err *e);
/* Gives up: removes PATH.tmp. NULL is fine. */
void h5_abandon(H5Out *h);

#endif
