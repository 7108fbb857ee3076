#!/bin/sh
# tests/run.sh - installs what is missing, builds with warnings as errors, and runs every test.
#
# Uses the folder build-tests; arguments go to ctest (sh tests/run.sh -L unit).
set -eu
cd "$(dirname "$0")/.."

sh app/setup.sh

# Open MPI refuses root unless told, and in a container its single-copy transfers are often forbidden. hwloc looks
# for X servers, which takes seconds where localhost has to be looked up.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism:-none}"
export HWLOC_COMPONENTS="${HWLOC_COMPONENTS:--gl}"

cores=$(nproc)
echo "tests: $(uname -srm), $cores cores"
cc --version | head -n 1
cmake --version | head -n 1
mpirun --version | head -n 1
pkg-config --modversion libcjson | sed 's/^/cJSON /'

echo "tests: configuring and building in build-tests"
cmake -S . -B build-tests -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMOEBATCH_WERROR=ON
cmake --build build-tests -j "$cores"

echo "tests: running"
# Tests say how many cores they use, so that ranks do not pile up on them.
ctest --test-dir build-tests --output-on-failure -j "$cores" "$@"
