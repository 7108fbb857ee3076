/* io/unicode_tables.h - the generated data behind unicode.c. */
#ifndef MB_IO_UNICODE_TABLES_H
#define MB_IO_UNICODE_TABLES_H

#include <stddef.h>
#include <stdint.h>

/* start << 8 | value: the value holds from start to the next entry's start. */
extern const uint32_t unicode_class_runs[]; /* values: unicode.h */
extern const size_t n_unicode_class_runs;
extern const uint32_t unicode_ccc_runs[]; /* values: canonical combining class */
extern const size_t n_unicode_ccc_runs;
/* Triples first, second, composed; sorted. */
extern const uint32_t unicode_pairs[];
extern const size_t n_unicode_pairs;
/* code << 3 | n, then the n codes of the full decomposition. Only codes that no pair composes to:
 * the others' decompositions follow from their pairs. */
extern const uint32_t unicode_decompositions[];
extern const size_t n_unicode_decompositions;

#endif
