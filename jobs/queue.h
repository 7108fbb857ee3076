/* jobs/queue.h - the rows that are still to be done, longest first, in a file of the job
 * directory that every rank maps. */
#ifndef MB_JOBS_QUEUE_H
#define MB_JOBS_QUEUE_H

#include "jobs/input.h"
#include "jobs/journal.h"

typedef struct QueueRecord {
    int64_t row;
    /* of an unfinished row's partial record, as in JournalScan.segments; -1: none */
    int32_t segment;
    int32_t reserved;
    uint64_t offset, bytes; /* of its payload */
} QueueRecord;

typedef struct Queue {
    const QueueRecord *records; /* [n] */
    int64_t n;
    void *map;
    size_t map_bytes;
    char (*segments)[64];
    int n_segments;
    char dir[1040];
} Queue;

/* Rank 0: writes DIR/queue from what the journal lacks. Long lines come first, equal ones in
 * input order, so that the tail of a job is short. */
Status queue_write(const char *dir, const Input *input, const JournalScan *scan, Err *e);
Status queue_open(const char *dir, Queue *out, Err *e);
void queue_close(Queue *q);
/* The saved state of record i, or an empty *out. Its CRC was checked by the scan. */
Status queue_read_partial(const Queue *q, int64_t i, StrBuf *out, Err *e);

/* Deals records from *cursor on, one to each rank in turn beginning with rank first, at most
 * wanted[r] to rank r. mine, which holds wanted[rank] numbers, gets those of rank; the result is
 * how many. Every rank computes the same deal. */
int queue_deal(int64_t n_records, int64_t *cursor, const int64_t *wanted, int n_ranks, int first,
               int rank, int64_t *mine);

#endif
