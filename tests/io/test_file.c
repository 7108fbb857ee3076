/* tests/io/test_file.c - whole files: read, mapped, and refused with their name. */
#include "io/file.h"

#include "tests/support/check.h"
#include "tests/support/temp_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void)
{
    const char *dir = "d";
    char path[FILE_PATH_MAX], *text;
    size_t len;
    FileMap map;
    Err e;
    int failed = 0;
    temp_dir_enter();
    temp_dir_fresh(dir);

    failed += check_int("join", file_join(path, dir, "x", &e), ST_OK);
    failed += check_int("absent", file_read(path, 100, &text, &len, &e), ST_IO);
    failed += check_has("names the path", e.text, path);
    failed += check_has("and why", e.text, "No such file");
    failed += check_true("does not exist", !file_exists(path) && !file_exists(dir));
    temp_dir_put("d/x", "hello", 5);
    failed += check_true("exists", file_exists(path));

    failed += check_int("read", file_read(path, 5, &text, &len, &e), ST_OK);
    failed += check_str("contents", text, "hello");
    failed += check_int("length", (int64_t)len, 5);
    free(text);
    failed += check_int("over the limit", file_read(path, 4, &text, &len, &e), ST_INPUT);
    failed += check_has("says both sizes", e.text, "5 bytes, at most 4 expected");
    failed += check_int("a directory", file_read(dir, 100, &text, &len, &e), ST_IO);
    failed += check_has("says so", e.text, "not a regular file");

    failed += check_int("map", file_map(path, &map, &e), ST_OK);
    failed += check_true("mapped", map.len == 5 && memcmp(map.data, "hello", 5) == 0);
    file_will_need(map.data + 1, map.len - 1);
    file_unmap(&map);
    file_unmap(&map);
    temp_dir_put("d/x", "", 0);
    failed += check_int("map an empty file", file_map(path, &map, &e), ST_OK);
    failed += check_true("nothing there", map.len == 0 && !map.data);
    file_unmap(&map);
    temp_dir_put("d/x", "hello", 5);
    char part[4] = "";
    failed += check_int("map and open", file_map_open(path, &map, &e), ST_OK);
    failed += check_true("past the end", !file_map_is_here(&map, map.data + 5));
    failed += check_int("read of it", file_map_read(&map, map.data + 1, part, 3, &e), ST_OK);
    failed += check_str("what was read", part, "ell");
    failed += check_int("cut", truncate(path, 3), 0);
    failed += check_int("past the end", file_map_read(&map, map.data + 1, part, 3, &e), ST_IO);
    failed += check_str("says where", e.text, "has become shorter: byte 3 is gone");
    failed +=
        check_int("of memory", file_map_read(NULL, (const uint8_t *)"abc", part, 3, &e), ST_OK);
    failed += check_str("what was copied", part, "abc");
    file_unmap(&map);
    failed += check_true("closed", !map.is_open);
    failed += check_int("map a directory", file_map(dir, &map, &e), ST_IO);

    char *long_name = calloc(FILE_PATH_MAX + 1, 1);
    if (long_name) {
        memset(long_name, 'a', FILE_PATH_MAX);
        failed += check_int("path too long", file_join(path, dir, long_name, &e), ST_USAGE);
    }
    free(long_name);
    return test_result(failed);
}
