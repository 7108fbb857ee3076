/* tests/jobs/test_job_dir.c - whose output it is: paths, lock, identity, merge, and what a second
 * run finds. */
#include "jobs/journal.h"
#include "tests/support/check.h"
#include "tests/support/temp_dir.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUT "out.jsonl"
#define DIR OUT ".job"

static const JobIdentity mine = {.model = "aaaaaaaaaaaaaaaaaaaa1111",
                                 .tokenizer = "bbbbbbbbbbbbbbbbbbbb1111",
                                 .input = "cccccccccccccccccccc1111",
                                 .parameters = "dddddddddddddddddddd1111",
                                 .isa = "avx2",
                                 .backend = "cpu",
                                 .n_rows = 3};

static void clean(void)
{
    temp_dir_remove(DIR);
    temp_dir_remove(OUT);
}

/* ---- paths ---- */

static int test_paths(void)
{
    char too_long[1100], name_too_long[400];
    memset(too_long, 'x', sizeof too_long - 1);
    memcpy(too_long, "./", 2);
    too_long[sizeof too_long - 1] = 0;
    memset(name_too_long, 'y', sizeof name_too_long - 1);
    name_too_long[sizeof name_too_long - 1] = 0;
    const struct {
        const char *name, *out;
        Status want;
        const char *text;
    } cases[] = {
        {"empty", "", ST_USAGE, "must be a file"},
        {"standard output", "-", ST_USAGE, "must be a file"},
        {"standard output by name", "/dev/stdout", ST_USAGE, "regular file"},
        {"a descriptor", "/dev/fd/1", ST_USAGE, "regular file"},
        {"a device", "/dev/null", ST_USAGE, "regular file"},
        {"a descriptor in proc", "/proc/self/fd/2", ST_USAGE, "regular file"},
        {"directory", "some_dir", ST_USAGE, "not a directory"},
        {"directory with slash", "some_dir/", ST_USAGE, "not a directory"},
        {"a name that ends in a slash", "nothing/", ST_USAGE, "not a directory"},
        {"no directory", "none/out.jsonl", ST_IO, "No such file or directory"},
        {"a file as directory", "some_file/out.jsonl", ST_IO, "some_file is not a directory"},
        {"pipe", "some_fifo", ST_USAGE, "regular file"},
        {"link to nowhere", "some_link", ST_USAGE, "leads nowhere"},
        {"long path", too_long, ST_USAGE, "1099 bytes"},
        {"long name", name_too_long, ST_IO, "File name too long"},
        {"there without a journal", "some_file", ST_INPUT, "--overwrite"},
        {"the job directory is a file", "blocked", ST_INPUT, "not a job directory"},
    };
    int failed = 0;
    mkdir("some_dir", 0777);
    temp_dir_put("some_file", "x", 1);
    temp_dir_put("blocked.job", "x", 1);
    failed += check_int("fifo", mkfifo("some_fifo", 0666), 0);
    failed += check_int("link", symlink("nowhere", "some_link"), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Job job;
        Err e = {.text = ""};
        failed += check_int(cases[i].name, job_open(cases[i].out, false, &job, &e), cases[i].want);
        failed += check_has(cases[i].name, e.text, cases[i].text);
        job_close(&job);
    }
    failed +=
        check_int("a refused output leaves no job directory", access("some_file.job", F_OK), -1);
    failed += check_int("nor a lock", access("some_dir.job", F_OK), -1);
    return failed;
}

