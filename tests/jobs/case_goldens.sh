# tests/jobs/case_goldens.sh - logits and greedy tokens of the reference checkpoints, at 1 to 4 ranks: within 2e-4 of the logits'
# deviation of what transformers computed, and the same bits at every number of ranks.
set -eu
[ -d "$SHARED/goldens" ] || { echo "skipped: no reference data at $SHARED"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$SOURCE/tests/support/golden.sh"
for dir in "$SHARED"/goldens/*-bf16 "$SHARED/goldens/gpt_oss-mxfp4"; do
    compare_golden "$dir" 1 2 3 4
done
