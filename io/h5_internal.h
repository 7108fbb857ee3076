/* io/h5_internal.h - what h5.c and h5_read.c share. */
#ifndef MB_IO_H5_INTERNAL_H
#define MB_IO_H5_INTERNAL_H

/* Before anything else is asked of HDF5; again does nothing. */
void h5_begin(void);
/* Why the last call of HDF5 failed, in its own words. */
const char *h5_why(void);

#endif
