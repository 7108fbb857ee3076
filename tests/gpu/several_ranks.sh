#!/bin/sh
# tests/gpu/several_ranks.sh - the same bytes at one rank and at several over NCCL, with ranks that share a GPU and, where there are
# more GPUs, with one for each; and what a rank that is killed or stopped does to the others.
# Usage: sh tests/gpu/several_ranks.sh [RANKS...]   (2 4; MOEBATCH, SOURCE in the environment). A line for each check; exit 1 if any fails.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1 NCCL_NVLS_ENABLE=0
[ $# -gt 0 ] || set -- 2 4
ranks=$*
n_gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
say() { echo "several ranks: $*"; }
fail() {
    failed=1
    say "$* FAILED"
}

# --- rows: prompts of very different lengths, as text and as ids ---
cat "$SOURCE/tests/data/prompts.jsonl" >"$work/long"
awk 'BEGIN {
    for (i = 1; i <= 24; i++) {
        n = (i * 53) % 330 + 1; line = ""
        for (j = 0; j < n; j++) line = line (j ? "," : "") (5 + (i * 7919 + j * 104729) % 4000)
        printf "{\"custom_id\":\"%d\",\"prompt\":[%s],\"max_tokens\":%d,\"temperature\":%s,\"seed\":%d,\"logprobs\":2}\n",
            i, line, 3 + i * 5 % 60, i % 3 ? "0.8" : "0", i
    }
}' >>"$work/long"
grep '"custom_id":"' "$work/long" | sed 's/"max_tokens":[0-9]*/"max_tokens":1/' >"$work/prefill"
head -1 "$work/long" >"$work/single"
awk 'BEGIN {
    for (i = 1; i <= 12; i++) {
        n = (i * 37) % 90 + 1; line = ""
        for (j = 0; j < n; j++) line = line (j ? "," : "") (2 + (i * 7919 + j * 104729) % 80)
        printf "{\"custom_id\":\"%d\",\"input_ids\":[%s],\"max_tokens\":%d,\"seed\":%d,\"ignore_eos\":true,\"temperature\":0.9,\"logprobs\":1}\n",
            i, line, 20 + i * 3, i
    }
}' >"$work/latent"

# job OUT RANKS OPTIONS...: a run on the GPU; ranks share one where there are too few. $each: a command before moebatch's
each=
job() {
    out=$1 on=$2
    shift 2
    share=
    [ "$on" -le "$n_gpus" ] || share=--share-gpu
    rm -rf "$work/$out" "$work/$out.job"
    # shellcheck disable=SC2086
    timeout 120 mpirun -n "$on" $each "$MOEBATCH" "$@" -o "$work/$out" --backend cuda --kv-memory 256M --wait-timeout 60 \
        --progress none $share >"$work/$out.log" 2>&1 && return 0
    fail "$out on $on ranks, exit code $?: $(grep -a moebatch "$work/$out.log" | grep -v GiB | head -2 | tr '\n' ' ')"
    return 1
}
# same NAME OPTIONS...: the bytes of one rank at all others
same() {
    name=$1
    shift
    job "$name.1" 1 "$@" || return
    for n in $ranks; do
        job "$name.$n" "$n" "$@" || continue
        if cmp -s "$work/$name.1" "$work/$name.$n"; then
            say "$name: the bytes of one rank on $n"
        else
            fail "$name: bytes on $n ranks differ from those of one: $(cmp "$work/$name.1" "$work/$name.$n" 2>&1 | head -1)"
        fi
    done
}

