/* tests/jobs/test_lock.c - the lock by flock, and the one by text for file systems without locks.
 */
#include "jobs/lock.h"
#include "tests/support/check.h"
#include "tests/support/temp_dir.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A child that holds the lock until it is killed. */
static pid_t hold(bool by_text)
{
    int ends[2];
    char c;
    if (pipe(ends) != 0)
        return -1;
    pid_t child = fork();
    if (child == 0) {
        Lock l;
        Err e;
        Status st = by_text ? lock_take_by_text("lock", 0, &l, &e) : lock_take("lock", 0, &l, &e);
        if (write(ends[1], "x", st == ST_OK) < 0)
            _exit(1);
        pause();
        _exit(0);
    }
    close(ends[1]);
    if (read(ends[0], &c, 1) != 1)
        fprintf(stderr, "the holder did not start\n");
    close(ends[0]);
    return child;
}

static int test_way(const char *name, bool by_text,
                    Status (*take)(const char *, double, Lock *, Err *))
{
    int failed = 0;
    Lock a, b;
    Err e = {.text = ""};
    char text[100], want[60];
    failed += check_int(name, take("lock", 0, &a, &e), ST_OK);
    failed += check_true(name, temp_dir_get("lock", text, sizeof text) > 0);
    lock_release(&a);
    lock_release(&a); /* twice is fine */
    failed += check_int("released", temp_dir_get("lock", text, sizeof text), 0);
    failed += check_int("again", take("lock", 0, &a, &e), ST_OK);
    lock_release(&a);

    pid_t child = hold(by_text);
    failed += check_int("held", take("lock", 0.2, &b, &e), ST_INPUT);
    snprintf(want, sizeof want, "lock: process %d on host ", (int)child);
    failed += check_has("held", e.text, want);
    failed += check_true("held", !b.held);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    failed += check_int("its holder is dead", take("lock", 0, &a, &e), ST_OK);
    lock_release(&a);
    failed += check_int("no directory", take("none/lock", 0, &a, &e), ST_IO);
    return failed;
}

static const struct {
    const char *name, *text;
    Status want;
} texts[] = {
    {"empty", "", ST_OK},
    {"torn", "somehost 12", ST_OK},
    {"not ours at all", "\n\n\xff", ST_OK},
    {"another host", "elsewhere 1 2\n", ST_INPUT},
    {"a host name of 64 bytes",
     "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx 1 2\n", ST_INPUT},
};

int main(void)
{
    int failed = 0;
    Lock l;
    Err e = {.text = ""};
    char text[200], host[65] = "";
    temp_dir_enter();
    failed += test_way("flock", false, lock_take);
    failed += test_way("text", true, lock_take_by_text);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        temp_dir_put("lock", texts[i].text, strlen(texts[i].text));
        failed += check_int(texts[i].name, lock_take_by_text("lock", 0, &l, &e), texts[i].want);
        if (texts[i].want != ST_OK)
            failed += check_has(texts[i].name, e.text, "remove that file");
        lock_release(&l);
        /* Where locks work, a text that was left behind by a killed job decides nothing. */
        temp_dir_put("lock", texts[i].text, strlen(texts[i].text));
        failed += check_int(texts[i].name, lock_take("lock", 0, &l, &e), ST_OK);
        lock_release(&l);
    }
    /* Our own number, but of a process that started at another time. */
    gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, "%s %d 1\n", host, (int)getpid());
    temp_dir_put("lock", text, (size_t)n);
    failed += check_int("a number used again", lock_take_by_text("lock", 0, &l, &e), ST_OK);
    lock_release(&l);
    return test_result(failed);
}
