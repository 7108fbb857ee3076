#!/usr/bin/env python3
"""Writes tests/data/tokenizers/random-*.json and tests/data/regex_cases.jsonl with the reference tokenizer.

usage: make_tokenizer_cases.py tests/data          (needs: pip install tokenizers==0.23.3)

Each random-*.json is a small random tokenizer with texts, their ids and what those decode to, in the form of
../shared/tokenizers/synthetic. Each line of regex_cases.jsonl is a pattern, a text, and the byte ranges of the
pattern's matches in it (empty ones left out).
"""
import json
import random
import sys

from tokenizers import Regex, Tokenizer, pre_tokenizers

PARTS = ["a", "b", "ab", "ba", "A", "B", "1", "12", " ", "  ", "-", "--", "\u00e9", "e\u0301", "\u4e2d", "\u2581", "\n",
         "\r\n", "x", "'s", "'S", "\u017f", "'", "_", "\U0001f600", "\u0301", "\u1b3c", "\u0663", "\u00bd", "K", "k", "S",
         ".", "\t", "\u00a0", "<A>", "<AB>", "[x]", "\u65e5\u672c", "\u30fc", " a", "T"]
PATTERNS = [r"\d+", r"-|\d+", r"\s+", r"[a-c]+|\p{Lu}", r"(?i:ab|k|'s)", r"(?i:[a-c]+)", r"\p{L}+(?=\d)", r"\w+(?!-)",
            r"[^\s\p{L}]+", r"a??b", r"(?:ab)*+a|b", r"(ab|a)(b|-)?", r"[\p{Han}&&[^\u4e2d]]+|b", r"^a|b$", r"\ba", r"\Ba",
            r".+?(?=a)|x", r"(?>a+)b|\n", r"\p{N}{1,2}", r"a{2}|b{,2}-", r"a{1,2}?", r"[[a-b][1-2]]+", r"\S+|\s", r"\h+",
            r"[\w&&[^\d_]]+", r"\A.|.\z", r"\P{L}+", r"[^\P{L}a]+", r"'(?:[sS]|re)", r"(a|b|ab)+?-", r"(a+)(a)?b*", r"",
            r"a|", r"(?=a)", r"\x41|\u00e9", r"[\-\]\[]|\t", r"(?:a|b)++|1", r"(?i:T|s)", r"[a-]+", r"\p{P}|\p{S}",
            r"(?:1|12){2}", r"(?:ab?){1,3}", r"(?:ab?){1,3}?", r"[\w]+", r"\w+", r"x|\Z", r"(?i:[^s])+", r"\p{^L}+",
            r"[^a&&b]+", r"\x{41}+|\H", r"(?=(?:a|b)+-)a", r"(?!.*b)a", r"a{2,}", r"{1|a{x", r"[&a]+", r"\S*?1"]
NO = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}


def alphabet():
    plain = [b for b in range(256) if 0x21 <= b <= 0x7E or (0xA1 <= b <= 0xFF and b != 0xAD)]
    rest = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(0x100 + i) for i, b in enumerate(rest)}}


def text(r):
    return "".join(r.choice(PARTS) for _ in range(r.randrange(12)))


def pre_tokenizer(r, byte_level):
    steps = []
    for _ in range(r.choice([0, 1, 1, 2])):
        kind = r.random()
        if kind < 0.7:
            literal = r.random() < 0.2
            pattern = {"String": r.choice(["a", "ab", "-", ""])} if literal else {"Regex": r.choice(PATTERNS)}
            how = r.choice(["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"])
            steps.append({"type": "Split", "pattern": pattern, "behavior": how, "invert": r.random() < 0.4})
        elif kind < 0.8:
            steps.append({"type": "Digits", "individual_digits": r.random() < 0.5})
        else:
            steps.append({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": r.choice(["always", "never"]),
                          "split": r.random() < 0.5})
    if byte_level:
        steps.append({"type": "ByteLevel", "add_prefix_space": r.random() < 0.3, "trim_offsets": True,
                      "use_regex": r.random() < 0.5})
    return {"type": "Sequence", "pretokenizers": steps} if steps else None


def normalizer(r):
    steps = []
    for _ in range(r.choice([0, 1, 1, 2])):
        kind = r.random()
        if kind < 0.4:
            steps.append({"type": "NFC"})
        elif kind < 0.6:
            steps.append({"type": "Prepend", "prepend": r.choice(["\u2581", "ab"])})
        else:
            steps.append({"type": "Replace", "pattern": {"String": r.choice([" ", "a", "--"])},
                          "content": r.choice(["\u2581", "b", "-"])})
    return {"type": "Sequence", "normalizers": steps} if steps else None


