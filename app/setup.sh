#!/bin/sh
# app/setup.sh - installs what moebatch needs to be built, on Debian and Ubuntu, and only what is missing.
#
# Called by app/quickstart.sh and tests/run.sh. Elsewhere it checks that the tools are there, and leaves the rest
# to CMake, which names what it does not find.
set -eu

packages="gcc libc6-dev make cmake pkg-config openmpi-bin libopenmpi-dev libhdf5-dev libcjson-dev libssl-dev zlib1g-dev"

missing=""
if command -v dpkg-query >/dev/null 2>&1 && command -v apt-get >/dev/null 2>&1; then
    for package in $packages; do
        state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
        [ "$state" = installed ] || missing="$missing $package"
    done
    if [ -n "$missing" ]; then
        if [ "$(id -u)" = 0 ]; then
            as_root=""
        elif command -v sudo >/dev/null 2>&1; then
            as_root="sudo"
        else
            echo "setup: these packages are missing, and neither root nor sudo is at hand. Please run as root:" >&2
            echo "  apt-get update && apt-get install -y --no-install-recommends$missing" >&2
            exit 1
        fi
        echo "setup: installing$missing"
        $as_root apt-get update -q
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing
    else
        echo "setup: every package is there"
    fi
else
    for tool in cc cmake make pkg-config mpicc mpirun; do
        command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
    done
    if [ -n "$missing" ]; then
        echo "setup: this is neither Debian nor Ubuntu, and these are missing:$missing" >&2
        echo "setup: needed are a C compiler, CMake 3.25, pkg-config, Open MPI, HDF5, cJSON, OpenSSL and zlib" >&2
        exit 1
    fi
fi
