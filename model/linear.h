/* model/linear.h - one linear layer as a checkpoint holds it: codes, scales, and the activations
 * that it was calibrated for. */
#ifndef MB_MODEL_LINEAR_H
#define MB_MODEL_LINEAR_H

#include "io/team.h"
#include "io/tensor_set.h"
#include "quant/recipe.h"

/* A matrix, or a stack of them with one per expert. All entries are borrowed from the files, the
 * scheme from the recipe. */
typedef struct LinearTensors {
    const QuantScheme *scheme;                 /* NULL: unquantized */
    const TensorEntry *weight;                 /* NULL: the architecture has no such layer */
    const TensorEntry *scale, *global, *input; /* NULL: there is none */
    const TensorEntry *shape;                  /* [2] rows and columns of a pack; or NULL */
    QuantTensor q; /* of expert 0, its tensor's scale not yet read; rows in stored order */
    int64_t expert_bytes, expert_scale_bytes; /* from an expert to the next in a stack */
} LinearTensors;

/* Where the matrix of an expert (0 where there is no stack) lies, its tensor's scale read and
 * checked; of a pack, codes and block scales may not be there yet (model/kept.h). */
Status linear_where(const TensorSet *files, const LinearTensors *t, int expert, QuantTensor *out,
                    Err *e);
/* The same, to be read. */
Status linear_view(const TensorSet *files, const LinearTensors *t, int expert, QuantTensor *out,
                   Err *e);
/* Rows first, first + step, ... of a view, n of them. step > 1 only where scale_rows is 1. */
QuantTensor linear_rows(const QuantTensor *q, int64_t first, int64_t step, int64_t n);
/* Every block scale of the view is finite and not negative, and the scale of a whole tensor is
 * positive; the message names file, tensor and index. first and step say which rows of the stored
 * matrix the view has. */
Status linear_check_scales(const TensorSet *files, const LinearTensors *t, int expert,
                           const QuantTensor *view, int64_t first, int64_t step, Team *team,
                           Err *e);
/* A pack says the shape that it has. */
Status linear_check_shape(const TensorSet *files, const LinearTensors *t, Err *e);
/* Every code, and every value of an unquantized matrix, of an expert (0 where there is no stack) is
 * a number, and a pack says the shape that it has; the message names file, tensor and index. As above
 * on the threads of team (NULL: the caller alone); the first that is wrong is named. */
Status linear_check_codes(const TensorSet *files, const LinearTensors *t, int expert, Team *team,
                          Err *e);
/* The calibrated scale of the inputs as a multiplier, for expert in a stack; ST_INPUT where there
 * is none, or it is not positive and finite. */
Status linear_input_scale(const TensorSet *files, const LinearTensors *t, int expert, float *out,
                          Err *e);
/* By the dtype of a tensor of scales; any byte type is E8M0. */
ScaleType linear_scale_type(const TensorEntry *t);
/* The matrix [rows, cols] of an unquantized tensor, which has at least that many values. */
QuantTensor linear_plain(const TensorEntry *t, int64_t rows, int64_t cols);
/* A scale of the cache. Exporters write -1 where there is none (formats.md 2.15): that gives 1. */
Status linear_kv_scale(const TensorSet *files, const TensorEntry *t, float *out, Err *e);

#endif