def decoder(r, byte_level):
    bytes_ = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    if byte_level and r.random() < 0.7:
        return bytes_
    if r.random() < 0.2:
        return None
    steps = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
             {"type": "Strip", "content": r.choice([" ", "a"]), "start": r.randrange(3), "stop": 0}, space, bytes_]
    return {"type": "Sequence", "decoders": [r.choice(steps) for _ in range(r.randrange(1, 5))]}


def make_tokenizer(r):
    byte_level = r.random() < 0.5
    vocab, merges, spell = {}, [], alphabet()

    def add(token):
        vocab.setdefault(token, len(vocab))

    if byte_level:
        chars = [spell[b] for part in PARTS for b in part.encode()]
        for b in range(256):
            if r.random() < 0.99:
                add(spell[b])
    else:
        chars = [c for part in PARTS for c in part if r.random() < 0.8]
        add("<unk>")
        for b in range(256):
            if r.random() < r.choice([0.9, 1]):
                add("<0x%02X>" % b)
        for c in chars:
            add(c)
    symbols = [c for c in chars if c in vocab]
    for _ in range(r.randrange(60)):
        left, right = r.choice(symbols), r.choice(symbols)
        if len(left) + len(right) <= 6:
            add(left + right)
            merges.append([left, right])
            symbols.append(left + right)
    r.shuffle(merges)
    added = []
    for content in r.sample(["<A>", "<AB>", "ab", "a", "  ", "\u00e9", "[x]", "A", " a", "\u65e5\u672c", "-"],
                            r.choice([0, 2, 4])):
        flags = {key: r.random() < 0.35 for key in NO}
        # The file must agree with what the reference hands out, or it warns.
        fresh = len(vocab) + sum(a["content"] not in vocab for a in added)
        added.append({"id": vocab.get(content, fresh), "content": content, **flags})
    post, first = None, next(iter(vocab))
    if r.random() < 0.3:
        special = {"SpecialToken": {"id": first, "type_id": 0}}
        post = {"type": "TemplateProcessing", "single": [special, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {first: {"id": first, "ids": [vocab[first]], "tokens": [first]}}}
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>" if not byte_level and r.random() < 0.8 else None,
             "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": r.random() < 0.5,
             "byte_fallback": r.random() < 0.5, "ignore_merges": r.random() < 0.3, "vocab": vocab, "merges": merges}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer(r),
            "pre_tokenizer": pre_tokenizer(r, byte_level), "post_processor": post, "decoder": decoder(r, byte_level),
            "model": model}


def make_cases(r, tokenizer):
    cases = []
    for _ in range(15):
        case = {"text": text(r), "ids": None}
        case["ids"] = tokenizer.encode(case["text"], add_special_tokens=False).ids
        with_special = tokenizer.encode(case["text"]).ids
        if with_special != case["ids"]:
            case["ids_special"] = with_special
        case["decode"] = tokenizer.decode(with_special, skip_special_tokens=False)
        skipped = tokenizer.decode(with_special)
        if skipped != case["decode"]:
            case["decode_skip"] = skipped
        cases.append(case)
    return cases


def main():
    folder = sys.argv[1]
    r = random.Random(20)
    for number in range(24):
        spec = make_tokenizer(r)
        name = "random-%02d" % number
        tokenizer = Tokenizer.from_str(json.dumps(spec))
        out = {"name": name, "tokenizer": spec, "cases": make_cases(r, tokenizer)}
        with open("%s/tokenizers/%s.json" % (folder, name), "w", encoding="utf-8") as f:
            json.dump(out, f, ensure_ascii=False, separators=(",", ":"))
            f.write("\n")
    with open(folder + "/regex_cases.jsonl", "w", encoding="utf-8") as f:
        for pattern in PATTERNS:
            split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
            for _ in range(5):
                line = text(r) + text(r)
                at = [len(line[:i].encode()) for i in range(len(line) + 1)]
                found = [[at[a], at[b]] for _, (a, b) in split.pre_tokenize_str(line)]
                json.dump({"pattern": pattern, "text": line, "matches": found}, f, ensure_ascii=False,
                          separators=(",", ":"))
                f.write("\n")


main()