model=$SOURCE/tests/data/storyteller
logits() {
    for n in 1 $ranks; do
        rm -rf "$work/score.$n" "$work/score.$n".*
        job "score.$n" "$n" score -m "$model" -i "$work/texts" --logits "$work/score.$n.h5" --prefill-chunk 150 || return
    done
    for n in $ranks; do
        if cmp -s "$work/score.1" "$work/score.$n" && python3 - "$work/score.1.h5" "$work/score.$n.h5" <<'PY'; then
import sys
import h5py
a, b = (h5py.File(name) for name in sys.argv[1:])
rows = sorted(a["rows"])
assert rows == sorted(b["rows"]) and len(rows) > 10
for row in rows:
    for key in a["rows"][row]:
        assert a["rows"][row][key][...].tobytes() == b["rows"][row][key][...].tobytes(), (row, key)
PY
            say "logits: those of one rank on $n"
        else
            fail "logits on $n ranks differ from those of one"
        fi
    done
}
awk 'BEGIN {
    for (i = 1; i <= 16; i++) {
        n = (i * 71) % 300 + 2; line = ""
        for (j = 0; j < n; j++) line = line (j ? "," : "") (5 + (i * 7919 + j * 104729) % 4000)
        printf "{\"custom_id\":\"%d\",\"input_ids\":[%s]}\n", i, line
    }
}' >"$work/texts"
# As Slurm may have it: each rank sees a GPU of its own alone.
one_each() {
    cat >"$work/one_each" <<'SH'
CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_LOCAL_RANK exec "$@"
SH
    job "each.1" 1 run -m "$model" -i "$work/long" || return
    each="sh $work/one_each"
    job "each.$n_gpus" "$n_gpus" run -m "$model" -i "$work/long" || return
    if cmp -s "$work/each.1" "$work/each.$n_gpus"; then
        say "each of $n_gpus ranks sees one GPU: the bytes of one rank"
    else
        fail "each of $n_gpus ranks sees one GPU: bytes differ from those of one rank"
    fi
}
{
    same decode run -m "$model" -i "$work/long" --max-batch 16 &
    same prefill run -m "$model" -i "$work/prefill" --prefill-chunk 700 --exchange-memory 512K &
    same chunks run -m "$model" -i "$work/long" --max-batch 5 --prefill-chunk 100 --exchange-memory 64K &
    same one-row run -m "$model" -i "$work/single" &
    wait
    same codes run -m "$SOURCE/tests/data/families/qwen3_moe-a" -i "$work/latent" --quantize fp8-dynamic --activations stored \
        --exchange-memory 16K &
    same latent run -m "$SOURCE/tests/data/families/deepseek_v3-a" -i "$work/latent" &
    logits &
    [ "$n_gpus" -lt 2 ] || one_each &
    wait
} >"$work/said"
cat "$work/said"
! grep -q FAILED "$work/said" || failed=1

# --- a rank that is lost: SIGKILL, of which mpirun learns, and SIGSTOP, of which only the watchdog does ---
awk 'BEGIN { for (i = 1; i <= 64; i++)
    printf "{\"custom_id\":\"%d\",\"prompt\":[5,6,7],\"max_tokens\":1000,\"ignore_eos\":true,\"temperature\":0}\n", i }' >"$work/endless"
lost() { # SIGNAL LIMIT_MS TEXT [CODE]
    share=
    [ 2 -le "$n_gpus" ] || share=--share-gpu
    rm -rf "$work/lost" "$work/lost.job"
    # shellcheck disable=SC2086
    mpirun -n 2 sh -c 'echo $$ >"$0.$OMPI_COMM_WORLD_RANK"; exec "$@"' "$work/pid" "$MOEBATCH" run -m "$model" -i "$work/endless" \
        -o "$work/lost" --backend cuda --kv-memory 256M --max-batch 8 --wait-timeout 5 --progress none $share >"$work/log" 2>&1 &
    mpi=$!
    for _ in $(seq 300); do # until rows are finished: decoding is under way, recorded
        [ "$(cat "$work"/lost.job/segment-* 2>/dev/null | wc -c)" -gt 4096 ] && break
        sleep 0.1
    done
    kill -"$1" "$(cat "$work/pid.1")" || { fail "$1: there was no job: $(tail -1 "$work/log")"; return; }
    begin=$(date +%s%N)
    wait $mpi
    code=$?
    ms=$((($(date +%s%N) - begin) / 1000000))
    text=$(grep -a 'moebatch: rank' "$work/log" | grep -v GiB | head -1)
    kill -KILL "$(cat "$work/pid.1")" 2>/dev/null
    for _ in $(seq 50); do # mpirun leaves a moment before those that it has killed
        kill -0 "$(cat "$work/pid.0")" 2>/dev/null || break
        sleep 0.1
    done
    if [ $code != 0 ] && [ $code = "${4:-$code}" ] && [ $ms -lt "$2" ] && ! kill -0 "$(cat "$work/pid.0")" 2>/dev/null && grep -qa "$3" "$work/log"; then
        say "SIG$1 of a rank: all ended after $ms ms, exit code $code: $text"
    else
        fail "SIG$1 of a rank: after $ms ms, exit code $code: $text $(tail -2 "$work/log")"
    fi
}
lost KILL 20000 ''
lost STOP 30000 'one of them is lost or stuck' 75
[ $failed = 0 ] && say "all passed"
exit $failed
