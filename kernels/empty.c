typedef int kernels_placeholder;
