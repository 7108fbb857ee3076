/* tests/jobs/test_queue.c - the queue file, damaged ones, and the deal of rows to ranks. */
#include "jobs/queue.h"
#include "tests/support/check.h"
#include "tests/support/temp_dir.h"

#include <stdio.h>
#include <string.h>

static int test_deal(void)
{
    static const struct {
        const char *name;
        int64_t n, cursor, wanted[4];
        int first;
        const char *want; /* rank of each dealt record, in order */
    } cases[] = {
        {"one each in turn", 6, 0, {2, 2, 2, 2}, 0, "012301"},
        {"begins elsewhere", 5, 0, {2, 2, 2, 2}, 3, "30123"},
        {"full ranks are passed over", 8, 0, {0, 3, 1, 0}, 0, "1211"},
        {"from where it stopped", 5, 3, {9, 9, 9, 9}, 0, "01"},
        {"nobody wants any", 5, 0, {0, 0, 0, 0}, 1, ""},
        {"nothing left", 5, 5, {1, 1, 1, 1}, 2, ""},
    };
    int failed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char got[32] = "";
        int64_t end = 0;
        for (int rank = 0; rank < 4; rank++) {
            int64_t mine[16], cursor = cases[c].cursor;
            int n = queue_deal(cases[c].n, &cursor, cases[c].wanted, 4, cases[c].first, rank, mine);
            failed += check_true(cases[c].name, n <= cases[c].wanted[rank]);
            for (int i = 0; i < n; i++)
                got[mine[i] - cases[c].cursor] = (char)('0' + rank);
            failed += check_true("all ranks see the same end", rank == 0 || cursor == end);
            end = cursor;
        }
        failed += check_str(cases[c].name, got, cases[c].want);
        failed += check_int(cases[c].name, end - cases[c].cursor, (int64_t)strlen(cases[c].want));
    }
    return failed;
}

static int test_file(void)
{
    InputRecord records[5] = {
        {0, 10, 1, 0}, {11, 30, 2, 0}, {42, 10, 4, 0}, {53, 99, 5, 0}, {153, 30, 6, 0}};
    Input input = {.n_rows = 5, .records = records};
    RowPlace places[5] = {{.segment = -1},
                          {0, RECORD_RESULT, 0, 7, 8},
                          {.segment = -1},
                          {1, RECORD_PARTIAL, 0, 3, 4},
                          {.segment = -1}};
    char segments[2][SEGMENT_NAME_MAX] = {"first", "second"};
    JournalScan scan = {.rows = places, .n_rows = 5, .segments = segments, .n_segments = 2};
    /* the done row is left out; equal lengths stay in order */
    static const int64_t want[] = {3, 4, 0, 2};
    int failed = 0;
    Queue q;
    StrBuf text = {0};
    Err e;
    failed += check_int("write", queue_write(".", &input, &scan, &e), ST_OK);
    failed += check_int("open", queue_open(".", &q, &e), ST_OK);
    failed += check_int("records", q.n, 4);
    for (int i = 0; i < 4 && !failed; i++)
        failed += check_int("longest first", q.records[i].row, want[i]);
    temp_dir_put("second", "abcdefgh", 8);
    failed += check_int("read", queue_read_partial(&q, 0, &text, &e), ST_OK);
    failed += check_str("the record's bytes", text.data, "defg");
    failed += check_int("none", queue_read_partial(&q, 1, &text, &e), ST_OK);
    failed += check_int("empty", (int64_t)text.len, 0);
    temp_dir_put("second", "abcde", 5);
    failed += check_int("shorter than it was", queue_read_partial(&q, 0, &text, &e), ST_IO);
    failed +=
        check_has("shorter than it was", e.text, "second: has become shorter: byte 5 is gone");
    queue_close(&q);
    strbuf_free(&text);
    return failed;
}

static int test_damage(void)
{
    int failed = 0;
    char bytes[4096];
    Err e;
    Queue q;
    long n = temp_dir_get("queue", bytes, sizeof bytes);
    for (long cut = 0; cut < n; cut++) {
        temp_dir_put("queue", bytes, (size_t)cut);
        failed += check_int("cut short", queue_open(".", &q, &e), ST_IO);
    }
    bytes[8] = 100; /* more records than there are */
    temp_dir_put("queue", bytes, (size_t)n);
    failed += check_int("count", queue_open(".", &q, &e), ST_IO);
    failed += check_has("count", e.text, "is damaged");
    return failed;
}

int main(void)
{
    temp_dir_enter();
    return test_result(test_deal() + test_file() + test_damage());
}
