/* tests/jobs/test_input.c - what is a row and what is not, ids used twice, long lines, files that
 * change. */
#include "io/digest.h"
#include "jobs/input.h"
#include "tests/support/check.h"
#include "tests/support/temp_dir.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[TEMP_DIR_MAX];
static char file_path[TEMP_DIR_MAX + 16], index_path[TEMP_DIR_MAX + 16];

enum { MAX_ROWS = 6 };

typedef struct WantRow {
    int line, duplicate_of;
    const char *text; /* may hold no NUL here; lines with one are checked apart */
} WantRow;

static const struct {
    const char *name, *bytes;
    size_t len; /* 0: strlen */
    int n_rows;
    WantRow rows[MAX_ROWS];
} cases[] = {
    {"empty file", "", 0, 0, {{0}}},
    {"only a BOM", "\xef\xbb\xbf", 0, 0, {{0}}},
    {"only blank lines", "\n\r\n  \t\n\n \r", 0, 0, {{0}}},
    {"one line without its end", "{\"a\":1}", 0, 1, {{1, 0, "{\"a\":1}"}}},
    {"BOM, CRLF and blank lines",
     "\xef\xbb\xbf{\"a\":1}\r\n\r\n{\"b\":2}\r\n",
     0,
     2,
     {{1, 0, "{\"a\":1}"}, {3, 0, "{\"b\":2}"}}},
    {"a BOM later on is part of its line",
     "1\n\xef\xbb\xbf{}\n",
     0,
     2,
     {{1, 0, "1"}, {2, 0, "\xef\xbb\xbf{}"}}},
    {"only the last CR belongs to the line end", "{}\r\r\n", 0, 1, {{1, 0, "{}\r"}}},
    {"other separators end no line",
     "[\"\xe2\x80\xa8\xe2\x80\xa9\xc2\x85\v\f\"]\n2\n",
     0,
     2,
     {{1, 0, "[\"\xe2\x80\xa8\xe2\x80\xa9\xc2\x85\v\f\"]"}, {2, 0, "2"}}},
    {"a lone U+2028 is not blank", "\xe2\x80\xa8\n", 0, 1, {{1, 0, "\xe2\x80\xa8"}}},
    {"bad UTF-8 is a row", "\xff\xfe\n{}", 0, 2, {{1, 0, "\xff\xfe"}, {2, 0, "{}"}}},
    {"an id used twice",
     "{\"custom_id\":\"a\"}\n\n{\"custom_id\":\"b\"}\n{\"custom_id\":\"a\"}\n{\"custom_id\":\"a\"}",
     0,
     4,
     {{1, 0, NULL}, {3, 0, NULL}, {4, 1, NULL}, {5, 1, NULL}}},
    {"escapes spell the same id",
     "{\"custom_id\":\"a\\u0062\"}\n{\"custom\\u005fid\":\"ab\"}\n{\"custom_id\":\"ab\"}\n",
     0,
     3,
     {{1, 0, NULL}, {2, 1, NULL}, {3, 1, NULL}}},
    {"ids deeper down do not count",
     "{\"body\":{\"custom_id\":\"a\"},\"custom_id\":\"b\"}\n{\"custom_id\":\"a\",\"x\":[{\"custom_"
     "id\":\"b\"}]}\n",
     0,
     2,
     {{1, 0, NULL}, {2, 0, NULL}}},
    {"brackets and quotes inside strings",
     "{\"prompt\":\"}]\\\"\\\\\",\"custom_id\":\"a\"}\n{\"x\":[\"]\",{\"y\":\"}\"}],\"custom_id\":"
     "\"a\"}\n",
     0,
     2,
     {{1, 0, NULL}, {2, 1, NULL}}},
    {"a line that is not JSON owns no id",
     "{\"custom_id\":\"a\",\"x\":truth}\n{\"custom_id\":\"a\"}\n{\"custom_id\":\"a\"}\n",
     0,
     3,
     {{1, 0, NULL}, {2, 0, NULL}, {3, 2, NULL}}},
    {"two ids in a line are none",
     "{\"custom_id\":\"a\",\"custom_id\":\"a\"}\n{\"custom_id\":\"a\"}\n",
     0,
     2,
     {{1, 0, NULL}, {2, 0, NULL}}},
    {"an id that is not a string is none",
     "{\"custom_id\":7}\n{\"custom_id\":7}\n{\"custom_id\":null}\n{\"custom_id\":null}\n",
     0,
     4,
     {{1, 0, NULL}, {2, 0, NULL}, {3, 0, NULL}, {4, 0, NULL}}},
    {"empty ids are ids",
     "{\"custom_id\":\"\"}\n{\"custom_id\":\"\"}\n",
     0,
     2,
     {{1, 0, NULL}, {2, 1, NULL}}},
    {"broken lines",
     "{\"custom_id\":\"a\n{\"custom_id\":\"a\"\n{\"custom_id\" "
     "\"a\"}\n[\"custom_id\"]\n{\"custom_id\":\"a\",}\n{",
     0,
     6,
     {{1, 0, NULL}, {2, 0, NULL}, {3, 0, NULL}, {4, 0, NULL}, {5, 0, NULL}, {6, 0, NULL}}},
    {"NUL bytes are part of a line", "{\"a\":\0}\n\0\n", 9, 2, {{1, 0, NULL}, {2, 0, NULL}}},
};

