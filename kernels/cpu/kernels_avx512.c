/* kernels/cpu/kernels_avx512.c - the kernels, compiled for AVX512. */
#define CPU_ISA 2
#include "kernels/cpu/kernels.inc"

const CpuKernels cpu_kernels_avx512 = KERNELS_TABLE(ISA_AVX512);
