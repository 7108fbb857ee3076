/* jobs/lock.h - one process at a time, over all hosts that see the file.
 *
 * The lock is flock(2) on a file whose text, "HOST PID START", says who holds it. The system frees
 * it when the holder dies, on whatever host. Where the file system has no locks (ENOLCK, ENOSYS,
 * ENOTSUP: Lustre without -o flock) the text alone decides: a holder on this host is looked up in
 * /proc, and one on another host is believed to live until somebody removes the file. Lustre's -o
 * localflock protects only within a host. */
#ifndef MB_JOBS_LOCK_H
#define MB_JOBS_LOCK_H

#include "io/err.h"

#include <stdbool.h>

typedef struct Lock {
    int fd;
    bool held;
} Lock; /* all zero: not held */

/* Creates the file at need and tries for wait_s seconds. Held by somebody else: ST_INPUT naming
 * the holder. A wait of a second or more is announced by log_note. *out is not held unless the
 * result is ST_OK. */
Status lock_take(const char *path, double wait_s, Lock *out, Err *e);
/* The same by text alone, as on a file system without locks. */
Status lock_take_by_text(const char *path, double wait_s, Lock *out, Err *e);
void lock_release(Lock *l); /* empties the file and lets go; not held is fine */

#endif
