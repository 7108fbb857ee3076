/* tests/support/bf16_twin.h - the CPU backend with activations of bf16: every op computes in float32
 * and rounds what it leaves between ops. What it is off by is what bf16 activations are off by,
 * whoever computes with them. */
#ifndef MB_TESTS_BF16_TWIN_H
#define MB_TESTS_BF16_TWIN_H

#include "kernels/backend.h"

/* Its ops, for backends that the CPU's own create makes. */
BackendOps bf16_twin(void);

#endif
