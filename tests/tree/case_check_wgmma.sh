#!/bin/sh
# tests/tree/case_check_wgmma.sh - cmake/check_wgmma.sh: what a compiler says and returns goes on, and serialized wgmma is an error.
set -u
failed=0
expect() { # CODE SAID COMMAND...
    want=$1 text=$2
    shift 2
    said=$(sh "$SOURCE/cmake/check_wgmma.sh" "$@" 2>&1)
    code=$?
    if [ $code != "$want" ] || [ "$said" != "$text" ]; then
        echo "$*: exit code $code, expected $want: $said"
        failed=1
    fi
}
serialized="ptxas info : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to something"
expect 0 "" true
expect 0 "a warning" echo "a warning"
expect 3 "" sh -c 'exit 3'
expect 1 "$serialized" echo "$serialized"
exit $failed
