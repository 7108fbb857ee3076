/* io/clock.h - time, for measuring. */
#ifndef MB_IO_CLOCK_H
#define MB_IO_CLOCK_H

/* Seconds since some fixed point, monotonic. */
double clock_s(void);

#endif
