# tests/app/case_bench.sh - moebatch bench on tiny shapes: the tokens, operations and bytes that it counts are those that
# a person counts, on one rank and on two.
set -u
failed=0
# section, operation or "", key: a number of $out, where each section and each operation has a line of its own
number() {
    printf '%s\n' "$out" | awk -v section="\"$1\": " -v operation="\"$2\": " -v key="\"$3\": " '
        index($0, " \"") == 1 { inside = index($0, section) == 2 }
        inside && index($0, operation == "\"\": " ? section : operation) > 0 {
            at = index($0, key)
            if (at) { split(substr($0, at + length(key)), v, /[,}]/); print v[1]; exit }
        }'
}
is() { # what, got, want
    [ "$2" = "$3" ] || { echo "$shape on $ranks: $1 is $2, want $3"; failed=1; }
}
both() { # operation, key: prefill and decode together
    echo $(($(number prefill "$1" "$2") + $(number decode "$1" "$2")))
}
prompt=20 output=10 batch=4
for ranks in 1 2; do
    run() {
        shape=$1
        launch=
        [ $ranks = 1 ] || launch="mpirun -n $ranks"
        out=$($launch "$MOEBATCH" bench --shape "$1" --prompt-tokens $prompt --output-tokens $output --batch $batch \
            --backend cpu --json 2>&1) || { echo "$shape on $ranks ranks: $out"; failed=1; }
    }
    # Rows that go through the layers, and those that need logits, which alone pass the last layer: the last prompt token and
    # every generated one but the last.
    rows=$((ranks * batch * (prompt + output - 1))) wanted=$((ranks * batch * output))
    # Keys that queries see: positions 1 .. prompt + output - 1; in the last layer those of the last prompt token on.
    n=$((prompt + output - 1))
    pairs=$((ranks * batch * n * (n + 1) / 2))
    last_pairs=$((pairs - ranks * batch * (prompt - 1) * prompt / 2))

    # 2 layers, hidden 64, 4 query and 2 key heads of 16, 8 experts of 32, 2 of them, 256 words.
    run tiny-qwen3-moe
    is "prompt tokens" "$(number prefill "" prompt_tokens)" $((ranks * batch * prompt))
    is "steps of decode" "$(number decode "" steps)" $((output - 1))
    is "output tokens of decode" "$(number decode "" output_tokens)" $((ranks * batch * (output - 1)))
    is projections "$(both projections flops)" $((2 * (2 * rows * 64 * 128 + (rows + wanted) * 64 * 64)))
    is attention "$(both attention flops)" $(((pairs + last_pairs) * 4 * 64))
    is router "$(both router flops)" $((2 * (rows + wanted) * 64 * 8))
    is experts "$(both experts flops)" $(((rows + wanted) * 2 * 6 * 64 * 32))
    is head "$(both head flops)" $((2 * wanted * 64 * 256))
    # Keys and values of float32, 2 heads of 16, in both layers: once for every sequence and step.
    kv=$((prompt * (output + 1) + output * (output - 1) / 2 - prompt))
    is "bytes of keys and values" "$(both attention kv_bytes)" $((ranks * batch * kv * 2 * 2 * 2 * 16 * 4))
    # The embedding has no product; rows of the head are 64 values in and 256 out.
    is "rows of the head" "$(both head row_bytes)" $((wanted * (64 + 256) * 4))

    # 3 layers, the first dense of 96, experts of 32 beside a shared one.
    run tiny-deepseek-v3
    is dense "$(both dense flops)" $((6 * 64 * (rows * 96 + (rows + wanted) * 32)))
    is experts "$(both experts flops)" $(((rows + wanted) * 2 * 6 * 64 * 32))
    # q from 64 to 32 to 4 * 32, latents of 48, and 4 * 16 values back.
    is projections "$(both projections flops)" \
        $((2 * (3 * rows * (64 * 32 + 32 * 128 + 64 * 48) + (2 * rows + wanted) * 64 * 64)))

    run tiny-gpt-oss
    is experts "$(both experts flops)" $(((rows + wanted) * 2 * 6 * 64 * 32))
done
ranks=1
out=$("$MOEBATCH" bench --shape tiny-gpt-oss --layers 4 --prompt-tokens 8 --output-tokens 2 --sequences 3 --batch 2 \
    --backend cpu 2>&1) || failed=1
for text in "tiny-gpt-oss: gpt_oss, 4 layers" "3 sequences of 8 + 2 tokens a rank, 2 at a time" "roofline efficiency" "experts "; do
    printf '%s\n' "$out" | grep -qF "$text" || { echo "\"$text\" is not in: $out"; failed=1; }
done
out=$("$MOEBATCH" bench --load "$SOURCE/tests/data/storyteller" --backend cpu 2>&1) || failed=1
printf '%s\n' "$out" | grep -qE '^load .* of the slower of read and upload$' || { echo "no rate of loading in: $out"; failed=1; }
wrong() { # text, arguments...
    text=$1
    shift
    out=$("$MOEBATCH" bench "$@" 2>&1)
    [ $? = 2 ] && printf '%s\n' "$out" | grep -qF -- "$text" || { echo "bench $*: want 2 and \"$text\": $out"; failed=1; }
}
wrong "either --shape NAME or --load DIR"
wrong "either --shape NAME or --load DIR" --shape tiny-gpt-oss --load x
wrong "--shape gpt-6: expected one of gpt-oss-20b, gpt-oss-120b" --shape gpt-6
wrong "tiny-deepseek-v3: 1 layers, but its first 1 have no experts" --shape tiny-deepseek-v3 --layers 1
exit $failed
