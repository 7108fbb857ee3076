# tests/jobs/case_backend.sh - which backend a job takes, with a driver and GPUs that are none: auto falls back with a reason, cuda by
# name is refused with one, and ranks do not share a GPU unasked.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
# What the program looks for before it opens the plugin.
ln -s "$BUILD/tests/fake_plugin/moebatch_cuda.so" "$work/libcuda.so.1"
model=$SOURCE/tests/data/storyteller
head -1 "$SOURCE/tests/data/prompts.jsonl" >"$work/in.jsonl"
# run CODE TEXT COMMAND...: the exit code, and text in what it says
run() {
    want=$1 text=$2
    shift 2
    rm -rf "$work"/out*
    out=$("$@" -m "$model" -i "$work/in.jsonl" -o "$work/out" --max-tokens 2 2>&1)
    code=$?
    [ $code = "$want" ] || { echo "exit code $code, want $want: $out"; failed=1; }
    printf '%s\n' "$out" | grep -qF -- "$text" || { echo "\"$text\" is not in: $out"; failed=1; }
}
silent() { # text that must not be there
    if printf '%s\n' "$out" | grep -qF -- "$1"; then echo "\"$1\" is in: $out" && failed=1; fi
}
backend() { # of the job in the manifest
    grep -q "\"backend\": \"$1\"" "$work/out.job/manifest.json" || { echo "the backend is not $1"; failed=1; }
}
export MOEBATCH_PLUGIN_DIR="$BUILD/tests/fake_devices" FAKE_DEVICES=3

# Without a driver auto says nothing of it.
if [ ! -e /usr/lib/x86_64-linux-gnu/libcuda.so.1 ] && ! ldconfig -p | grep -q 'libcuda\.so\.1'; then
    run 0 "threads, " "$MOEBATCH" run
    silent "takes the CPU"
    backend cpu
    run 1 "--backend cuda: no GPU: there is no CUDA driver" "$MOEBATCH" run --backend cuda
    run 1 "--backend cuda: rank 0 (" mpirun -n 2 "$MOEBATCH" run --backend cuda
fi

export LD_LIBRARY_PATH="$work${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# The third rank's GPU does not work: no rank may take its own.
run 0 "--backend auto takes the CPU: rank 2 (" mpirun -n 3 "$MOEBATCH" run
silent "rank 1: moebatch: --backend"
backend cpu
run 1 "device 2: no kernel image is available" mpirun -n 3 "$MOEBATCH" run --backend cuda
run 1 "--backend cuda: rank 2 (" mpirun -n 3 "$MOEBATCH" run --backend cuda
# Two ranks and one GPU.
export FAKE_DEVICES=1
run 0 "--backend auto takes the CPU: ranks 0 and 1 would share a GPU of " mpirun -n 2 "$MOEBATCH" run
run 2 "--backend cuda: ranks 0 and 1 would share a GPU of " mpirun -n 2 "$MOEBATCH" run --backend cuda
run 2 "(0000:1b:00.0): start as many ranks on a node as it has GPUs (--share-gpu is for tests)" mpirun -n 2 "$MOEBATCH" run --backend cuda
run 0 "threads, " mpirun -n 2 "$MOEBATCH" run --backend cpu
silent "share a GPU"
export FAKE_DEVICES=0
run 1 "--backend cuda: no GPU: " "$MOEBATCH" run --backend cuda
run 2 "--backend tpu: expected auto, cpu or cuda" "$MOEBATCH" run --backend tpu
exit $failed
