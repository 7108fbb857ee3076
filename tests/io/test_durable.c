/* tests/io/test_durable.c - replaced files are whole, failures leave the old content and no litter.
 */
#include "io/durable.h"
#include "tests/support/check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
    const char *path, *want;
} parents[] = {{"a", "."}, {"a/b", "a"}, {"/a", "/"}, {"/a/b", "/a"}, {"a//b", "a/"}, {"./a", "."}};

static int check_content(const char *name, const char *path, const char *want)
{
    char got[100] = "";
    FILE *f = fopen(path, "r");
    if (f) {
        got[fread(got, 1, sizeof got - 1, f)] = 0;
        fclose(f);
    }
    return check_str(name, got, want);
}

int main(void)
{
    int failed = 0;
    Err e;
    char dir[] = "/tmp/test_durable.XXXXXX", path[100], tmp[110], parent[20];
    for (size_t i = 0; i < sizeof parents / sizeof *parents; i++) {
        failed += check_int(parents[i].path,
                            path_parent(parents[i].path, parent, sizeof parent, &e), ST_OK);
        failed += check_str(parents[i].path, parent, parents[i].want);
    }
    failed += check_int("long parent",
                        path_parent("12345678901234567890/x", parent, sizeof parent, &e), ST_INPUT);

    if (!mkdtemp(dir))
        return test_skip("no directory for temporary files");
    snprintf(path, sizeof path, "%s/f", dir);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    failed += check_int("new", durable_replace(path, "one", 3, &e), ST_OK);
    failed += check_content("new", path, "one");
    failed += check_int("replaced", durable_replace(path, "two\n", 4, &e), ST_OK);
    failed += check_content("replaced", path, "two\n");
    failed += check_int("empty", durable_replace(path, NULL, 0, &e), ST_OK);
    failed += check_content("empty", path, "");
    failed += check_int("again", durable_replace(path, "old", 3, &e), ST_OK);

    /* A file size limit acts as a disk that fills up after three bytes. */
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    small = before;
    small.rlim_cur = 3;
    setrlimit(RLIMIT_FSIZE, &small);
    failed += check_int("full", durable_replace(path, "longer", 6, &e), ST_IO);
    setrlimit(RLIMIT_FSIZE, &before);
    failed += check_has("full", e.text, "f.tmp: File too large");
    failed += check_content("full keeps the old", path, "old");
    failed += check_int("no litter", access(tmp, F_OK), -1);

    snprintf(tmp, sizeof tmp, "%s/none/f", dir);
    failed += check_int("no directory", durable_replace(tmp, "x", 1, &e), ST_IO);
    failed += check_int("sync of nothing", durable_sync_dir("/nonexistent", &e), ST_IO);
    failed += check_int("sync", durable_sync_dir(dir, &e), ST_OK);
    unlink(path);
    rmdir(dir);
    return test_result(failed);
}
