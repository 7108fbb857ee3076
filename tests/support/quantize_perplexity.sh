# tests/support/quantize_perplexity.sh - the storyteller quantized to every row of quant_perplexity.json, whose perplexities come
# from nvidia-modelopt's exports: |ratio - 1| at most 2e-4 with weights alone ($part weights), 2e-3 with rounded activations or
# cache ($part activations). Prints the table, with bits per weight of the whole file. Sourced, with part set.
set -eu
[ -d "$SHARED/models" ] || { echo "skipped: no reference data at $SHARED"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model="$SHARED/models/storyteller-qwen3_moe" failed=0
"$BUILD/tests/calibration_rows" "$model" "$SHARED/models/eval.txt" >"$work/rows"
cat >"$work/mixed.json" <<'END'
{"rules": [{"match": "experts", "format": "nvfp4"}, {"match": "attention", "format": "fp8"}], "kv_cache": "none"}
END
# value ROW KEY: of the reference; empty where it has none.
value() {
    awk -v row="\"$1\":" -v key="\"$2\":" '$1 == row { on = 1 } on && $1 == key { sub(",", "", $2); print $2 } on && /}/ { exit }' \
        "$SHARED/models/quant_perplexity.json"
}
# check ROW KEY LIMIT FLAGS...: of the checkpoint in $work/ROW.
check() {
    row=$1 key=$2 limit=$3 want=$(value "$1" "$2")
    shift 3
    [ "$want" ] || return 0
    line=$(mpirun -n 2 "$MOEBATCH" perplexity -m "$work/$row" "$SHARED/models/eval.txt" --threads 1 --progress none "$@" </dev/null)
    echo "$line" | awk -v row="$row" -v key="$key" -v want="$want" -v limit="$limit" -v bits="$bits" '{
        off = $2 / want - 1
        printf "%-14s %-13s %9.5f  %9.5f  %+.1e  %s bits\n", row, key, $2, want, off, bits
        exit off > limit || off < -limit }' || { echo "$row, $key: beyond $limit"; failed=1; }
}
printf '%-14s %-13s %9s  %9s\n' recipe way ours ModelOpt
while read -r row recipe calibrated more; do
    set -- quantize "$model" -o "$work/$row" --recipe "$recipe" --progress none
    [ "$calibrated" = no ] || set -- "$@" --calibrate "$work/rows"
    # shellcheck disable=SC2086
    "$MOEBATCH" "$@" $more >"$work/log" 2>&1 </dev/null || { cat "$work/log"; exit 1; }
    # Over all weights of the file, embeddings and heads included.
    bits=$("$MOEBATCH" inspect "$work/$row" --json | awk -v n="$(stat -c %s "$work/$row/model.safetensors")" '
        /^  "parameters":/ { p = $2 + 0 } END { printf "%.2f", n * 8 / p }')
    if [ "$part" = weights ]; then
        check "$row" weights_only 2e-4 --activations none
    else
        check "$row" kv_fp8 2e-3 --activations none --kv-dtype fp8
        check "$row" stored 2e-3 --activations stored
    fi
    rm -rf "${work:?}/$row"
done <<END
fp8 fp8 yes
fp8_pcpt fp8-dynamic no
fp8_pb_wo fp8-block no
nvfp4 nvfp4 yes
mxfp8 mxfp8 no
mixed $work/mixed.json yes
mxfp4 mxfp4 no --experts-only
nvfp4_experts nvfp4 yes --experts-only
END
exit $failed
