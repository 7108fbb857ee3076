/* tests/support/temp_dir.c - see temp_dir.h. */
#include "tests/support/temp_dir.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

bool temp_dir_create(char *dir)
{
    const char *base = getenv("TMPDIR");
    snprintf(dir, TEMP_DIR_MAX, "%s/moebatch-test-XXXXXX", base && *base ? base : "/tmp");
    if (mkdtemp(dir))
        return true;
    perror(dir);
    return false;
}

bool temp_dir_write(const char *dir, const char *name, const void *bytes, size_t len)
{
    char path[TEMP_DIR_MAX + 256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f) {
        perror(path);
        return false;
    }
    bool ok = fwrite(bytes, 1, len, f) == len;
    return fclose(f) == 0 && ok;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

void temp_dir_remove(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void temp_dir_fresh(const char *path)
{
    temp_dir_remove(path);
    if (mkdir(path, 0700) != 0) {
        perror(path);
        exit(1);
    }
}

static char entered[TEMP_DIR_MAX];
static pid_t owner;

static void leave(void)
{
    if (getpid() == owner && chdir("/") == 0) /* a child that was forked and exits is a guest */
        temp_dir_remove(entered);
}

void temp_dir_enter(void)
{
    if (!temp_dir_create(entered))
        exit(1);
    owner = getpid();
    atexit(leave);
    if (chdir(entered) != 0) {
        perror(entered);
        exit(1);
    }
}

void temp_dir_put(const char *path, const void *bytes, size_t len)
{
    if (!temp_dir_write(".", path, bytes, len))
        exit(1);
}

long temp_dir_get(const char *path, void *out, size_t cap)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return -1;
    size_t n = fread(out, 1, cap - 1, f);
    fclose(f);
    ((char *)out)[n] = 0;
    return (long)n;
}
