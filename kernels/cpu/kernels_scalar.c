/* kernels/cpu/kernels_scalar.c - the kernels, compiled for any processor: the reference. */
#define CPU_ISA 0
#include "kernels/cpu/kernels.inc"

const CpuKernels cpu_kernels_scalar = KERNELS_TABLE(ISA_SCALAR);
