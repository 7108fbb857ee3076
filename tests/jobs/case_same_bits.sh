# tests/jobs/case_same_bits.sh - one result file, to the byte, at any number of ranks and threads, any batch, chunk and KV budget; rows
# in another order give the same lines in another order.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model="$SOURCE/tests/data/storyteller"
rows="$work/rows.jsonl"
cat "$SOURCE/tests/data/prompts.jsonl" >"$rows"
# Longer prompts as ids (past a page, a window of 128 and every chunk below), log-probabilities, echo, samples, penalties.
awk 'BEGIN {
    for (i = 1; i <= 14; i++) {
        n = (i * 53) % 330 + 1; line = ""
        for (j = 0; j < n; j++) line = line (j ? "," : "") (5 + (i * 7919 + j * 104729) % 4000)
        printf "{\"custom_id\":\"ids-%d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":[%s],", i, line
        printf "\"max_tokens\":%d,\"seed\":%d,\"temperature\":%s", 3 + i * 5 % 40, i, i % 3 ? "0.8" : "0"
        if (i % 3 == 1) printf ",\"n\":3,\"top_p\":0.9"
        if (i % 4 == 0) printf ",\"logprobs\":3,\"echo\":true"
        if (i % 5 == 0) printf ",\"prompt_logprobs\":2,\"repetition_penalty\":1.2"
        print "}}"
    }
}' >>"$rows"

run() { # name, ranks, options
    name=$1 ranks=$2
    shift 2
    code=0
    mpirun -n "$ranks" "$MOEBATCH" run -m "$model" -i "$rows" -o "$work/$name" --progress none "$@" >"$work/log" 2>&1 || code=$?
    [ $code = 0 ] || { echo "$name: exit code $code"; cat "$work/log"; exit 1; }
}
same() {
    run "$@"
    cmp "$work/$1" "$work/base" || { echo "$1 differs from one rank, one thread"; exit 1; }
    echo "same: $1"
    rm -rf "${work:?}/$1" "$work/$1.job"
}
run base 1 --threads 1
[ "$(wc -l <"$work/base")" = "$(wc -l <"$rows")" ]
for ranks in 2 3 4; do same ranks-$ranks $ranks --threads 1; done
for threads in 2 3; do same threads-$threads 1 --threads $threads; done
for batch in 1 3; do same batch-$batch 2 --threads 1 --max-batch $batch; done
for chunk in 1 7 64 100; do same chunk-$chunk 1 --threads 2 --prefill-chunk $chunk; done
same kv-small 2 --threads 1 --kv-memory 5M
same kv-tiny 1 --threads 2 --kv-memory 3500K --prefill-chunk 33

# Latent attention: prompts in the expanded form, generated positions in the absorbed one, also when they are computed again.
mla="$work/mla.jsonl"
awk 'BEGIN {
    for (i = 1; i <= 12; i++) {
        n = (i * 37) % 90 + 1; line = ""
        for (j = 0; j < n; j++) line = line (j ? "," : "") (2 + (i * 7919 + j * 104729) % 80)
        printf "{\"custom_id\":\"%d\",\"input_ids\":[%s],\"max_tokens\":%d,\"seed\":%d,\"ignore_eos\":true,", i, line, 20 + i * 3, i
        printf "\"temperature\":%s,\"logprobs\":1}\n", i % 2 ? "0.9" : "0"
    }
}' >"$mla"
plain_rows=$rows plain_model=$model
rows=$mla model="$SOURCE/tests/data/families/deepseek_v3-a"
rm -rf "$work/base" "$work/base.job"
run base 1 --threads 1
for ranks in 2 4; do same latent-ranks-$ranks $ranks --threads 1; done
same latent-chunks 1 --threads 2 --prefill-chunk 7 --max-batch 3
same latent-kv 2 --threads 1 --kv-memory 170K --prefill-chunk 40
rows=$plain_rows model=$plain_model

# Only rows with a custom_id keep their results when they move.
grep custom_id "$rows" >"$work/named.jsonl"
sort -r "$work/named.jsonl" >"$work/moved.jsonl"
rows="$work/named.jsonl"
run named 2 --threads 1
rows="$work/moved.jsonl"
run moved 1 --threads 2
cmp -s "$work/named" "$work/moved" && { echo "the rows did not move"; exit 1; }
sort "$work/named" >"$work/named.sorted"
sort "$work/moved" | cmp - "$work/named.sorted"
echo "same: rows in another order"