/* Not for root, who may write everywhere; so in a child that gives that up. */
static int test_not_writable(void)
{
    mkdir("closed", 0777);
    chmod(".", 0755);
    pid_t child = fork();
    if (child == 0) {
        int failed = 0;
        Job job;
        Err e = {.text = ""};
        if (geteuid() == 0 && setuid(65534) != 0)
            _exit(0);
        failed += check_int("closed directory", job_open("closed/out", false, &job, &e), ST_IO);
        failed += check_has("closed directory", e.text, "Permission denied");
        _exit(failed);
    }
    int status = 0;
    chmod("closed", 0555);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* ---- a whole life ---- */

static int put_row(Segment *s, int64_t row, bool error, const char *text)
{
    Err e;
    return check_int("append", segment_append(s, RECORD_RESULT, row, error, text, strlen(text), &e),
                     ST_OK);
}

/* Opens and identifies; *job is closed again unless all went well. */
static Status begin(bool overwrite, const JobIdentity *id, Job *job, Err *e)
{
    Status st = job_open(OUT, overwrite, job, e);
    if (st == ST_OK)
        st = job_identify(job, id, e);
    if (st != ST_OK)
        job_close(job);
    return st;
}

static int check_out(const char *name, const char *want)
{
    char got[200] = "";
    temp_dir_get(OUT, got, sizeof got);
    return check_str(name, got, want);
}

/* Rows 0 .. n_rows-1 by two ranks in another order; row 2 is an error row. */
static int run_rows(const Job *job, int64_t from, int64_t to)
{
    int failed = 0;
    Err e;
    Segment *s[2] = {NULL, NULL};
    for (int rank = 0; rank < 2; rank++)
        failed +=
            check_int("create", segment_create(job->dir, job->run, rank, 1, &s[rank], &e), ST_OK);
    for (int64_t row = to - 1; row >= from && failed == 0; row--) {
        char text[20];
        snprintf(text, sizeof text, "{\"row\":%d}", (int)row);
        failed += put_row(s[row % 2], row, row == 2, text);
    }
    for (int rank = 0; rank < 2; rank++)
        failed += check_int("close", segment_close(s[rank], &e), ST_OK);
    return failed;
}

#define WHOLE "{\"row\":0}\n{\"row\":1}\n{\"row\":2}\n"

static int test_life(void)
{
    int failed = 0;
    Job job;
    Err e = {.text = ""};
    int64_t n_failed = -1;
    char text[1000];
    clean();
    failed += check_int("first", begin(false, &mine, &job, &e), ST_OK);
    failed += check_int("fresh", job.state, JOB_FRESH);
    failed += check_int("run 1", job.run, 1);
    failed += run_rows(&job, 0, 1);
    failed += check_int("too early", journal_merge(&job, 3, &n_failed, &e), ST_IO);
    failed += check_has("too early", e.text, "2 of 3 rows have no result, row 1 first");
    failed += check_int("no output yet", access(OUT, F_OK), -1);
    failed += check_int("manifest", job_write_manifest(&job, "{}\n", 3, &e), ST_OK);
    job_close(&job);
    job_close(&job); /* once more is fine */

    failed += check_int("second", begin(false, &mine, &job, &e), ST_OK);
    failed += check_int("resumed", job.state, JOB_RESUMED);
    failed += check_int("run 2", job.run, 2);
    failed += run_rows(&job, 1, 3);
    failed += check_int("merge", journal_merge(&job, 3, &n_failed, &e), ST_OK);
    failed += check_int("failed rows", n_failed, 1);
    failed += check_out("merged", WHOLE);
    failed += check_int("no litter", access(OUT ".tmp", F_OK), -1);
    job_close(&job);
    failed += check_true("digest", temp_dir_get(DIR "/done.json", text, sizeof text) > 0);
    failed += check_has("digest", text,
                        "8738b08a5792563dffd03af0eb37ae48589429b774e387d9a24d38cb949ea0a5");

    failed += check_int("third", begin(false, &mine, &job, &e), ST_OK);
    failed += check_int("done", job.state, JOB_DONE);
    failed += check_int("rows", job.n_rows, 3);
    failed += check_int("failed rows", job.n_failed, 1);
    job_close(&job);

    /* The user moves the output away: the journal still has it. */
    failed += check_int("move", rename(OUT, "kept"), 0);
    failed += check_int("fourth", begin(false, &mine, &job, &e), ST_OK);
    failed += check_int("output gone", job.state, JOB_RESUMED);
    failed += check_int("merge again", journal_merge(&job, 3, &n_failed, &e), ST_OK);
    failed += check_out("merged again", WHOLE);
    job_close(&job);

    /* A copy of the output is still the output; another text is not. */
    temp_dir_remove(OUT);
    temp_dir_put(OUT, WHOLE, strlen(WHOLE));
    failed += check_int("copy", begin(false, &mine, &job, &e), ST_OK);
    failed += check_int("copy", job.state, JOB_DONE);
    job_close(&job);
    temp_dir_put(OUT, "{\"row\":0}\n{\"row\":1}\n{\"row\":9}\n", strlen(WHOLE));
    failed += check_int("changed", begin(false, &mine, &job, &e), ST_INPUT);
    failed += check_has("changed", e.text, "is not what the journal " DIR " wrote; --overwrite");
    failed += check_int("changed, overwrite", begin(true, &mine, &job, &e), ST_OK);
    failed += check_int("starts again", job.state, JOB_FRESH);
    failed += check_int("run goes on counting", job.run, 3);
    job_close(&job);
    return failed;
}

/* --overwrite replaces at the end only, and a requeued job with its own command line gets ahead. */
static int test_overwrite(void)
{
    int failed = 0;
    Job job;
    Err e = {.text = ""};
    int64_t n_failed;
    clean();
    temp_dir_put(OUT, "precious\n", 9);
    failed += check_int("refused", begin(false, &mine, &job, &e), ST_INPUT);
    failed += check_int("first", begin(true, &mine, &job, &e), ST_OK);
    failed += check_int("fresh", job.state, JOB_FRESH);
    failed += run_rows(&job, 0, 2);
    job_close(&job);
    failed += check_out("still there", "precious\n");
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        JournalScan s;
        failed += check_int("killed and requeued", begin(overwrite, &mine, &job, &e), ST_OK);
        failed += check_int("goes on", job.state, JOB_RESUMED);
        failed += check_int("scan", journal_scan(DIR, 3, &s, &e), ST_OK);
        failed += check_int("two rows kept", s.n_done, 2);
        journal_scan_free(&s);
        job_close(&job);
    }
    failed += check_int("last", begin(true, &mine, &job, &e), ST_OK);
    failed += run_rows(&job, 2, 3);
    failed += check_int("merge", journal_merge(&job, 3, &n_failed, &e), ST_OK);
    job_close(&job);
    failed += check_out("replaced", WHOLE);
    failed += check_int("done", begin(false, &mine, &job, &e), ST_OK);
    failed += check_int("done", job.state, JOB_DONE);
    job_close(&job);

    /* A finished job starts again, but nothing is discarded before the identity is known. */
    failed += check_int("open", job_open(OUT, true, &job, &e), ST_OK);
    failed += check_int("to be discarded", job.state, JOB_FRESH);
    job_close(&job);
    failed += check_int("was not", begin(false, &mine, &job, &e), ST_OK);
    failed += check_int("was not", job.state, JOB_DONE);
    job_close(&job);
    JournalScan s;
    failed += check_int("again", begin(true, &mine, &job, &e), ST_OK);
    failed += check_int("scan", journal_scan(DIR, 3, &s, &e), ST_OK);
    failed += check_int("nothing kept", s.n_segments, 0);
    journal_scan_free(&s);
    job_close(&job);

    /* An unfinished journal beside an output that somebody else put there. */
    temp_dir_put(OUT, "stranger\n", 9);
    failed += check_int("stranger", begin(false, &mine, &job, &e), ST_INPUT);
    failed += check_has("stranger", e.text, "is not what the journal");

    /* Another job with --overwrite discards. */
    JobIdentity other = mine;
    strcpy(other.input, "another");
    failed += check_int("other", begin(true, &other, &job, &e), ST_OK);
    failed += check_int("other", job.state, JOB_FRESH);
    job_close(&job);
    failed += check_int("first refused now", begin(false, &mine, &job, &e), ST_INPUT);
    failed +=
        check_has("first refused now", e.text, "in: input (journal another, now cccccccccccc)");
    return failed;
}

