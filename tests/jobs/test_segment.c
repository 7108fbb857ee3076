/* tests/jobs/test_segment.c - what is read back from segments that are whole, cut, damaged or full,
 * and from those of writers that were killed. */
#include "jobs/journal.h"
#include "io/log.h"
#include "tests/support/check.h"
#include "tests/support/temp_dir.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DIR "j"
#define SEGMENT DIR "/segment-0001-0000.bin"
enum { R = RECORD_RESULT, P = RECORD_PARTIAL, HEAD = RECORD_HEADER_BYTES };

static void fresh_dir(void)
{
    temp_dir_remove(DIR);
    if (mkdir(DIR, 0777) != 0)
        perror(DIR);
}

/* Standard error to nowhere while damage is reported a thousand times; returns what puts it back.
 */
static int hush(void)
{
    int saved = dup(2), null = open("/dev/null", O_WRONLY);
    dup2(null, 2);
    close(null);
    return saved;
}

static void unhush(int saved)
{
    dup2(saved, 2);
    close(saved);
}

/* ---- which record counts ---- */

typedef struct Record {
    int run, rank, kind;
    int64_t row;
    bool failed;
    const char *payload;
} Record;

/* In writing order; a new segment begins where run or rank changes. */
static int write_records(const Record *r, int n)
{
    int failed = 0;
    Err e = {.text = ""};
    Segment *s = NULL;
    for (int i = 0; i < n; i++) {
        if (i == 0 || r[i].run != r[i - 1].run || r[i].rank != r[i - 1].rank) {
            failed += check_int("close", segment_close(s, &e), ST_OK);
            s = NULL;
            failed +=
                check_int("create", segment_create(DIR, r[i].run, r[i].rank, 3600, &s, &e), ST_OK);
        }
        if (s)
            failed += check_int("append",
                                segment_append(s, r[i].kind, r[i].row, r[i].failed, r[i].payload,
                                               strlen(r[i].payload), &e),
                                ST_OK);
    }
    return failed + check_int("close", segment_close(s, &e), ST_OK);
}

static const struct {
    const char *name;
    Record records[4];
    int n;
    int64_t n_done, n_failed, n_partial, n_duplicates;
    const char *want[3]; /* per row; NULL: no record */
} choices[] = {
    {"nothing", {{0}}, 0, 0, 0, 0, 0, {NULL, NULL, NULL}},
    {"one empty result", {{1, 0, R, 1, false, ""}}, 1, 1, 0, 0, 0, {NULL, "", NULL}},
    {"error row",
     {{1, 0, R, 2, true, "e"}, {1, 0, R, 0, false, "a"}},
     2,
     2,
     1,
     0,
     0,
     {"a", NULL, "e"}},
    {"partial then result",
     {{1, 0, P, 0, false, "p"}, {2, 1, R, 0, false, "r"}},
     2,
     1,
     0,
     0,
     0,
     {"r", NULL, NULL}},
    {"result then partial",
     {{1, 0, R, 0, false, "r"}, {1, 0, P, 0, false, "p"}},
     2,
     1,
     0,
     0,
     0,
     {"r", NULL, NULL}},
    {"last partial",
     {{1, 0, P, 0, false, "p"}, {2, 3, P, 0, false, "q"}},
     2,
     0,
     0,
     1,
     0,
     {"q", NULL, NULL}},
    {"run 10 after run 9",
     {{10, 0, P, 1, false, "new"}, {9, 0, P, 1, false, "old"}},
     2,
     0,
     0,
     1,
     0,
     {NULL, "new", NULL}},
    {"first result",
     {{1, 1, R, 0, false, "1"}, {1, 2, R, 0, true, "2"}},
     2,
     1,
     0,
     0,
     1,
     {"1", NULL, NULL}},
    {"rows past the input",
     {{1, 0, R, 3, false, "x"}, {1, 0, R, 2, false, "y"}},
     2,
     1,
     0,
     0,
     0,
     {NULL, NULL, "y"}},
    {"negative row", {{1, 0, R, -1, false, "x"}}, 1, 0, 0, 0, 0, {NULL, NULL, NULL}},
};

