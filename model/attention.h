/* model/attention.h - the attention of one layer up to its output projection, by kind. */
#ifndef MB_MODEL_ATTENTION_H
#define MB_MODEL_ATTENTION_H

#include "model/model.h"

/* Which of a step's rows a list of AttnSeq holds. */
typedef enum RowRole {
    ROWS_ALL,
    ROWS_PROMPT,   /* positions of the sequence's prompt */
    ROWS_GENERATED /* positions after it, also when they are computed again */
} RowRole;

/* Lists the sequences' rows of that role into m->seqs, for the page tables of layer;
 * wanted_only: only those that need logits. Returns how many entries have rows. */
int attention_list(const Model *m, const Step *step, int layer, bool wanted_only, RowRole role);

/* Both read m->normed (all rows of the step), write the layer's keys and values, and leave the
 * heads' output in m->attn at the rows' own places: of all rows, or in the last layer of the
 * wanted ones. */
Status attention_heads(Model *m, const Step *step, int layer, Err *e);
Status attention_latent(Model *m, const Step *step, int layer, Err *e);

/* Where lane first of a buffer's rows begins. */
void *attention_lane(const Model *m, void *rows, int64_t first);

/* Values per row of m->attn, and of m->qkv. */
int attention_out_width(const Arch *a);
int attention_qkv_width(const Arch *a);

#endif
