/* model/lint_internal.h - what lint.c and its parts share. */
#ifndef MB_MODEL_LINT_INTERNAL_H
#define MB_MODEL_LINT_INTERNAL_H

#include "io/strbuf.h"
#include "model/lint.h"

/* Findings as lines "LEVEL TEXT\n", LEVEL a digit. */
void lint_add(StrBuf *out, LintLevel level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with "FILE: tensor "NAME": " in front. */
void lint_tensor(StrBuf *out, LintLevel level, const Checkpoint *c, const TensorEntry *t,
                 const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* lint_values.c: one module, every value of it. *crc: of the bytes of its codes, or 0 where they
 * are all alike. */
void lint_module(const Checkpoint *c, const Module *m, StrBuf *out, uint32_t *crc);
/* A vector: a norm, bias or the like. */
void lint_vector(const Checkpoint *c, const TensorEntry *t, StrBuf *out);

/* lint_whole.c: what is about no single tensor; crcs [modules->n]. */
void lint_whole(const char *dir, Checkpoint *c, const Modules *modules, const int64_t *crcs,
                StrBuf *out);

#endif
