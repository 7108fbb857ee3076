# tests/jobs/case_families.sh - the same for our own configurations, two of each family, which cross pages, windows and uneven shards.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$SOURCE/tests/support/golden.sh"
for dir in "$SOURCE"/tests/data/families/*-[ab]; do
    compare_golden "$dir" 1 3
done
