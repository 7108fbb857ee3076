/* model/synthetic.h - checkpoints that no file holds: the tensors of a published model's shape with
 * random values that are not zero, for speed measurements.
 *
 * Values repeat: tensors of one kind look into one pool of 16 MiB, mapped over and over again, each
 * from another place on. So a model of any size costs the host next to nothing, and loading it is what
 * loading files is, from memory. Matrices are scaled by their number of inputs, and those that add to
 * the residual stream by the number of layers too, so that tokens stay different and a router
 * distributes them. */
#ifndef MB_MODEL_SYNTHETIC_H
#define MB_MODEL_SYNTHETIC_H

#include "io/strbuf.h"
#include "io/tensor_set.h"

typedef struct Synthetic Synthetic;

/* n_layers 0: as many as the published model has. ST_USAGE names the shapes there are. */
Status synthetic_create(Synthetic **out, const char *shape, int n_layers, Err *e);
void synthetic_free(Synthetic *s); /* NULL is fine */
/* "gpt-oss-20b", the i-th; NULL: past the last. */
const char *synthetic_shape(int i);
const char *synthetic_name(const Synthetic *s);
/* config.json; *len without the NUL at its end. */
const char *synthetic_config(const Synthetic *s, size_t *len);
/* Of all tensors together. */
int64_t synthetic_bytes(const Synthetic *s);
/* Everything that the files of such a checkpoint would hold; s must outlive the set. */
Status synthetic_tensors(const Synthetic *s, TensorSet *out, Err *e);

#endif
