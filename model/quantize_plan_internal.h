/* model/quantize_plan_internal.h - what the two files that make a plan share. */
#ifndef MB_MODEL_QUANTIZE_PLAN_INTERNAL_H
#define MB_MODEL_QUANTIZE_PLAN_INTERNAL_H

#include "model/quantize_plan.h"

#include <stdarg.h>

typedef struct PlanMaker {
    const PlanRequest *request;
    QuantizePlan *plan;
    int *owner;           /* [files.n] the module whose tensor it is, plus 1; 0: nobody's */
    int64_t bytes_before; /* of all tensors in front of the part that is being filled */
    Err *e;
} PlanMaker;

/* Room for one more in an array of n; items are moved. */
Status plan_grow(void **items, int *cap, int n, size_t size, Err *e);
/* Kept in the plan's arena; NULL after err_set. */
const char *plan_text(PlanMaker *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The module that a tensor of weights belongs to: its name without ".weight", ".weight_packed",
 * "_blocks". */
const char *plan_stem(PlanMaker *m, const TensorEntry *t);
/* Fills in plan->modules with their targets, and checks all that the rules say. */
Status plan_find_modules(PlanMaker *m);

#endif
