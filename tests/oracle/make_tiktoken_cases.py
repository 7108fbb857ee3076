#!/usr/bin/env python3
"""Writes tests/data/tokenizers/tiktoken: a small vocabulary in Kimi's format, and what tiktoken makes of texts.

usage: make_tiktoken_cases.py tests/data/tokenizers/tiktoken     (PyPI: tiktoken 0.14.0, regex)

The ids come from tiktoken's own encoder. Around it stands, in our words, what transformers and the class
that Kimi models ship do: tokens of added_tokens_decoder are taken out of the text first; each stretch
between them is cut; every special name is known inside of what was cut.

cases.jsonl, one object a line:
  {"isspace": [...]}                        the code points of str.isspace, all of them
  {"text": s, "ids": [...]}                 or {"parts": [[s, times], ...], "runs": [[ids, times], ...]} when long
  {"decode": [ids], "text": s, "skipped": s}   skipped: without special tokens
"""
import base64
import json
import os
import random
import sys

import regex
import tiktoken

PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])
BLOCK, RUN, RESERVED = 400_000, 25_000, 256

CORPUS = """The quick brown fox jumps over the lazy dog, and the dog doesn't mind: it's asleep. They're there.
Numbers like 1234567, 3.14 and 2025-06-28 count; so do HTTPServer, camelCase and snake_case_names.
    for (int i = 0; i < n; i++) {\n        sum += a[i] * b[i];\n    }\n\treturn sum;\n
中文字和标点符号，還有繁體字。日本語のテキスト、カタカナー。한국어 문장입니다. Русский текст и ещё немного.
Ελληνικά, العربية, हिन्दी, Zoë naïve café e\u0301. 😀😀👍🏽 → ≤ ≥ ∑ … — “quotes” and 'single' ones.
I'LL we've don't can't she'd I'm YOU'RE\n\n\n   trailing   \t\ttabs\r\nlines\r\n
"""
FRAGMENTS = ["the", " The", "DON'T", "don't", " it's", "'ſ", "x", "xy", "zyx", " xyz", "yz", "1", "23", "4567", "〇", "中", "文字",
             "⺀", "々", "かな", "カー", "한국", "текст", "ñ", "e\u0301", "\u0301", "😀", "👍🏽", " ", "  ", "\t", "\n", "\r\n", "\n\n",
             "\u3000", "\u00a0", "\u0085", "\u2028", "\x1c", "\x1f", "\x00", "!", "/", "/\n", "...", "<", "|>", "[", "BOS]",
             "ǅ", "ʰ", "Ⅷ", "\U0001fa77", "\u200b", "\ufeff", "A", "Zz", "_", "{", "}"]


def byte_order():
    """GPT-2's: the printable bytes first."""
    first = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or 0xAE <= b <= 0xFF]
    return first + [b for b in range(256) if b not in first]


def train(n, rng):
    """Byte pair encoding of CORPUS, then tokens in random places that no clean training would make."""
    tokens = [bytes([b]) for b in byte_order()]
    pieces = [[bytes([b]) for b in p.encode()] for p in regex.findall("(?V1)" + PATTERN, CORPUS * 2)]
    while len(tokens) < n:
        counts = {}
        for p in pieces:
            for pair in zip(p, p[1:]):
                counts[pair] = counts.get(pair, 0) + 1
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        if best[0] + best[1] not in tokens:
            tokens.append(best[0] + best[1])
        for p in pieces:
            i = 0
            while i + 1 < len(p):
                if (p[i], p[i + 1]) == best:
                    p[i:i + 2] = [best[0] + best[1]]
                i += 1
    # Random strings: several splits each, ties, ranks that no longer grow with length, tokens that
    # merging alone never gives.
    wild = {bytes(rng.choices(b"xyz", k=rng.randint(2, 7))) for _ in range(150)}
    wild |= {b"    ", b"  ", b"        ", b"aa", b"aaaa", b" a", b"a" * 64, b" " * 100, b"!!", "中中".encode(), "😀".encode()[1:3],
             "字。".encode()[1:4], "々々".encode()}
    for token in sorted(wild):
        if token not in tokens:
            tokens.insert(rng.randint(256, len(tokens)), token)
    ranks = {t: i for i, t in enumerate(tokens)}
    assert sum(not merges_whole(ranks, t) for t in tokens) > 10, "too few tokens that only a whole piece gives"
    return tokens


