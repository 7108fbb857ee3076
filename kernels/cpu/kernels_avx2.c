/* kernels/cpu/kernels_avx2.c - the kernels, compiled for AVX2. */
#define CPU_ISA 1
#include "kernels/cpu/kernels.inc"

const CpuKernels cpu_kernels_avx2 = KERNELS_TABLE(ISA_AVX2);
