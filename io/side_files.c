/* io/side_files.c - see side_files.h. */
#include "io/side_files.h"

#include "io/file.h"
#include "io/log.h"
#include "io/pack_file.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool file_name_ends(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

static bool is_weights(const char *name)
{
    static const char *const ends[] = {
        ".safetensors", ".safetensors.tmp", ".index.json", ".bin", ".pt", ".pth", ".gguf", ".h5",
        ".onnx",        ".msgpack"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (file_name_ends(name, ends[i]))
            return true;
    return false;
}

/* Names one after the other, each with its NUL. */
static Status read_names(DIR *d, const char *dir, StrBuf *text, int *n, Err *e)
{
    char path[FILE_PATH_MAX];
    struct stat info;
    struct dirent *entry;
    while ((errno = 0, entry = readdir(d)) != NULL) {
        const char *name = entry->d_name;
        if (name[0] == '.' || is_weights(name))
            continue;
        TRY(file_join(path, dir, name, e));
        if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
            continue;
        if (info.st_size > SIDE_FILE_MAX) {
            log_warn_once("%s: is larger than %d MiB and left out", path, SIDE_FILE_MAX >> 20);
            continue;
        }
        strbuf_add(text, name, strlen(name) + 1);
        ++*n;
    }
    return errno ? err_errno(e, "%s", dir) : ST_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

Status side_files_list(const char *model, char ***out, int *n, Err *e)
{
    StrBuf text = {0};
    char **names = NULL;
    *out = NULL;
    *n = 0;
    if (pack_file_is(model))
        return pack_file_names(model, out, n, e);
    DIR *d = opendir(model);
    if (!d)
        return err_errno(e, "%s", model);
    Status st = read_names(d, model, &text, n, e);
    closedir(d);
    if (st == ST_OK) {
        names = malloc((size_t)*n * sizeof *names + text.len + 1);
        if (text.failed || !names)
            st = err_set(e, ST_MEMORY, "%s: not enough memory for the names in it", model);
    }
    if (st == ST_OK) {
        char *at = (char *)(names + *n);
        if (text.len > 0)
            memcpy(at, text.data, text.len);
        for (int i = 0; i < *n; at += strlen(at) + 1, i++)
            names[i] = at;
        qsort(names, (size_t)*n, sizeof *names, by_name);
    } else {
        free(names);
        names = NULL;
        *n = 0;
    }
    strbuf_free(&text);
    *out = names;
    return st;
}
