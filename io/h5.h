/* io/h5.h - the one place that knows HDF5: files written as a whole and renamed into place, and
 * read back by asking where a dataset's bytes lie. One thread at a time. */
#ifndef MB_IO_H5_H
#define MB_IO_H5_H

#include "io/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct H5Out H5Out;

typedef enum H5Type { H5_FLOAT32, H5_INT32, H5_INT64, H5_UINT8, H5_UINT32 } H5Type;

enum { H5_MAX_RANK = 4, H5_ALIGN = 4096 };

/* Creates PATH.tmp. */
Status h5_create(const char *path, H5Out **out, Err *e);
/* A contiguous dataset; groups on the way are made. data: dims[0] * ... * dims[rank-1] values,
 * row-major; rank 1..4. */
Status h5_write(H5Out *h, const char *name, H5Type type, int rank, const int64_t *dims,
                const void *data, Err *e);
/* A contiguous dataset of bytes that the caller writes itself, at *offset of PATH.tmp:
 * page-aligned from H5_ALIGN bytes on; 0 for one without bytes. The file has its full length
 * when h5_commit is called; before that, others may write there, too. */
Status h5_reserve(H5Out *h, const char *name, int rank, const int64_t *dims, uint64_t *offset,
                  Err *e);
/* Attributes of a dataset or group ("/": of the file). */
Status h5_put_text(H5Out *h, const char *object, const char *name, const char *text, Err *e);
Status h5_put_int64(H5Out *h, const char *object, const char *name, const int64_t *values, int n,
                    Err *e);
/* Closes, syncs and renames to PATH. Frees h also on failure; then PATH.tmp is gone. */
Status h5_commit(H5Out *h, Err *e);
/* Gives up: removes PATH.tmp. NULL is fine. */
void h5_abandon(H5Out *h);

typedef struct H5In H5In;

/* ST_IO where the file is no HDF5 file, or is shorter than it says. */
Status h5_open(const char *path, H5In **out, Err *e);
void h5_close(H5In *h); /* NULL is fine */
/* The names in a group, in alphabetical order: one allocation, which the caller frees. */
Status h5_names(H5In *h, const char *group, char ***out, int *n, Err *e);
bool h5_has(H5In *h, const char *name);

/* Where a contiguous dataset lies: bytes offset .. offset + bytes - 1 of the file, all of which are
 * there. */
typedef struct H5Place {
    uint64_t offset;
    int64_t bytes, dims[H5_MAX_RANK];
    int rank;
} H5Place;
Status h5_find(H5In *h, const char *name, H5Place *out, Err *e);
Status h5_get_text(H5In *h, const char *object, const char *name, char *out, size_t cap, Err *e);
/* Exactly n values. */
Status h5_get_int64(H5In *h, const char *object, const char *name, int64_t *values, int n, Err *e);

#endif
