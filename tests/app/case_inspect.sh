# tests/app/case_inspect.sh - moebatch inspect: parameters, bytes and the KV cache of published models against what their
# publishers and others count, from headers of that size without data; its JSON; what it refuses, and with which exit code.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
complain() {
    echo "$*"
    failed=1
}

# want MODEL FILE PATTERN: a line of the output.
want() {
    grep -q -e "$3" "$2" || complain "$1: no line \"$3\" in: $(cat "$2")"
}

# Billions of parameters, of those per token, gigabytes of bf16 dense weights, bytes of KV per token in bf16.
while read -r name total active dense kv; do
    "$BUILD/tests/hollow_model" "$name" 200 "$work/$name"
    timeout 60 "$MOEBATCH" inspect "$work/$name" --json >"$work/json" || complain "$name: exit $?"
    awk -v name="$name" -v total="$total" -v active="$active" -v dense="$dense" -v kv="$kv" '
        function number(line) { sub(/^[^:]*: */, "", line); return line + 0 }
        function near(what, got, want, by) {
            if (got < want - by || got > want + by) {
                printf "%s: %s %.3f, want %s\n", name, what, got, want
                bad = 1
            }
        }
        /"parameters": [0-9]*,$/ { n++; near("parameters", number($0) / 1e9, total, 0.0051) }
        /"active_parameters"/ { n++; near("active", number($0) / 1e9, active, 0.0051) }
        /"kv_values_per_token"/ { n++; near("KV", 2 * number($0), kv, 0) }
        /"dense_weights"/ { n++; sub(/.*"parameters": [0-9]*, "bytes": /, ""); near("dense", $0 / 1e9, dense, 0.051) }
        END { if (n < 4) { print name ": keys are missing"; bad = 1 } exit bad }' "$work/json" || failed=1
    rm -r "${work:?}/$name"
done <<'END'
granite-3.0-1b 1.33 0.43 0.3 49152
OLMoE-1B-7B 6.92 1.28 1.0 131072
Qwen1.5-MoE-A2.7B 14.32 2.69 3.7 196608
DeepSeek-V2-Lite 15.71 2.66 2.6 31104
gpt-oss-20b 20.91 4.19 3.6 49152
Qwen3-30B-A3B 30.53 3.35 3.1 98304
Mixtral-8x7B 46.70 12.88 3.2 131072
GLM-4.5-Air 106.85 13.42 14.4 188416
MiniMax-M2 228.69 11.03 8.0 253952
DeepSeek-V2 235.74 21.38 26.0 69120
DeepSeek-V3 671.03 37.55 34.2 70272
Kimi-K2 1026.41 32.86 23.4 70272
END

# As text, and dealt to ranks that do not divide the experts.
model="$work/model"
"$BUILD/tests/hollow_model" DeepSeek-V2-Lite 1 "$model"
"$MOEBATCH" inspect -m "$model" --ranks 7 >"$work/text"
want text "$work/text" "^family      deepseek_v2$"
want text "$work/text" "^layers      27, 26 of them with experts; 2048 wide, vocabulary 102400, context 4096$"
want text "$work/text" "^attention   latent: 16 heads of 128 + 64, values of 128, from 576 values per token$"
want text "$work/text" "^experts     64 of 1408 wide, 6 per token, in 26 layers$"
want text "$work/text" "^parameters  15.71 billion, 2.66 billion per token$"
want text "$work/text" "^experts     28.79 GB: BF16 28.79 GB in 4992 tensors$"
want text "$work/text" "^KV cache    62208 bytes per token in fp32"
want text "$work/text" "^rank 0      2.68 GB dense + 4.50 GB for 10 experts of each layer$"
want text "$work/text" "^ranks 1-6   2.68 GB dense + 4.05 GB for 9 experts of each layer$"

# refused EXIT TEXT ARGUMENTS...
refused() {
    want_exit=$1 text=$2
    shift 2
    code=0
    "$MOEBATCH" inspect "$@" >"$work/out" 2>"$work/err" || code=$?
    [ "$code" = "$want_exit" ] || complain "inspect $*: exit $code, want $want_exit"
    [ ! -s "$work/out" ] || complain "inspect $*: output beside an error"
    grep -q -e "$text" "$work/err" || complain "inspect $*: no \"$text\" in: $(cat "$work/err")"
}
refused 2 "MODEL is missing"
refused 2 "MODEL is given twice" "$model" -m "$model"
refused 2 "ranks 0" "$model" --ranks 0
refused 1 "config.json" "$work/nowhere"
sed 's/"hidden_act"/"soft_cap": 30, "hidden_act"/' "$model/config.json" >"$work/config.json"
mv "$work/config.json" "$model/config.json"
refused 1 'unknown key "soft_cap"' "$model"
"$MOEBATCH" inspect "$model" --accept-config-key soft_cap >"$work/text" || complain "an accepted key: exit $?"
sed 's/"soft_cap": 30/"soft_cap": null/' "$model/config.json" >"$work/config.json"
mv "$work/config.json" "$model/config.json"
"$MOEBATCH" inspect "$model" >"$work/text" || complain "an empty key: exit $?"
want "an empty key" "$work/text" "^empty key   soft_cap: unknown, without effect$"
"$MOEBATCH" inspect "$model" --json >"$work/json"
want "an empty key" "$work/json" '"unknown_empty_keys": \["soft_cap"\]'
sed 's/"kv_lora_rank": 512/"kv_lora_rank": 256/' "$model/config.json" >"$work/config.json"
mv "$work/config.json" "$model/config.json"
refused 1 "kv_a_proj_with_mqa.weight\": shape \[576, 2048\], expected \[320, 2048\]" "$model"
exit $failed
