#!/bin/sh
# app/quickstart.sh - from nothing to a result file: installs what is missing, builds build/moebatch, and runs the
# bundled model over the bundled prompts on 2 MPI ranks.
#
# Everything it makes is in the folder build; run it again as often as you like.
set -eu
cd "$(dirname "$0")/.."

model=tests/data/storyteller
prompts=tests/data/prompts.jsonl
out=build/quickstart/results.jsonl
metrics=build/quickstart/metrics.json

sh app/setup.sh

echo "quickstart: building build/moebatch (the output of the build is in build/quickstart/build.log)"
mkdir -p build/quickstart
if ! { cmake -S . -B build -DCMAKE_BUILD_TYPE=Release && cmake --build build --target moebatch -j "$(nproc)"; } \
    >build/quickstart/build.log 2>&1; then
    tail -n 30 build/quickstart/build.log >&2
    echo "quickstart: the build failed" >&2
    exit 1
fi

# Open MPI refuses root unless told, and in a container its single-copy transfers are often forbidden. hwloc looks
# for X servers, which takes seconds where localhost has to be looked up.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism:-none}"
export HWLOC_COMPONENTS="${HWLOC_COMPONENTS:--gl}"

# A result file is never overwritten unasked; this one is ours to throw away.
rm -rf "$out" "$out.job"
progress=log
[ ! -t 2 ] || progress=live
# Oversubscribe: also on a machine with one core. Bound to nothing: a rank's threads may use all of its share.
set -- mpirun --oversubscribe --bind-to none -n 2 build/moebatch run -m "$model" -i "$prompts" -o "$out" \
    --progress "$progress" --metrics "$metrics"
echo "quickstart: $*"
status=0
"$@" >build/quickstart/summary.txt || status=$?
if [ "$status" != 0 ]; then
    cat build/quickstart/summary.txt
    echo "quickstart: the job ended with exit code $status" >&2
    exit "$status"
fi

# The first prompts, each with what the model made of it. Line n of the results answers line n of the prompts.
echo
awk '
# The JSON string that begins right after the first place of key in line.
function text_after(line, key,    at, n, c, out) {
    at = index(line, key)
    if (at == 0)
        return "(none)"
    n = length(line)
    for (at += length(key); at <= n; at++) {
        c = substr(line, at, 1)
        if (c == "\"")
            return out
        if (c == "\\") {
            c = substr(line, ++at, 1)
            if (c == "n" || c == "t" || c == "r")
                c = c == "n" ? "\n" : " "
            else if (c == "u")
                c = "\\u"
        }
        out = out c
    }
    return out
}
NR == FNR {
    prompt[FNR] = text_after($0, "\"prompt\": \"")
    next
}
FNR <= 6 {
    printf "%d. [%s]%s\n\n", FNR, prompt[FNR], text_after($0, "\"text\":\"")
}' "$prompts" "$out" | fold -s -w 100

echo "Above: 6 of the results, prompts in brackets. The model is small (16 million parameters, MXFP4 experts) and has"
echo "read old novels. All results, one JSON line per prompt: $out"
echo "Times, loads and bytes of the job: $metrics"
echo
cat build/quickstart/summary.txt
