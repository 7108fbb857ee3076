/* tests/io/test_safetensors.c - headers of safetensors files: what is read, and every way in which
 * they can be broken. */
#include "io/safetensors.h"

#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A file in memory: length, header, n_data zero bytes. The caller frees it. */
static uint8_t *make_file(const char *header, size_t n_data, size_t *len)
{
    size_t n = strlen(header);
    *len = 8 + n + n_data;
    uint8_t *file = calloc(*len + 1, 1);
    if (!file)
        abort();
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)n >> 8 * i);
    memcpy(file + 8, header, n);
    return file;
}

static int check_good(void)
{
    static const char header[] =
        "{\"__metadata__\": {\"format\": \"pt\"}, "
        "\"b\": {\"dtype\": \"F32\", \"shape\": [], \"data_offsets\": [12, 16]}, "
        "\"none\": {\"shape\": [0, 7], \"data_offsets\": [12, 12], \"dtype\": \"I64\"}, "
        "\"a\": {\"dtype\": \"BF16\", \"shape\": [2, 3], \"data_offsets\": [0, 12]}}   ";
    size_t len;
    uint8_t *file = make_file(header, 16, &len);
    SafeTensors s;
    Err e;
    int failed = check_int("good file", safetensors_parse(file, len, &s, &e), ST_OK);
    const uint8_t *data = file + 8 + sizeof header - 1;
    failed += check_int("tensors", s.n, 3);
    failed += check_int("header bytes", s.header_bytes, (int64_t)(8 + sizeof header - 1));
    if (s.n == 3) {
        failed += check_str("file order", s.entries[0].name, "b");
        failed += check_int("scalar", s.entries[0].n_dims, 0);
        failed += check_int("scalar's bytes", s.entries[0].bytes, 4);
        failed += check_int("empty", s.entries[1].bytes, 0);
        failed += check_int("dtype", s.entries[2].dtype, DTYPE_BF16);
        failed += check_true("shape", s.entries[2].n_dims == 2 && s.entries[2].shape[0] == 2 &&
                                          s.entries[2].shape[1] == 3);
        failed += check_true("data", s.entries[2].data == data && s.entries[0].data == data + 12);
    }
    safetensors_free(&s);
    free(file);

    file = make_file("{}", 0, &len);
    failed += check_int("no tensors", safetensors_parse(file, len, &s, &e), ST_OK);
    failed += check_int("none", s.n, 0);
    safetensors_free(&s);
    free(file);
    return failed;
}

static int check_dtypes(void)
{
    static const struct {
        const char *name;
        int bytes;
    } known[] = {{"BOOL", 1},    {"U8", 1},      {"I8", 1},  {"F8_E4M3", 1},
                 {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2},
                 {"F16", 2},     {"BF16", 2},    {"I32", 4}, {"U32", 4},
                 {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};
    int failed = check_int("number of dtypes", N_DTYPES, sizeof known / sizeof *known);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char header[200];
        size_t len;
        snprintf(header, sizeof header,
                 "{\"t\": {\"dtype\": \"%s\", \"shape\": [3], \"data_offsets\": [0, %d]}}",
                 known[i].name, 3 * known[i].bytes);
        uint8_t *file = make_file(header, (size_t)(3 * known[i].bytes), &len);
        SafeTensors s;
        Err e = {0};
        failed += check_int(known[i].name, safetensors_parse(file, len, &s, &e), ST_OK);
        if (s.n == 1)
            failed += check_str("its name", dtype_name(s.entries[0].dtype), known[i].name);
        safetensors_free(&s);
        free(file);
    }
    return failed;
}

#define T(inner) "{\"t\": {" inner "}}"
#define F32_2 "\"dtype\": \"F32\", \"shape\": [2]"

