# tests/jobs/case_wire_goldens.sh - the requests of the recording, run as one job, get the recorded answers: texts, tokens,
# log-probabilities, offsets, reasons, usage and refusals (tests/support/wire_golden.h).
set -eu
recording="$SHARED/wire-goldens/vllm-served.jsonl"
model="$SHARED/models/storyteller-qwen3_moe"
[ -f "$recording" ] && [ -d "$model" ] || { echo "skipped: no reference data"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$BUILD/tests/compare_goldens" rows "$recording" >"$work/rows.jsonl"
[ "$(wc -l <"$work/rows.jsonl")" -ge 40 ]
for ranks in 1 2; do
    code=0
    mpirun -n $ranks "$MOEBATCH" run -m "$model" -i "$work/rows.jsonl" -o "$work/out-$ranks" --threads 1 --progress none \
        --served-model-name storyteller >"$work/log" 2>&1 || code=$?
    [ $code = 3 ] || { echo "exit code $code at $ranks ranks, expected 3: some rows are refused"; cat "$work/log"; exit 1; }
done
# One key of one row is unknown and is named once.
[ "$(grep -c no_such_key "$work/log")" = 1 ] || { echo "the unknown key is not named once:"; cat "$work/log"; exit 1; }
"$BUILD/tests/compare_goldens" check "$recording" "$work/out-1"
cmp "$work/out-1" "$work/out-2"
