# tests/jobs/case_stop.sh - asked to stop, every rank returns 75, unfinished rows are in the journal, and the resumed job's file is
# that of an undisturbed one.
set -eu
. "$SOURCE/tests/support/job.sh"
make_rows 24 20 300 >"$rows"
job 2 "$work/base"
expect 0 "undisturbed"
[ "$(wc -l <"$work/base")" = 24 ] || fail "undisturbed: not one line per row"

# stopped NAME RANKS SIGNAL WHOM RUNS: stopped RUNS times, with the first finished row of rank 0, then completed on 3 ranks.
stopped() {
    run=0
    while [ $run -lt "$5" ]; do
        run=$((run + 1))
        before="$tools/signal_after 0@$work/$1.job/segment-000$run-0000.bin:0 $3 $4"
        job "$2" "$work/$1"
        expect 75 "$1, run $run"
        [ ! -e "$work/$1" ] || fail "$1, run $run: a stopped job has left an output"
        "$tools/journal_dump" "$work/$1.job" >"$work/dump"
        grep -q " partial " "$work/dump" || fail "$1, run $run: no unfinished rows in the journal"
        says "stopped" "$1, run $run"
    done
    job 3 "$work/$1"
    expect 0 "$1, completed"
    cmp "$work/$1" "$work/base" || fail "$1: differs from the undisturbed job"
    "$tools/journal_dump" "$work/$1.job" | awk '$2 == "result" || $2 == "error" { n[$3]++ }
        END { for (i = 0; i < 24; i++) if (n[i] != 1) { print "row " i ": " n[i] + 0 " results"; bad = 1 } exit bad }' ||
        fail "$1: rows lost or doubled"
    echo "stopped and completed: $1, $5 times, $(awk '$2 == "partial"' "$work/dump" | wc -l) unfinished rows kept"
}
stopped usr1-to-mpirun 2 10 first 2
stopped term-to-ranks 2 15 rest 2
stopped term-to-one-rank 2 15 one 1
stopped term-alone 0 15 first 2
stopped int-alone 0 2 first 1
