/* tests/support/tempdir.c - see tempdir.h. */
#include "tests/support/tempdir.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

static char dir[4096];
static pid_t owner;

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

void tempdir_remove(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void leave(void)
{
    if (getpid() != owner) /* a child that was forked and exits is a guest */
        return;
    if (chdir("/") == 0)
        tempdir_remove(dir);
}

void tempdir_enter(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/moebatch-test.XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(dir) || chdir(dir) != 0) {
        perror(dir);
        exit(1);
    }
    owner = getpid();
    atexit(leave);
}

void tempdir_put(const char *path, const void *bytes, size_t len)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, len, f) != len || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

long tempdir_get(const char *path, void *out, size_t cap)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return -1;
    size_t n = fread(out, 1, cap - 1, f);
    fclose(f);
    ((char *)out)[n] = 0;
    return (long)n;
}
