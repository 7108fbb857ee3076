/* io/durable.h - files that are either whole or absent, also after a crash or a power failure. */
#ifndef MB_IO_DURABLE_H
#define MB_IO_DURABLE_H

#include "io/err.h"

#include <stddef.h>

/* Writes all of bytes[0..len) at the file's position; short writes and EINTR are retried. path is
 * for the message (ST_IO); how much of it reached the file after a failure is unknown. */
Status durable_write(int fd, const char *path, const void *bytes, size_t len, Err *e);

/* Makes path hold exactly bytes[0..len): written to PATH.tmp, synced, renamed, and the directory
 * synced, so that a reader finds the old content or the new one. One writer at a time. On failure
 * (ST_IO) path is as it was and PATH.tmp is gone. */
Status durable_replace(const char *path, const void *bytes, size_t len, Err *e);

/* The second half of that, for a file of the caller's own: renames tmp to path and syncs the
 * directory. */
Status durable_rename(const char *tmp, const char *path, Err *e);

/* Syncs a directory, so that names created, renamed or removed in it survive a power failure. File
 * systems that cannot do that (some network ones answer EINVAL) are left alone. */
Status durable_sync_dir(const char *dir, Err *e);

/* The directory part of path in out[cap]: "." for a bare name, "/" for a name in the root. ST_INPUT
 * when it does not fit. */
Status path_parent(const char *path, char *out, size_t cap, Err *e);

#endif
