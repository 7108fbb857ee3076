# tests/support/golden.sh - sourced: one reference checkpoint through `score` and `run`, at several numbers of ranks.
# Needs a directory $work and the tool golden.

# compare_golden DIR RANKS...: logits within 2e-4 of their deviation, greedy tokens equal, and the same files to the byte.
compare_golden() {
    dir=$1
    name=$(basename "$dir")
    shift
    "$BUILD/tests/golden" rows "$dir/golden.safetensors" >"$work/rows.jsonl"
    "$BUILD/tests/golden" greedy "$dir/golden.safetensors" >"$work/greedy.jsonl"
    first=
    for ranks in "$@"; do
        out="$work/$name.$ranks"
        mpirun -n "$ranks" "$MOEBATCH" score -m "$dir" -i "$work/rows.jsonl" -o "$out.score" --logits "$out.h5" \
            --threads 1 --progress none >"$out.log" 2>&1 || { cat "$out.log"; exit 1; }
        mpirun -n "$ranks" "$MOEBATCH" run -m "$dir" -i "$work/greedy.jsonl" -o "$out.run" \
            --threads 1 --progress none >"$out.log" 2>&1 || { cat "$out.log"; exit 1; }
        printf '%s, %s ranks: ' "$name" "$ranks"
        "$BUILD/tests/golden" logits "$dir/golden.safetensors" "$out.h5" logits 2e-4
        "$BUILD/tests/golden" tokens "$dir/golden.safetensors" "$out.run"
        first=${first:-$out}
        cmp "$out.score" "$first.score"
        cmp "$out.run" "$first.run"
        cmp "$out.h5" "$first.h5"
    done
}
