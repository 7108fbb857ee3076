/* io/file.h - whole files: read into memory, or mapped read-only. */
#ifndef MB_IO_FILE_H
#define MB_IO_FILE_H

#include "io/err.h"
#include "io/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FILE_PATH_MAX = 4096 };

/* DIR/NAME in out[FILE_PATH_MAX]; ST_USAGE when it does not fit. */
Status file_join(char *out, const char *dir, const char *name, Err *e);

/* True when path names a regular file (or a link to one), also as "PACK/NAME" one that is kept in a
 * pack (pack_file.h). */
bool file_exists(const char *path);

/* Reads a regular file, or one in a pack, of at most limit bytes. *out is NUL-terminated (the
 * NUL is not counted in *len) and belongs to the caller, who frees it. Messages name the path. */
Status file_read(const char *path, size_t limit, char **out, size_t *len, Err *e);

/* Exactly bytes offset .. offset+len-1 of an open file. ST_IO names path; a file that ends
 * earlier "has become shorter". */
Status file_read_at(int fd, const char *path, uint64_t offset, void *out, size_t len, Err *e);
/* The same, appended to a buffer. */
Status file_append_at(int fd, const char *path, uint64_t offset, size_t len, StrBuf *out, Err *e);

/* Exactly these bytes there; ST_IO names path. */
Status file_write_at(int fd, const char *path, uint64_t offset, const void *bytes, size_t len,
                     Err *e);

/* A regular file seen through read-only pages: only what is touched is read. Whoever shortens the
 * file meanwhile ends the process with SIGBUS; checkpoints are not rewritten in place. */
typedef struct FileMap {
    const uint8_t *data; /* NULL: empty file, or none */
    size_t len;
    bool is_open; /* fd reads the same file */
    int fd;
} FileMap;
Status file_map(const char *path, FileMap *out, Err *e);
/* The same, and the file stays open, for file_map_read. */
Status file_map_open(const char *path, FileMap *out, Err *e);
/* bytes[0..len) of a mapping into out. Where the file is open they are read, which costs less than
 * touching pages, keeps none of them mapped, and fails with ST_IO, naming the byte, where the file has
 * become shorter; else, and where m is NULL, they are copied. Any thread. */
Status file_map_read(const FileMap *m, const uint8_t *bytes, void *out, size_t len, Err *e);
void file_unmap(FileMap *m); /* all zero is fine, and so is twice */

/* Whether a byte of a mapping is in memory, so that nobody would wait for it; false where that cannot be
 * told, as of files that are not open. */
bool file_map_is_here(const FileMap *m, const uint8_t *byte);

/* Tells the system that bytes[0..len) of a mapped file are wanted soon and in order. Only a hint.
 */
void file_will_need(const uint8_t *bytes, size_t len);

#endif
