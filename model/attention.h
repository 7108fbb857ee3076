/* model/attention.h - the attention of one layer up to its output projection, by kind. */
#ifndef MB_MODEL_ATTENTION_H
#define MB_MODEL_ATTENTION_H

#include "model/model.h"

/* The rows of a role whose heads' output a layer needs: all, or in the last layer those that want
 * logits. */
const RoleList *attention_rows(const Model *m, int layer, RowRole role);
/* All rows: those whose keys and values a layer keeps. */
const AttnList *attention_written(const Model *m, int layer);

/* Both read m->normed (all n rows of the step), write the layer's keys and values, and leave the
 * heads' output in m->attn at the rows' own places: of all rows, or in the last layer of the
 * wanted ones. */
Status attention_heads(Model *m, int n, int layer, Err *e);
Status attention_latent(Model *m, int n, int layer, Err *e);

/* Where lane first of a buffer's rows begins. */
void *attention_lane(const Model *m, void *rows, int64_t first);

/* Values per row of m->attn, and of m->qkv. */
int attention_out_width(const Arch *a);
int attention_qkv_width(const Arch *a);

#endif
