/* tests/app/test_options.c - flags: values, ranges, sizes, and what a wrong one says. */
#include "app/options.h"
#include "tests/support/check.h"

#include <stdint.h>
#include <string.h>

static const char *text;
static int number;
static double ratio;
static size_t size;
static bool flag, given;
static OptionList list;

static const Option options[] = {
    {"--model", "-m", OPTION_TEXT, &text, &given, 0, 0, "DIR", "the model"},
    {"--count", NULL, OPTION_INT, &number, NULL, 1, 100, "N", "a number"},
    {"--ratio", NULL, OPTION_NUMBER, &ratio, NULL, 0, 1, "X", "a ratio"},
    {"--size", NULL, OPTION_SIZE, &size, NULL, 0, 0, "SIZE", "bytes"},
    {"--flag", NULL, OPTION_FLAG, &flag, NULL, 0, 0, NULL, "a flag"},
    {"--key", NULL, OPTION_LIST, &list, NULL, 0, 0, "KEY", "keys"},
};

static Status parse(const char *line, Err *e)
{
    static char copy[200];
    char *argv[20] = {"command"};
    int argc = 1, n_positional = 0;
    bool help;
    const char *positional[2];
    strcpy(copy, line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    e->text[0] = 0;
    return options_parse(options, sizeof options / sizeof *options, argc, argv, positional, 1,
                         &n_positional, &help, e);
}

int main(void)
{
    static const struct {
        const char *line, *message;
    } wrong[] = {
        {"--nope 1", "unknown option \"--nope\""},
        {"--count", "--count: needs a value (N)"},
        {"--count x", "expected an integer"},
        {"--count 0", "from 1 to 100"},
        {"--count 1.5", "expected an integer"},
        {"--count=99999999999999999999", "expected an integer"},
        {"--ratio nan", "expected a number"},
        {"--ratio 2", "from 0 to 1"},
        {"--size 1Q", "expected a size"},
        {"--size -1", "expected a size"},
        {"--flag=1", "takes no value"},
        {"a b", "unexpected argument \"b\""},
    };
    int failed = 0;
    Err e;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        failed += check_int(wrong[i].line, parse(wrong[i].line, &e), ST_USAGE);
        failed += check_has(wrong[i].line, e.text, wrong[i].message);
    }
    failed += check_int(
        "all kinds",
        parse("-m dir --count=7 --ratio 0.5 --size 1.5G --flag --key a --key b file", &e), ST_OK);
    failed += check_str("text", text, "dir") + check_true("given", given) +
              check_int("number", number, 7);
    failed += check_near("ratio", ratio, 0.5, 0) + check_int("size", (int64_t)size, 3LL << 29);
    failed += check_true("flag", flag) + check_int("list", list.n, 2) +
              check_str("second", list.at[1], "b");
    static const struct {
        const char *line;
        int64_t bytes;
    } sizes[] = {{"--size 0", 0},
                 {"--size 512", 512},
                 {"--size 4k", 4096},
                 {"--size 2MiB", 2 << 20},
                 {"--size 1T", 1LL << 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        failed += check_int(sizes[i].line, parse(sizes[i].line, &e), ST_OK);
        failed += check_int(sizes[i].line, (int64_t)size, sizes[i].bytes);
    }
    return test_result(failed);
}
