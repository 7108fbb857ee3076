/* jobs/journal.h - the job directory OUT.job/: header, lock, index, one segment of records per rank
 * and run.
 *
 *   header.json             what the journal belongs to (JobIdentity), written before the first
 * record manifest.json           parameters and run facts, for people segment-RRRR-KKKK.bin   the
 * records that rank KKKK wrote in run RRRR (record.h) done.json               how the finished
 * output looks: rows, error rows, bytes, SHA-256 lock                    who is at work: host,
 * process, start time
 *
 * A row is finished when the write of its record has returned. Segments are synced by interval. A
 * torn tail is dropped on reading; an old segment is never appended to. Results are the output
 * lines themselves, so the final file is a merge in input order. All ranks must see the directory:
 * OUT lies on a shared file system when a job has several hosts. */
#ifndef MB_JOBS_JOURNAL_H
#define MB_JOBS_JOURNAL_H

#include "io/err.h"
#include "io/strbuf.h"
#include "jobs/lock.h"
#include "jobs/record.h"

#include <stdbool.h>
#include <stdint.h>

/* What a journal belongs to. Digests are hex SHA-256. A resume must match in all of it. */
typedef struct JobIdentity {
    char model[65], tokenizer[65], input[65], parameters[65];
    char isa[16], backend[16];
    int64_t n_rows;
} JobIdentity;

typedef enum JobState {
    JOB_FRESH,   /* nothing there before, or to be discarded */
    JOB_RESUMED, /* a journal that is not merged yet */
    JOB_DONE     /* OUT is there, and is what the journal's merge wrote */
} JobState;

enum { JOB_OUT_MAX = 1024, JOB_DIR_MAX = 1040, JOB_PATH_MAX = 1120 };

typedef struct Job { /* held by rank 0 */
    char out[JOB_OUT_MAX], dir[JOB_DIR_MAX];
    Lock lock;
    int run; /* number of this run, from 1; part of segment names */
    JobState state;
    bool overwrite;
    int64_t n_rows, n_failed; /* of the finished output, when state is JOB_DONE */
} Job;

/* Rank 0, before anything expensive: creates or opens OUT.job, takes the lock and tests that OUT
 * and OUT.job can be written. A live holder of the lock, or a rank of a killed run that still
 * writes, is waited for up to 5 s (after SIGKILL of mpirun its ranks need two) and is then ST_INPUT
 * naming host and pid. OUT must be a path of a regular file: other uses are ST_USAGE, and a missing
 * or closed directory is ST_IO. An OUT that this journal did not write is ST_INPUT unless
 * overwrite.
 *
 * overwrite allows OUT to be replaced, which happens at the end and by rename. It starts a finished
 * job again, but continues an unfinished one of the same identity, for the same bytes: so a job
 * requeued with its own command line gets ahead. Nothing is discarded before job_identify. */
Status job_open(const char *out, bool overwrite, Job *job, Err *e);

/* What the header says. Only when state is not JOB_FRESH; for those who can still adapt (the ISA).
 */
Status job_recorded(const Job *job, JobIdentity *out, Err *e);

/* Rank 0, once the digests are known. A fresh job: what is left of an old journal is removed and
 * the header written. Else the header is compared, and what differs is named (ST_INPUT); with
 * overwrite the old journal is discarded instead and state becomes JOB_FRESH. */
Status job_identify(Job *job, const JobIdentity *identity, Err *e);

/* Rank 0: the effective parameters and run facts, for people: OUT.job/manifest.json, replaced
 * atomically. */
Status job_write_manifest(const Job *job, const char *json, size_t len, Err *e);

void job_close(Job *job); /* releases the lock; the directory stays. All zero is fine. */

/* Where a row's latest record is. */
typedef struct RowPlace {
    int32_t segment; /* index into JournalScan.segments; -1: no record */
    uint8_t kind;    /* RECORD_RESULT or RECORD_PARTIAL; 0: no record */
    uint8_t failed;  /* an error row */
    uint64_t offset; /* of the payload */
    uint64_t bytes;
} RowPlace;

enum { SEGMENT_NAME_MAX = 64 };

typedef struct JournalScan {
    RowPlace *rows; /* [n_rows] */
    int64_t n_rows, n_done, n_failed, n_partial;
    char (*segments)[SEGMENT_NAME_MAX]; /* file names inside the directory, oldest run first */
    int n_segments;
    int64_t dropped_bytes; /* torn tails */
    int64_t
        n_duplicates; /* results of rows that had one; 0 unless a ghost of a killed run wrote on */
} JournalScan;

/* Reads every segment (all its bytes, in bounded memory beside rows). A result wins over partials,
 * the first result and the last partial win. A record whose CRC fails with valid records behind it
 * is reported by log_warn and skipped; so is one of a row >= n_rows. */
Status journal_scan(const char *dir, int64_t n_rows, JournalScan *out, Err *e);
void journal_scan_free(JournalScan *s); /* all zero is fine */
/* Replaces *out with the payload of row, which must have a record. Its CRC is checked again
 * (ST_IO). */
Status journal_read(const char *dir, const JournalScan *s, int64_t row, StrBuf *out, Err *e);

/* The segments of dir, oldest run first, then by rank; the caller frees *out. */
Status journal_segments(const char *dir, char (**out)[SEGMENT_NAME_MAX], int *n, Err *e);

/* Calls fn for every valid record of one segment, in file order: at is the payload's offset. Bytes
 * that belong to no record: *dropped behind the last one; others are reported by log_warn. */
Status segment_each(const char *path, void (*fn)(void *ctx, const RecordHeader *h, uint64_t at),
                    void *ctx, int64_t *dropped, Err *e);

typedef struct Segment Segment;
/* A new file, named by run and rank, and locked as long as the process lives, so that a later run
 * can tell whether its writer is gone. sync_interval_s: longest time between fsyncs (checked on
 * append and by segment_tick); 0 syncs every record. */
Status segment_create(const char *dir, int run, int rank, double sync_interval_s, Segment **out,
                      Err *e);
/* One writev; the row is finished when this returns ST_OK. On ST_IO (disk full, quota, size limit)
 * the file is cut back to its last whole record, so what was finished stays and the call may be
 * tried again; when even that fails, so does every later append. */
Status segment_append(Segment *s, int kind, int64_t row, bool failed, const void *payload,
                      size_t bytes, Err *e);
Status segment_tick(Segment *s,
                    Err *e); /* syncs when the interval is over and there is something to sync */
Status segment_sync(Segment *s, Err *e); /* safe from the watchdog's thread */
/* True when a live process of any host (where the file system's locks reach) still writes path. */
bool segment_is_live(const char *path);
Status segment_close(Segment *s, Err *e); /* syncs; frees even on error; NULL is fine */

/* Rank 0, when every row has a result and the other ranks have closed their segments: writes
 * OUT.tmp in input order, syncs it, notes its size and digest in done.json, and renames it to OUT.
 * Lost or damaged rows are ST_IO, and so is a full disk: then OUT.tmp is removed and the journal
 * stays for another try. Memory: 24 bytes per row and a few MiB. *n_failed: error rows. */
Status journal_merge(const Job *job, int64_t n_rows, int64_t *n_failed, Err *e);

#endif