static int test_choices(void)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        const char *name = choices[i].name;
        JournalScan s;
        StrBuf text = {.data = NULL};
        Err e;
        fresh_dir();
        failed += write_records(choices[i].records, choices[i].n);
        failed += check_int(name, journal_scan(DIR, 3, &s, &e), ST_OK);
        failed += check_int(name, s.n_done, choices[i].n_done);
        failed += check_int(name, s.n_failed, choices[i].n_failed);
        failed += check_int(name, s.n_partial, choices[i].n_partial);
        failed += check_int(name, s.n_duplicates, choices[i].n_duplicates);
        failed += check_int(name, s.dropped_bytes, 0);
        for (int64_t row = 0; row < 3; row++) {
            Status st = journal_read(DIR, &s, row, &text, &e);
            failed += check_int(name, st, choices[i].want[row] ? ST_OK : ST_IO);
            if (choices[i].want[row])
                failed += check_str(name, text.len ? text.data : "", choices[i].want[row]);
        }
        strbuf_free(&text);
        journal_scan_free(&s);
    }
    return failed;
}

/* ---- sizes around the reader's window, and bytes that look like records ---- */

static int test_sizes(void)
{
    static const size_t sizes[] = {0,       1,       HEAD - 1,         HEAD,    HEAD + 1,
                                   4 << 20, 5 << 20, (4 << 20) - HEAD, 9000000, 3};
    enum { N = sizeof sizes / sizeof *sizes };
    int failed = 0;
    Err e;
    Segment *s = NULL;
    StrBuf text = {.data = NULL};
    uint8_t *bytes = malloc(9000000);
    if (!bytes)
        return check_true("memory", false);
    for (size_t i = 0; i < 9000000; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 11);
    /* A payload that holds a whole record: only damage around it could make it count. */
    record_encode(&(RecordHeader){.kind = R, .row = 99}, bytes + 100);
    fresh_dir();
    failed += check_int("create", segment_create(DIR, 1, 0, 0.001, &s, &e), ST_OK);
    for (int i = 0; i < N; i++)
        failed += check_int("append", segment_append(s, R, i, false, bytes, sizes[i], &e), ST_OK);
    failed += check_true("live", segment_is_live(SEGMENT));
    failed += check_int("close", segment_close(s, &e), ST_OK);
    failed += check_true("not live", !segment_is_live(SEGMENT));
    failed += check_int("no second of the name", segment_create(DIR, 1, 0, 1, &s, &e), ST_IO);
    failed += check_int("no directory", segment_create("none", 1, 0, 1, &s, &e), ST_IO);
    failed += check_has("no directory", e.text, "all hosts share");

    JournalScan scan;
    failed += check_int("scan", journal_scan(DIR, 100, &scan, &e), ST_OK);
    failed += check_int("all", scan.n_done, N);
    for (int i = 0; i < N; i++) {
        failed += check_int("read", journal_read(DIR, &scan, i, &text, &e), ST_OK);
        failed += check_int("size", (int64_t)text.len, (int64_t)sizes[i]);
        failed += check_true("bytes", sizes[i] == 0 || memcmp(text.data, bytes, sizes[i]) == 0);
    }
    /* Damage after the scan is found by the reader. */
    int fd = open(SEGMENT, O_RDWR);
    char bit = (char)(bytes[2] ^ 1);
    failed += check_int("damage", pwrite(fd, &bit, 1, (off_t)scan.rows[2].offset + 2), 1);
    failed += check_int("damaged", journal_read(DIR, &scan, 2, &text, &e), ST_IO);
    failed += check_has("damaged", e.text, "row 2 is damaged");
    failed += check_int("cut", ftruncate(fd, (off_t)scan.rows[9].offset + 1), 0);
    failed += check_int("cut", journal_read(DIR, &scan, 9, &text, &e), ST_IO);
    close(fd);
    journal_scan_free(&scan);
    strbuf_free(&text);
    free(bytes);
    return failed;
}

/* ---- torn and damaged ---- */

static const Record small[] = {{1, 0, R, 0, false, "{\"a\": 1}"},
                               {1, 0, P, 1, false, "some bytes"},
                               {1, 0, R, 2, true, ""},
                               {1, 0, R, 3, false, "x"},
                               {1, 0, R, 4, false, "the last one"}};
enum { N_SMALL = sizeof small / sizeof *small };

