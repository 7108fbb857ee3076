/* model/kept.h - the tensors of a pack (io/pack_file.h): whole banks for a backend of the layout
 * that it was made for, and codes put back as a checkpoint has them for everybody else. */
#ifndef MB_MODEL_KEPT_H
#define MB_MODEL_KEPT_H

#include "io/tensor_set.h"
#include "kernels/unpack.h"

/* Before t->data is read: its bytes are there and as they were packed. Nothing to do for a
 * directory, or the second time. Any thread. */
Status kept_need(const TensorSet *files, const TensorEntry *t, Err *e);
/* Gives the memory of codes back until somebody needs them again. No other thread may be reading t.
 */
void kept_drop(const TensorSet *files, const TensorEntry *t);

/* The bank called name, when files are a pack in this backend's layout; NULL otherwise. */
const PackBank *kept_bank(const TensorSet *files, const BackendOps *ops, const Backend *b,
                          const char *name);
/* Reads n matrices, those with numbers mats, into w, which was created as the bank says; ST_INPUT
 * where it is another bank, or bytes were altered. */
Status kept_restore(const TensorSet *files, const PackBank *bank, const BackendOps *ops, Backend *b,
                    Weight *w, const int *mats, int n, Err *e);

#endif
