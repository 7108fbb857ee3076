# tests/jobs/case_quantized.sh - every quantized reference checkpoint in every way of running it: weights as decoded (logits
# and greedy tokens), activations as stored, FP8 keys and values, per-token experts; each at several numbers of ranks and from a
# pack with the same bytes.
set -eu
[ -d "$SHARED/goldens" ] || { echo "skipped: no reference data at $SHARED"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$SOURCE/tests/support/golden.sh"
numbers=${QUANTIZED_RANKS:-1 3}

# rounded DIR TENSOR FLAGS...: relative L2 of each prompt within its limit, where the reference has the tensor.
rounded() {
    dir=$1 tensor=$2 name=$(basename "$1")
    shift 2
    "$BUILD/tests/golden" has "$dir/golden.safetensors" "$tensor" || return 0
    for n in $numbers; do
        out="$work/$name.$tensor.$n"
        mpirun -n "$n" "$MOEBATCH" score -m "$dir" -i "$work/rows.jsonl" -o "$out.score" --logits "$out.h5" \
            --threads 1 --progress none "$@" >"$out.log" 2>&1 || { cat "$out.log"; exit 1; }
        printf '%s, %s ranks, ' "$name" "$n"
        code=0
        "$BUILD/tests/golden" rounded "$dir/golden.safetensors" "$out.h5" "$tensor" "$dir/golden.json" || code=$?
        case $code in
        0) ;;
        3) [ "$n" = 1 ] && flips=$((flips + 1)) ;;
        *) exit 1 ;;
        esac
        cmp "$out.h5" "$work/$name.$tensor.1.h5"
    done
}

# Rounding is discontinuous: whatever the order of its sums, an implementation meets a value now and then that lies nearer to
# the boundary of two codes than its own rounding errors (numpy in float32 and float64 does so on other prompts of these).
flips=0 count=0

# packed DIR: the same logits from one HDF5 file, read by another number of ranks than the directory was.
packed() {
    dir=$1 name=$(basename "$1")
    out="$work/$name.packed"
    "$MOEBATCH" pack -m "$dir" -o "$work/$name.h5" >"$out.log" 2>&1 || { cat "$out.log"; exit 1; }
    mpirun -n 2 "$MOEBATCH" score -m "$work/$name.h5" -i "$work/rows.jsonl" -o "$out.score" --logits "$out.logits.h5" \
        --threads 1 --progress none >"$out.log" 2>&1 || { cat "$out.log"; exit 1; }
    cmp "$out.logits.h5" "$work/$name.1.h5"
    rm "$work/$name.h5"
}

for decoded in "$SHARED"/goldens/*/decoded.json; do
    golden=$(dirname "$decoded")
    # shellcheck disable=SC2086
    compare_golden "$golden" $numbers
    rounded "$golden" stored --activations stored
    rounded "$golden" kv_fp8 --activations none --kv-dtype fp8
    rounded "$golden" per_token_experts --activations none --activation-override nvfp4_per_token
    packed "$golden"
    count=$((count + 1))
done
echo "$flips checkpoints of $count with a prompt in which a value fell on the other side of a boundary"
[ "$flips" -le 2 ] || exit 1
[ "$count" -ge 34 ] || { echo "only $count quantized checkpoints were found"; exit 1; }