/* The whole segment of small[] in bytes[1000], its size, and where each record ends. */
static long small_segment(uint8_t *bytes, long *ends)
{
    fresh_dir();
    if (write_records(small, N_SMALL) != 0)
        return 0;
    long at = 0;
    for (int i = 0; i < N_SMALL; i++)
        ends[i] = at += HEAD + (long)strlen(small[i].payload);
    long n = temp_dir_get(SEGMENT, bytes, 1000);
    return check_int("size of a segment", n, at) ? 0 : n;
}

static int test_truncation(void)
{
    uint8_t bytes[1000];
    long ends[N_SMALL];
    int failed = 0, before = log_warnings();
    long size = small_segment(bytes, ends);
    failed += check_true("written", size > 0);
    for (long len = 0; len <= size; len++) {
        char name[40];
        Err e;
        JournalScan s;
        int whole = 0;
        while (whole < N_SMALL && ends[whole] <= len)
            whole++;
        snprintf(name, sizeof name, "cut at %ld", len);
        temp_dir_put(SEGMENT, bytes, (size_t)len);
        failed += check_int(name, journal_scan(DIR, N_SMALL, &s, &e), ST_OK);
        failed += check_int(name, s.dropped_bytes, len - (whole ? ends[whole - 1] : 0));
        for (int row = 0; row < N_SMALL; row++)
            failed += check_int(name, s.rows[row].kind, row < whole ? small[row].kind : 0);
        journal_scan_free(&s);
    }
    failed += check_int("a torn tail is no warning", log_warnings(), before);
    return failed;
}

static int test_flips(void)
{
    uint8_t bytes[1000];
    long ends[N_SMALL];
    int failed = 0, saved = hush(), hit = 0;
    long size = small_segment(bytes, ends);
    for (long bit = 0; bit < size * 8; bit++) {
        Err e;
        JournalScan s;
        int before = log_warnings();
        while (ends[hit] <= bit / 8)
            hit++;
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        temp_dir_put(SEGMENT, bytes, (size_t)size);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        failed += journal_scan(DIR, N_SMALL, &s, &e) != ST_OK;
        for (int row = 0; row < N_SMALL; row++)
            failed += s.rows[row].kind != (row == hit ? 0 : small[row].kind);
        bool last = hit == N_SMALL - 1;
        failed += log_warnings() - before != !last;
        failed += s.dropped_bytes != (last ? ends[hit] - ends[hit - 1] : 0);
        journal_scan_free(&s);
    }
    unhush(saved);
    return check_true("size", size > 0) + check_int("flipped bits: wrong answers", failed, 0);
}

static int test_garbage(void)
{
    static const struct {
        const char *name;
        const char *before, *between, *behind;
        size_t n_before, n_between, n_behind;
        int warnings;
        int64_t dropped;
    } cases[] = {
        {"zeros behind, as after a power failure", "", "",
         "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 0, 0, 33, 0, 33},
        {"in front", "garbage", "", "", 7, 0, 0, 1, 0},
        {"between", "", "\x8e\x4d\x42", "", 0, 3, 0, 1, 0},
        {"magic alone", "\x8e\x4d\x42\xfa", "\x8e\x4d\x42\xfa", "\x8e\x4d\x42\xfa", 4, 4, 4, 2, 4},
    };
    uint8_t bytes[1000], put[1100];
    long ends[N_SMALL];
    int failed = 0;
    long size = small_segment(bytes, ends);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Err e;
        JournalScan s;
        size_t n = 0, first = (size_t)ends[0], rest = (size_t)size - first;
        memcpy(put, cases[i].before, cases[i].n_before);
        memcpy(put + (n += cases[i].n_before), bytes, first);
        memcpy(put + (n += first), cases[i].between, cases[i].n_between);
        memcpy(put + (n += cases[i].n_between), bytes + first, rest);
        memcpy(put + (n += rest), cases[i].behind, cases[i].n_behind);
        temp_dir_put(SEGMENT, put, n + cases[i].n_behind);
        int saved = hush(), before = log_warnings();
        failed += check_int(cases[i].name, journal_scan(DIR, N_SMALL, &s, &e), ST_OK);
        unhush(saved);
        failed += check_int(cases[i].name, log_warnings() - before, cases[i].warnings);
        failed += check_int(cases[i].name, s.n_done, N_SMALL - 1);
        failed += check_int(cases[i].name, s.n_partial, 1);
        failed += check_int(cases[i].name, s.dropped_bytes, cases[i].dropped);
        journal_scan_free(&s);
    }
    /* Other files of the directory, and names that are only nearly those of segments, are left
     * alone. */
    temp_dir_put(DIR "/segment-1-0.bin", "x", 1);
    temp_dir_put(DIR "/segment-0001-0000.bin~", "x", 1);
    temp_dir_put(DIR "/segment-0001-0000.bin.tmp", "x", 1);
    char(*names)[SEGMENT_NAME_MAX] = NULL;
    int n = 0;
    Err e;
    failed += check_int("names", journal_segments(DIR, &names, &n, &e), ST_OK);
    failed += check_int("one segment", n, 1);
    free(names);
    return failed;
}

