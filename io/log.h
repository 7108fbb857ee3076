/* io/log.h - warnings and notes to stderr, one line each; errors travel as Err instead. */
#ifndef MB_IO_LOG_H
#define MB_IO_LOG_H

/* rank is named in each line when n_ranks > 1. Before the first call: rank 0 of 1. */
void log_init(int rank, int n_ranks);
void log_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Only rank 0 prints: for what every rank would say alike. */
void log_warn_once(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_note_once(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The terminal shows a live line of that many columns, without a line end: what is logged clears it
 * first, and the next live line follows below. 0: none. */
void log_live_line(int width);
/* How many warnings this rank has printed. */
int log_warnings(void);

#endif
