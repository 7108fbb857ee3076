# tests/jobs/case_tokenize.sh - moebatch tokenize: rows in and out, the traps of JSONL, order at any number of threads, exit
# codes, the BOS rule, and the way back.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model="$SOURCE/tests/data/storyteller"
failed=0

# check NAME WANT_EXIT WANT_FILE COMMAND...: the exit code, and standard output byte by byte.
check() {
    name=$1 want_exit=$2 want=$3
    shift 3
    code=0
    "$@" >"$work/got" 2>"$work/err" || code=$?
    if [ "$code" != "$want_exit" ]; then
        echo "$name: exit $code, want $want_exit: $(cat "$work/err")"
        failed=1
    fi
    cmp "$work/got" "$want" || { echo "$name: wrong output"; failed=1; }
}
tok() { "$MOEBATCH" tokenize "$@"; }
: >"$work/empty"

# A BOM, CRLF, blank lines, a raw U+2028 and U+0085 inside a text, NUL, bad UTF-8, trailing text, no final line end.
printf '\357\273\277{"custom_id":"bom","text":"Hello"}\r\n' >"$work/traps"
printf '\n  \t\r\n{"text":"a\342\200\250b\302\205c","custom_id":"line \\u0001 ends"}\n' >>"$work/traps"
printf '{"text":"nul \000 here"}\n{"text":"bad \377"}\n{"text":"cut \303"}\n{"text":"x"} y\n' >>"$work/traps"
printf '{"custom_id":"two","custom_id":"two","text":""}\n{"custom_id":7,"text":""}\n["text"]\n' >>"$work/traps"
printf '{"custom_id":null,"text":""}\n{"custom_id":"none"}\n{"text":"\\ud800"}\n' >>"$work/traps"
printf '{"text":"\\u0000<|endoftext|>","extra":[1,{}]}' >>"$work/traps"
cat >"$work/want" <<'END'
{"custom_id":"bom","ids":[42,500,81],"tokens":["H","ell","o"]}
{"custom_id":"line \u0001 ends","ids":[67,161,225,104,68,129,230,69],"tokens":["a","â","Ģ","¨","b","Â","ħ","c"]}
{"error":{"code":"invalid_json","message":"line 5: byte 13: a control character in a string must be escaped"}}
{"error":{"code":"invalid_json","message":"line 6: byte 13: the text is not valid UTF-8"}}
{"error":{"code":"invalid_json","message":"line 7: byte 13: the text is not valid UTF-8"}}
{"error":{"code":"invalid_json","message":"line 8: byte 13: text after the JSON value"}}
{"custom_id":"two","error":{"code":"invalid_request","message":"line 9: \"custom_id\" is there twice"}}
{"custom_id":null,"error":{"code":"invalid_request","message":"line 10: \"custom_id\" is not a string"}}
{"error":{"code":"invalid_request","message":"line 11: a row must be an object"}}
{"custom_id":null,"ids":[],"tokens":[]}
{"custom_id":"none","error":{"code":"invalid_request","message":"line 13: \"text\" is missing"}}
{"error":{"code":"invalid_json","message":"line 14: byte 9: a surrogate stands alone"}}
{"ids":[191,0],"tokens":["Ā","<|endoftext|>"]}
END
check "traps" 3 "$work/want" tok -m "$model" -i "$work/traps"
check "traps, piped" 3 "$work/want" sh -c "cat '$work/traps' | '$MOEBATCH' tokenize -m '$model' -i - -o -"
check "no rows" 0 "$work/empty" tok -m "$model" -i "$work/empty"
echo '{"rows":13,"failed":9,"tokens":13,"bytes":27}' >"$work/want"
check "count" 3 "$work/want" tok -m "$model" --count -i "$work/traps"

# The way back; ids that no token has give nothing.
printf '{"ids":[42,500,81,0],"custom_id":"d"}\n{"ids":[0,2147483647]}\n{"ids":[]}\n{"ids":[102]}\n' >"$work/ids"
printf '{"ids":[-1]}\n{"ids":[1.0]}\n{"ids":[2147483648]}\n{"ids":"1"}\n{}\n' >>"$work/ids"
refused() {
    for line in 5 6 7; do
        echo '{"error":{"code":"invalid_request","message":"line '$line': \"ids\" holds something that is not an id"}}'
    done
    echo '{"error":{"code":"invalid_request","message":"line 8: \"ids\" is not a list"}}'
    echo '{"error":{"code":"invalid_request","message":"line 9: \"ids\" is missing"}}'
}
printf '{"custom_id":"d","text":"Hello<|endoftext|>"}\n{"text":"<|endoftext|>"}\n{"text":""}\n{"text":"\357\277\275"}\n' >"$work/want"
refused >>"$work/want"
check "decode" 3 "$work/want" tok -m "$model" --decode -i "$work/ids"
printf '{"custom_id":"d","text":"Hello"}\n{"text":""}\n{"text":""}\n{"text":"\357\277\275"}\n' >"$work/want"
refused >>"$work/want"
check "decode without special tokens" 3 "$work/want" tok -m "$model" --decode --skip-special-tokens -i "$work/ids"

