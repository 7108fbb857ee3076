#!/bin/sh
# tests/tree/case_includes.sh - what holds for the tree as a whole: includes point only downwards, each room's README
# has its files, and no file names a path of the machine it was written on or puts work off.
set -eu
cd "$SOURCE"
failed=0
complain() {
    echo "$*" >&2
    failed=1
}

level() {
    case "$1" in
    io) echo 1 ;;
    quant) echo 2 ;;
    kernels) echo 3 ;;
    dist) echo 4 ;;
    model) echo 5 ;;
    jobs) echo 6 ;;
    app) echo 7 ;;
    *) echo 0 ;;
    esac
}

n_includes=0
for room in io quant kernels dist model jobs app; do
    for file in $(find "$room" -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort); do
        for include in $(sed -n 's/^# *include "\([^"]*\)".*/\1/p' "$file"); do
            n_includes=$((n_includes + 1))
            to=$(level "${include%%/*}")
            if [ "$to" = 0 ]; then
                complain "$file: \"$include\" is not written from the root"
            elif [ "$to" -gt "$(level "$room")" ]; then
                complain "$file: \"$include\" points upwards"
            elif [ ! -f "$include" ]; then
                complain "$file: \"$include\" does not exist"
            fi
        done
        # The folder's README has the file, or the header that is its manual.
        readme=$(dirname "$file")/README.md name=$(basename "$file")
        if [ ! -f "$readme" ]; then
            complain "there is no $readme"
        elif ! grep -qF -e "$name" -e "${name%.*}.h" "$readme"; then
            complain "$readme has no line for $name"
        fi
    done
done
[ "$n_includes" -gt 50 ] || complain "found only $n_includes includes: did the test look in the right place?"

# A line of a README that names a file which is gone.
for readme in */README.md kernels/*/README.md; do
    room=${readme%/README.md}
    for name in $(sed -n 's/^\([a-z0-9_/]*\.\(c\|h\|cu\|sh\)\) .*/\1/p' "$readme"); do
        [ -f "$room/$name" ] || complain "$readme: there is no $name"
    done
done

# Written in pieces, so that this file does not find itself.
paths="(^|[^A-Za-z0-9_.])/(wor""k|far""m|tmp/m""b)/"
later="(^|[^A-Za-z])(TO""DO|FIX""ME)([^A-Za-z]|\$)"
files=$(find . \( -name .git -o -name 'build*' -o -path ./tests/data -o -name .gpu \) -prune -o -type f \
    \( -name '*.[ch]' -o -name '*.cu' -o -name '*.sh' -o -name '*.md' -o -name '*.txt' -o -name '*.cmake' -o -name '*.json' -o -path './.ci/*' \) -print)
if grep -nE "$paths" $files; then
    complain "these lines name a path of somebody's machine"
fi
if grep -nE "$later" $files; then
    complain "these lines put work off"
fi
exit $failed