static int test_identity(void)
{
    static const struct {
        const char *name;
        JobIdentity now;
        const char *text;
    } cases[] = {
        {"same", {"m", "t", "i", "p", "avx2", "cpu", 3}, NULL},
        {"model",
         {"0123456789abcdef", "t", "i", "p", "avx2", "cpu", 3},
         ": model (journal m, now 0123456789ab);"},
        {"tokenizer", {"m", "", "i", "p", "avx2", "cpu", 3}, ": tokenizer (journal t, now none);"},
        {"input", {"m", "t", "x", "p", "avx2", "cpu", 3}, ": input (journal i, now x);"},
        {"parameters", {"m", "t", "i", "x", "avx2", "cpu", 3}, ": parameters (journal p, now x);"},
        {"isa", {"m", "t", "i", "p", "avx512", "cpu", 3}, ": isa (journal avx2, now avx512);"},
        {"backend", {"m", "t", "i", "p", "avx2", "cuda", 3}, ": backend (journal cpu, now cuda);"},
        {"rows", {"m", "t", "i", "p", "avx2", "cpu", 4}, ": rows (journal 3, now 4);"},
        {"two",
         {"x", "t", "i", "p", "scalar", "cpu", 3},
         ": model (journal m, now x), isa (journal avx2, now scalar);"},
    };
    const JobIdentity first = cases[0].now;
    int failed = 0;
    Job job;
    Err e = {.text = ""};
    JobIdentity old;
    clean();
    failed += check_int("first", begin(false, &first, &job, &e), ST_OK);
    job_close(&job);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Status st = begin(false, &cases[i].now, &job, &e);
        failed += check_int(cases[i].name, st, cases[i].text ? ST_INPUT : ST_OK);
        if (cases[i].text)
            failed += check_has(cases[i].name, e.text, cases[i].text);
        job_close(&job);
    }
    failed += check_int("open", job_open(OUT, false, &job, &e), ST_OK);
    failed += check_int("recorded", job_recorded(&job, &old, &e), ST_OK);
    failed += check_str("recorded", old.isa, "avx2");
    failed += check_int("recorded", old.n_rows, 3);
    job_close(&job);

    static const struct {
        const char *name, *header, *text;
    } broken[] = {
        {"empty header", "", "header.json"},
        {"not JSON", "{\"format\": 1", "header.json"},
        {"not an object", "[1]", "not of format 1"},
        {"a later format", "{\"format\": 2}", "not of format 1"},
        {"a field is missing", "{\"format\": 1, \"model\": \"x\"}", "\"tokenizer\""},
        {"a field is too long",
         "{\"format\":1,\"model\":\"x\",\"tokenizer\":\"t\",\"input\":\"i\",\"parameters\":\"p\","
         "\"isa\":\"01234567890123456\"}",
         "\"isa\""},
        {"a field is of another type", "{\"format\": 1, \"model\": 7}", "\"model\""},
    };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        clean();
        mkdir(DIR, 0777);
        temp_dir_put(DIR "/header.json", broken[i].header, strlen(broken[i].header));
        failed += check_int(broken[i].name, begin(false, &first, &job, &e), ST_INPUT);
        failed += check_has(broken[i].name, e.text, broken[i].text);
        failed += check_has(broken[i].name, e.text, "--overwrite starts again");
        failed += check_int(broken[i].name, begin(true, &first, &job, &e), ST_OK);
        failed += check_int(broken[i].name, job.state, JOB_FRESH);
        job_close(&job);
    }
    return failed;
}

