#!/bin/sh
# tests/kernels/case_no_cuda.sh - the executable needs no library of CUDA, so it starts where there is none.
set -eu
needed=$(readelf -d "$MOEBATCH" | grep NEEDED)
echo "$needed"
if echo "$needed" | grep -Ei 'cuda|nccl|cublas|nvidia'; then
    echo "the executable depends on CUDA" >&2
    exit 1
fi
# Also not by way of another library.
if ldd "$MOEBATCH" | grep -Ei 'cuda|nccl|cublas'; then
    echo "a library of the executable depends on CUDA" >&2
    exit 1
fi
