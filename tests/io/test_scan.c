/* tests/io/test_scan.c - the hand-written scanners against the general matcher on random strings
 * of all character classes, and both against the reference's pieces for families whose
 * vocabularies are not at hand. */
#include "io/pretokenize.h"
#include "io/normalize.h"
#include "io/scan.h"
#include "io/utf8.h"
#include "tests/io/tokenizer_cases.h"

#include <time.h>

enum { ROUNDS = 3000, MOST_CHARS = 40, STEPS = 1000000 };

/* Every kind of character that some pattern tells apart, common ones several times. */
static const uint32_t chars[] = {
    ' ',    ' ',    ' ',    '\n',   '\r',     '\t',    'a',    'b',     'Z',     '1',    '2',
    '.',    '/',    '-',    '\'',   's',      'S',     't',    'l',     'l',     'L',    'r',
    'e',    'V',    0x17f,  0xa0,   0x85,     0x2028,  0x3000, 0xe9,    0xc9,    0x1c5,  0x2b0,
    0x4e00, 0x4e2d, 0x9fa5, 0x9fa6, 0x3005,   0x3007,  0x2e80, 0x3042,  0x30a0,  0x30fb, 0x30fc,
    0x3040, 0x301,  0x903,  0x663,  0xbd,     0x2160,  0x20ac, 0x2581,  0x1f600, 0xfeff, 0x200b,
    0x200d, 1,      0x1b,   0x378,  0x10ffff, 0x20000, 0xac00, 0x1fa77, '_',     '\\',
};

static uint32_t random_below(uint64_t *state, uint32_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)((*state >> 33) % n);
}

static int compare(ScanFind scan, const Regex *r, RegexStack *stack, const char *text, size_t len)
{
    const uint8_t *s = (const uint8_t *)text, *from = NULL, *to = NULL;
    size_t at = 0, steps = STEPS, start = 0, end = 0;
    Err e;
    for (bool found = true; found;) {
        must(regex_find(r, stack, text, len, at, &steps, &found, &start, &end, &e), &e);
        bool scanned = at < len && scan(s + at, s + len, &from, &to);
        if (scanned != found)
            return 1;
        if (found && (from != s + start || to != s + end))
            return 1;
        at = end;
    }
    return 0;
}

static int check_scanners(void)
{
    int failed = 0;
    uint64_t state = 11;
    RegexStack stack = {0};
    for (size_t k = 0; scan_regex(k); k++) {
        const char *pattern = scan_regex(k);
        Regex *r;
        Err e;
        int wrong = 0;
        must(regex_compile(pattern, strlen(pattern), &r, &e), &e);
        for (int round = 0; round < ROUNDS; round++) {
            char text[4 * MOST_CHARS];
            size_t len = 0;
            for (uint32_t n = random_below(&state, MOST_CHARS); n > 0; n--)
                len +=
                    utf8_put(text + len, chars[random_below(&state, sizeof chars / sizeof *chars)]);
            /* On the heap and exact, so that a sanitizer sees a scanner look past the end. */
            char *exact = malloc(len + !len);
            if (!exact)
                return 1;
            memcpy(exact, text, len);
            wrong += compare(scan_find(pattern, strlen(pattern)), r, &stack, exact, len);
            free(exact);
        }
        failed += check_int(pattern, wrong, 0);
        regex_free(r);
    }
    regex_stack_free(&stack);
    failed += check_true("an unknown pattern", scan_find("\\d", 2) == NULL);
    failed += check_true("one character more", scan_find(" \\p{N}{1,3}", 11) == NULL);
    return failed;
}

/* A file's first line has the normalizer and the pre-tokenizer, the others the pieces of
 * texts.jsonl. */
static int check_family(const char *shared, const char *name)
{
    char path[4096];
    TestLines texts, pieces;
    Normalizer *normalizer;
    PreTokenizer *pre;
    NormalizeScratch nscratch = {0};
    PreScratch scratch = {0};
    Err e;
    int failed = 0, n = 0;
    test_path(path, sizeof path, "%s/tokenizers/patterns/texts.jsonl", shared);
    must(test_lines_open(&texts, path) ? ST_OK : err_set(&e, ST_IO, "no texts"), &e);
    test_path(path, sizeof path, "%s/tokenizers/patterns/%s.jsonl", shared, name);
    must(test_lines_open(&pieces, path) && test_lines_next(&pieces)
             ? ST_OK
             : err_set(&e, ST_IO, "no pieces"),
         &e);
    must(normalizer_parse(json_get(pieces.row, "normalizer"), &normalizer, &e), &e);
    must(pretokenizer_parse(json_get(pieces.row, "pre_tokenizer"), &pre, &e), &e);
    while (test_lines_next(&pieces)) {
        int64_t number = -1, other = -2;
        json_int64(json_get(pieces.row, "n"), &number);
        while (other != number && test_lines_next(&texts))
            json_int64(json_get(texts.row, "n"), &other);
        const JsonValue *text = json_get(texts.row, "text"),
                        *v = json_get(pieces.row, "pieces")->child;
        const char *s;
        size_t len, i = 0;
        must(normalizer_run(normalizer, &nscratch, text->text, text->len, &s, &len, &e), &e);
        must(pretokenizer_run(pre, &scratch, s, len, true, &e), &e);
        bool same = true;
        for (; v && i < scratch.pieces.n; v = v->next, i++) {
            int64_t want = -1;
            same = same && json_int64(v, &want) && want == scratch.pieces.v[i].len;
        }
        failed += check_true(text->text, same && !v && i == scratch.pieces.n);
        n++;
    }
    printf("%-12s %d texts: %d failed\n", name, n, failed);
    test_lines_close(&texts);
    test_lines_close(&pieces);
    normalize_scratch_free(&nscratch);
    prescratch_free(&scratch);
    normalizer_free(normalizer);
    pretokenizer_free(pre);
    return failed + check_true("texts are there", n > 500);
}

/* Runs that make a careless scanner quadratic. */
static int check_linear(void)
{
    static const char *const runs[] = {
        " ",  "a",        "A",    "1",    ".", "\n", " \n", "\xe4\xb8\xad", "A\xe4\xb8\xad",
        "'s", "\xcc\x81", "\x01", "\x01 "};
    int failed = 0;
    clock_t begin = clock();
    for (size_t k = 0; scan_regex(k); k++) {
        ScanFind scan = scan_find(scan_regex(k), strlen(scan_regex(k)));
        for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
            StrBuf text = {0};
            while (text.len < 200000)
                strbuf_str(&text, runs[i]);
            const uint8_t *at = (const uint8_t *)text.data, *end = at + text.len, *from, *to;
            while (at < end && scan(at, end, &from, &to))
                at = to;
            strbuf_free(&text);
        }
    }
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    failed += check_true("9 scanners over 13 long runs within five seconds", seconds < 5);
    return failed;
}

int main(void)
{
    static const char *const families[] = {"glm-4", "kimi-k2", "minimax-m2", "qwen3.5"};
    const char *shared = test_shared();
    int failed = check_scanners() + check_linear();
    for (size_t i = 0; shared && i < sizeof families / sizeof *families; i++)
        failed += check_family(shared, families[i]);
    return test_result(failed);
}
