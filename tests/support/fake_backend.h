/* tests/support/fake_backend.h - a backend that only holds weights, as plain float32, so that a
 * test can look at them. */
#ifndef MB_TESTS_FAKE_BACKEND_H
#define MB_TESTS_FAKE_BACKEND_H

#include "kernels/backend.h"

/* Only alloc, release, upload and the weight functions are there; memory is the host's, and backend
 * pointers of vectors may be read directly. */
extern const BackendOps fake_backend;

Status fake_backend_create(Backend **out, Err *e);
/* Returns how many allocations and weights were never given back. */
int fake_backend_destroy(Backend *b);

int fake_weight_mats(const Weight *w);
int64_t fake_weight_rows(const Weight *w);
int64_t fake_weight_cols(const Weight *w);
/* Row of matrix mat, parts one after the other: [cols]. */
const float *fake_weight_row(const Weight *w, int mat, int64_t row);

#endif
