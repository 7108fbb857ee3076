# tests/jobs/case_kill_resume_slow.sh - jobs killed with SIGKILL at random times, on changing numbers of ranks, until at least 50 kills
# have been survived: no finished row is lost or computed twice, and the files are those of an undisturbed job.
set -eu
. "$SOURCE/tests/support/job.sh"
n_rows=120 n_kills=50
make_rows $n_rows 5 80 >"$rows"
job 2 "$work/base"
expect 0 "undisturbed"

# How often what is killed: mostly everything at once; sometimes mpirun alone, whose ranks outlive it for a while, or one rank alone,
# which mpirun notices after a while. When: two of three times a moment after more rows were finished, which holds on a slow machine
# too; else at any time up to twice what a program needs to start, which is measured.
now() { echo $(($(date +%s%N) / 1000000)); }
start=$(now)
job 2 "$work/base"
expect 0 "finished"
awk -v start="$(($(now) - start))" 'BEGIN {
    srand(20)
    for (i = 0; i < 400; i++) {
        ranks = int(rand() * 4) + 1
        whom = rand()
        whom = whom < 0.9 ? "all" : whom < 0.95 ? "first" : "one"
        if (rand() < 0.67)
            printf "%d %.2f more %s\n", ranks, 0.2 * rand(), whom
        else
            printf "%d %.2f start %s\n", ranks, 2 * rand() * start / 1000, whom
    }
}' >"$work/plan"

check='
    FILENAME == ARGV[1] { if ($2 == "result" || $2 == "error") seen[$0] = 1; next }
    $2 == "result" || $2 == "error" { there[$0] = 1; n[$3]++ }
    END {
        for (line in seen) if (!(line in there)) { print "lost: " line; bad = 1 }
        for (i = 0; i < rows; i++) if (n[i] != 1) { print "row " i ": " n[i] + 0 " results"; bad = 1 }
        exit bad
    }'
kills=0 runs=0 jobs=0 fruitful=0
exec 3<"$work/plan"
while [ $kills -lt $n_kills ]; do
    jobs=$((jobs + 1))
    out="$work/out-$jobs" finished=0
    : >"$work/seen"
    while :; do
        read -r ranks seconds since whom <&3 || fail "the jobs do not get ahead: $runs runs, $kills kills"
        runs=$((runs + 1))
        before="$tools/signal_after $seconds 9 $whom"
        if [ $kills -ge $n_kills ]; then
            before=
        elif [ "$since" = more ]; then
            bytes=$(cat "$out.job"/segment-* 2>"$work/log" | wc -c)
            before="$tools/signal_after $seconds@$out.job/segment-*:$bytes 9 $whom"
        fi
        job "$ranks" "$out"
        [ "$code" != 0 ] || break
        expect 137 "run $runs on $ranks ranks, killed $seconds s after $since ($whom)"
        kills=$((kills + 1))
        [ -d "$out.job" ] || continue
        "$tools/journal_dump" "$out.job" >"$work/dump"
        cat "$work/dump" >>"$work/seen"
        now=$(grep -c -e ' result ' -e ' error ' "$work/dump" || :)
        [ "$now" -ge "$finished" ] || fail "run $runs: $now rows are finished, $finished were"
        [ "$now" -eq "$finished" ] || fruitful=$((fruitful + 1))
        finished=$now
    done
    cmp "$out" "$work/base" || fail "job $jobs: differs from the undisturbed one"
    "$tools/journal_dump" "$out.job" >"$work/dump"
    awk -v rows=$n_rows "$check" "$work/seen" "$work/dump" || fail "job $jobs: rows lost or doubled"
done
echo "$kills kills ($fruitful after rows were finished) in $runs runs of $jobs jobs of $n_rows rows: 0 lost, 0 doubled, same bytes"
[ $fruitful -gt 5 ] || fail "the kills came too early to prove anything"
