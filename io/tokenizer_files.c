/* io/tokenizer_files.c - which files of a model directory make its tokenizer. */
#include "io/file.h"
#include "io/pack_file.h"
#include "io/tokenizer.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A 28 MB vocabulary is the largest there is; a file of more than this is something else. */
enum { MOST_FILE_BYTES = 1 << 30 };

static bool is_ranks(const char *name)
{
    static const char end[] = ".tiktoken";
    size_t len = strlen(name), n = sizeof end - 1;
    return strcmp(name, "tiktoken.model") == 0 || (len > n && strcmp(name + len - n, end) == 0);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The one *.tiktoken of dir. */
/* One file of the directory: the vocabulary, if it is one and the first. */
static Status try_ranks(const char *dir, const char *file, char *name, Err *e)
{
    char path[FILE_PATH_MAX];
    size_t len = strlen(file);
    if (!is_ranks(file) || len >= TOKENIZER_NAME_MAX)
        return ST_OK;
    TRY(file_join(path, dir, file, e));
    if (!file_exists(path))
        return ST_OK;
    if (*name)
        return err_set(e, ST_INPUT, "%s: which of %s and %s is the vocabulary?", dir, name, file);
    memcpy(name, file, len + 1);
    return ST_OK;
}

static Status find_ranks_in_pack(const char *pack, char *name, Err *e)
{
    char **names;
    int n;
    TRY(pack_file_names(pack, &names, &n, e));
    Status st = ST_OK;
    for (int i = 0; i < n && st == ST_OK; i++)
        st = try_ranks(pack, names[i], name, e);
    free(names);
    return st;
}

static Status find_ranks(const char *dir, char *name, Err *e)
{
    if (pack_file_is(dir))
        return find_ranks_in_pack(dir, name, e);
    DIR *d = opendir(dir);
    if (!d)
        return err_errno(e, "%s", dir);
    Status st = ST_OK;
    errno = 0;
    for (struct dirent *entry; st == ST_OK && (entry = readdir(d)); errno = 0)
        st = try_ranks(dir, entry->d_name, name, e);
    if (st == ST_OK && errno)
        st = err_errno(e, "%s", dir);
    closedir(d);
    return st;
}

Status tokenizer_vocab_file(const char *dir, char name[TOKENIZER_NAME_MAX], Err *e)
{
    static const char *const known[] = {"tokenizer.json", "tiktoken.model"};
    char path[FILE_PATH_MAX];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        TRY(file_join(path, dir, known[i], e));
        memcpy(name, known[i], strlen(known[i]) + 1);
        if (file_exists(path))
            return ST_OK;
    }
    *name = '\0';
    return find_ranks(dir, name, e);
}

/* settings: the path of tokenizer_config.json; "" where there is none. */
static Status load_files(const char *file, const char *settings, Tokenizer **out, Err *e)
{
    char *vocab = NULL, *config = NULL;
    size_t len = 0, config_len = 0;
    Status st;
    TRY_GOTO(file_read(file, MOST_FILE_BYTES, &vocab, &len, e));
    if (*settings)
        TRY_GOTO(file_read(settings, MOST_FILE_BYTES, &config, &config_len, e));
    if (!is_ranks(base_name(file)))
        st = tokenizer_parse(vocab, len, config, config_len, file, out, e);
    else if (config)
        st = tokenizer_parse_tiktoken(vocab, len, config, config_len, file, out, e);
    else
        st = err_set(e, ST_INPUT,
                     "%s: it needs its directory's tokenizer_config.json, which names the special "
                     "tokens",
                     file);
fail:
    free(vocab);
    free(config);
    return st;
}

Status tokenizer_load(const char *path, Tokenizer **out, Err *e)
{
    struct stat info;
    char name[TOKENIZER_NAME_MAX], file[FILE_PATH_MAX], settings[FILE_PATH_MAX];
    *out = NULL;
    if (stat(path, &info) != 0)
        return err_errno(e, "%s", path);
    if (!S_ISDIR(info.st_mode) && !pack_file_is(path))
        return load_files(path, "", out, e);
    TRY(tokenizer_vocab_file(path, name, e));
    if (!*name)
        return ST_OK;
    TRY(file_join(file, path, name, e));
    TRY(file_join(settings, path, "tokenizer_config.json", e));
    return load_files(file, file_exists(settings) ? settings : "", out, e);
}
