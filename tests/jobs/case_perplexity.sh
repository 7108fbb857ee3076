# tests/jobs/case_perplexity.sh - the perplexities that transformers gives for eval.txt, to 4 significant digits.
set -eu
[ -d "$SHARED/models" ] || { echo "skipped: no reference data at $SHARED"; exit 77; }
check() { # model, ranks, perplexity
    line=$(mpirun -n "$2" "$MOEBATCH" perplexity -m "$SHARED/models/$1" "$SHARED/models/eval.txt" --threads 1 --progress none)
    echo "$1, $2 ranks: $line"
    got=$(echo "$line" | awk '{ printf "%.2f", $2 }')
    want=$(echo "$3" | awk '{ printf "%.2f", $1 }')
    [ "$got" = "$want" ] || { echo "perplexity $got, want $want"; exit 1; }
    echo "$line" | grep -q ' 115712 tokens in 226 windows of 512 '
}
check storyteller-qwen3_moe 2 46.554
check storyteller-gpt_oss 2 46.614
check storyteller-gpt_oss-mxfp4 2 46.886