static const struct {
    const char *name, *header;
    size_t n_data;
    const char *message;
} broken[] = {
    {"not JSON", "{\"t\": ", 0, "header: byte"},
    {"not an object", "[1]", 0, "the header does not start with {"},
    {"starts with a space", " {}", 0, "the header does not start with {"},
    {"bytes after the object", "{} x", 0, "header: byte"},
    {"tensor is a number", "{\"t\": 1}", 0, "tensor \"t\": not an object"},
    {"empty name", "{\"\": {}}", 0, "name is empty or holds a NUL"},
    {"NUL in a name", "{\"a\\u0000b\": {}}", 0, "name is empty or holds a NUL"},
    {"no dtype", T("\"shape\": [2], \"data_offsets\": [0, 8]"), 8,
     "tensor \"t\": dtype occurs 0 times"},
    {"no shape", T("\"dtype\": \"F32\", \"data_offsets\": [0, 8]"), 8,
     "tensor \"t\": shape occurs 0 times"},
    {"no offsets", T(F32_2), 8, "tensor \"t\": data_offsets occurs 0 times"},
    {"dtype twice", T(F32_2 ", \"dtype\": \"F32\", \"data_offsets\": [0, 8]"), 8,
     "tensor \"t\": dtype occurs 2 times"},
    {"extra key", T(F32_2 ", \"data_offsets\": [0, 8], \"strides\": [4]"), 8,
     "tensor \"t\": holds more than"},
    {"dtype is a number", T("\"dtype\": 3, \"shape\": [2], \"data_offsets\": [0, 8]"), 8,
     "tensor \"t\": dtype is not a string"},
    {"unknown dtype", T("\"dtype\": \"F4_E2M1\", \"shape\": [2], \"data_offsets\": [0, 8]"), 8,
     "tensor \"t\": dtype \"F4_E2M1\" is not known"},
    {"lower case dtype", T("\"dtype\": \"f32\", \"shape\": [2], \"data_offsets\": [0, 8]"), 8,
     "tensor \"t\": dtype \"f32\" is not known"},
    {"shape is a number", T("\"dtype\": \"F32\", \"shape\": 2, \"data_offsets\": [0, 8]"), 8,
     "tensor \"t\": shape is not a list"},
    {"negative size", T("\"dtype\": \"F32\", \"shape\": [-2], \"data_offsets\": [0, 8]"), 8,
     "tensor \"t\": shape holds something that is not a size"},
    {"size with a fraction", T("\"dtype\": \"F32\", \"shape\": [2.0], \"data_offsets\": [0, 8]"), 8,
     "tensor \"t\": shape holds something that is not a size"},
    {"too many dimensions",
     T("\"dtype\": \"U8\", \"shape\": [1, 1, 1, 1, 1, 1, 1], \"data_offsets\": [0, 1]"), 1,
     "tensor \"t\": 7 dimensions, at most 6 expected"},
    {"size overflows",
     T("\"dtype\": \"F32\", \"shape\": [4294967296, 4294967296], \"data_offsets\": [0, 0]"), 0,
     "tensor \"t\": shape is larger than any file"},
    {"offsets are one number", T(F32_2 ", \"data_offsets\": [8]"), 8,
     "tensor \"t\": data_offsets is not a list of two integers"},
    {"offsets are text", T(F32_2 ", \"data_offsets\": [\"0\", \"8\"]"), 8,
     "tensor \"t\": data_offsets is not a list of two integers"},
    {"offset beyond 64 bits", T(F32_2 ", \"data_offsets\": [0, 99999999999999999999]"), 8,
     "tensor \"t\": data_offsets is not a list of two integers"},
    {"negative offset", T(F32_2 ", \"data_offsets\": [-8, 0]"), 8,
     "tensor \"t\": data_offsets -8 to 0 run backwards"},
    {"backwards", T(F32_2 ", \"data_offsets\": [8, 0]"), 8,
     "tensor \"t\": data_offsets 8 to 0 run backwards"},
    {"past the end", T(F32_2 ", \"data_offsets\": [0, 8]"), 7,
     "tensor \"t\": data ends at byte 8, but only 7 bytes of data are there"},
    {"wrong number of bytes", T(F32_2 ", \"data_offsets\": [0, 12]"), 12,
     "tensor \"t\": 12 bytes, F32 [2] expected 8"},
    {"gap in front", T(F32_2 ", \"data_offsets\": [4, 12]"), 12,
     "tensor \"t\": 4 bytes in front of it belong to none"},
    {"bytes at the end", T(F32_2 ", \"data_offsets\": [0, 8]"), 9,
     "1 bytes behind the last tensor belong to none"},
    {"overlap",
     "{\"t\": {" F32_2 ", \"data_offsets\": [0, 8]}, \"u\": {" F32_2
     ", \"data_offsets\": [4, 12]}}",
     12, "tensor \"u\": overlaps tensor \"t\""},
    {"same place",
     "{\"t\": {" F32_2 ", \"data_offsets\": [0, 8]}, \"u\": {" F32_2 ", \"data_offsets\": [0, 8]}}",
     8, "overlaps tensor"},
    {"gap between",
     "{\"t\": {" F32_2 ", \"data_offsets\": [0, 8]}, \"u\": {" F32_2
     ", \"data_offsets\": [9, 17]}}",
     17, "tensor \"u\": 1 bytes in front of it belong to none"},
    {"name twice",
     "{\"t\": {" F32_2 ", \"data_offsets\": [0, 8]}, \"t\": {" F32_2
     ", \"data_offsets\": [8, 16]}}",
     16, "tensor \"t\": occurs twice"},
    {"metadata is a list", "{\"__metadata__\": []}", 0, "__metadata__ is not an object"},
    {"metadata holds a number", "{\"__metadata__\": {\"n\": 1}}", 0, "__metadata__: \"n\""},
};

