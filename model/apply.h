/* model/apply.h - linear layers and feed-forward layers, with the rounding of what they read. */
#ifndef MB_MODEL_APPLY_H
#define MB_MODEL_APPLY_H

#include "model/model.h"

/* y act [n, outputs] = l applied to x act [n, inputs]. */
Status apply_linear(Model *m, void *y, const void *x, const Linear *l, int n, Err *e);
/* The same for logits: all parts, y float32 [n, outputs]. */
Status apply_logits(Model *m, float *y, const void *x, const Linear *l, int n, Err *e);
/* A FFN that every row goes through: rows[0] is what gate reads, rows[1] what up reads. */
Status apply_ffn(Model *m, void *y, const void *x, const FfnSpec *spec, const RowFormat rows[2],
                 int n, Err *e);
/* Most inputs of a linear layer of this architecture: the width of the buffers of rounded rows. */
int apply_widest(const Arch *a);

#endif
