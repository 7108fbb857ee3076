# tests/jobs/case_stories.sh - prompts of the trained models as text: token ids, greedy completions and log-probabilities are those of
# transformers, at 1 and 2 ranks.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
compare() {
    "$BUILD/tests/stories" rows "$1/golden.json" >"$work/rows.jsonl"
    for ranks in 1 2; do
        rm -rf "$work/out" "$work/out.job"
        mpirun -n $ranks "$MOEBATCH" run -m "$1" -i "$work/rows.jsonl" -o "$work/out" --threads 1 --progress none \
            >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
        printf '%s, %s ranks: ' "$(basename "$1")" $ranks
        "$BUILD/tests/stories" compare "$1/golden.json" "$work/out"
    done
}
compare "$SOURCE/tests/data/storyteller"
[ -d "$SHARED/models" ] || { echo "skipped: no reference data at $SHARED; only the bundled model was compared"; exit 77; }
compare "$SHARED/models/storyteller-qwen3_moe"
compare "$SHARED/models/storyteller-gpt_oss"
