/* jobs/logits_file.h - `score --logits`: each row's logits as a journal record, and the HDF5
 * file made of them at the end. */
#ifndef MB_JOBS_LOGITS_FILE_H
#define MB_JOBS_LOGITS_FILE_H

#include "jobs/journal.h"
#include "jobs/row.h"

/* Before anything expensive: path is usable as a new file. */
Status logits_file_check(const char *path, Err *e);
/* Appends row->logits [ids, vocab] to the rank's segment; to be called before the row's result
 * is appended. */
Status logits_file_add(Segment *segment, const Row *row, int vocab, Err *e);
/* Rank 0, when every row has a result: /rows/<n>/logits [T, V] float32 and /rows/<n>/input_ids
 * [T] int32 for each row of the journal in dir that has logits, n ascending. Memory: one row's
 * logits. */
Status logits_file_write(const char *dir, const char *path, int64_t n_rows, Err *e);

#endif
