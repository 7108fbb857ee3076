# tests/jobs/case_pack.sh - a pack gives the results of its directory, to the byte: packed and run at 1 to 3 ranks, for the
# processor at hand and for another, from text and from ids; the same digests of what its weights decode to.
set -eu
. "$SOURCE/tests/support/job.sh"
cd "$work"
make_rows 9 3 9 >"$rows"

pack() { # RANKS OUT [options]
    pack_ranks=$1 pack_out=$2
    shift 2
    mpirun -n "$pack_ranks" "$MOEBATCH" pack "$model" -o "$pack_out" --threads 1 "$@" >"$work/log" 2>&1 ||
        fail "pack at $pack_ranks ranks"
}

job 1 plain --threads 1
expect 0 "the directory"
for ranks in 1 2 3; do
    pack $ranks storyteller.$ranks
    cmp storyteller.$ranks storyteller.1 || fail "the pack depends on ranks"
    [ ! -e storyteller.$ranks.tmp ] || fail "left something behind"
done
mkdir -p named
mv storyteller.1 named/model.h5
"$MOEBATCH" pack "$model" -o named/model.h5 >"$work/log" 2>&1 && fail "replaced a pack unasked"
grep -q "is there already" "$work/log" || fail "did not say why"
"$MOEBATCH" pack "$model" -o named --overwrite >"$work/log" 2>&1 && fail "packed into a directory"
grep -q "is a directory" "$work/log" || fail "did not say that it is a directory"
directory=$model
model=named/model.h5
for ranks in 1 2 3; do
    job $ranks packed.$ranks --threads 1
    expect 0 "the pack at $ranks ranks"
    cmp packed.$ranks plain || fail "other results at $ranks ranks"
done
model=$directory
pack 1 scalar.h5 --isa scalar
model=scalar.h5
job 2 scalar.out --threads 1
expect 0 "the pack for another processor"
cmp scalar.out plain || fail "other results from the other processor's pack"

echo '{"text": "The ship sailed."}' >texts.jsonl
for from in "$directory" named/model.h5; do
    "$MOEBATCH" tokenize -m "$from" -i texts.jsonl -o ids.jsonl >"$work/log" 2>&1 || fail "tokenize"
    cat ids.jsonl >>ids.all
    "$MOEBATCH" inspect "$from" --digest >>digests.all 2>"$work/log" || fail "inspect --digest"
done
[ "$(sort -u ids.all | wc -l)" = 1 ] || fail "other ids"
[ "$(wc -l <digests.all)" = "$(($(sort -u digests.all | wc -l) * 2))" ] || fail "other digests"
"$MOEBATCH" inspect named/model.h5 --deep >"$work/log" 2>&1 || [ $? = 3 ] || fail "inspect --deep"

# In small parts, some of which hold nothing but what is in banks.
"$MOEBATCH" quantize "$directory" -o parts --recipe w4a16_nvfp4 --part-size 1M --progress none >"$work/log" 2>&1 || fail "quantize"
model=parts
job 0 parts.plain --threads 1
expect 0 "many parts"
pack 2 parts.h5
model=parts.h5
job 0 parts.out --threads 1
expect 0 "a pack of many parts"
cmp parts.out parts.plain || fail "a pack of many parts gives other results"
"$MOEBATCH" inspect parts --digest >want.digest
"$MOEBATCH" inspect parts.h5 --digest >got.digest
cmp want.digest got.digest || fail "a pack of many parts has other weights"

head -c 1000000 named/model.h5 >cut.h5
"$MOEBATCH" inspect cut.h5 >"$work/log" 2>&1 && fail "read a pack that was cut"
grep -q "cut.h5: cannot be opened: HDF5: truncated file" "$work/log" || fail "did not say that the pack was cut"

# A full disk: the message, no crash at exit, and nothing left behind. Only where limits on sizes hold.
code=0
(ulimit -f 6000; trap '' XFSZ; exec "$MOEBATCH" pack "$directory" -o full.h5) >"$work/log" 2>&1 || code=$?
[ "$code" = 1 ] || fail "a full disk ended with $code"
grep -q "full.h5.tmp: " "$work/log" || fail "did not name the file that did not fit"
[ ! -e full.h5 ] && [ ! -e full.h5.tmp ] || fail "left a part of a pack behind"

[ -d "$SHARED/goldens" ] || { echo "reference checkpoints skipped: not at $SHARED"; exit 0; }
echo '{"input_ids": [1, 2, 3, 4, 5, 6, 7, 11, 20, 33], "max_tokens": 9, "ignore_eos": true}' >"$rows"
for name in qwen3_moe-nvfp4 gpt_oss-nvfp4 gpt_oss-fp8 deepseek_v3-fp8_block deepseek_v3-ct_int4 qwen3_moe-ggml \
    minimax_m2-mxfp8 qwen3_moe-ct_nvfp4 qwen3_moe-fp8_uneven; do
    directory="$SHARED/goldens/$name"
    model=$directory
    pack 2 "$name.h5"
    pack 1 "$name.scalar.h5" --isa scalar
    job 0 "$name.plain" --threads 1
    expect 0 "$name"
    for model in "$name.h5" "$name.scalar.h5"; do
        job 0 "$model.out" --threads 1
        expect 0 "$model"
        cmp "$model.out" "$name.plain" || fail "$model gives other results"
        "$MOEBATCH" inspect "$directory" --digest >want.digest
        "$MOEBATCH" inspect "$model" --digest >got.digest
        cmp want.digest got.digest || fail "$model has other weights"
    done
done
