# tests/app/case_usage.sh - wrong usage is one message and exit code 2 on any number of ranks; help fits a screen.
set -u
failed=0
check() { # want code, want text, command...
    want=$1 text=$2
    shift 2
    out=$("$@" 2>&1)
    code=$?
    [ $code = "$want" ] || { echo "$*: exit code $code, want $want"; failed=1; }
    n=$(printf '%s\n' "$out" | grep -cF -- "$text")
    [ "$n" = 1 ] || { echo "$*: \"$text\" is there $n times in: $out"; failed=1; }
}
for launch in "" "mpirun -n 3"; do
    check 2 'unknown command "nonsense"' $launch "$MOEBATCH" nonsense
    check 2 'Usage: moebatch COMMAND' $launch "$MOEBATCH"
    check 2 'unknown option "--nonsense"' $launch "$MOEBATCH" run --nonsense
    check 2 '-m DIR is missing' $launch "$MOEBATCH" run
    check 2 '-i FILE is missing' $launch "$MOEBATCH" run -m x
    check 2 '--max-batch 0: expected an integer from 1 to 65536' $launch "$MOEBATCH" score --max-batch 0
    check 2 'unknown instruction set "avx1024"' $launch "$MOEBATCH" perplexity -m "$SOURCE/tests/data/storyteller" --isa avx1024 x
    check 2 '--backend abacus: expected auto, cpu or cuda' $launch "$MOEBATCH" perplexity -m "$SOURCE/tests/data/storyteller" --backend abacus x
    check 2 'FILE is missing' $launch "$MOEBATCH" perplexity -m x
    check 2 'MODEL is missing' $launch "$MOEBATCH" quantize -o y --recipe fp8
    check 2 '--recipe is missing' $launch "$MOEBATCH" quantize x -o y
    check 2 'recipe "fp9" is neither a file nor one of' $launch "$MOEBATCH" quantize "$SOURCE/tests/data/storyteller" -o y --recipe fp9
    check 0 'Usage: moebatch COMMAND' $launch "$MOEBATCH" --help
    check 0 'moebatch ' $launch sh -c "$MOEBATCH --version | head -n 1"
    check 1 'config.json' $launch "$MOEBATCH" perplexity -m /nowhere x
done
# An explicit backend is never replaced by another: without a GPU the reason is the message.
ldconfig -p | grep -q 'libcuda\.so\.1' ||
    check 1 '--backend cuda: no GPU' "$MOEBATCH" perplexity -m "$SOURCE/tests/data/storyteller" --backend cuda x
for command in run score perplexity quantize tokenize devices bench; do
    "$MOEBATCH" $command --help >help.$$ || failed=1
    [ "$(wc -l <help.$$)" -le 40 ] || { echo "$command --help has more than 40 lines"; failed=1; }
    [ "$(wc -L <help.$$)" -le 110 ] || { echo "$command --help has lines of more than 110 columns"; failed=1; }
    rm -f help.$$
done
exit $failed