/* ---- a disk that is full ---- */

static int test_full(void)
{
    struct rlimit before, small_limit;
    int failed = 0;
    char payload[200];
    Err e = {.text = ""};
    memset(payload, 'x', sizeof payload);
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    for (size_t room = 0; room < HEAD + sizeof payload; room += 7) {
        Segment *s = NULL;
        JournalScan scan;
        struct stat st;
        fresh_dir();
        failed += check_int("create", segment_create(DIR, 1, 0, 3600, &s, &e), ST_OK);
        failed +=
            check_int("first", segment_append(s, R, 0, false, payload, sizeof payload, &e), ST_OK);
        small_limit = before;
        small_limit.rlim_cur = HEAD + sizeof payload + room;
        setrlimit(RLIMIT_FSIZE, &small_limit);
        failed += check_int("no room", segment_append(s, R, 1, false, payload, sizeof payload, &e),
                            ST_IO);
        setrlimit(RLIMIT_FSIZE, &before);
        failed += check_has("no room", e.text, "segment-0001-0000.bin: File too large");
        failed +=
            check_int("cut back", stat(SEGMENT, &st) == 0 ? st.st_size : -1, HEAD + sizeof payload);
        failed += check_int("room again",
                            segment_append(s, R, 1, false, payload, sizeof payload, &e), ST_OK);
        failed += check_int("close", segment_close(s, &e), ST_OK);
        failed += check_int("scan", journal_scan(DIR, 2, &scan, &e), ST_OK);
        failed += check_int("both", scan.n_done, 2);
        failed += check_int("nothing torn", scan.dropped_bytes, 0);
        journal_scan_free(&scan);
    }
    return failed;
}

/* The same on a file system that is really full, where this process may mount one. */
static int test_full_disk(void)
{
    int failed = 0;
    Err e = {.text = ""};
    char payload[3000];
    Segment *s = NULL;
    JournalScan scan;
    int64_t n = 0;
    memset(payload, 'x', sizeof payload);
    temp_dir_remove(DIR);
    mkdir(DIR, 0777);
    if (mount("tmpfs", DIR, "tmpfs", 0, "size=64k") != 0) {
        printf("a full disk: not tried, this process may not mount one\n");
        return 0;
    }
    failed += check_int("create", segment_create(DIR, 1, 0, 3600, &s, &e), ST_OK);
    while (s && segment_append(s, R, n, false, payload, sizeof payload, &e) == ST_OK)
        n++;
    failed += check_has("full", e.text, "No space left on device");
    failed += check_int("close", segment_close(s, &e), ST_OK);
    failed += check_int("scan", journal_scan(DIR, 100, &scan, &e), ST_OK);
    failed += check_int("all that fitted", scan.n_done, n);
    failed += check_true("some fitted", n > 10);
    failed += check_int("nothing torn", scan.dropped_bytes, 0);
    journal_scan_free(&scan);
    umount2(DIR, MNT_DETACH);
    return failed;
}

/* ---- writers that are killed ---- */

enum { CRASH_ROWS = 4000, KILLS = 50 };

static size_t crash_payload(int64_t row, char *out)
{
    size_t n = (size_t)(row * 7919 % 3000) + 1;
    memset(out, 'a' + (int)(row % 26), n);
    return n;
}

/* Writes the rows that have no result yet, as fast as it can, and says after each on fd that its
 * write has returned. */
