# tests/jobs/case_quantize.sh - a quantized checkpoint runs. MXFP4 written as NVFP4 and as bf16 without loss gives the same
# results to the byte; calibrated files are the same at any number of ranks; a pack quantizes as its directory does; wrong
# requests are refused.
set -eu
. "$SOURCE/tests/support/job.sh"
make_rows 12 4 24 >"$rows"
quantize() { # ranks, directory, options: from the bundled model
    q_ranks=$1 q_out=$2
    shift 2
    code=0
    mpirun -n "$q_ranks" "$MOEBATCH" quantize "$SOURCE/tests/data/storyteller" -o "$q_out" --progress none "$@" >"$work/log" 2>&1 || code=$?
}

job 0 "$work/base" --served-model-name story
expect 0 "the bundled model"
for recipe in w4a16_nvfp4 bf16; do
    quantize 2 "$work/$recipe" --recipe $recipe --experts-only --part-size 2M
    expect 0 "$recipe"
    [ -f "$work/$recipe/tokenizer.json" ] && [ "$(ls "$work/$recipe"/model-*.safetensors | wc -l)" -ge 4 ] || fail "$recipe: files"
    model="$work/$recipe"
    job 0 "$work/results" --served-model-name story
    expect 0 "run $recipe"
    cmp "$work/results" "$work/base" || fail "$recipe: other results than the model it was made from"
    rm -rf "$work/results" "$work/results.job"
    echo "without loss: $recipe"
done

for ranks in 1 2 3; do
    quantize $ranks "$work/nvfp4-$ranks" --recipe nvfp4 --calibrate "$SOURCE/tests/data/prompts.jsonl" --part-size 3M
    expect 0 "nvfp4 at $ranks ranks"
    diff -r "$work/nvfp4-$ranks" "$work/nvfp4-1" >"$work/log" || fail "nvfp4: other files at $ranks ranks"
done
model="$work/nvfp4-1"
for mode in none stored; do
    job 2 "$work/nvfp4-$mode" --activations $mode
    expect 0 "run nvfp4, activations $mode"
done
echo "calibrated: nvfp4"

quantize 1 "$work/static" --recipe fp8-static
expect 2 "static scales without calibration"
says "needs calibrated inputs" "static scales without calibration"
quantize 2 "$work/nvfp4-1" --recipe bf16
expect 1 "another checkpoint's directory"
says "give an empty directory, or --overwrite" "another checkpoint's directory"

"$MOEBATCH" pack "$SOURCE/tests/data/storyteller" -o "$work/story.h5" >"$work/log" 2>&1 || fail "pack"
"$MOEBATCH" quantize "$work/story.h5" -o "$work/packed" --recipe w4a16_nvfp4 --experts-only --progress none >"$work/log" 2>&1 || fail "quantize a pack"
quantize 1 "$work/unpacked" --recipe w4a16_nvfp4 --experts-only
for dir in packed unpacked; do
    "$MOEBATCH" inspect "$work/$dir" --digest | sort >"$work/$dir.sums"
done
[ -s "$work/packed.sums" ] && cmp "$work/packed.sums" "$work/unpacked.sums" || fail "a pack quantizes to other weights"
cmp "$work/packed/tokenizer.json" "$work/unpacked/tokenizer.json" || fail "the tokenizer of a pack"

# What cannot be is refused before calibration, which takes hours for a large model, and makes no directory.
quantize 2 "$work/none" --recipe int4 --calibrate "$work/missing.jsonl" --kv-cache fp8
expect 1 "a format that the model has no layout for"
says "there is no published way to store experts" "a format that the model has no layout for"
[ ! -e "$work/none" ] || fail "made a directory for what it refused"
quantize 1 "$work/none" --recipe w4a16_nvfp4 --calib-tokens 5
expect 2 "--calib-tokens alone"
quantize 1 "$rows" --recipe w4a16_nvfp4
expect 2 "a file in place of the directory"
says "is no directory" "a file in place of the directory"
