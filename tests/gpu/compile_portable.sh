#!/bin/sh
# tests/gpu/compile_portable.sh - compiles every kernel for architectures that are not the tuned one, and for that one from the
# same source, with warnings as errors; needs nvcc and NCCL's header, no GPU. Hopper's own instructions stand behind
# CUDA_SM90A (kernels/cuda/arch.cuh), so what is left is the portable kernels.
# Usage: sh tests/gpu/compile_portable.sh [ARCH...], by default sm_80 sm_100
set -u
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- sm_80 sm_100
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[ -x "$nvcc" ] || { echo "skipped: there is no nvcc"; exit 77; }
include=${NCCL_HOME:+-I$NCCL_HOME/include}
failed=0
for arch in "$@"; do
    for file in kernels/cuda/*.cu; do
        # shellcheck disable=SC2086
        if "$nvcc" -std=c++17 -I. $include -arch="$arch" -O2 -Werror=all-warnings -Xcompiler -Wall,-Wextra -c -o "$work/o" \
            "$file" >"$work/log" 2>&1; then
            echo "$arch $file"
        else
            failed=1
            echo "$arch $file FAILED"
            head -20 "$work/log"
        fi
    done
done
exit $failed
