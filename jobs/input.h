/* jobs/input.h - the input file, streamed once to make an index, then read line by line in any
 * order.
 *
 * The index is a file of fixed records in the job directory that every rank maps, so memory does
 * not grow with the input. Only LF ends a line; a BOM is skipped, blank lines are not rows,
 * lines have any length. */
#ifndef MB_JOBS_INPUT_H
#define MB_JOBS_INPUT_H

#include "io/err.h"
#include "io/strbuf.h"

#include <stdint.h>

typedef struct InputRecord {
    uint64_t offset;       /* of the line in the file */
    uint64_t bytes;        /* without line end */
    uint64_t line;         /* physical line, from 1 */
    uint64_t duplicate_of; /* physical line of the first row with the same custom_id, or 0 */
} InputRecord;

typedef struct Input {
    int fd;
    int64_t n_rows;
    const InputRecord *records; /* [n_rows], mapped */
    size_t mapped_bytes;
    char path[1024];
} Input;

/* Reads the file once and writes index_path (atomically). digest: SHA-256 of the bytes. Memory:
 * the longest line and about 24 bytes per row. Keys that nobody reads and a missing "method" are
 * named by log_warn_once, so one rank scans for all. */
Status input_scan(const char *path, const char *index_path, uint8_t digest[32], int64_t *n_rows,
                  Err *e);
/* Maps the index that input_scan wrote. */
Status input_open(const char *path, const char *index_path, Input *out, Err *e);
void input_close(Input *in); /* also after a failed input_open, and twice */
/* Replaces *out with the line of row, BOM and a final CR removed. A file that shrank is ST_IO. */
Status input_read(const Input *in, int64_t row, StrBuf *out, Err *e);

#endif
