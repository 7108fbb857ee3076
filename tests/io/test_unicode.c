/* tests/io/test_unicode.c - classes and NFC against the reference's own, character by character. */
#include "io/json.h"
#include "io/unicode.h"
#include "io/utf8.h"
#include "tests/support/check.h"
#include "tests/support/files.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* One bit of sets[code] per class of the data file that matches code. */
static const struct {
    const char *name;
    uint8_t mask;        /* class & mask must be one of: */
    uint16_t categories; /* bits 1 << category; 0: the flag in mask */
} classes[] = {
    {"L", UC_CATEGORY, 1 << UC_LU | 1 << UC_LL | 1 << UC_LT | 1 << UC_LM | 1 << UC_LO},
    {"Lu", UC_CATEGORY, 1 << UC_LU},
    {"Ll", UC_CATEGORY, 1 << UC_LL},
    {"Lt", UC_CATEGORY, 1 << UC_LT},
    {"Lm", UC_CATEGORY, 1 << UC_LM},
    {"Lo", UC_CATEGORY, 1 << UC_LO},
    {"M", UC_CATEGORY, 1 << UC_M},
    {"N", UC_CATEGORY, 1 << UC_N},
    {"P", UC_CATEGORY, 1 << UC_P},
    {"S", UC_CATEGORY, 1 << UC_S},
    {"Nd", UC_ND, 0},
    {"Han", UC_HAN, 0},
    {"White_Space", UC_CATEGORY, 1 << UC_SPACE},
    {"Word", UC_WORD, 0},
};

static int check_classes(const JsonValue *data)
{
    int failed = 0;
    static bool want[UNICODE_END];
    for (size_t k = 0; k < sizeof classes / sizeof *classes; k++) {
        memset(want, 0, sizeof want);
        const JsonValue *ranges = json_get(data, classes[k].name);
        failed += check_true(classes[k].name, ranges && ranges->len > 0);
        for (const JsonValue *r = ranges ? ranges->child : NULL; r; r = r->next) {
            char *dash;
            unsigned long first = strtoul(r->text, &dash, 16);
            unsigned long last = *dash ? strtoul(dash + 1, NULL, 16) : first;
            for (unsigned long c = first; c <= last && c < UNICODE_END; c++)
                want[c] = true;
        }
        int wrong = 0;
        for (uint32_t c = 0; c < UNICODE_END; c++) {
            unsigned bits = unicode_class[c] & classes[k].mask;
            bool got = classes[k].categories ? classes[k].categories >> bits & 1 : bits != 0;
            wrong += got != want[c];
        }
        failed += check_int(classes[k].name, wrong, 0);
    }
    return failed;
}

static void add_codes(StrBuf *b, const char *hex)
{
    char *end;
    for (unsigned long code = strtoul(hex, &end, 16); end != hex; code = strtoul(hex, &end, 16)) {
        char bytes[4];
        strbuf_add(b, bytes, utf8_put(bytes, (uint32_t)code));
        hex = end;
    }
}

static int check_nfc(const char *name, const StrBuf *in, const StrBuf *want)
{
    StrBuf got = {0};
    unicode_nfc(&got, in->data ? in->data : "", in->len);
    int failed = check_int(name, (int64_t)got.len, (int64_t)want->len);
    failed += check_true(name, got.len == want->len && memcmp(got.data, want->data, got.len) == 0);
    bool same = in->len == want->len && memcmp(in->data, want->data, in->len) == 0;
    failed += check_true(name, same || !unicode_nfc_quick(in->data, in->len));
    strbuf_free(&got);
    return failed;
}

static int check_nfc_file(const char *path)
{
    int failed = 0, n = 0;
    TestLines lines;
    if (!test_lines_open(&lines, path))
        return check_true(path, false);
    while (test_lines_next(&lines)) {
        StrBuf in = {0}, want = {0};
        add_codes(&in, test_text(lines.row, "in"));
        add_codes(&want, test_text(lines.row, "nfc"));
        failed += check_nfc(test_text(lines.row, "in"), &in, &want);
        failed += check_nfc("NFC of NFC", &want, &want);
        strbuf_free(&in);
        strbuf_free(&want);
        n++;
    }
    test_lines_close(&lines);
    printf("%d NFC cases\n", n);
    return failed + check_int("NFC cases", n, 1500);
}

/* The cases that need no data file. */
static const struct {
    const char *in, *want;
} few[] = {
    {"", ""},
    {"plain", "plain"},
    {"e\xcc\x81", "\xc3\xa9"},
    {"\xcc\x81", "\xcc\x81"},
    {"x\xcc\x81\xcc\xa3y", "x\xcc\xa3\xcc\x81y"},
    {"\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"},
    {"\xe2\x84\xab", "\xc3\x85"},
    {"A\xcc\x8a\xcc\x81z", "\xc7\xbaz"},
    {"\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc"},
};

static int check_few(void)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof few / sizeof *few; i++) {
        StrBuf in = {0}, want = {0};
        strbuf_str(&in, few[i].in);
        strbuf_str(&want, few[i].want);
        failed += check_nfc(few[i].in, &in, &want);
        strbuf_free(&in);
        strbuf_free(&want);
    }
    /* 200,000 marks in the wrong order must not take quadratic time. */
    StrBuf in = {0}, want = {0};
    strbuf_str(&in, "q");
    strbuf_str(&want, "q");
    for (int i = 0; i < 100000; i++) {
        strbuf_str(&in, "\xcc\x81\xcc\xa3");
        strbuf_str(&want, "\xcc\xa3");
    }
    for (int i = 0; i < 100000; i++)
        strbuf_str(&want, "\xcc\x81");
    clock_t start = clock();
    failed += check_nfc("200,000 marks", &in, &want);
    failed += check_true("200,000 marks within a second", clock() - start < CLOCKS_PER_SEC);
    strbuf_free(&in);
    strbuf_free(&want);
    static const uint32_t spaces[] = {0x9, 0x20, 0x85, 0xa0, 0x3000},
                          others[] = {0x180e, 0xfeff, 0x200b};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        failed += check_int("white space", unicode_class[spaces[i]], UC_SPACE);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        failed +=
            check_int("not white space", (unicode_class[others[i]] & UC_CATEGORY) == UC_SPACE, 0);
    return failed;
}

int main(void)
{
    unicode_init();
    int failed = check_few();
    const char *shared = test_shared();
    if (!shared)
        return failed ? test_result(failed) : test_skip("the reference's classes are in ../shared");
    char path[4096];
    test_path(path, sizeof path, "%s/tokenizers/unicode/classes-unicode16.json", shared);
    TestJson data;
    if (test_json_open(&data, path))
        failed += check_classes(data.value);
    else
        failed += check_true(path, false);
    test_json_close(&data);
    test_path(path, sizeof path, "%s/tokenizers/unicode/nfc-cases.jsonl", shared);
    failed += check_nfc_file(path);
    return test_result(failed);
}
