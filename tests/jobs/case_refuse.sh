# tests/jobs/case_refuse.sh - what a second run finds: another job's journal, a live process, a finished output, an output without a
# journal, a full disk.
set -eu
. "$SOURCE/tests/support/job.sh"
make_rows 16 10 120 8 >"$rows"
job 2 "$work/base"
expect 3 "undisturbed"
stamp() { stat -c '%i %Y %s' "$1"; }

# A stopped job, which nothing below may change.
before="$tools/signal_after 0@$work/out.job/segment-0001-0000.bin:0 10 first"
job 2 "$work/out"
expect 75 "to be resumed"
cp "$work/out.job/header.json" "$work/header"

# refused WHAT: exit code 1, the difference named, header and segments as before.
refused() {
    expect 1 "resume with another $1"
    says "belongs to another job.*$1 (journal" "resume with another $1"
    cmp "$work/header" "$work/out.job/header.json" || fail "resume with another $1: has changed the header"
    echo "refused: $(grep -o 'belongs to.*' "$work/log" | head -n 1)"
}
good=$model
model="$work/copy/storyteller" # the same name, which stands in the output
mkdir -p "$model"
cp "$good"/* "$model"
job 0 "$work/out2"
expect 3 "a copy of the model"
cmp "$work/out2" "$work/base" || fail "a copy of the model gives another output"
sed 's/"rope_theta": *[0-9.]*/"rope_theta": 12345.0/; s/"initializer_range": 0.02/"initializer_range": 0.03/' "$good/config.json" >"$model/config.json"
cmp -s "$good/config.json" "$model/config.json" && fail "the model was not changed"
job 2 "$work/out"
refused model
cp "$good/config.json" "$model/config.json"
echo >>"$model/tokenizer.json"
job 0 "$work/out"
refused tokenizer
model=$good
cp "$rows" "$work/rows.good"
sed '3s/row-2/row-x/' "$work/rows.good" >"$rows"
job 0 "$work/out"
refused input
cp "$work/rows.good" "$rows"
for other in "--max-tokens 7" "--temperature 0.5" "--seed 3" "--created 7" "--served-model-name other"; do
    job 0 "$work/out" $other
    refused parameters
done
mv "$work/copy/storyteller" "$work/copy/renamed"
cp "$good/tokenizer.json" "$work/copy/renamed/tokenizer.json"
model="$work/copy/renamed"
job 0 "$work/out"
refused parameters
model=$good
if grep -q '"isa": "scalar"' "$work/header"; then
    echo "not tried: another ISA (this machine has only one)"
else
    job 2 "$work/out" --isa scalar
    refused isa
fi
sed 's/"isa": "[a-z0-9]*"/"isa": "avx9"/' "$work/header" >"$work/out.job/header.json"
job 2 "$work/out"
expect 1 "an ISA that nobody has"
says "avx9" "an ISA that nobody has"
echo "refused: $(grep avx9 "$work/log" | head -n 1)"
cp "$work/header" "$work/out.job/header.json"

# A second process while the first one lives (it is held still meanwhile); the first is not disturbed.
"$MOEBATCH" run -m "$model" -i "$rows" -o "$work/out" --progress none >"$work/first.log" 2>&1 &
first=$!
until [ -s "$work/out.job/segment-0002-0000.bin" ]; do sleep 0.02; done
kill -STOP "$first"
job 2 "$work/out"
kill -CONT "$first"
expect 1 "a second process"
says "process $first on host $(uname -n)" "a second process"
echo "refused: $(grep -o 'process [0-9]* on host.*' "$work/log" | tail -n 1)"
code=0
wait "$first" || code=$?
cp "$work/first.log" "$work/log"
expect 3 "the first process"
cmp "$work/out" "$work/base" || fail "the first process: differs from the undisturbed job"

# A finished output: one line, nothing computed or touched, the same exit code.
was=$(stamp "$work/out")
for ranks in 0 2; do
    job $ranks "$work/out"
    expect 3 "finished"
    # (mpirun adds words of its own about the exit code.)
    [ $ranks != 0 ] || [ "$(wc -l <"$work/log")" = 1 ] || fail "finished: not one line"
    [ "$(grep -c 'finished before' "$work/log")" = 1 ] || fail "finished: does not say so once"
    [ "$was" = "$(stamp "$work/out")" ] || fail "finished: the output was touched"
    [ ! -e "$work/out.job/segment-0003-0000.bin" ] || fail "finished: a run was started"
done
echo "finished: $(head -n 1 "$work/log")"

# The output is lost, the journal is not: written again without computing.
rm "$work/out"
job 2 "$work/out"
expect 3 "output lost"
cmp "$work/out" "$work/base" || fail "output lost: differs"

# An output that is not ours, without and with a journal.
echo precious >"$work/own"
job 0 "$work/own"
expect 1 "an output without a journal"
says "overwrite" "an output without a journal"
[ "$(cat "$work/own")" = precious ] || fail "an output without a journal was touched"
[ ! -e "$work/own.job" ] || fail "an output without a journal: a job directory was left"
echo more >>"$work/out"
job 0 "$work/out"
expect 1 "a changed output"
says "overwrite" "a changed output"
for name in own out; do
    job 0 "$work/$name" --overwrite
    expect 3 "--overwrite"
    cmp "$work/$name" "$work/base" || fail "--overwrite: differs"
done
job 0 "$work/out" --overwrite --max-tokens 5
expect 3 "--overwrite with other parameters"

# Paths that cannot be an output.
for bad in - /dev/stdout "$work" "$work/"; do
    job 0 "$bad"
    expect 2 "output $bad"
done
job 0 "$work/none/out"
expect 1 "no directory"

# A file size limit stands for a full disk: what was finished is kept, and the job ends when there is room.
code=0
(ulimit -f 16 && exec "$MOEBATCH" run -m "$model" -i "$rows" -o "$work/full" --progress none) >"$work/log" 2>&1 || code=$?
expect 1 "full disk"
says "File too large" "full disk"
n=$("$tools/journal_dump" "$work/full.job" | awk '$2 == "result" || $2 == "error"' | wc -l)
[ "$n" -gt 0 ] && [ "$n" -lt 16 ] || fail "full disk: $n rows in the journal"
job 2 "$work/full"
expect 3 "room again"
cmp "$work/full" "$work/base" || fail "room again: differs"
echo "full disk: $n rows were kept"
