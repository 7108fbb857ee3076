/* model/weights_internal.h - what the two halves of loading share: weights.c (vectors, linear layers,
 * the whole) and weights_experts.c (routed experts). */
#ifndef MB_MODEL_WEIGHTS_INTERNAL_H
#define MB_MODEL_WEIGHTS_INTERNAL_H

#include "model/checkpoint.h"
#include "model/keeper.h"
#include "model/online.h"
#include "model/weights.h"

typedef struct Loader {
    const Arch *arch;
    const Checkpoint *c;
    const Precision *precision;
    const Placement *placement;
    int rank, n_local; /* experts of this rank, per layer */
    Weights *w;
    int64_t *account;   /* dense_bytes or expert_bytes: what is being loaded now */
    bool kept;          /* the files are a pack in this backend's layout: banks are read whole */
    BankKeeper *keeper; /* NULL, or who takes each bank when it is full */
    OnlineEncoder online;
    Err *e;
} Loader;

/* Takes backend memory for n values and puts them there. */
Status loader_place_values(Loader *l, const char *what, const float *values, int64_t n,
                           float **out);
/* The new bank is empty, or whole where l->kept. */
Status loader_create_bank(Loader *l, const NewBank *bank, Weight **out);
/* The bank has all its values: a keeper takes it away. */
Status loader_finish_bank(Loader *l, Weight **w);
bool loader_is_online(const Loader *l, const LinearTensors *t);
WeightPart loader_part_of(const Loader *l, const LinearTensors *t, const QuantTensor *view);
/* All parts of one matrix of a bank, from views of plain weights. */
Status loader_set_online(Loader *l, Weight *w, int mat, const LinearTensors *const *from,
                         const QuantTensor *views, int n);
Status loader_set_view(Loader *l, Weight *w, int mat, int part, const LinearTensors *t,
                       const QuantTensor *view, int expert, int64_t first, int64_t step);
/* Tells the backend that loader_set_view will follow, with that part and view. */
void loader_announce(const Loader *l, const Weight *w, int part, const LinearTensors *t,
                     const QuantTensor *view);
/* Asks for the weights of a layer, or for some bytes of a tensor, from their file, unless they are in
 * memory; on all threads. */
void loader_prefetch(const Loader *l, const LinearTensors *t);
void loader_will_need(const Loader *l, const TensorEntry *t, int64_t first, int64_t bytes);
/* As declared; in native mode only what the tensor cores take as it is, which are FP8 rows. */
RowScheme loader_rows_in_use(const Precision *p, RowScheme declared);
/* WEIGHT_CODED where the backend multiplies such weights and rows as codes, else use. */
WeightUse loader_use_of(const Loader *l, WeightUse use, const WeightPart *parts, int n_parts,
                        int64_t cols, const RowFormat *rows);
/* The experts of one layer that this rank owns, and what their rows are rounded to. */
Status loader_experts(Loader *l, int layer, const ExpertTensors *t, LayerWeights *out);

#endif
