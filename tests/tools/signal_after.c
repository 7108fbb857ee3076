/* tests/tools/signal_after.c - starts a command in a session of its own and, after a while, sends a
 * signal to it, to what it started, or to both: signal_after SECONDS SIGNAL first|rest|one|all
 * COMMAND... first: the command itself (mpirun); rest: all other processes of its session (the
 * ranks, which mpirun puts into groups of their own); one: one of those; all: everything. KILL to
 * all is repeated until nothing is left. The exit code is the command's, or 128 + the signal that
 * ended it. SIGNAL is a number; 0: none. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum Whom { FIRST, REST, ONE, ALL, N_WHOM };

/* The session of a live process that is no zombie, or 0. */
static long session_of(long pid)
{
    char path[40], text[512];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    char state = 'Z';
    long session = 0;
    const char *name_end = strrchr(text, ')');
    if (!name_end || sscanf(name_end, ") %c %*d %*d %ld", &state, &session) != 2)
        return 0;
    return state == 'Z' ? 0 : session;
}

/* Sends to the processes of the session, whose first is its number; returns to how many. */
static int send_to(long session, int sig, enum Whom whom)
{
    int n = 0;
    DIR *d = opendir("/proc");
    const struct dirent *entry;
    while (d && (entry = readdir(d)) != NULL) {
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid <= 1 || session_of(pid) != session)
            continue;
        if (whom == ALL || (whom == FIRST && pid == session) || (whom == REST && pid != session) ||
            (whom == ONE && pid != session && n == 0))
            n += kill((pid_t)pid, sig) == 0;
    }
    if (d)
        closedir(d);
    return n;
}

static void nap(double s)
{
    struct timespec t = {.tv_sec = (time_t)s, .tv_nsec = (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&t, NULL);
}

static pid_t start(char **command)
{
    pid_t child = fork();
    if (child == 0) {
        setsid();
        execvp(command[0], command);
        perror(command[0]);
        _exit(127);
    }
    return child;
}

int main(int argc, char **argv)
{
    static const char *const names[N_WHOM] = {"first", "rest", "one", "all"};
    int whom = 0, status = 0;
    while (whom < N_WHOM && (argc < 5 || strcmp(argv[3], names[whom]) != 0))
        whom++;
    if (whom == N_WHOM) {
        fprintf(stderr, "usage: signal_after SECONDS SIGNAL first|rest|one|all COMMAND...\n");
        return 2;
    }
    int sig = atoi(argv[2]);
    pid_t child = start(argv + 4);
    if (child < 0)
        return 2;
    double left = strtod(argv[1], NULL);
    bool ended = false;
    while (sig && left > 0 &&
           !ended) { /* in pieces, so that a command that ends by itself is not waited for */
        nap(left < 0.02 ? left : 0.02);
        left -= 0.02;
        ended = waitpid(child, &status, WNOHANG) == child;
    }
    if (sig && !ended) {
        send_to(child, sig, (enum Whom)whom);
        /* The first may be gone before the last: until it is waited for, its number stays taken. */
        while (sig == SIGKILL && whom == ALL && send_to(child, sig, ALL) > 0)
            nap(0.005);
    }
    while (!ended && waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return 2;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
