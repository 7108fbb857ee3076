/* tests/tools/journal_dump.c - the records of a job directory, one line each, for scripts to count:
 *   segment-0001-0000.bin result 17 345       (result, error, partial; row; bytes)
 * and at the end of each segment "SEGMENT end - DROPPED", the bytes of its torn tail. */
#include "jobs/journal.h"

#include <stdio.h>
#include <stdlib.h>

static void print(void *ctx, const RecordHeader *h, uint64_t at)
{
    (void)at;
    const char *kind = h->kind == RECORD_PARTIAL  ? "partial"
                       : h->flags & RECORD_FAILED ? "error"
                                                  : "result";
    printf("%s %s %lld %llu\n", (const char *)ctx, kind, (long long)h->row,
           (unsigned long long)h->bytes);
}

int main(int argc, char **argv)
{
    char(*names)[SEGMENT_NAME_MAX] = NULL, path[JOB_PATH_MAX];
    int n = 0;
    Err e;
    if (argc != 2) {
        fprintf(stderr, "usage: journal_dump OUT.job\n");
        return 2;
    }
    Status st = journal_segments(argv[1], &names, &n, &e);
    for (int i = 0; i < n && st == ST_OK; i++) {
        int64_t dropped = 0;
        snprintf(path, sizeof path, "%s/%s", argv[1], names[i]);
        st = segment_each(path, print, names[i], &dropped, &e);
        printf("%s end - %lld\n", names[i], (long long)dropped);
    }
    free(names);
    if (st != ST_OK)
        fprintf(stderr, "journal_dump: %s\n", e.text);
    return st != ST_OK;
}
