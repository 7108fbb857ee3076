/* io/pack_file.h - a model in one HDF5 file: what would be a directory, with the matrices as a
 * backend's banks.
 *
 *   /                 attributes moebatch_pack (version), layout, model_digest, model_name
 *   /files/NAME       config.json, tokenizer.json ...: bytes; attribute crc32
 *   /banks/NAME       bytes [n_mats, mat_bytes]; attributes holds (what, for readers), geometry
 *                     [n_parts * 4], use, cols, crc32 [n_mats]
 *   /parts/NAME/      one safetensors file without the codes that are in banks: header; data (the
 *                     other tensors, in the header's order); crc32 [n tensors], places [n, 8] of
 *                     the codes; attribute file_bytes
 *
 * Written under another name and renamed when it is whole, so that a pack that is there is
 * complete; what is read is compared with its CRC-32. */
#ifndef MB_IO_PACK_FILE_H
#define MB_IO_PACK_FILE_H

#include "io/arena.h"
#include "io/file.h"

enum { PACK_VERSION = 1, PACK_MAX_PARTS = 4 };

typedef struct PackBankPart { /* numbers as quant/tensor.h has them */
    int64_t format, rows, group, scale;
} PackBankPart;

typedef struct PackBank {
    const char *name;
    int64_t n_mats, mat_bytes, cols, use;
    uint64_t offset; /* of matrix 0 in the file */
    int n_parts;
    PackBankPart part[PACK_MAX_PARTS];
    int64_t *crc; /* [n_mats] */
} PackBank;

/* Where some codes of a tensor are: rows of a part of a matrix of a bank. */
typedef struct PackPlace {
    int64_t tensor; /* number in its file's header */
    int64_t bank, mat, part;
    int64_t offset, row_bytes, unit_stride; /* where its codes go in the tensor */
    int64_t reserved;
} PackPlace;

typedef struct PackPart {
    const char *name; /* "model.safetensors" */
    const uint8_t *header, *data;
    int64_t header_bytes, data_bytes, file_bytes;
    const uint8_t *crc; /* [n_tensors] uint32 */
    PackPlace *places;  /* [n_places] sorted by tensor */
    int64_t n_tensors, n_places;
} PackPart;

typedef struct PackFile {
    char path[FILE_PATH_MAX];
    int fd;
    FileMap map; /* all of it */
    char layout[64], model_digest[65], model_name[256];
    PackBank *banks; /* [n_banks] by name */
    PackPart *parts; /* [n_parts] by name */
    int n_banks, n_parts;
    Arena arena;
} PackFile;

/* True when path is a regular file that begins as HDF5 does. */
bool pack_file_is(const char *path);
/* ST_INPUT where it is no pack, or of another version. Reads what describes, no data. */
Status pack_file_open(const char *path, PackFile *out, Err *e);
void pack_file_close(PackFile *p); /* all zero is fine, and so is twice */
const PackBank *pack_file_bank(const PackFile *p, const char *name); /* NULL: not there */

/* For paths "PACK/NAME", as if the pack were a directory. */
bool pack_file_has(const char *path);
/* The names of those files: one allocation, which the caller frees. */
Status pack_file_names(const char *pack, char ***out, int *n, Err *e);
/* As file_read; ST_INPUT where the bytes have been altered. */
Status pack_file_read(const char *path, size_t limit, char **out, size_t *len, Err *e);

#endif
