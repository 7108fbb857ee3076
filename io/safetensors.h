/* io/safetensors.h - the header of one safetensors file, checked byte for byte.
 *
 * The file is a little-endian 64-bit header length, a JSON header of that many bytes, and the
 * tensors' data, which must lie one after the other without overlaps, gaps or left-over bytes: the
 * format demands it, and a file that breaks it was cut or merged by hand. */
#ifndef MB_IO_SAFETENSORS_H
#define MB_IO_SAFETENSORS_H

#include "io/arena.h"
#include "io/err.h"

#include <stddef.h>
#include <stdint.h>

typedef enum TensorDtype {
    DTYPE_BOOL,
    DTYPE_U8,
    DTYPE_I8,
    DTYPE_F8_E4M3,
    DTYPE_F8_E5M2,
    DTYPE_F8_E8M0,
    DTYPE_I16,
    DTYPE_U16,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_I32,
    DTYPE_U32,
    DTYPE_F32,
    DTYPE_I64,
    DTYPE_U64,
    DTYPE_F64,
    N_DTYPES
} TensorDtype;

const char *dtype_name(TensorDtype d);
int dtype_bytes(TensorDtype d);

enum { TENSOR_MAX_DIMS = 6 };

typedef struct TensorEntry {
    const char *name;
    TensorDtype dtype;
    int n_dims; /* 0: a scalar */
    int part;   /* file it lies in, for sets of files; else 0 */
    int64_t shape[TENSOR_MAX_DIMS];
    const uint8_t *data; /* any alignment */
    int64_t bytes;
} TensorEntry;

/* "[512, 128]" into out, cut to fit cap. */
void tensor_shape_text(char *out, size_t cap, int n_dims, const int64_t *shape);

typedef struct SafeTensors {
    TensorEntry *entries; /* [n] in file order of the header */
    int n;
    int64_t header_bytes; /* the length field and the JSON */
    Arena arena;          /* entries and names */
} SafeTensors;

/* file[0..len): the whole file (a mapping will do: only the header is touched). entries[].data
 * points into it. Messages name the tensor; the caller adds the file. */
Status safetensors_parse(const uint8_t *file, size_t len, SafeTensors *out, Err *e);
/* The same from a copy of the header alone: header[0..header_len) begins a file of file_len bytes,
 * which would lie at file; nothing there is touched. */
Status safetensors_parse_header(const uint8_t *header, size_t header_len, const uint8_t *file,
                                size_t file_len, SafeTensors *out, Err *e);
void safetensors_free(SafeTensors *s); /* all zero is fine, and so is twice */

#endif
