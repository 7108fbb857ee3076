# tests/jobs/case_traps.sh - lines that are no rows, and rows that are traps: each non-blank line gets one output line, in
# order; bad ones are refused with a code, and the good ones give what they give alone.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model="$SOURCE/tests/data/storyteller"

run() { # name, expected exit code; reads $work/NAME.in
    code=0
    "$MOEBATCH" run -m "$model" -i "$work/$1.in" -o "$work/$1.out" --threads 2 --progress none --max-tokens 4 \
        --temperature 0 >"$work/$1.log" 2>&1 || code=$?
    [ "$code" = "$2" ] || { echo "$1: exit code $code, expected $2"; cat "$work/$1.log"; exit 1; }
}
line() { sed -n "$2p" "$work/$1.out"; }
expect() { # name, output line, text it must have
    line "$1" "$2" | grep -qF -- "$3" || { echo "$1: line $2 lacks $3:"; line "$1" "$2" | cut -c1-400; exit 1; }
}
count() {
    n=$(wc -l <"$work/$1.out")
    [ "$n" = "$2" ] || { echo "$1: $n output lines, expected $2"; exit 1; }
}

# Good rows alone, to compare with.
printf '{"custom_id":"good-1","prompt":"The whale"}\n{"custom_id":"good-2","prompt":"In the beginning"}\n' >"$work/good.in"
run good 0
count good 2

# An empty file, and one without rows.
: >"$work/empty.in"
run empty 0
count empty 0
printf '\357\273\277\r\n \t\n\n' >"$work/blank.in"
run blank 0
count blank 0

# BOM, CRLF, blank lines between, no final newline: the same two rows.
printf '\357\273\277{"custom_id":"good-1","prompt":"The whale"}\r\n\r\n   \n{"custom_id":"good-2","prompt":"In the beginning"}' >"$work/ends.in"
run ends 0
cmp "$work/ends.out" "$work/good.out"

# One trap a line, good rows first and last.
{
    printf '{"custom_id":"good-1","prompt":"The whale"}\n'                                  # 1
    printf '{"custom_id":"ls","prompt":"a\342\200\250b\302\205c","max_tokens":1}\n'         # 2 U+2028 and U+0085 are text
    printf '{"custom_id":"nul","prompt":"a\000b"}\n'                                        # 3
    printf '{"custom_id":"escaped-nul","prompt":"a\\u0000b","max_tokens":1}\n'              # 4
    printf '{"custom_id":"utf8","prompt":"\377\376"}\n'                                     # 5
    printf '{"custom_id":"good-1","prompt":"Another whale"}\n'                              # 6 the id is taken
    printf '{"url":"/v1/completions","method":"POST","body":{"prompt":"a"}}\n'              # 7 no id
    printf '\n'
    printf '{"custom_id":"zero","prompt":"a","max_tokens":0}\n'                             # 8
    printf '{"custom_id":"echo-zero","prompt":"The whale","max_tokens":0,"echo":true}\n'    # 9
    awk 'BEGIN { printf "{\"custom_id\":\"long\",\"input_ids\":[5"; for (i = 0; i < 1100; i++) printf ",5"; print "]}" }' # 10
    printf '{"custom_id":"cut","prompt":"a\n'                                               # 11
    printf '{"custom_id":"tail","prompt":"a"} x\n'                                          # 12
    printf '[]\n'                                                                           # 13
    printf '{"custom_id":"chat","method":"POST","url":"/v1/chat/completions","body":{"messages":[]}}\n' # 14
    printf '{"custom_id":"get","method":"GET","url":"/v1/completions","body":{"prompt":"a"}}\n' # 15
    printf '{"custom_id":"two","custom_id":"ids","prompt":"a"}\n'                           # 16
    printf '{"custom_id":"deep","x":%s}\n' "$(head -c 2000 /dev/zero | tr '\0' '[')"        # 17
    printf '{"custom_id":"good-2","prompt":"In the beginning"}'                             # 18
} >"$work/traps.in"
run traps 3
count traps 18
line traps 1 >"$work/two"
line traps 18 >>"$work/two"
cmp "$work/two" "$work/good.out"
expect traps 2 '"custom_id":"ls","response":{"status_code":200'
expect traps 3 '"custom_id":null,"response":{"status_code":400'
expect traps 3 '"code":"invalid_json"'
expect traps 4 '"custom_id":"escaped-nul","response":{"status_code":200'
expect traps 5 '"code":"invalid_json"'
expect traps 6 '"code":"duplicate_custom_id"'
expect traps 7 '"param":"custom_id","code":"invalid_request"'
expect traps 8 '"param":"max_tokens","code":"invalid_request"'
expect traps 9 '"text":"The whale","logprobs":null,"finish_reason":"length"'
expect traps 9 '"completion_tokens":0'
expect traps 10 '"param":"input_tokens","code":"context_length_exceeded"'
for n in 11 12 17; do expect traps $n '"code":"invalid_json"'; done
expect traps 13 '"code":"invalid_request"'
expect traps 14 '"code":"unsupported_url"'
expect traps 15 '"param":"method","code":"invalid_request"'
expect traps 16 '"param":"custom_id","code":"invalid_request"'
# Ids are made from each line, so no two rows share one.
[ "$(cut -c1-36 "$work/traps.out" | sort -u | wc -l)" = 18 ]

# A line of 20 MB of text between good rows: too long for the context, and nobody else notices.
{
    sed -n 1p "$work/good.in"
    printf '{"custom_id":"huge","prompt":"'
    head -c 20000000 /dev/zero | tr '\0' 'w'
    printf '"}\n'
    sed -n 2p "$work/good.in"
} >"$work/huge.in"
run huge 3
count huge 3
expect huge 2 '"custom_id":"huge","response":{"status_code":400'
expect huge 2 '"code":"context_length_exceeded"'
sed 2d "$work/huge.out" | cmp - "$work/good.out"
echo "traps: ok"