static int write_file(const char *bytes, size_t len)
{
    int fd = open(file_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int failed = check_true("write the input", fd >= 0 && write(fd, bytes, len) == (ssize_t)len);
    if (fd >= 0)
        close(fd);
    return failed;
}

static int test_case(size_t i)
{
    Err e = {0};
    Input in;
    StrBuf line = {0};
    uint8_t got[32], want[32];
    int64_t n_rows = -1;
    size_t len = cases[i].len ? cases[i].len : strlen(cases[i].bytes);
    int failed = write_file(cases[i].bytes, len);
    failed += check_int(cases[i].name, input_scan(file_path, index_path, got, &n_rows, &e), ST_OK);
    failed += check_int(cases[i].name, sha256_of(cases[i].bytes, len, want, &e), ST_OK);
    failed += check_true(cases[i].name, memcmp(got, want, 32) == 0);
    failed += check_int(cases[i].name, n_rows, cases[i].n_rows);
    if (check_int(cases[i].name, input_open(file_path, index_path, &in, &e), ST_OK))
        return failed + 1;
    failed += check_int(cases[i].name, in.n_rows, cases[i].n_rows);
    for (int64_t r = 0; r < in.n_rows && r < MAX_ROWS; r++) {
        const WantRow *w = &cases[i].rows[r];
        failed += check_int(cases[i].name, (int64_t)in.records[r].line, w->line);
        failed += check_int(cases[i].name, (int64_t)in.records[r].duplicate_of, w->duplicate_of);
        failed += check_int(cases[i].name, input_read(&in, r, &line, &e), ST_OK);
        if (w->text)
            failed += check_str(cases[i].name, line.data, w->text);
    }
    failed += check_int(cases[i].name, input_read(&in, in.n_rows, &line, &e), ST_INPUT);
    strbuf_free(&line);
    input_close(&in);
    return failed;
}

/* Lines around the size of a piece (1 MiB), each with an id behind a long prompt; every third id is
 * used again. */
static int test_long_lines(void)
{
    static const size_t lengths[] = {1, 1 << 20, (1 << 20) - 40, 3, (3 << 20) + 5, (1 << 20) + 1,
                                     2};
    enum { N = sizeof lengths / sizeof *lengths };
    Err e = {0};
    Input in;
    uint8_t digest[32];
    int64_t n_rows = 0;
    StrBuf file = {0}, line = {0};
    char *fill = malloc(4 << 20);
    if (check_true("memory", fill != NULL))
        return 1;
    memset(fill, 'x', 4 << 20);
    for (size_t i = 0; i < N; i++) {
        strbuf_str(&file, "{\"prompt\":\"");
        strbuf_add(&file, fill, lengths[i]);
        strbuf_fmt(&file, "\",\"custom_id\":\"id %zu\"}%s", i % 3, i + 1 < N ? "\n" : "");
    }
    int failed = write_file(file.data, file.len);
    failed += check_int("long lines: scan", input_scan(file_path, index_path, digest, &n_rows, &e),
                        ST_OK);
    failed += check_int("long lines: rows", n_rows, N);
    failed += check_int("long lines: open", input_open(file_path, index_path, &in, &e), ST_OK);
    for (int64_t r = 0; r < in.n_rows; r++) {
        failed += check_int("long lines: first use", (int64_t)in.records[r].duplicate_of,
                            r < 3 ? 0 : r % 3 + 1);
        failed += check_int("long lines: read", input_read(&in, r, &line, &e), ST_OK);
        failed += check_int("long lines: bytes", (int64_t)line.len, (int64_t)lengths[r] + 32);
        failed += check_true("long lines: ends", line.len && line.data[line.len - 1] == '}');
    }
    failed += check_int("shrink it", truncate(file_path, (off_t)file.len - 1), 0);
    failed += check_int("the last line is cut", input_read(&in, N - 1, &line, &e), ST_IO);
    failed += check_has("the last line is cut", e.text, "shorter");
    failed += check_int("the others are there", input_read(&in, 0, &line, &e), ST_OK);
    input_close(&in);
    input_close(&in);
    strbuf_free(&file);
    strbuf_free(&line);
    free(fill);
    return failed;
}

/* Enough rows that the table grows many times and records are read back from the file. */
static int test_many_rows(void)
{
    enum { N = 60001, EVERY = 7 };
    Err e = {0};
    Input in;
    uint8_t digest[32];
    int64_t n_rows = 0, wrong = 0;
    StrBuf file = {0};
    for (int i = 0; i < N; i++)
        strbuf_fmt(&file, "{\"custom_id\":\"row-%d\",\"prompt\":\"p\"}\n",
                   i % EVERY == 6 ? i / 2 : i);
    int failed = write_file(file.data, file.len);
    failed +=
        check_int("many rows: scan", input_scan(file_path, index_path, digest, &n_rows, &e), ST_OK);
    failed += check_int("many rows: rows", n_rows, N);
    failed += check_int("many rows: open", input_open(file_path, index_path, &in, &e), ST_OK);
    for (int i = 0; i < N && i < in.n_rows; i++) {
        int64_t want = 0; /* a row i that took i / 2 meets row i / 2, if that one kept its own id */
        if (i % EVERY == 6 && (i / 2) % EVERY != 6)
            want = i / 2 + 1;
        wrong += (int64_t)in.records[i].duplicate_of != want;
    }
    failed += check_int("many rows: first uses", wrong, 0);
    input_close(&in);
    strbuf_free(&file);
    return failed;
}

static int test_refusals(void)
{
    Err e = {0};
    Input in;
    uint8_t digest[32];
    int64_t n_rows;
    char missing[TEMP_DIR_MAX + 16], nowhere[TEMP_DIR_MAX + 16];
    snprintf(missing, sizeof missing, "%s/absent", dir);
    snprintf(nowhere, sizeof nowhere, "%s/absent/index", dir);
    int failed = write_file("{}\n", 3);
    failed += check_int("no input", input_scan(missing, index_path, digest, &n_rows, &e), ST_IO);
    failed += check_has("no input", e.text, missing);
    failed += check_int("a directory", input_scan(dir, index_path, digest, &n_rows, &e), ST_INPUT);
    failed += check_int("no place for the index",
                        input_scan(file_path, nowhere, digest, &n_rows, &e), ST_IO);
    failed += check_int("no index", input_open(file_path, missing, &in, &e), ST_IO);
    failed += check_int("an index of 3 bytes", input_open(file_path, file_path, &in, &e), ST_INPUT);
    return failed;
}

int main(void)
{
    int failed = 0;
    if (!temp_dir_create(dir))
        return check_true("a directory for the test", false);
    snprintf(file_path, sizeof file_path, "%s/rows.jsonl", dir);
    snprintf(index_path, sizeof index_path, "%s/index", dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        failed += test_case(i);
    failed += test_long_lines();
    failed += test_many_rows();
    failed += test_refusals();
    temp_dir_remove(dir);
    return test_result(failed);
}