def merges_whole(ranks, token):
    """Whether merging by ranks alone gives token; tiktoken finds it as a whole piece in any case."""
    parts = [bytes([b]) for b in token]
    while True:
        known = [(ranks[a + b], i) for i, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in ranks]
        if not known:
            return len(parts) == 1
        i = min(known)[1]
        parts[i:i + 2] = [parts[i] + parts[i + 1]]


def config(first):
    def token(name, special):
        return {"content": name, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": special}
    named = {0: ("[BOS]", True), 1: ("[EOS]", True), 2: ("<|im_end|>", True), 3: ("<|im_user|>", True), 9: ("[EOT]", True),
             11: ("<|tool_call_begin|>", False), 12: ("<think>", False), 13: ("<|思考é|>", False), 254: ("[UNK]", True),
             255: ("[PAD]", True)}
    return {"added_tokens_decoder": {str(first + i): token(*t) for i, t in named.items()},
            "additional_special_tokens": ["<|im_end|>", "<|im_user|>", "[EOT]"],
            "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
            "bos_token": "[BOS]", "clean_up_tokenization_spaces": False, "eos_token": "[EOS]",
            "model_max_length": 1000000000000000019884624838656, "pad_token": "[PAD]",
            "tokenizer_class": "TikTokenTokenizer", "unk_token": "[UNK]"}


class Reference:
    def __init__(self, tokens, settings):
        first = len(tokens)
        added = {int(i): t for i, t in settings["added_tokens_decoder"].items()}
        names = {i: f"<|reserved_token_{i}|>" for i in range(first, first + RESERVED)}
        names.update({i: t["content"] for i, t in added.items()})
        self.special = {i for i, t in added.items() if t["special"]}
        self.named = {t["content"]: i for i, t in added.items()}
        self.split = regex.compile("(" + "|".join(regex.escape(n) for n in sorted(self.named, key=len, reverse=True)) + ")")
        self.model = tiktoken.Encoding("cases", pat_str=PATTERN, mergeable_ranks={t: i for i, t in enumerate(tokens)},
                                       special_tokens={n: i for i, n in names.items()})

    @staticmethod
    def cuts(text):
        for block in range(0, len(text), BLOCK):
            part, start, run = text[block:block + BLOCK], 0, 0
            for i, c in enumerate(part):
                run = run + 1 if i and c.isspace() == part[i - 1].isspace() else 1
                if run > RUN:
                    yield part[start:i]
                    start, run = i, 1
            yield part[start:]

    def encode(self, text):
        ids = []
        for stretch in self.split.split(text):
            if stretch in self.named:
                ids.append(self.named[stretch])
            else:
                for part in self.cuts(stretch):
                    ids += self.model.encode(part, allowed_special="all")
        return ids

    def decode(self, ids, skip=False):
        return self.model.decode_bytes([i for i in ids if not (skip and i in self.special)]).decode("utf-8", "replace")


def runs(ids):
    """[[ids of one period], times] one after the other."""
    out, at = [], 0
    while at < len(ids):
        best = (1, 1)
        for period in range(1, 5):
            n = 1
            while ids[at + n * period:at + (n + 1) * period] == ids[at:at + period]:
                n += 1
            if n > 1 and period * n > best[0] * best[1]:
                best = (period, n)
        out.append([ids[at:at + best[0]], best[1]])
        at += best[0] * best[1]
    return out


def long_texts(first):
    reserved = f"<|reserved_token_{first + 20}|>"
    yield from ([["a", n], ["b", 3]] for n in (24_998, 25_000, 25_001, 50_003))
    yield from ([["x", 3], [" ", n], ["y", 2]] for n in (24_999, 25_000, 25_001, 75_001))
    yield [["a", 20_000], ["[BOS]", 1], ["a", 20_000]]  # no run is too long once the name is out
    yield [["a", 24_998], ["[BOS]", 1], ["a", 10]]
    yield [["a", 24_998], [reserved, 1], ["a", 10]]  # cut inside the name: it is text
    yield [["a", 25_000], [reserved, 1], ["a", 10]]
    yield [["a", 24_970], [reserved, 1], ["a", 25_010]]
    yield [["\n", 25_003], [" ", 3]]
    yield [["中", 25_007]]
    yield [["😀", 25_003], [" 😀", 2]]
    yield [["e\u0301", 12_502], ["z", 9]]
    yield [["7", 25_002]]
    yield [["!", 25_001], ["\n", 2], ["/", 25_001]]
    for space in ("\x1c", "\x1f", "\u0085", "\u2003", "\u3000"):
        yield [[" ", 25_000], [space, 2], ["x", 1]]
        yield [[space, 25_001], ["x", 1]]
    for other in ("\x1b", "\u200b", "\u180e", "\ufeff"):
        yield [["a", 24_999], [other, 2], ["xyz", 3]]
        yield [[" ", 25_000], [other, 1], ["  ", 2]]
    yield [[" a", 200_001]]  # the first block ends between two of them
    yield [["a ", 199_999], ["aaaa", 2], ["  ", 3]]  # and inside a word
    yield [["a ", 199_990], [reserved, 2]]
    yield [["[EOT]", 1], [" a", 200_000], ["[EOT]", 1], [" a", 200_000], ["aa", 2]]  # blocks start anew
    yield [["a ", 399_999], ["aaaa", 2]]  # the second block ends inside a word, too
    yield [["a ", 187_500], [" ", 25_001], ["b", 25_001]]  # a cut of each kind


def main(folder):
    rng = random.Random(20250628)
    tokens = train(420, rng)
    settings = config(len(tokens))
    ref = Reference(tokens, settings)
    with open(os.path.join(folder, "tiktoken.model"), "w") as f:
        f.writelines(f"{base64.b64encode(t).decode()} {i}\n" for i, t in enumerate(tokens))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(settings, f, ensure_ascii=False, indent=1)
        f.write("\n")
    lines = [{"isspace": [c for c in range(0x110000) if chr(c).isspace()]}]
    names = list(ref.named) + [f"<|reserved_token_{len(tokens) + i}|>" for i in (4, 77, 253)]
    texts = ["", CORPUS] + CORPUS.split("\n") + names
    texts += ["[BOS][BOS]", "[[BOS]]", "a  [EOS]  b", "  <|im_end|>", "[BO[BOS]S]", "<|im_end|<|im_end|>",
              f"x<|reserved_token_{len(tokens)}|>", "<think>\n</think>", "é[EOT]\u0301x"]
    for _ in range(260):
        texts.append("".join(rng.choice(FRAGMENTS) for _ in range(rng.randint(1, 14))))
    for _ in range(60):
        texts.append("".join(rng.choice("xyz") for _ in range(rng.randint(2, 40))))
    for _ in range(6):  # above the lengths up to which neighbours are scanned
        texts.append("".join(rng.choice("xyz") for _ in range(rng.randint(100, 700))))
    for _ in range(60):
        texts.append("".join(rng.choice(FRAGMENTS + names) for _ in range(rng.randint(2, 8))))
    lines += [{"text": t, "ids": ref.encode(t)} for t in texts]
    for parts in long_texts(len(tokens)):
        lines.append({"parts": parts, "runs": runs(ref.encode("".join(s * n for s, n in parts)))})
    everything = list(range(len(tokens) + RESERVED))
    for _ in range(120):
        ids = [rng.choice(everything if rng.random() < 0.3 else everything[:300]) for _ in range(rng.randint(1, 16))]
        lines.append({"decode": ids, "text": ref.decode(ids), "skipped": ref.decode(ids, True)})
    lines.append({"decode": everything, "text": ref.decode(everything), "skipped": ref.decode(everything, True)})
    with open(os.path.join(folder, "cases.jsonl"), "w") as f:
        f.writelines(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)


if __name__ == "__main__":
    main(sys.argv[1])
