# tests/support/job.sh - what the case_*.sh of jobs share: a place to work, rows, and one way to start a job.
# Sourced. Needs MOEBATCH, BUILD and SOURCE, as CTest sets them.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Killed MPI jobs leave session folders and shared memory behind: here they go with the rest.
mkdir "$work/tmp"
export TMPDIR="$work/tmp" OMPI_MCA_btl_vader_backing_directory="$work/tmp"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
tools="$BUILD/tests"
model="$SOURCE/tests/data/storyteller"
rows="$work/rows.jsonl"

fail() {
    echo "FAILED: $*"
    [ ! -f "$work/log" ] || cat "$work/log"
    exit 1
}

# make_rows N LEAST MOST [BAD]: N rows of text and of ids, greedy and sampled, with LEAST to MOST tokens to generate;
# the row BAD is none, so that the job returns 3. (Then mpirun takes a second longer to end.)
make_rows() {
    awk -v n="$1" -v least="$2" -v most="$3" -v bad="${4:--1}" 'BEGIN {
        split("The ship|It was a dark night|She said|In the garden|My dear sir|Once upon a time", text, "|")
        for (i = 0; i < n; i++) {
            if (i == bad) { print "{\"prompt\": \"unfinished"; continue }
            tokens = least + (i * 37) % (most - least + 1)
            how = i % 3 ? "\"temperature\": 0.9, \"seed\": " i : "\"temperature\": 0"
            if (i % 2) {
                ids = ""
                for (j = 0; j <= i % 23; j++) ids = ids (j ? ", " : "") (5 + (i * 7919 + j * 104729) % 4000)
                printf "{\"custom_id\": \"row-%d\", \"input_ids\": [%s], ", i, ids
            } else
                printf "{\"custom_id\": \"row-%d\", \"prompt\": \"%s\", ", i, text[i % 6 + 1]
            printf "\"max_tokens\": %d, \"ignore_eos\": true, \"logprobs\": %d, %s}\n", tokens, i % 4, how
        }
    }'
}

# job RANKS OUT [options]: one run; its exit code in $code, its words in $work/log. RANKS 0: without mpirun.
# $before is put in front (signal_after ...).
before=
job() {
    job_ranks=$1 job_out=$2
    shift 2
    code=0
    set -- "$MOEBATCH" run -m "$model" -i "$rows" -o "$job_out" --progress none "$@"
    [ "$job_ranks" = 0 ] || set -- mpirun -n "$job_ranks" "$@"
    $before "$@" >"$work/log" 2>&1 || code=$?
    before=
}

# expect CODE WHAT: the last job ended so.
expect() {
    [ "$code" = "$1" ] || fail "$2: exit code $code, expected $1"
}

# says TEXT WHAT: the last job said so.
says() {
    grep -q -e "$1" "$work/log" || fail "$2: did not say \"$1\""
}