/* ---- merging ---- */

static int test_merge_full(void)
{
    int failed = 0;
    Job job;
    Err e = {.text = ""};
    int64_t n_failed;
    struct rlimit before, small;
    clean();
    failed += check_int("open", begin(false, &mine, &job, &e), ST_OK);
    failed += run_rows(&job, 0, 3);
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    small = before;
    small.rlim_cur = 12;
    setrlimit(RLIMIT_FSIZE, &small);
    failed += check_int("full", journal_merge(&job, 3, &n_failed, &e), ST_IO);
    setrlimit(RLIMIT_FSIZE, &before);
    failed += check_has("full", e.text, "all results are in " DIR);
    failed += check_has("full", e.text, OUT ".tmp: ");
    failed += check_int("no output", access(OUT, F_OK), -1);
    failed += check_int("no litter", access(OUT ".tmp", F_OK), -1);
    failed += check_int("room again", journal_merge(&job, 3, &n_failed, &e), ST_OK);
    failed += check_out("room again", WHOLE);
    job_close(&job);
    return failed;
}

/* More segments than are kept open, rows larger than the buffer, an empty input. */
static int test_merge_sizes(void)
{
    enum { ROWS = 300 };
    int failed = 0;
    Job job;
    Err e = {.text = ""};
    int64_t n_failed = -1;
    JobIdentity id = mine;
    id.n_rows = ROWS;
    clean();
    char *large = malloc(5000000), *got = malloc(20000000);
    if (!large || !got)
        return check_true("memory", false);
    memset(large, 'L', 5000000);
    failed += check_int("open", begin(false, &id, &job, &e), ST_OK);
    for (int row = 0; row < ROWS && failed == 0; row++) {
        Segment *s = NULL;
        char text[20];
        size_t n = (size_t)snprintf(text, sizeof text, "row %d", row);
        failed += check_int("create", segment_create(job.dir, 1, row, 3600, &s, &e), ST_OK);
        bool big = row == 3 || row == 299;
        failed += check_int("append",
                            segment_append(s, RECORD_RESULT, (row * 37) % ROWS, false,
                                           big ? large : text, big ? 5000000 : n, &e),
                            ST_OK);
        failed += check_int("close", segment_close(s, &e), ST_OK);
    }
    failed += check_int("merge", journal_merge(&job, ROWS, &n_failed, &e), ST_OK);
    failed += check_int("no failed rows", n_failed, 0);
    long size = temp_dir_get(OUT, got, 20000000);
    char *at = got;
    int64_t wrong = 0, lines = 0;
    for (int row = 0; row < ROWS && at && size > 0; row++, lines++) {
        char want[20];
        int source = 0;
        while (source * 37 % ROWS != row)
            source++;
        char *end = strchr(at, '\n');
        snprintf(want, sizeof want, "row %d", source);
        if (!end)
            break;
        *end = 0;
        wrong += source == 3 || source == 299 ? strlen(at) != 5000000 : strcmp(at, want) != 0;
        at = end + 1;
    }
    failed += check_int("lines", lines, ROWS);
    failed += check_int("wrong lines", wrong, 0);
    failed += check_int("nothing behind", at - got, size);
    job_close(&job);
    free(large);
    free(got);

    clean();
    id.n_rows = 0;
    failed += check_int("empty", begin(false, &id, &job, &e), ST_OK);
    failed += check_int("empty", journal_merge(&job, 0, &n_failed, &e), ST_OK);
    failed += check_out("empty", "");
    failed += check_int("empty output is there", access(OUT, F_OK), 0);
    job_close(&job);
    failed += check_int("empty", begin(false, &id, &job, &e), ST_OK);
    failed += check_int("empty is done", job.state, JOB_DONE);
    job_close(&job);
    return failed;
}

