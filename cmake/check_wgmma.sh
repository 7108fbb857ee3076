#!/bin/sh
# cmake/check_wgmma.sh COMPILER ARGUMENT... - compiles, and fails where the compiler says that it lets no wgmma begin
# before the one before it is over: it says so as information, and the kernel then loses a fifth of its speed.
said=$("$@" 2>&1)
code=$?
[ -z "$said" ] || printf '%s\n' "$said"
case $said in
*'instructions are serialized'*) exit 1 ;;
esac
exit $code
