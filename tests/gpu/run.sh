#!/bin/sh
# tests/gpu/run.sh - on a machine with a GPU: builds with CUDA, runs what the named stages are, and prints one table last.
# Usage: sh tests/gpu/run.sh [-b BUILD] [-n] [STAGE...]
#   tests    the tests labelled cuda, of whole reference checkpoints in SHARED/goldens too; SANITIZE=1: those of kernels under
#            compute-sanitizer as well (2026.3 or later, and a build by nvcc 13.1 or later: racecheck of earlier ones does not
#            know barriers that count bytes, or cp.async that arrives at them)
#   models   trained models in SHARED/models: perplexity beside the CPU backend; the same bytes at any batch and chunk
#   ranks    the same bytes at 1, 2 and 4 NCCL ranks; a killed rank ends all
#   bench    kernels, exchange, loading and a whole job beside what the device gives; torch beside them where it is installed
# No stage: all of them. -n: BUILD is built already. SHARED names the reference data, of which it takes what is there.
# Exit: 1 when anything fails or a figure breaks its limit.
set -u
cd "$(dirname "$0")/../.."
source=$PWD
beside=$((($(nproc) + 1) / 2)) # processes that share the GPU
build=/tmp/moebatch-gpu
make=1
while getopts b:n flag; do
    case $flag in
    b) build=$OPTARG ;;
    n) make=0 ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
all="tests models ranks bench"
[ $# -gt 0 ] || set -- $all
for stage; do
    case " $all " in *" $stage "*) ;; *)
        echo "run.sh: no stage \"$stage\"; there are: $all" >&2
        exit 2 ;;
    esac
done
SHARED=${SHARED:-$source/../shared}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 SHARED BUILD="$build" SOURCE="$source"
export MOEBATCH="$build/moebatch"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$work/table"
failed=0
note() { echo "$*" >>"$work/table"; }
fail() {
    failed=1
    note "$* FAILED"
}
# later COMMAND...: beside others, each with a folder and a table of its own; together: waits, and puts their output and lines
# in the order of the calls
n_later=0
later() {
    n_later=$((n_later + 1))
    mkdir "$work/$n_later"
    (
        work=$work/$n_later
        : >"$work/table"
        failed=0
        "$@"
        [ $failed = 0 ] || : >"$work/failed"
    ) >"$work/$n_later.said" 2>&1 &
    [ $((n_later % beside)) != 0 ] || wait
}
together() {
    wait
    for i in $(seq $n_later); do
        cat "$work/$i.said"
        cat "$work/$i/table" >>"$work/table"
        [ ! -f "$work/$i/failed" ] || failed=1
        rm -rf "${work:?}/$i"
    done
    n_later=0
}
# limit CODE LINE: a figure, and whether it keeps its limit (0)
limit() {
    if [ "$1" = 0 ]; then note "$2"; else fail "$2"; fi
}

# --- building ---

names() { (cd "$1" && ls $2 2>/dev/null | sed 's/\.[a-z]*$//'); }
build_stages() {
    targets="moebatch moebatch_cuda"
    for stage; do
        case $stage in
        tests) targets="$targets $(names tests/gpu 'test_*.c')" ;;
        bench) targets="$targets $(names tests/bench/gpu 'bench_*.c bench_*.cu') bench_exchange_device gen_model" ;;
        esac
    done
    # shellcheck disable=SC2086
    cmake -S . -B "$build" -DMOEBATCH_CUDA=ON -DMOEBATCH_SHARED="$SHARED" >"$build.log" 2>&1 &&
        cmake --build "$build" -j "$(nproc)" --target $targets >>"$build.log" 2>&1 ||
        { grep -E "error|warning" "$build.log" | head -40; tail -20 "$build.log"; exit 1; }
}

# --- tests ---

checkpoints() { names "$SHARED/goldens" "*/golden.safetensors" | sed 's,/golden,,'; }
# check NAME [ARGUMENT]: a test
check() {
    "$build/tests/$1" ${2:+"$2"} >"$work/log" 2>&1
    case $? in
    0) note "$* passed" ;;
    77) note "$*: $(tail -1 "$work/log")" ;;
    *) fail "$*" ;;
    esac
    echo "$*:"
    head -80 "$work/log"
}
# sanitize TOOL NAME [PARTS]: one part after the other, since racecheck takes host memory with each launch
sanitize() {
    part=0
    while [ $part -lt "${3:-1}" ]; do
        if ! timeout 400 compute-sanitizer --tool "$1" --error-exitcode 9 "$build/tests/$2" ${3:+small $part "$3"} >"$work/log" 2>&1; then
            fail "$2 $1${3:+, part $part of $3}: $(tail -1 "$work/log")"
            echo "$2 $1:"
            head -60 "$work/log"
            return
        fi
        part=$((part + 1))
    done
    note "$2 $1 clean"
}
stage_tests() {
    for name in $(names tests/gpu 'test_*.c'); do
        case $name in
        *_goldens | *_choices)
            for checkpoint in $(checkpoints); do
                later check "$name" "$checkpoint"
            done ;;
        *) later check "$name" ;;
        esac
    done
    together
    [ "${SANITIZE:-0}" = 1 ] || return
    for name in $(names tests/gpu 'test_*.c'); do
        case $name in
        *_goldens | *_choices) continue ;;
        *_matrix) parts=12 ;;
        *_attention | *_fp8 | *_sample) parts=4 ;;
        *) parts= ;;
        esac
        for tool in memcheck racecheck synccheck; do
            later sanitize "$tool" "$name" $parts
        done
    done
    together
}

