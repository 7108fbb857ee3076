/* jobs/marker.h - the two small JSON files of a job directory that decide: header.json says what
 * the journal belongs to, done.json what the finished output looks like. Both are replaced
 * atomically. */
#ifndef MB_JOBS_MARKER_H
#define MB_JOBS_MARKER_H

#include "io/err.h"
#include "jobs/journal.h"

#include <stdbool.h>
#include <stdint.h>

/* A file as it was seen, to tell later whether it is still that one. */
typedef struct FileStamp {
    int64_t bytes; /* -1: there was none */
    int64_t mtime_ns, inode;
} FileStamp;

FileStamp stamp_of(const char *path); /* of the name itself, also when it is a link */
bool stamp_same(const FileStamp *a, const FileStamp *b);

typedef struct JobHeader {
    JobIdentity identity;
    FileStamp replaces; /* the output that --overwrite lets this job replace */
} JobHeader;

typedef struct DoneMarker {
    int64_t n_rows, n_failed;
    FileStamp out; /* taken before the rename, which keeps all three */
    char sha256[65];
} DoneMarker;

/* *there: false when the file is missing. One that cannot be understood is ST_INPUT. */
Status header_read(const char *dir, JobHeader *out, bool *there, Err *e);
Status header_write(const char *dir, const JobHeader *h, Err *e);
Status done_read(const char *dir, DoneMarker *out, bool *there, Err *e);
Status done_write(const char *dir, const DoneMarker *d, Err *e);

/* out[JOB_PATH_MAX]: DIR/NAME. */
Status job_path(char *out, const char *dir, const char *name, Err *e);

#endif
