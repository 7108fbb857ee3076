/* quant/finite.h - whether stored codes and scales are numbers that a product can use: one that is not
 * makes every row that meets it one. */
#ifndef MB_QUANT_FINITE_H
#define MB_QUANT_FINITE_H

#include "quant/tensor.h"

/* How to tell, in elements of size bytes: not finite where (bits & mask) + add carries into top. */
typedef struct NotFinite {
    int size;
    uint64_t mask, add, top;
} NotFinite;

/* Of a format's codes, of what lies at the start of a block of one that has blocks, or NULL: all of its
 * codes are numbers. */
const NotFinite *finite_test(FormatId format);
/* The first element of n that is not finite, or -1. */
int64_t finite_search(const NotFinite *f, const uint8_t *p, int64_t n);

/* Whether the scale at p, whose value is given, is negative or not finite; or 0, where it is the single
 * one of a tensor. */
bool scale_is_bad(ScaleType type, bool single, const uint8_t *p, float *value);
/* Whether none of n scales that lie one behind the other is, of those that are not single. */
bool scales_are_good(ScaleType type, const uint8_t *p, int64_t n);

#endif
