# tests/app/case_inspect_deep.sh - moebatch inspect of the quantized reference checkpoints: --digest gives the hashes of
# decoded.json, --deep finds nothing, both the same at any number of ranks and threads; and the quantization map.
set -eu
[ -d "$SHARED/goldens" ] || { echo "skipped: no reference data at $SHARED"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
count=0
for decoded in "$SHARED"/goldens/*/decoded.json; do
    golden=$(dirname "$decoded") name=$(basename "$(dirname "$decoded")")
    sed -n 's/^ *"\([^"]*\)": "\([0-9a-f]*\)".*/\2  \1/p' "$decoded" | sort >"$work/want"
    "$MOEBATCH" inspect "$golden" --digest >"$work/digest"
    sort "$work/digest" | cmp - "$work/want" || { echo "$name: other digests than decoded.json has"; exit 1; }
    "$MOEBATCH" inspect "$golden" --deep >"$work/deep" || { echo "$name: --deep exits $?: $(cat "$work/deep")"; exit 1; }
    grep -q '^0 errors, 0 warnings$' "$work/deep" || { echo "$name: $(cat "$work/deep")"; exit 1; }
    count=$((count + 1))
done
[ "$count" -ge 34 ] || { echo "only $count quantized checkpoints were found"; exit 1; }
echo "$count checkpoints decode to the hashes of decoded.json"

# The same at other numbers of ranks and threads.
for name in qwen3_moe-fp8_uneven gpt_oss-nvfp4; do
    "$MOEBATCH" inspect "$SHARED/goldens/$name" --digest --deep --json --threads 1 >"$work/one"
    for n in 2 3; do
        mpirun -n "$n" "$MOEBATCH" inspect "$SHARED/goldens/$name" --digest --deep --json --threads 2 >"$work/many"
        cmp "$work/one" "$work/many"
    done
done

want() {
    grep -q -e "$1" "$work/text" || { echo "no line \"$1\" in: $(cat "$work/text")"; exit 1; }
}
"$MOEBATCH" inspect "$SHARED/goldens/qwen3_moe-mixed" >"$work/text"
want '^quantized   modelopt MIXED_PRECISION$'
want '^  fp8     589888 bytes, 589824 weights in 8 matrices, 8.001 bits each$'
want '^layers 0-1$'
want '^  self_attn.q_proj *fp8     FP8, a scale per tensor, rows fp8 static$'
want '^  mlp.gate *bf16$'
want '^  mlp.experts.\*.down_proj *(8) *nvfp4   NVFP4, groups of 16, rows nvfp4 static$'
"$MOEBATCH" inspect "$SHARED/goldens/qwen3_moe-mixed" --json >"$work/text"
want '^      "nvfp4": {"matrices": 48, "weights": 1572864, "bytes": 885120, "bits_per_weight": 4.5020},*$'
want '^      {"layer": 1, "module": "self_attn.o_proj", "format": "fp8", "detail": "FP8, a scale per tensor, rows fp8 static", "matrices": 1, '
