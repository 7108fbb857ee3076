/* tests/jobs/test_progress.c - the words, the numbers and the line of text that progress is made
 * of. */
#include "jobs/progress.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <string.h>

static const struct {
    double v;
    const char *want;
} humans[] = {
    {0, "0"},          {7, "7"},         {7.4, "7"},        {999, "999"},       {999.4, "999"},
    {999.5, "1.00 k"}, {1000, "1.00 k"}, {9994, "9.99 k"},  {9996, "10.0 k"},   {12345, "12.3 k"},
    {99949, "99.9 k"}, {99951, "100 k"}, {999499, "999 k"}, {999500, "1.00 M"}, {4500000, "4.50 M"},
    {1.2e9, "1.20 G"}, {3e12, "3.00 T"}, {5e15, "5.00 P"},  {5e18, "5000 P"},
};

static const struct {
    double s;
    const char *want;
} durations[] = {
    {-1, "0.0s"},     {0, "0.0s"},       {0.84, "0.8s"},   {9.94, "9.9s"},     {9.95, "10s"},
    {59.4, "59s"},    {59.6, "1m00s"},   {750, "12m30s"},  {3599.4, "59m59s"}, {3599.5, "1h00m"},
    {11100, "3h05m"}, {86399, "23h59m"}, {86400, "1d00h"}, {187200, "2d04h"},  {1e30, "46296d07h"},
};

static const struct {
    const char *name;
    ProgressCounts c;
    ProgressRates r;
    size_t cap;
    const char *want;
} lines[] = {
    {"start", {.rows_total = 20}, {.left_s = -1}, 200, "rows 0/20 (0 %); 0 tok/s in, 0 out; 0.0s"},
    {"everything",
     {10000, 1299, 3, 200, 5000, 600, 96},
     {62, 12345, 4500, 545},
     200,
     "rows 1299/10000 (12 %), 3 failed, 200 resumed; 12.3 k tok/s in, 4.50 k out; 96 running; "
     "1m02s, 9m05s left"},
    {"nearly is not all",
     {1000, 999, 0, 0, 0, 0, 1},
     {1, 1, 1, 0.2},
     200,
     "rows 999/1000 (99 %); 1 tok/s in, 1 out; 1 running; 1.0s, 0.2s left"},
    {"end",
     {20, 20, 0, 0, 1, 1, 0},
     {100, 0, 0, -1},
     200,
     "rows 20/20 (100 %); 0 tok/s in, 0 out; 1m40s"},
    {"no rows", {0}, {.left_s = 0}, 200, "rows 0/0 (100 %); 0 tok/s in, 0 out; 0.0s"},
    {"cut", {20, 20, 0, 0, 1, 1, 0}, {100, 0, 0, -1}, 12, "rows 20/20 "},
    {"cut at once", {20, 20, 0, 0, 1, 1, 0}, {100, 0, 0, -1}, 1, ""},
};

static const struct {
    const char *name;
    ProgressMode asked;
    bool terminal, launched;
    ProgressMode want;
} choices[] = {
    {"terminal", PROGRESS_AUTO, true, false, PROGRESS_LIVE},
    {"file", PROGRESS_AUTO, false, false, PROGRESS_LOG},
    {"mpirun", PROGRESS_AUTO, true, true, PROGRESS_LOG},
    {"asked for", PROGRESS_LIVE, false, true, PROGRESS_LIVE},
    {"log", PROGRESS_LOG, true, false, PROGRESS_LOG},
    {"none", PROGRESS_NONE, true, false, PROGRESS_NONE},
};

