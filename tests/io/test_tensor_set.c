/* tests/io/test_tensor_set.c - checkpoints in one file and in parts, and indexes that do not tell
 * the truth. */
#include "io/tensor_set.h"

#include "io/log.h"
#include "tests/support/check.h"
#include "tests/support/temp_dir.h"

#include <stdio.h>
#include <string.h>

static const char DIR[] = "d";

static void put(const char *name, const void *bytes, size_t len)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%s", DIR, name);
    temp_dir_put(path, bytes, len);
}

/* A file whose header is given and whose data are n_data zero bytes. */
static void put_part(const char *name, const char *header, size_t n_data)
{
    uint8_t file[1024] = {0};
    size_t n = strlen(header);
    file[0] = (uint8_t)n;
    file[1] = (uint8_t)(n >> 8);
    memcpy(file + 8, header, n);
    put(name, file, 8 + n + n_data);
}

#define A "\"a\": {\"dtype\": \"U8\", \"shape\": [3], \"data_offsets\": [0, 3]}"
#define B "\"b\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [3, 7]}"
#define C "\"c\": {\"dtype\": \"U8\", \"shape\": [5], \"data_offsets\": [0, 5]}"
#define MAP(inner) "{\"metadata\": {\"total_size\": 12}, \"weight_map\": {" inner "}}"

static void put_all(const char *index, const char *second)
{
    temp_dir_fresh(DIR);
    put_part("p1.safetensors", "{" A ", " B "}", 7);
    put_part("p2.safetensors", second, 5);
    put("model.safetensors.index.json", index, strlen(index));
}

static const struct {
    const char *name, *index, *second; /* second: header of p2, of 5 bytes of data */
    Status status;
    const char *message;
} broken[] = {
    {"index is not JSON", "{", "{" C "}", ST_INPUT, "model.safetensors.index.json: byte"},
    {"no map", "{}", "{" C "}", ST_INPUT, "model.safetensors.index.json: weight_map is missing"},
    {"empty map", MAP(""), "{" C "}", ST_INPUT, "weight_map is missing or empty"},
    {"index is a list", "[1]", "{" C "}", ST_INPUT, "weight_map is missing or empty"},
    {"part is a number", MAP("\"a\": 1"), "{" C "}", ST_INPUT,
     "tensor \"a\": \"\" is not the name"},
    {"part elsewhere", MAP("\"a\": \"../p1.safetensors\""), "{" C "}", ST_INPUT,
     "tensor \"a\": \"../p1.safetensors\" is not the name of a .safetensors file in this "
     "directory"},
    {"absolute part", MAP("\"a\": \"/tmp/p1.safetensors\""), "{" C "}", ST_INPUT,
     "tensor \"a\": \"/tmp/p1.safetensors\" is not the name"},
    {"part of another kind", MAP("\"a\": \"p1.bin\""), "{" C "}", ST_INPUT,
     "tensor \"a\": \"p1.bin\" is not the name"},
    {"NUL in a part", MAP("\"a\": \"p1\\u0000.safetensors\""), "{" C "}", ST_INPUT,
     "tensor \"a\": \"p1"},
    {"listed twice", MAP("\"a\": \"p1.safetensors\", \"a\": \"p1.safetensors\""), "{" C "}",
     ST_INPUT, "tensor \"a\": listed twice"},
    {"part is absent", MAP("\"a\": \"p1.safetensors\", \"c\": \"p3.safetensors\""), "{" C "}",
     ST_IO, "p3.safetensors: No such file"},
    {"listed, but absent",
     MAP("\"a\": \"p1.safetensors\", \"b\": \"p1.safetensors\", \"c\": \"p2.safetensors\", "
         "\"d\": \"p2.safetensors\""),
     "{" C "}", ST_INPUT,
     "p2.safetensors: tensor \"d\": listed in model.safetensors.index.json, but not there"},
    {"there, but not listed", MAP("\"a\": \"p1.safetensors\", \"c\": \"p2.safetensors\""),
     "{" C "}", ST_INPUT,
     "p1.safetensors: tensor \"b\": not listed in model.safetensors.index.json"},
    {"listed for another part",
     MAP("\"a\": \"p1.safetensors\", \"b\": \"p2.safetensors\", \"c\": \"p2.safetensors\""),
     "{" C "}", ST_INPUT,
     "p1.safetensors: tensor \"b\": model.safetensors.index.json expects it in p2.safetensors"},
    {"in two parts",
     MAP("\"a\": \"p1.safetensors\", \"b\": \"p1.safetensors\", \"c\": \"p2.safetensors\""),
     "{\"a\": {\"dtype\": \"U8\", \"shape\": [5], \"data_offsets\": [0, 5]}}", ST_INPUT,
     "p2.safetensors: tensor \"a\": is in p1.safetensors as well"},
    {"broken part",
     MAP("\"a\": \"p1.safetensors\", \"b\": \"p1.safetensors\", \"c\": \"p2.safetensors\""),
     "{\"c\": {\"dtype\": \"U8\", \"shape\": [6], \"data_offsets\": [0, 6]}}", ST_INPUT,
     "p2.safetensors: tensor \"c\": data ends at byte 6, but only 5 bytes"},
};

static int check_broken(void)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        TensorSet s;
        Err e = {0};
        put_all(broken[i].index, broken[i].second);
        failed += check_int(broken[i].name, tensor_set_open(DIR, &s, &e), broken[i].status);
        failed += check_has(broken[i].name, e.text, broken[i].message);
        tensor_set_close(&s);
    }
    return failed;
}

static int check_good(void)
{
    TensorSet s;
    Err e = {0};
    int failed = 0;
    put_all(MAP("\"c\": \"p2.safetensors\", \"a\": \"p1.safetensors\", "
                "\"b\": \"p1.safetensors\""),
            "{" C "}");
    failed += check_int("two parts", tensor_set_open(DIR, &s, &e), ST_OK);
    failed += check_int("tensors", s.n, 3);
    failed += check_int("parts", s.n_parts, 2);
    const TensorEntry *b = tensor_set_find(&s, "b");
    failed += check_true("not there", !tensor_set_find(&s, "d"));
    if (b)
        failed += check_str("its file", tensor_set_file(&s, b), "p1.safetensors");
    failed += check_int("its bytes", b ? b->bytes : -1, 4);
    tensor_set_close(&s);

    put_part("model.safetensors", "{" C "}", 5);
    int before = log_warnings();
    failed += check_int("both kinds", tensor_set_open(DIR, &s, &e), ST_OK);
    failed += check_int("the single file is read", s.n, 1);
    failed += check_int("with a warning", log_warnings() - before, 1);
    tensor_set_close(&s);
    tensor_set_close(&s);

    temp_dir_fresh(DIR);
    failed += check_int("nothing there", tensor_set_open(DIR, &s, &e), ST_IO);
    failed += check_has("says what", e.text,
                        "neither model.safetensors nor model.safetensors.index.json");
    put("model.safetensors", "", 0);
    failed += check_int("empty file", tensor_set_open(DIR, &s, &e), ST_INPUT);
    failed += check_has("names it", e.text, "model.safetensors: 0 bytes");
    return failed;
}

int main(void)
{
    temp_dir_enter();
    return test_result(check_good() + check_broken());
}
