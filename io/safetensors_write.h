/* io/safetensors_write.h - a safetensors file whose tensors are all known before the first byte is
 * written, so that many threads can fill it in any order.
 *
 * The header comes first, with every offset in it; the file appears under its name only when it is
 * complete and synced. */
#ifndef MB_IO_SAFETENSORS_WRITE_H
#define MB_IO_SAFETENSORS_WRITE_H

#include "io/safetensors.h"
#include "io/strbuf.h"

typedef struct TensorPlan {
    const char *name;
    TensorDtype dtype;
    int n_dims;
    int64_t shape[TENSOR_MAX_DIMS];
    int64_t bytes, offset; /* filled in by safetensors_lay_out; offset from the file's start */
} TensorPlan;

/* Bytes of a tensor of that shape. */
int64_t tensor_plan_bytes(const TensorPlan *t);

/* Gives t[0..n) their places, wider dtypes first so that all are aligned, else in the order given,
 * and writes the header, its length included, to *header (cleared first). metadata: pairs of key
 * and value, ended by NULL; or NULL. *file_bytes: of the whole file. ST_MEMORY. */
Status safetensors_lay_out(TensorPlan *t, int n, const char *const *metadata, StrBuf *header,
                           int64_t *file_bytes, Err *e);

typedef struct TensorFile {
    char *path, *tmp; /* tmp: PATH.tmp, until the end */
    int fd;           /* -1: closed */
} TensorFile;

/* Creates PATH.tmp, whatever was there, of that size, with its header. */
Status tensor_file_create(const char *path, const StrBuf *header, int64_t file_bytes,
                          TensorFile *out, Err *e);
/* bytes[0..len) at offset. Any thread, any order, each byte once. */
Status tensor_file_put(const TensorFile *f, int64_t offset, const void *bytes, size_t len, Err *e);
/* Syncs and gives the file its name. f is closed, also on failure, and PATH.tmp is then gone. */
Status tensor_file_finish(TensorFile *f, Err *e);
/* Removes what was written; nothing open is fine. */
void tensor_file_abandon(TensorFile *f);

/* Whether path is a file of that size that begins with header. What was renamed by
 * tensor_file_finish is complete, so this tells a finished file of the same plan. */
bool tensor_file_is(const char *path, const StrBuf *header, int64_t file_bytes);

#endif