/* A crash at any point around the rename: the second run ends with the same output. */
static int test_merge_crash(void)
{
    int failed = 0;
    Job job;
    Err e = {.text = ""};
    int64_t n_failed;
    clean();
    failed += check_int("open", begin(false, &mine, &job, &e), ST_OK);
    failed += run_rows(&job, 0, 3);
    failed += check_int("merge", journal_merge(&job, 3, &n_failed, &e), ST_OK);
    job_close(&job);
    rename(OUT, OUT ".tmp"); /* done.json is written, the rename did not happen */
    failed += check_int("before the rename", begin(false, &mine, &job, &e), ST_OK);
    failed += check_int("before the rename", job.state, JOB_RESUMED);
    failed += check_int("before the rename", journal_merge(&job, 3, &n_failed, &e), ST_OK);
    failed += check_out("before the rename", WHOLE);
    job_close(&job);
    temp_dir_remove(OUT);
    temp_dir_remove(DIR "/done.json");
    temp_dir_put(OUT ".tmp", "{\"row\"", 6);
    failed += check_int("in the middle", begin(false, &mine, &job, &e), ST_OK);
    failed += check_int("in the middle", journal_merge(&job, 3, &n_failed, &e), ST_OK);
    failed += check_out("in the middle", WHOLE);
    job_close(&job);
    return failed;
}

