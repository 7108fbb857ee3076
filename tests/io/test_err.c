/* tests/io/test_err.c - messages are one line, nest outwards, and are cut rather than overrun. */
#include "io/err.h"
#include "tests/support/check.h"

#include <errno.h>
#include <string.h>

int main(void)
{
    int failed = 0;
    Err e;
    failed += check_int("returns its code", err_set(&e, ST_INPUT, "row %d\nis bad", 7), ST_INPUT);
    failed += check_str("one line", e.text, "row 7 is bad");
    failed += check_int("keeps the code", err_in(&e, "file %s", "x"), ST_INPUT);
    failed += check_str("outermost first", e.text, "file x: row 7 is bad");
    errno = ENOENT;
    failed += check_int("errno", err_errno(&e, "open"), ST_IO);
    failed += check_str("errno text", e.text, "open: No such file or directory");
    char big[2000];
    memset(big, 'a', sizeof big - 1);
    big[sizeof big - 1] = 0;
    err_set(&e, ST_IO, "%s", big);
    err_in(&e, "%s", big);
    failed += check_int("cut to fit", (int64_t)strlen(e.text) < 500, 1);
    return test_result(failed);
}
