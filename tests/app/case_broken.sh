# tests/app/case_broken.sh - checkpoints that are broken in one way each (tests/oracle/make_broken.py): inspect --deep names file,
# tensor and expectation, and run refuses what would make results wrong, with the same words; what is only odd runs.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
data="$SOURCE/tests/data/broken"
printf '{"input_ids":[1,2,3],"max_tokens":2,"temperature":0,"ignore_eos":true}\n' >"$work/rows.jsonl"
failed=0 count=0 errors=0
tab=$(printf '\t')
while IFS="$tab" read -r name code want flags message; do
    count=$((count + 1))
    got=0
    "$MOEBATCH" inspect "$data/$name" --deep --threads 1 >"$work/deep" 2>&1 || got=$?
    if [ "$got" != "$code" ]; then
        echo "$name: inspect --deep exits $got, expected $code: $(grep -v '^ ' "$work/deep" | tail -n 3)"
        failed=1
    fi
    grep -qF -e "$message" "$work/deep" || { echo "$name: no \"$message\" in: $(tail -n 3 "$work/deep")"; failed=1; }
    [ "$flags" != - ] || flags=
    got=0
    rm -rf "$work"/out*
    # shellcheck disable=SC2086
    "$MOEBATCH" run -m "$data/$name" -i "$work/rows.jsonl" -o "$work/out" --threads 1 --progress none $flags >"$work/run" 2>&1 || got=$?
    if [ "$want" = refused ]; then
        errors=$((errors + 1))
        [ "$got" = 1 ] || { echo "$name: run exits $got, expected 1: $(tail -n 3 "$work/run")"; failed=1; }
        grep -qF -e "$message" "$work/run" || { echo "$name: run does not say \"$message\": $(tail -n 3 "$work/run")"; failed=1; }
    else
        [ "$want" != warns ] || grep -qF -e "$message" "$work/run" || { echo "$name: run does not warn: $(cat "$work/run")"; failed=1; }
        [ "$got" = 0 ] || { echo "$name: run exits $got, expected 0: $(tail -n 3 "$work/run")"; failed=1; }
    fi
done <"$data/cases.txt"
# What is found does not depend on who looks.
for name in scales-never-written global-nan twin-experts; do
    "$MOEBATCH" inspect "$data/$name" --deep --json --threads 1 >"$work/one" 2>/dev/null || :
    for n in 2 3 4; do
        mpirun -n "$n" "$MOEBATCH" inspect "$data/$name" --deep --json --threads 2 >"$work/many" 2>/dev/null || :
        cmp "$work/one" "$work/many"
    done
done
[ "$errors" -ge 20 ] || { echo "only $errors of $count cases are errors"; exit 1; }
echo "$count checkpoints, $errors of them refused"
exit "$failed"