/* ---- two at once ---- */

/* A child that runs one of the two below, says so on the pipe, and waits to be killed. */
static pid_t hold(bool only_segment, const char *out)
{
    int ends[2];
    char c = 0;
    if (pipe(ends) != 0)
        return -1;
    pid_t child = fork();
    if (child == 0) {
        Job job;
        Err e;
        Segment *s = NULL;
        Status st = job_open(out, false, &job, &e);
        if (st == ST_OK && only_segment) {
            st = segment_create(job.dir, job.run, 5, 1, &s, &e);
            job_close(&job); /* as when rank 0 was killed and rank 5 was not yet */
        }
        if (write(ends[1], &c, st == ST_OK) < 0)
            _exit(1);
        pause();
        _exit(0);
    }
    close(ends[1]);
    if (read(ends[0], &c, 1) != 1) {
        fprintf(stderr, "the holder of %s did not start\n", out);
        child = -1;
    }
    close(ends[0]);
    return child;
}

static void end_holder(pid_t child)
{
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
}

/* Each refusal takes its five seconds, so they are taken side by side. */
static pid_t refused(const char *out, bool overwrite, const char *want)
{
    pid_t child = fork();
    if (child == 0) {
        Job job;
        Err e = {.text = ""};
        int failed = check_int(out, job_open(out, overwrite, &job, &e), ST_INPUT);
        failed += check_has(out, e.text, want);
        _exit(failed);
    }
    return child;
}

static int test_two(void)
{
    int failed = 0, status = 0;
    char want[200], host[65] = "";
    Job job;
    Err e = {.text = ""};
    gethostname(host, sizeof host - 1);
    pid_t whole = hold(false, "two_a"), ghost = hold(true, "two_b");
    failed += check_true("holders", whole > 0 && ghost > 0);
    snprintf(want, sizeof want, "process %d on host %s is at work", (int)whole, host);
    pid_t waiters[2] = {
        refused("two_a", false, want),
        refused("two_b", true, "segment-0001-0005.bin: a rank of an earlier run is still writing")};
    for (int i = 0; i < 2; i++) {
        waitpid(waiters[i], &status, 0);
        failed += check_true("refused", WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    end_holder(whole);
    end_holder(ghost);
    failed += check_int("its holder is dead", job_open("two_a", false, &job, &e), ST_OK);
    job_close(&job);
    failed += check_int("its ghost is gone", job_open("two_b", false, &job, &e), ST_OK);
    failed += check_int("and its run is counted", job.run, 2);
    job_close(&job);

    /* One that dies while the next waits. */
    whole = hold(false, "two_a");
    pid_t killer = fork();
    if (killer == 0) {
        usleep(300000);
        kill(whole, SIGKILL);
        _exit(0);
    }
    failed += check_int("waited for", job_open("two_a", false, &job, &e), ST_OK);
    job_close(&job);
    waitpid(killer, NULL, 0);
    end_holder(whole);
    return failed;
}

int main(void)
{
    temp_dir_enter();
    int failed = test_paths();
    failed += test_not_writable();
    failed += test_life();
    failed += test_overwrite();
    failed += test_identity();
    failed += test_merge_full();
    failed += test_merge_sizes();
    failed += test_merge_crash();
    failed += test_two();
    return test_result(failed);
}