/* A run of constant speed, then half a minute without anything, seen second by second. */
static int test_rates(void)
{
    int failed = 0;
    Progress p = {.mode = PROGRESS_LOG, .start_s = 900, .working = true, .work_s = 1000};
    ProgressCounts c = {.rows_total = 1200, .rows_done = 200, .rows_resumed = 200};
    ProgressRates r = progress_rates(&p, 1000, &c);
    failed += check_near("nothing yet", r.in_per_s, 0, 0);
    failed += check_near("nothing yet: left", r.left_s, -1, 0);
    for (int s = 1; s <= 100; s++) {
        c.rows_done += 4;
        c.prompt_tokens += 50;
        c.output_tokens += 20;
        progress_sample(&p, 1000 + s, &c);
        progress_sample(&p, 1000.5 + s, &c); /* too soon to be kept */
        r = progress_rates(&p, 1000 + s, &c);
        failed += check_near("in", r.in_per_s, 50, 1e-9);
        failed += check_near("out", r.out_per_s, 20, 1e-9);
        failed += check_near("left", r.left_s, (1000 - 4 * s) / 4.0, 1e-9);
    }
    for (int s = 101; s <= 160; s++) {
        progress_sample(&p, 1000 + s, &c);
        r = progress_rates(&p, 1000 + s, &c);
    }
    failed += check_near("recently nothing", r.out_per_s, 0, 0);
    failed += check_near("elapsed, with loading", r.elapsed_s, 260, 1e-9);
    failed += check_near("rows are those of the run, then", r.left_s, 600 / (400 / 160.0), 1e-9);
    c.rows_done = c.rows_total;
    failed += check_near("all done", progress_rates(&p, 1161, &c).left_s, 0, 0);
    return failed;
}

/* What reaches stderr: a shorter line wipes the longer one before it. */
static int test_live(void)
{
    int failed = 0;
    char got[1000] = "";
    FILE *log = tmpfile();
    FILE *terminal = stderr;
    if (!log)
        return check_true("a temporary file", false);
    Progress p;
    ProgressCounts c = {.rows_total = 20, .rows_done = 3, .sequences = 5};
    progress_start(&p, PROGRESS_LIVE);
    stderr = log;
    progress_update(&p, &c); /* not due yet */
    p.due_s = p.start_s;
    p.start_s -= 100;
    p.work_s -= 100;
    progress_update(&p, &c);
    progress_update(&p, &c); /* nor this one */
    c.rows_done = 20;
    c.sequences = 0;
    progress_end(&p, &c);
    progress_start(&p, PROGRESS_NONE);
    progress_end(&p, &c);
    stderr = terminal;
    rewind(log);
    got[fread(got, 1, sizeof got - 1, log)] = 0;
    fclose(log);
    failed += check_str("live", got,
                        "\rrows 3/20 (15 %); 0 tok/s in, 0 out; 5 running; 1m40s, 9m27s left"
                        "\rrows 20/20 (100 %); 0 tok/s in, 0 out; 1m40s                     \n");
    return failed;
}

int main(void)
{
    int failed = 0;
    char text[300];
    Err e = {.text = ""};
    ProgressMode mode;
    for (size_t i = 0; i < sizeof humans / sizeof *humans; i++) {
        progress_human(humans[i].v, text);
        failed += check_str("number", text, humans[i].want);
    }
    for (size_t i = 0; i < sizeof durations / sizeof *durations; i++) {
        progress_duration(durations[i].s, text);
        failed += check_str("duration", text, durations[i].want);
    }
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        progress_format(&lines[i].c, &lines[i].r, text, lines[i].cap);
        failed += check_str(lines[i].name, text, lines[i].want);
    }
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        failed +=
            check_int(choices[i].name,
                      progress_choose(choices[i].asked, choices[i].terminal, choices[i].launched),
                      choices[i].want);
    static const char *const words[] = {"auto", "live", "log", "none"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        failed += check_int(words[i], progress_parse(words[i], &mode, &e), ST_OK);
        failed += check_int(words[i], mode, (int64_t)i);
    }
    failed += check_int("unknown word", progress_parse("bar", &mode, &e), ST_USAGE);
    failed += check_has("unknown word", e.text, "bar: auto, live, log and none");
    failed += test_rates();
    failed += test_live();
    return test_result(failed);
}