static void crash_writer(int run, int fd)
{
    char payload[3001];
    Err e;
    Segment *s = NULL;
    JournalScan scan;
    if (journal_scan(DIR, CRASH_ROWS, &scan, &e) != ST_OK ||
        segment_create(DIR, run, 0, 0.001, &s, &e) != ST_OK)
        _exit(1);
    for (int64_t row = 0; row < CRASH_ROWS; row++) {
        if (scan.rows[row].kind == R)
            continue;
        size_t n = crash_payload(row, payload);
        if (segment_append(s, R, row, false, payload, n, &e) != ST_OK ||
            write(fd, &row, sizeof row) != sizeof row)
            _exit(1);
    }
    _exit(segment_close(s, &e) != ST_OK);
}

/* One run: killed after a while, or complete. What it reported is marked in said[]. */
static int crash_run(int run, long nap_ns, char *said, bool *killed)
{
    int ends[2], status = 0;
    if (pipe(ends) != 0)
        return check_true("pipe", false);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        crash_writer(run, ends[1]);
    }
    close(ends[1]);
    /* The pipe must be emptied while the child runs, or its writes would wait for us; so a second
     * child does the killing. It starts with the first row, so that slow builds get ahead too. */
    pid_t killer = -1;
    int64_t row;
    while (read(ends[0], &row, sizeof row) == sizeof row) {
        said[row] = 1;
        if (killer >= 0)
            continue;
        killer = fork();
        if (killer == 0) {
            nanosleep(&(struct timespec){.tv_nsec = nap_ns}, NULL);
            kill(child, SIGKILL);
            _exit(0);
        }
    }
    close(ends[0]);
    if (killer > 0)
        waitpid(killer, NULL, 0);
    waitpid(child, &status, 0);
    *killed = WIFSIGNALED(status);
    return *killed ? 0 : check_int("a writer that was not killed", WEXITSTATUS(status), 0);
}

static int test_crash(void)
{
    int failed = 0, kills = 0, mid = 0, jobs = 0;
    int64_t finished = 0;
    unsigned random = 12345;
    while (kills < KILLS && failed == 0) {
        char said[CRASH_ROWS] = {0}, want[3001];
        bool killed = true;
        fresh_dir();
        for (int run = 1; killed && failed == 0; run++) {
            JournalScan s;
            StrBuf text = {.data = NULL};
            Err e;
            random = random * 1103515245u + 12345u;
            failed += crash_run(run, (long)(random >> 8) % 25000000, said, &killed);
            kills += killed;
            failed += check_int("scan", journal_scan(DIR, CRASH_ROWS, &s, &e), ST_OK);
            mid += s.dropped_bytes > 0;
            int64_t lost = 0;
            for (int64_t row = 0; row < CRASH_ROWS; row++)
                lost += said[row] && s.rows[row].kind != R;
            failed += check_int("lost rows", lost, 0);
            failed += check_int("doubled rows", s.n_duplicates, 0);
            failed += check_true("an unfinished job is one that was killed",
                                 killed || s.n_done == CRASH_ROWS);
            for (int64_t row = 0; row < CRASH_ROWS && !killed; row++) {
                size_t n = crash_payload(row, want);
                failed += journal_read(DIR, &s, row, &text, &e) != ST_OK || text.len != n ||
                          memcmp(text.data, want, n) != 0;
            }
            finished += killed ? 0 : s.n_done;
            strbuf_free(&text);
            journal_scan_free(&s);
        }
        jobs++;
    }
    printf("crash: %d kills over %d jobs, %lld rows, %d torn tails, 0 lost, 0 doubled wanted\n",
           kills, jobs, (long long)finished, mid);
    return failed + check_true("rows were written", finished > 0);
}

int main(void)
{
    temp_dir_enter();
    int failed = test_choices();
    int stranger_warnings = log_warnings(); /* of the rows past the input */
    failed += check_int("rows past the input are reported", stranger_warnings, 2);
    failed += test_sizes();
    failed += check_int("whole segments give no warnings", log_warnings(), stranger_warnings);
    failed += test_truncation();
    failed += test_flips();
    failed += test_garbage();
    failed += test_full();
    failed += test_full_disk();
    failed += test_crash();
    return test_result(failed);
}