# --- trained models ---

# perplexity DIR ARGUMENTS...: of eval.txt beside the CPU backend's, within 0.3 %
perplexity() {
    name=$(basename "$1")
    for backend in cpu cuda; do
        "$MOEBATCH" perplexity -m "$@" "$SHARED/models/eval.txt" --backend $backend --kv-memory 1G --progress none \
            >"$work/$backend" 2>"$work/log" || { fail "$name $* $backend: $(tail -1 "$work/log")"; return; }
    done
    verdict=$(awk 'NR == FNR { cpu = $2; next } { d = 100 * ($2 / cpu - 1)
        printf "cpu %s cuda %s (%+.3f %%)", cpu, $2, d; exit !(cpu > 0 && $2 ~ /^[0-9]/ && d <= 0.3 && d >= -0.3) }' "$work/cpu" "$work/cuda")
    code=$?
    shift
    limit $code "perplexity $name $*: $verdict"
}
stage_models() {
    for dir in "$SHARED"/models/*/; do
        [ -f "$dir/config.json" ] || continue
        later perplexity "${dir%/}" --activations none --kv-dtype bf16
        case $dir in *nvfp4/)
            later perplexity "${dir%/}" --activations stored --kv-dtype fp8 ;;
        *-mxfp4/) ;;
        *)
            for format in nvfp4 mxfp4 mxfp8 fp8-dynamic fp8-block int4 q8_0; do
                later perplexity "${dir%/}" --activations none --kv-dtype bf16 --quantize $format
            done ;;
        esac
    done
    together
    # The same bytes whatever is in a batch and however prompts are cut.
    for shape in "1 512" "64 512" "5 7"; do
        # shellcheck disable=SC2086
        set -- $shape
        "$MOEBATCH" run -m tests/data/storyteller -i tests/data/prompts.jsonl -o "$work/run.$1" --max-batch "$1" \
            --prefill-chunk "$2" --backend cuda --activations none --progress none >"$work/log" 2>&1 ||
            fail "run at a batch of $1: $(tail -1 "$work/log")"
    done
    cmp "$work/run.1" "$work/run.64" && cmp "$work/run.1" "$work/run.5"
    limit $? "run: the same bytes at batches of 1, 5 and 64 with chunks of 512 and 7"
}

# --- several ranks ---

stage_ranks() {
    sh tests/gpu/several_ranks.sh >"$work/ranks" 2>&1 || failed=1
    cat "$work/ranks"
    grep '^several ranks: ' "$work/ranks" | sed 's/^several ranks: //' >>"$work/table"
}

# --- speed ---

# figure WHAT LEAST LOG CONDITION LABEL: the worst of the numbers after LABEL ("<of copy": before it) in the lines of LOG for
# which the awk condition holds; tokens and mean (rows per expert) are numbers of the line
figure() {
    awk -v least="$2" -v label="$5" '
        { tokens = mean = 0; if (split($0, half, "|") > 1) { n = split(half[1], f, " "); tokens = f[n - 2]; mean = f[n - 1] } }
        '"$4"' {
            before = substr(label, 1, 1) == "<"; name = before ? substr(label, 2) : label
            at = index($0, name)
            if (!at) next
            if (before) { n = split(substr($0, 1, at - 1), f, " "); v = f[n] } else v = substr($0, at + length(name)) + 0
            if (!seen++ || v < worst) { worst = v; line = $0 }
        }
        END {
            if (!seen) { print "no figure"; exit 2 }
            printf "worst of %d %.3f, at least %.2f", seen, worst, least
            if (worst < least) { gsub(/ +/, " ", line); print ":", line; exit 1 }
        }' "$3" >"$work/verdict" 2>&1
    limit $? "$1: $(cat "$work/verdict")"
}
# bench NAME ARGUMENTS...: runs it if there is one, with its output in $work/NAME
bench() {
    name=$1
    shift
    : >"$work/$name"
    [ -x "$build/bench/$name" ] || { note "$name is not there"; return 1; }
    timeout 240 "$build/bench/$name" "$@" >"$work/$name" 2>&1 || { fail "$name: $(tail -1 "$work/$name")"; return 1; }
    echo "--- $name $*"
    cat "$work/$name"
}
stage_bench() {
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.draw --format=csv,noheader 2>/dev/null | while read -r line; do
        note "GPU: $line"
    done
    if bench bench_moe ${QUICK:+--quick}; then
        figure "bf16 products, 1024 rows an expert or more / dense" 0.70 "$work/bench_moe" '/ bf16 .*flops/ && mean >= 1024' "up"
        figure "MXFP4 layer, 8k-32k tokens / dense" 0.45 "$work/bench_moe" '/ mxfp4 .*flops/ && tokens >= 8192' "layer"
        [ -n "${QUICK:-}" ] ||
            figure "NVFP4 layer, 8k-32k tokens / dense" 0.45 "$work/bench_moe" '/ nvfp4 .*flops/ && tokens >= 8192' "layer"
        figure "decode, 8 rows an expert or fewer, bytes of distinct experts / copy" 0.55 "$work/bench_moe" '/bytes.copy/ && mean <= 8' "layer"
    fi
    if bench bench_fp8 ${QUICK:+--quick}; then
        figure "FP8 products, 1024 rows an expert / dense FP8, gate and up" 0.60 "$work/bench_fp8" '/flops.dense/ && mean >= 1024' "up"
        figure "FP8 products, 1024 rows an expert / dense FP8, down" 0.60 "$work/bench_fp8" '/flops.dense/ && mean >= 1024' "down"
        figure "FP8 decode, bytes of distinct experts / copy" 0.55 "$work/bench_fp8" '/bytes.copy/ && mean >= 8' "layer"
    fi
    bench bench_linear && true
    if bench bench_attention; then
        # A single sequence does not fill a GPU; NVFP4 takes the simple way; with 128 heads latents are bound by FLOPs.
        figure "attention of decode, bytes / copy" 0.55 "$work/bench_attention" '/ (bf16|fp8) .*of copy/ && !/ 1 x / && !/latent/' "<of copy"
        figure "latent attention of decode, up to 64 heads, bytes / copy" 0.55 "$work/bench_attention" '/(Kimi|Lite).*of copy/' "<of copy"
        figure "latent attention of decode, 128 heads, FLOPs / dense" 0.50 "$work/bench_attention" '/V3 .*bf16.*(64|132) x.*of copy/' "<of dense"
        figure "attention of prefill, FLOPs / dense" 0.30 "$work/bench_attention" '/ bf16 .* (8192|2048) rows.*of dense/' "<of dense"
    fi
    bench bench_sample && true
    if [ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')" -ge 2 ]; then
        timeout 120 mpirun -n 2 "$build/bench/bench_exchange_device" >"$work/exchange" 2>&1 || fail "bench_exchange_device"
        cat "$work/exchange"
        sed -n 's/^ *\([0-9]* .*of plain.*\)/exchange: \1/p' "$work/exchange" | tr -s ' ' >>"$work/table"
    else
        note "exchange: not measured, there is one GPU"
    fi
    # bench_moe's columns, so that both can be read together.
    if python3 -c 'import torch' 2>/dev/null; then
        python3 tests/bench/gpu/rivals.py ${QUICK:+--quick}
    fi
    "$build/bench/gen_model" --preset gpt_oss-2g --layers "${LOAD_LAYERS:-6}" -o "$work/made" >"$work/log" 2>&1 &&
        "$MOEBATCH" bench --load "$work/made" --backend cuda >"$work/load" 2>&1
    cat "$work/load"
    rm -rf "$work/made"
    figure "loading / the slower of raw read and pinned copy" 0.60 "$work/load" '/^load/' "B/s,"
    shape=${SHAPE:-gpt-oss-20b}
    if timeout 300 "$MOEBATCH" bench --shape "$shape" --backend cuda --prompt-tokens "${PROMPT_TOKENS:-1024}" \
        --output-tokens "${OUTPUT_TOKENS:-1024}" ${BATCH:+--batch "$BATCH"} >"$work/job" 2>&1; then
        cat "$work/job"
        note "$shape: $(grep '^total' "$work/job")"
    else
        fail "$shape: $(tail -1 "$work/job")"
    fi
}

[ $make = 0 ] || build_stages "$@"
"$MOEBATCH" --version
echo "built after $(cut -d. -f1 /proc/uptime) s"
for stage; do
    note "--- $stage"
    stage_"$stage"
done
echo "=== $*"
cat "$work/table"
if [ $failed = 0 ]; then
    echo "all passed"
else
    echo "FAILED: $(grep -c FAILED "$work/table")"
fi
exit $failed
