#!/usr/bin/env python3
"""Writes io/unicode_tables.c from the two data files in ../shared/tokenizers/unicode.

usage: make_unicode_tables.py ../shared/tokenizers/unicode > io/unicode_tables.c

classes-unicode16.json holds what each regex class of the reference matches; nfc-unicode9.json holds the
canonical data that its NFC works with. They are of different Unicode versions on purpose.
"""
import json
import sys

CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S", "White_Space"]  # 1..10; 0 is all else
FLAGS = {"Han": 0x20, "Word": 0x40, "Nd": 0x80}
END = 0x110000


def spread(ranges):
    for text in ranges:
        first, _, last = text.partition("-")
        yield from range(int(first, 16), int(last or first, 16) + 1)


def runs(values):
    """start << 8 | value wherever the value changes."""
    out, last = [], None
    for code in range(END):
        if values[code] != last:
            last = values[code]
            out.append(code << 8 | last)
    return out


def classes(folder):
    data = json.load(open(folder + "/classes-unicode16.json"))
    values = bytearray(END)
    for number, name in enumerate(CATEGORIES, 1):
        for code in spread(data[name]):
            assert values[code] == 0, "categories exclude each other"
            values[code] = number
    assert {c for c in range(END) if 1 <= values[c] <= 5} == set(spread(data["L"]))
    for name, bit in FLAGS.items():
        for code in spread(data[name]):
            values[code] |= bit
    assert all(values[c] & 15 == 7 for c in spread(data["Nd"]))
    return values


def normal_form(folder):
    data = json.load(open(folder + "/nfc-unicode9.json"))
    ccc = bytearray(END)
    for code, value in data["ccc"].items():
        ccc[int(code, 16)] = value

    def codes(v):
        return [int(x, 16) for x in (v.split() if isinstance(v, str) else v)]

    decomp = {int(k, 16): codes(v) for k, v in data["decomp"].items()}
    comp = sorted(tuple(codes(triple)) for triple in data["comp"])
    pair_of = {c: (a, b) for a, b, c in comp}

    def derived(code):
        if code not in pair_of:
            return decomp.get(code, [code])
        return derived(pair_of[code][0]) + derived(pair_of[code][1])

    # A composed character's decomposition follows from its pair; only the others are listed.
    assert all(derived(c) == decomp[c] for c in pair_of)
    single = sorted((k, v) for k, v in decomp.items() if k not in pair_of)
    return ccc, comp, single


def table(kind, name, numbers, per_line=10):
    print("const %s %s[] = {" % (kind, name))
    for i in range(0, len(numbers), per_line):
        print("    " + " ".join("%#x," % n for n in numbers[i:i + per_line]))
    print("};")
    print("const size_t n_%s = sizeof %s / sizeof *%s;" % (name, name, name))


def main():
    folder = sys.argv[1]
    ccc, comp, single = normal_form(folder)
    print("/* io/unicode_tables.c - written by tests/oracle/make_unicode_tables.py; see unicode_tables.h. */")
    print("/* clang-format off */")
    print('#include "io/unicode_tables.h"\n')
    table("uint32_t", "unicode_class_runs", runs(classes(folder)))
    print()
    table("uint32_t", "unicode_ccc_runs", runs(ccc))
    print()
    table("uint32_t", "unicode_pairs", [n for triple in comp for n in triple], 9)
    print()
    table("uint32_t", "unicode_decompositions",
          [n for code, parts in single for n in [code << 3 | len(parts)] + parts])


main()
