/* tests/support/check.c - see check.h. */
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int check_int(const char *name, int64_t got, int64_t want)
{
    if (got == want)
        return 0;
    fprintf(stderr, "%s: got %lld, want %lld\n", name, (long long)got, (long long)want);
    return 1;
}

int check_str(const char *name, const char *got, const char *want)
{
    if (got && want && strcmp(got, want) == 0)
        return 0;
    fprintf(stderr, "%s: got \"%s\", want \"%s\"\n", name, got ? got : "(null)",
            want ? want : "(null)");
    return 1;
}

int check_true(const char *name, bool ok)
{
    if (!ok)
        fprintf(stderr, "%s: does not hold\n", name);
    return !ok;
}

int check_near(const char *name, double got, double want, double tolerance)
{
    if (fabs(got - want) <= tolerance)
        return 0;
    fprintf(stderr, "%s: got %.9g, want %.9g within %.3g\n", name, got, want, tolerance);
    return 1;
}

int check_has(const char *name, const char *got, const char *part)
{
    if (got && strstr(got, part))
        return 0;
    fprintf(stderr, "%s: got \"%s\", which lacks \"%s\"\n", name, got ? got : "(null)", part);
    return 1;
}

const char *test_shared(void)
{
    const char *dir = getenv("SHARED");
    struct stat st;
    return dir && stat(dir, &st) == 0 ? dir : NULL;
}

int test_skip(const char *why)
{
    printf("skipped: %s\n", why);
    return 77;
}

int test_result(int failed)
{
    if (failed)
        fprintf(stderr, "%d checks failed\n", failed);
    return failed ? 1 : 0;
}