# Many rows: the same order at any number of threads, and decoding gives the texts back.
awk 'BEGIN { srand(7); for (i = 0; i < 3000; i++) { printf "{\"text\":\""
    n = int(rand() * rand() * 400); for (k = 0; k < n; k++) printf "%s%d ", substr("Once upon a time", 1 + int(rand() * 12)), k % 13
    print "é\"}" } }' >"$work/many"
tok -m "$model" -i "$work/many" -o "$work/many.1" --threads 1
for threads in 2 5; do
    tok -m "$model" -i "$work/many" -o "$work/many.$threads" --threads $threads
    cmp "$work/many.1" "$work/many.$threads" || failed=1
done
sed 's/,"tokens".*/}/' "$work/many.1" >"$work/many.ids"
check "and back" 0 "$work/many" tok -m "$model" --decode -i "$work/many.ids"
cp "$work/many" "$work/same"
tok -m "$model" -i "$work/same" -o "$work/same"
cmp "$work/many.1" "$work/same" || { echo "input and output the same file"; failed=1; }

# A line of 10 MB, and one behind it.
awk 'BEGIN { printf "{\"text\":\""; for (i = 0; i < 2000000; i++) printf "time "; print "\"}\n{\"text\":\"Hello\"}" }' >"$work/long"
echo '{"rows":2,"failed":0,"tokens":'"$(tok -m "$model" -i "$work/long" | tr -cd , | wc -c)"',"bytes":10000005}' >"$work/once"
tok -m "$model" -i "$work/long" --count >"$work/got"
# Of every row, one comma stands between ids and tokens, and each list has one fewer than tokens: 2 * tokens - 1 commas.
awk -F'"tokens":' '{ split($2, a, ","); commas = a[1] }
    NR == FNR { want = (commas + 2) / 2; next } { exit commas != want }' "$work/once" "$work/got" ||
    { echo "10 MB line: $(cat "$work/got") against $(cat "$work/once")"; failed=1; }

# The BOS rule counts for a directory, not for its tokenizer.json alone.
mkdir "$work/bos"
cp "$model/tokenizer.json" "$work/bos"
echo '{"add_bos_token":true,"bos_token":{"content":"<|im_start|>"},"eos_token":"<|im_end|>","add_eos_token":true}' \
    >"$work/bos/tokenizer_config.json"
echo '{"text":"Hello"}' >"$work/hello"
echo '{"ids":[1,42,500,81,2],"tokens":["<|im_start|>","H","ell","o","<|im_end|>"]}' >"$work/with"
echo '{"ids":[42,500,81],"tokens":["H","ell","o"]}' >"$work/without"
check "BOS of a directory" 0 "$work/with" tok -m "$work/bos" -i "$work/hello"
check "--no-special-tokens" 0 "$work/without" tok -m "$work/bos" -i "$work/hello" --no-special-tokens
check "a file alone" 0 "$work/without" tok -m "$work/bos/tokenizer.json" -i "$work/hello"

# A directory with a file of ranks in place of tokenizer.json: of the test vocabulary, [BOS] and [EOT] are special.
kimi=$SOURCE/tests/data/tokenizers/tiktoken
echo '{"text":"[BOS]! <think>[EOT]"}' >"$work/kimi"
echo '{"ids":[549,0,220,561,558],"tokens":["[BOS]","!","Ġ","<think>","[EOT]"]}' >"$work/with"
check "tiktoken.model" 0 "$work/with" tok -m "$kimi" -i "$work/kimi"
echo '{"text":"! <think>"}' >"$work/without"
check "tiktoken.model back" 0 "$work/without" tok -m "$kimi" -i "$work/with" --decode --skip-special-tokens
mkdir "$work/ranks"
cp "$kimi/tiktoken.model" "$work/ranks/own.tiktoken"
check "ranks without names" 1 "$work/empty" tok -m "$work/ranks" -i "$work/kimi"
cp "$kimi/tokenizer_config.json" "$work/ranks"
check "own.tiktoken" 0 "$work/with" tok -m "$work/ranks" -i "$work/kimi"
cp "$kimi/tiktoken.model" "$work/ranks/other.tiktoken"
check "two files of ranks" 1 "$work/empty" tok -m "$work/ranks" -i "$work/kimi"

# Failures leave no output behind.
mkdir "$work/nothing"
check "no -m" 2 "$work/empty" tok -i "$work/hello"
check "unknown flag" 2 "$work/empty" tok -m "$model" --nonsense
check "flags that do not go together" 2 "$work/empty" tok -m "$model" --skip-special-tokens
check "no such model" 1 "$work/empty" tok -m "$work/absent" -i "$work/hello" -o "$work/out"
check "no tokenizer there" 1 "$work/empty" tok -m "$work/nothing" -i "$work/hello" -o "$work/out"
check "no such input" 1 "$work/empty" tok -m "$model" -i "$work/absent" -o "$work/out"
check "no such place" 1 "$work/empty" tok -m "$model" -i "$work/hello" -o "$work/absent/out"
[ ! -e "$work/out" ] && [ ! -e "$work/out.tmp" ] || { echo "an output file was left behind"; failed=1; }
tok --help | awk 'length > 80 { exit 1 } END { exit NR > 24 }' || { echo "--help does not fit a screen"; failed=1; }
[ "$failed" = 0 ] && echo "all as expected"
exit $failed
