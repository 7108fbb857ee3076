/* tests/io/test_safetensors_write.c - files written tensor by tensor are what the reader takes, and
 * appear whole or not at all; JSON is printed back as it was read. */
#include "io/file.h"
#include "io/json_print.h"
#include "io/safetensors_write.h"
#include "tests/support/check.h"
#include "tests/support/temp_dir.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static TensorPlan plan[] = {
    {.name = "bytes", .dtype = DTYPE_U8, .n_dims = 3, .shape = {1, 3, 1}},
    {.name = "half \"quoted\"", .dtype = DTYPE_BF16, .n_dims = 1, .shape = {5}},
    {.name = "scalar", .dtype = DTYPE_F32, .n_dims = 0},
    {.name = "none", .dtype = DTYPE_F32, .n_dims = 2, .shape = {0, 7}},
    {.name = "long", .dtype = DTYPE_I64, .n_dims = 1, .shape = {2}},
    {.name = "more bytes", .dtype = DTYPE_F8_E4M3, .n_dims = 2, .shape = {2, 2}},
};
enum { N = sizeof plan / sizeof *plan };

static int test_file(void)
{
    static const char *const metadata[] = {"format", "pt", "other", "a \"b\"", NULL};
    StrBuf header = {0};
    TensorFile f;
    FileMap map;
    SafeTensors parsed;
    Err e = {0};
    int64_t bytes;
    int failed =
        check_int("lay out", safetensors_lay_out(plan, N, metadata, &header, &bytes, &e), ST_OK);
    failed += check_int("header's length", (int64_t)header.len % 8, 0);
    failed += check_int("file's length", bytes, (int64_t)header.len + 3 + 10 + 4 + 0 + 16 + 4);
    failed += check_true("not there yet", !tensor_file_is("a.safetensors", &header, bytes));
    failed +=
        check_int("create", tensor_file_create("a.safetensors", &header, bytes, &f, &e), ST_OK);
    failed += check_true("under another name", !file_exists("a.safetensors"));
    for (int i = N - 1; i >= 0; i--) { /* in any order, in pieces */
        failed += check_int("aligned", plan[i].offset % dtype_bytes(plan[i].dtype), 0);
        for (int64_t at = 0; at < plan[i].bytes; at++) {
            uint8_t byte = (uint8_t)(i * 40 + at);
            failed +=
                check_int("put", tensor_file_put(&f, plan[i].offset + at, &byte, 1, &e), ST_OK);
        }
    }
    failed += check_int("finish", tensor_file_finish(&f, &e), ST_OK);
    tensor_file_abandon(&f); /* of a finished one: nothing */
    failed += check_true("the other name is gone", !file_exists("a.safetensors.tmp"));
    failed += check_true("is it", tensor_file_is("a.safetensors", &header, bytes));
    failed += check_true("another size", !tensor_file_is("a.safetensors", &header, bytes + 1));

    if (check_int("map", file_map("a.safetensors", &map, &e), ST_OK) ||
        check_int("parse", safetensors_parse(map.data, map.len, &parsed, &e), ST_OK))
        return failed + 1;
    failed += check_int("tensors", parsed.n, N);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < parsed.n; j++) {
            const TensorEntry *t = &parsed.entries[j];
            if (strcmp(t->name, plan[i].name) != 0)
                continue;
            failed += check_int(t->name, t->dtype, plan[i].dtype);
            failed += check_int(t->name, t->n_dims, plan[i].n_dims);
            for (int64_t at = 0; at < t->bytes; at++)
                failed += check_int(t->name, t->data[at], (uint8_t)(i * 40 + at));
        }
    safetensors_free(&parsed);
    file_unmap(&map);
    header.data[header.len - 1] = '\n'; /* a header of another plan */
    failed += check_true("another header", !tensor_file_is("a.safetensors", &header, bytes));
    strbuf_free(&header);
    return failed;
}

static int test_failures(void)
{
    StrBuf header = {0};
    TensorFile f;
    Err e = {0};
    int64_t bytes;
    struct rlimit most = {20, RLIM_INFINITY}, before;
    int failed =
        check_int("nothing", safetensors_lay_out(NULL, 0, NULL, &header, &bytes, &e), ST_OK);
    failed += check_str("empty header", header.data + 8, "{}      ");
    failed += check_int("no directory", tensor_file_create("no/a", &header, bytes, &f, &e), ST_IO);
    failed += check_has("its message", e.text, "no/a");

    failed += check_int("lay out", safetensors_lay_out(plan, N, NULL, &header, &bytes, &e), ST_OK);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    setrlimit(RLIMIT_FSIZE, &most);
    failed +=
        check_int("no room", tensor_file_create("b.safetensors", &header, bytes, &f, &e), ST_IO);
    setrlimit(RLIMIT_FSIZE, &before);
    failed += check_has("its message", e.text, "b.safetensors.tmp");
    failed += check_true("nothing left", !file_exists("b.safetensors.tmp"));

    failed +=
        check_int("create", tensor_file_create("c.safetensors", &header, bytes, &f, &e), ST_OK);
    tensor_file_abandon(&f);
    failed += check_true("abandoned", !file_exists("c.safetensors.tmp"));
    strbuf_free(&header);
    return failed;
}

static int test_json(void)
{
    static const char *const drop[] = {"gone", NULL};
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"{}", "{}"},
        {"[1e-05, 10000.0, 12345678901234567890]", "[1e-05, 10000.0, 12345678901234567890]"},
        {"{\"a\":true,\"gone\":{\"x\":1},\"b\":[null,false]}",
         "{\n  \"a\": true,\n  \"b\": [null, false]\n}"},
        {"[{\"gone\":1},[\"\\u00e4\\n\"]]", "[\n  {},\n  [\"\xc3\xa4\\n\"]\n]"},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena arena = {0};
        JsonValue *v;
        StrBuf out = {0};
        Err e;
        failed += check_int(
            "parse", json_parse(cases[i].text, strlen(cases[i].text), &arena, &v, &e), ST_OK);
        json_print(v, drop, 0, &out);
        failed += check_str("printed", out.data, cases[i].want);
        strbuf_free(&out);
        arena_free(&arena);
    }
    return failed;
}

int main(void)
{
    temp_dir_enter();
    return test_result(test_file() + test_failures() + test_json());
}
