# tests/jobs/case_online.sh - --quantize: the same bytes at any number of ranks and threads, a perplexity that suits the format,
# the manifest says what was done, and a quantized checkpoint is refused.
set -eu
[ -d "$SHARED/models/storyteller-qwen3_moe" ] || { echo "skipped: no reference data at $SHARED"; exit 77; }
. "$SOURCE/tests/support/job.sh"
model="$SHARED/models/storyteller-qwen3_moe"
make_rows 12 3 9 >"$rows"

# Both ways of rounding activations; blocks whose scales span rows; experts alone.
for flags in "nvfp4 --activations stored" "fp8-block --activations stored" "int4 --quantize-experts-only"; do
    # shellcheck disable=SC2086
    set -- --quantize $flags
    job 0 "$work/alone.jsonl" --threads 2 "$@"
    expect 0 "$flags, alone"
    job 3 "$work/three.jsonl" --threads 1 "$@"
    expect 0 "$flags, 3 ranks"
    cmp "$work/alone.jsonl" "$work/three.jsonl" || fail "$flags: 3 ranks give other bytes"
    grep -q "\"quantize\":\"$2\"" "$work/alone.jsonl.job/manifest.json" || fail "$flags: not in the manifest"
    rm -rf "$work"/*.jsonl.job "$work/alone.jsonl" "$work/three.jsonl"
done

# perplexity FLAGS...: of the first windows.
head -c 12000 "$SHARED/models/eval.txt" >"$work/text"
perplexity() {
    "$MOEBATCH" perplexity -m "$model" "$work/text" --threads 2 --progress none "$@" >"$work/log" 2>&1 || fail "perplexity $*"
    sed -n 's/^perplexity \([0-9.]*\).*/\1/p' "$work/log"
}

plain=$(perplexity)
for bound in fp8-dynamic:0.003 fp8-block:0.003 mxfp8:0.003 q8_0:0.002 nvfp4:0.03 mxfp4:0.05 int4:0.03; do
    format=${bound%:*} most=${bound#*:}
    got=$(perplexity --quantize "$format")
    awk -v a="$plain" -v b="$got" -v most="$most" -v f="$format" 'BEGIN {
        r = b / a - 1
        printf "%s: perplexity %s, unquantized %s, ratio - 1 = %.5f\n", f, b, a, r
        exit !(r < most && r > -most && r != 0)
    }' || fail "$format: perplexity $got, unquantized $plain"
done

model="$SHARED/goldens/qwen3_moe-mxfp4"
job 0 "$work/refused.jsonl" --quantize int4
expect 1 "a quantized checkpoint"
says "quantize int4: the checkpoint is quantized already (modelopt" "a quantized checkpoint"