static int check_broken(void)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        size_t len;
        uint8_t *file = make_file(broken[i].header, broken[i].n_data, &len);
        SafeTensors s;
        Err e = {0};
        failed += check_int(broken[i].name, safetensors_parse(file, len, &s, &e), ST_INPUT);
        failed += check_has(broken[i].name, e.text, broken[i].message);
        failed += check_int("nothing is kept", s.n, 0);
        free(file);
    }
    return failed;
}

/* The length field itself. */
static int check_lengths(void)
{
    static const struct {
        const char *name;
        size_t len;
        uint8_t bytes[10];
        const char *message;
    } cases[] = {
        {"empty file", 0, {0}, "0 bytes, a safetensors file has at least 8"},
        {"seven bytes", 7, {2}, "7 bytes, a safetensors file has at least 8"},
        {"no header", 8, {0}, "the header does not start with {"},
        {"header past the end",
         10,
         {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'},
         "header of 3 bytes, but only 2"},
        {"huge header",
         10,
         {0, 0, 0, 0, 1, 0, 0, 0, '{', '}'},
         "header of 4294967296 bytes, at most"},
        {"negative header",
         10,
         {255, 255, 255, 255, 255, 255, 255, 255, '{', '}'},
         "header of 18446744073709551615 bytes, at most"},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SafeTensors s;
        Err e = {0};
        failed += check_int(cases[i].name, safetensors_parse(cases[i].bytes, cases[i].len, &s, &e),
                            ST_INPUT);
        failed += check_has(cases[i].name, e.text, cases[i].message);
    }
    return failed;
}

/* Whatever bytes are damaged: either refused, or every tensor lies inside the file. */
static int check_damage(void)
{
    static const char header[] =
        "{\"a\": {\"dtype\": \"BF16\", \"shape\": [2, 3], \"data_offsets\": [0, 12]}, "
        "\"b\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [12, 16]}}";
    size_t len;
    uint8_t *good = make_file(header, 16, &len), *file = malloc(len);
    uint64_t r = 12345;
    int failed = 0, n_ok = 0;
    if (!file)
        abort();
    for (int round = 0; round < 20000; round++) {
        SafeTensors s;
        Err e;
        memcpy(file, good, len);
        for (int k = 0; k < 1 + round % 3; k++) {
            r = r * 6364136223846793005u + 1442695040888963407u;
            file[(r >> 33) % len] = (uint8_t)(r >> 25);
        }
        size_t cut = round % 5 == 0 ? (size_t)(r >> 40) % len : len;
        if (safetensors_parse(file, cut, &s, &e) == ST_OK) {
            n_ok++;
            for (int i = 0; i < s.n; i++)
                if (s.entries[i].data < file || s.entries[i].data + s.entries[i].bytes > file + cut)
                    failed += check_true("tensor inside the file", false);
        }
        safetensors_free(&s);
    }
    failed += check_true("damage to data alone is not noticed", n_ok > 0 && n_ok < 10000);
    free(good);
    free(file);
    return failed;
}

/* A header as large as the largest checkpoints have must not take long. */
static int check_many(void)
{
    enum { N = 70000, ROOM = 160 };
    char *header = malloc((size_t)N * ROOM);
    size_t at = 0, len;
    int failed = 0;
    if (!header)
        abort();
    for (int i = 0; i < N; i++)
        at += (size_t)snprintf(header + at, ROOM,
                               "%s\"model.layers.%d.mlp.experts.%d.gate_proj.weight\": {\"dtype\": "
                               "\"U8\", \"shape\": [1], \"data_offsets\": [%d, %d]}",
                               i ? ", " : "{", i / 1000, i % 1000, i, i + 1);
    snprintf(header + at, ROOM, "}");
    uint8_t *file = make_file(header, N, &len);
    SafeTensors s;
    Err e = {0};
    failed += check_int("70,000 tensors", safetensors_parse(file, len, &s, &e), ST_OK);
    failed += check_int("all of them", s.n, N);
    safetensors_free(&s);
    free(header);
    free(file);
    return failed;
}

int main(void)
{
    return test_result(check_good() + check_dtypes() + check_broken() + check_lengths() +
                       check_damage() + check_many());
}
