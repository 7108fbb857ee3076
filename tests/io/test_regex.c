/* tests/io/test_regex.c - the pattern matcher against the reference's on
 * tests/data/regex_cases.jsonl, what it refuses to compile, and that no pattern runs away. */
#include "io/regex.h"
#include "tests/io/tokenizer_cases.h"

enum { STEPS = 1000000 };

/* Matches one after the other, as a Split takes them; empty ones are passed over. */
static int check_matches(const Regex *r, const char *name, const JsonValue *text,
                         const JsonValue *want)
{
    RegexStack stack = {0};
    Err e;
    const JsonValue *pair = want->child;
    size_t at = 0, last_end = SIZE_MAX, steps = STEPS, start = 0, end = 0;
    bool found, same = true;
    while (at <= text->len) {
        must(regex_find(r, &stack, text->text, text->len, at, &steps, &found, &start, &end, &e),
             &e);
        if (!found)
            break;
        if (start == end &&
            end == last_end) { /* the empty match behind the last one does not count */
            at++;
            while (at < text->len && (text->text[at] & 0xc0) == 0x80)
                at++;
            continue;
        }
        at = last_end = end;
        if (start == end)
            continue;
        int64_t a = -1, b = -1;
        same = same && pair && json_int64(pair->child, &a) && json_int64(pair->child->next, &b) &&
               (size_t)a == start && (size_t)b == end;
        pair = pair ? pair->next : NULL;
    }
    regex_stack_free(&stack);
    if (same && !pair)
        return 0;
    fprintf(stderr, "pattern %s: other matches than the reference in \"%s\"\n", name, text->text);
    return 1;
}

static int check_cases(const char *source)
{
    char path[4096];
    TestLines lines;
    int failed = 0, n = 0;
    Err e;
    test_path(path, sizeof path, "%s/tests/data/regex_cases.jsonl", source);
    if (!test_lines_open(&lines, path))
        return 1;
    for (; test_lines_next(&lines); n++) {
        const JsonValue *pattern = json_get(lines.row, "pattern");
        Regex *r;
        must(regex_compile(pattern->text, pattern->len, &r, &e), &e);
        failed += check_matches(r, pattern->text, json_get(lines.row, "text"),
                                json_get(lines.row, "matches"));
        regex_free(r);
    }
    test_lines_close(&lines);
    printf("%d patterns on texts\n", n);
    return failed + check_true("cases are there", n > 200);
}

static const struct {
    const char *pattern, *message;
} refused[] = {
    {"(a", "a group does not end"},
    {"a)", "a parenthesis closes nothing"},
    {"[a", "a class does not end"},
    {"[]", "an empty class"},
    {"[a&&]", "an empty class"},
    {"[b-a]", "an empty range"},
    {"[\\d-z]", "a range cannot start with a class"},
    {"[a-[b]]", "a range cannot end in a class"},
    {"[[:alpha:]]", "[: :] is not supported"},
    {"*a", "nothing to repeat"},
    {"a|+", "nothing to repeat"},
    {"a{3,2}", "repeat counts"},
    {"a{1001}", "repeat counts"},
    {"(?:(?:ab){100}c){1000}", "too large"},
    {"(?:a*)*", "may match nothing"},
    {"(?:|a)+", "may match nothing"},
    {"(?=a)*", "an anchor or a look-ahead"},
    {"^*", "an anchor or a look-ahead"},
    {"(?<=a)b", "this kind of group"},
    {"(?<n>a)", "this kind of group"},
    {"(?i)a", "this kind of group"},
    {"(?x:a)", "this kind of group"},
    {"(?", "this kind of group"},
    {"\\1", "this escape"},
    {"\\k<n>", "this escape"},
    {"\\G", "this escape"},
    {"\\X", "this escape"},
    {"\\R", "this escape"},
    {"\\K", "this escape"},
    {"\\x8", "this escape"},
    {"\\xe9", "this escape"},
    {"\\ud800", "this escape"},
    {"\\x{110000}", "this escape"},
    {"\\", "a backslash at the end"},
    {"[\\", "a backslash at the end"},
    {"\\p", "\\p needs a name"},
    {"\\p{Greek}", "this property"},
    {"\\p{L", "this property"},
    {"[\\p{Zs}]", "this property"},
    {"(?i:\\p{Lu})", "inside (?i:)"},
    {"(?i:\xc3\xa9)", "ASCII only"},
    {"(?i:[a-\xc3\xa9])", "ASCII only"},
    {"(?i:straSSe)", "ligature"},
    {"a\xff", "not valid UTF-8"},
};

static int check_refused(void)
{
    int failed = 0;
    Err e;
    Regex *r;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        e.text[0] = 0;
        failed += check_int(refused[i].pattern,
                            regex_compile(refused[i].pattern, strlen(refused[i].pattern), &r, &e),
                            ST_INPUT);
        failed += check_has(refused[i].pattern, e.text, refused[i].message);
        regex_free(r);
    }
    char deep[2000];
    memset(deep, '(', sizeof deep);
    failed += check_int("2,000 parentheses", regex_compile(deep, sizeof deep, &r, &e), ST_INPUT);
    memset(deep, '[', sizeof deep);
    failed += check_int("2,000 brackets", regex_compile(deep, sizeof deep, &r, &e), ST_INPUT);
    deep[0] = 'a';
    memset(deep + 1, '?', sizeof deep - 1);
    failed += check_int("2,000 question marks", regex_compile(deep, sizeof deep, &r, &e), ST_INPUT);
    return failed;
}

/* Exponential backtracking ends in an error, and long matches take no recursion. */
static int check_limits(void)
{
    static char text[1000001];
    size_t steps = 20 * sizeof text, start = 0, end = 0;
    bool found = false;
    RegexStack stack = {0};
    Regex *r;
    Err e;
    int failed = 0;
    memset(text, 'a', sizeof text - 1);
    must(regex_compile("(?:a|aa)+b", 10, &r, &e), &e);
    failed +=
        check_int("runs away", regex_find(r, &stack, text, 60, 0, &steps, &found, &start, &end, &e),
                  ST_INPUT);
    failed += check_has("runs away", e.text, "too many steps");
    regex_free(r);
    must(regex_compile("(?:a|b)+|x", 10, &r, &e), &e);
    steps = 20 * sizeof text;
    must(regex_find(r, &stack, text, sizeof text - 1, 0, &steps, &found, &start, &end, &e), &e);
    failed += check_int("a million iterations", (int64_t)end, sizeof text - 1);
    regex_free(r);
    must(regex_compile("a+(?!a)|z", 9, &r, &e), &e);
    steps = 20 * sizeof text;
    must(regex_find(r, &stack, text, sizeof text - 1, 0, &steps, &found, &start, &end, &e), &e);
    failed += check_int("a million letters", (int64_t)end, sizeof text - 1);
    regex_free(r);
    regex_stack_free(&stack);
    return failed;
}

int main(void)
{
    const char *source = getenv("SOURCE");
    return test_result(check_cases(source ? source : ".") + check_refused() + check_limits());
}
