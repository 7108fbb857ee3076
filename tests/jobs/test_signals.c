/* tests/jobs/test_signals.c - which signals ask for a stop, which end the process, which do
 * nothing. */
#include "jobs/signals.h"
#include "tests/support/check.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct {
    const char *name;
    int signals[3];
    const char *asked; /* by whom, or NULL: no stop asked for */
    int killed_by;
} cases[] = {
    {"none", {0}, NULL, 0},
    {"TERM", {SIGTERM}, "SIGTERM", 0},
    {"USR1", {SIGUSR1}, "SIGUSR1", 0},
    {"INT", {SIGINT}, "SIGINT", 0},
    {"the first counts", {SIGUSR1, SIGTERM, SIGTERM}, "SIGUSR1", 0},
    {"INT twice", {SIGINT, SIGINT}, NULL, SIGINT},
    {"INT twice after TERM", {SIGTERM, SIGINT, SIGINT}, NULL, SIGINT},
    {"INT once after TERM", {SIGTERM, SIGINT}, "SIGTERM", 0},
    {"ignored", {SIGPIPE, SIGXFSZ}, NULL, 0},
    {"CONT, as mpirun sends it", {SIGCONT}, NULL, 0},
};

static int in_child(const char *name, const int *signals, const char *asked)
{
    Err e;
    int failed = check_int(name, signals_install(&e), ST_OK);
    for (int i = 0; i < 3 && signals[i]; i++)
        raise(signals[i]);
    failed += check_int(name, signals_stop(), asked != NULL);
    failed +=
        asked ? check_str(name, signals_name(), asked) : check_true(name, signals_name() == NULL);
    return failed;
}

int main(void)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(in_child(cases[i].name, cases[i].signals, cases[i].asked));
        int status = 0;
        waitpid(child, &status, 0);
        failed += check_int(cases[i].name, WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                            cases[i].killed_by);
        if (!cases[i].killed_by)
            failed += check_int(cases[i].name, WEXITSTATUS(status), 0);
    }
    return test_result(failed);
}
