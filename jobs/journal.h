/* jobs/journal.h - the job directory OUT.job/: header, lock, index, one segment of records per rank and run.
 *
 * A record is {magic, kind, row, flags, length, CRC} and its payload, written with one write(2); a row is finished when that
 * call has returned. Segments are synced by interval. A torn tail is dropped on reading; an old segment is never appended
 * to. Results are the output lines themselves, so the final file is a merge in input order. */
#ifndef MB_JOBS_JOURNAL_H
#define MB_JOBS_JOURNAL_H

#include "io/err.h"
#include "io/strbuf.h"

#include <stdbool.h>
#include <stdint.h>

/* What a journal belongs to. Digests are hex SHA-256. A resume must match in all of it. */
typedef struct JobIdentity {
    char model[65], tokenizer[65], input[65], parameters[65];
    char isa[16], backend[16];
    int64_t n_rows;
} JobIdentity;

typedef enum JobState {
    JOB_FRESH,   /* nothing there before */
    JOB_RESUMED, /* a journal of the same job */
    JOB_DONE     /* OUT is there, with its complete journal */
} JobState;

typedef struct Job { /* held by rank 0 */
    char out[1024], dir[1040];
    int lock_fd;
    int run; /* number of this run, from 1; part of segment names */
    JobState state;
} Job;

/* Rank 0, before anything expensive: creates or opens OUT.job, takes the lock (a live holder is ST_INPUT naming host and pid;
 * a dead one on this host is taken over), refuses an OUT without a journal unless overwrite, and tests that both can be
 * written. overwrite also discards an old journal. */
Status job_open(const char *out, bool overwrite, Job *job, Err *e);
/* Rank 0, once the digests are known: writes the header of a fresh job, or compares and refuses by naming what differs. */
Status job_identify(Job *job, const JobIdentity *identity, Err *e);
/* Rank 0: the effective parameters and run facts, for people: OUT.job/manifest.json, replaced atomically. */
Status job_write_manifest(const Job *job, const char *json, size_t len, Err *e);
void job_close(Job *job); /* releases the lock; the directory stays */

/* Where a row's latest record is. */
typedef struct RowPlace {
    int32_t segment; /* index into JournalScan.segments; -1: no record */
    uint8_t kind;    /* RECORD_RESULT or RECORD_PARTIAL */
    uint8_t failed;  /* an error row */
    uint64_t offset; /* of the payload */
    uint64_t bytes;
} RowPlace;

enum { RECORD_RESULT = 1, RECORD_PARTIAL = 2 };

typedef struct JournalScan {
    RowPlace *rows; /* [n_rows] */
    int64_t n_rows, n_done, n_failed, n_partial;
    char (*segments)[64]; /* file names inside the directory */
    int n_segments;
    int64_t dropped_bytes; /* torn tails */
} JournalScan;

/* Reads every segment. A result wins over partials; the first result wins (there is never a second unless two jobs
 * raced). A record whose CRC fails with valid records behind it is reported by log_warn and skipped. */
Status journal_scan(const char *dir, int64_t n_rows, JournalScan *out, Err *e);
void journal_scan_free(JournalScan *s);
Status journal_read(const char *dir, const JournalScan *s, int64_t row, StrBuf *out, Err *e);

typedef struct Segment Segment;
/* A new file, named by run and rank. sync_interval_s: longest time between fsyncs (checked on append and by
 * segment_tick). */
Status segment_create(const char *dir, int run, int rank, double sync_interval_s, Segment **out, Err *e);
Status segment_append(Segment *s, int kind, int64_t row, bool failed, const void *payload, size_t bytes, Err *e);
Status segment_tick(Segment *s, Err *e);
Status segment_sync(Segment *s, Err *e); /* safe from the watchdog's thread */
Status segment_close(Segment *s, Err *e); /* syncs; frees even on error; NULL is fine */

/* Rank 0, when every row has a result: writes OUT.tmp in input order, syncs and renames it to OUT. Lost rows are
 * ST_IO. *n_failed: error rows. */
Status journal_merge(const Job *job, int64_t n_rows, int64_t *n_failed, Err *e);

#endif
