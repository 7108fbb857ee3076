# tests/app/case_devices.sh - moebatch devices with three GPUs that are none, with the wrong plugin, and with none at all.
set -u
failed=0
expect() { # text, in $out
    printf '%s\n' "$out" | grep -qF -- "$1" || { echo "\"$1\" is not in: $out"; failed=1; }
}
code() { # want
    [ $code = "$1" ] || { echo "exit code $code, want $1: $out"; failed=1; }
}
devices() {
    out=$("$@" 2>&1)
    code=$?
}
export MOEBATCH_PLUGIN_DIR
MOEBATCH_PLUGIN_DIR=$BUILD/tests/fake_devices
# Alone, a rank tries every device; the third fails.
devices "$MOEBATCH" devices
code 1
expect "plugin    $(realpath "$MOEBATCH_PLUGIN_DIR")/moebatch_cuda.so (CUDA 13.0, NCCL 2.28.9)"
expect "for CUDA up to 13.1"
expect "device 0  NVIDIA H200, sm_90, 139.0 GiB, 0000:1b:00.0: runs the test kernel"
expect "device 1  NVIDIA A100-SXM4-40GB, sm_80, 40.0 GiB, 0000:5c:00.0: runs the test kernel; moebatch is untested on this kind"
expect "device 2  Tesla T4, sm_75, 15.0 GiB, 0000:9d:00.0: FAILS: device 2: no kernel image is available; moebatch is untested"
expect "rank 0    device 0; cpu "
# Four ranks of one node: the fourth comes round to the first device; each device is told once.
devices mpirun -n 4 "$MOEBATCH" devices
expect "rank 1    device 1; cpu "
expect "rank 2    device 2; cpu "
expect "rank 3    device 0, which rank 0 has too; cpu "
[ "$(printf '%s\n' "$out" | grep -c '^  device ')" = 3 ] || { echo "not three devices: $out"; failed=1; }
expect "device 1  NVIDIA A100-SXM4-40GB, sm_80, 40.0 GiB, 0000:5c:00.0: runs the test kernel"
devices mpirun -n 4 "$MOEBATCH" devices --json
expect '{"index": 0, "name": "NVIDIA H200", "compute_capability": "9.0", "memory_bytes": 149250113536, "bus_id": "0000:1b:00.0", "works": true, "error": null, "tested": true}'
expect '"works": false, "error": "device 2: no kernel image is available", "tested": false}'
expect '{"rank": 3, "local_rank": 3, "device": 0, "shared": true, "cpu": '
devices "$MOEBATCH" --version
code 0
expect "moebatch_cuda.so (CUDA 13.0, NCCL 2.28.9)"
expect "driver for CUDA up to 13.1"
expect "device 2: Tesla T4, sm_75, 15.0 GiB"

MOEBATCH_PLUGIN_DIR=$BUILD/tests/fake_plugin
devices "$MOEBATCH" devices
code 0
expect "plugin    none: $MOEBATCH_PLUGIN_DIR/moebatch_cuda.so belongs to another version of moebatch"
expect "rank 0    no device; cpu "
MOEBATCH_PLUGIN_DIR=/nowhere
devices "$MOEBATCH" devices --json
code 0
expect '"plugin": {"path": null, "versions": null, "error": "there is no CUDA plugin (moebatch_cuda.so) for the program in /nowhere"}'
expect '"devices": []'
expect '"device": null, "shared": false'
unset MOEBATCH_PLUGIN_DIR
# The one that was built, if any, and whatever it finds here.
devices "$MOEBATCH" devices
expect "moebatch "
expect "  plugin    "
exit $failed
