# tests/jobs/case_goldens.sh - logits and greedy tokens of the reference checkpoints, at 1 to 4 ranks: within 2e-4 of the logits'
# deviation of what transformers computed, and the same bits at every number of ranks.
set -eu
[ -d "$SHARED/goldens" ] || { echo "skipped: no reference data at $SHARED"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
golden="$BUILD/tests/golden"
for name in qwen3_moe-bf16 mixtral-bf16 gpt_oss-bf16 gpt_oss-mxfp4 glm4_moe-bf16 minimax_m2-bf16 qwen2_moe-bf16 olmoe-bf16 \
    granitemoe-bf16 llama-bf16 qwen3-bf16 deepseek_v3-bf16 deepseek_v2-bf16; do
    dir="$SHARED/goldens/$name"
    "$golden" rows "$dir/golden.safetensors" >"$work/rows.jsonl"
    "$golden" greedy "$dir/golden.safetensors" >"$work/greedy.jsonl"
    for ranks in 1 2 3 4; do
        out="$work/$name.$ranks"
        mpirun -n $ranks "$MOEBATCH" score -m "$dir" -i "$work/rows.jsonl" -o "$out.score" --logits "$out.h5" \
            --threads 1 --progress none >"$out.log" 2>&1 || { cat "$out.log"; exit 1; }
        mpirun -n $ranks "$MOEBATCH" run -m "$dir" -i "$work/greedy.jsonl" -o "$out.run" \
            --threads 1 --progress none >"$out.log" 2>&1 || { cat "$out.log"; exit 1; }
        printf '%s, %s ranks: ' "$name" "$ranks"
        "$golden" logits "$dir/golden.safetensors" "$out.h5" logits 2e-4
        "$golden" tokens "$dir/golden.safetensors" "$out.run"
        cmp "$out.score" "$work/$name.1.score"
        cmp "$out.run" "$work/$name.1.run"
        cmp "$out.h5" "$work/$name.1.h5"
    done
done
