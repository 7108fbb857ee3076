/* tests/support/temp_dir.c - see temp_dir.h. */
#include "tests/support/temp_dir.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

void temp_dir_empty(const char *dir)
{
    DIR *d = opendir(dir);
    const struct dirent *entry;
    while (d && (entry = readdir(d)) != NULL) {
        char path[TEMP_DIR_MAX + 256];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        unlink(path);
    }
    if (d)
        closedir(d);
}

void temp_dir_remove(const char *dir)
{
    temp_dir_empty(dir);
    rmdir(dir);
}
