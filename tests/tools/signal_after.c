/* tests/tools/signal_after.c - starts a command in a session of its own and, after a while, sends a
 * signal to it, to what it started, or to both: signal_after SECONDS SIGNAL first|rest|one|all
 * COMMAND... first: the command itself (mpirun); rest: all other processes of its session (the
 * ranks, which mpirun puts into groups of their own); one: one of those; all: everything. KILL to
 * all is repeated until nothing is left. The exit code is the command's, or 128 + the signal that
 * ended it. SIGNAL is a number; 0: none. After KILL to some of what it started a command that is still
 * there 20 s after all others is killed too: Open MPI 4.1.4's mpirun sometimes waits in
 * PMIx_server_finalize for a lock that a killed rank had. */
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum Whom { FIRST, REST, ONE, ALL, N_WHOM };
enum { ALONE_S = 20 };

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

/* Sends to every process whose session id is that of the child; returns to how many. */
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

typedef struct When {
    double seconds;
    char files[4096]; /* pattern; empty: after the start */
    long long bytes;
} When;

static bool when_parse(const char *text, When *w)
{
    char *end;
    *w = (When){.seconds = strtod(text, &end)};
    const char *colon = strrchr(end, ':');
    if (*end == 0)
        return end != text;
    if (*end != '@' || !colon || (size_t)(colon - end) > sizeof w->files)
        return false;
    memcpy(w->files, end + 1, (size_t)(colon - end) - 1);
    w->bytes = atoll(colon + 1);
    return true;
}

/* Whether the files of w have grown as far as it says. */
static bool has_come(const When *w)
{
    glob_t found;
    long long bytes = 0;
    struct stat st;
    if (!w->files[0])
        return true;
    if (glob(w->files, GLOB_NOSORT, NULL, &found) != 0)
        return false;
    for (size_t i = 0; i < found.gl_pathc; i++)
        bytes += stat(found.gl_pathv[i], &st) == 0 ? (long long)st.st_size : 0;
    globfree(&found);
    return bytes > w->bytes;
}

static pid_t start(char **command)
{
    pid_t child = fork();
    if (child == 0) {
        /* Some runners of tests block signals, and a blocked one never reaches mpirun. */
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        for (int sig = 1; sig < NSIG; sig++)
            signal(sig, SIG_DFL);
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
    When when;
    if (whom == N_WHOM || !when_parse(argv[1], &when)) {
        fprintf(stderr, "usage: signal_after WHEN SIGNAL first|rest|one|all COMMAND...\n");
        return 2;
    }
    int sig = atoi(argv[2]);
    pid_t child = start(argv + 4);
    if (child < 0)
        return 2;
    /* In pieces, so that a command that ends by itself is not waited for. */
    bool ended = false, come = false;
    while (sig && !ended && !(come && when.seconds <= 0)) {
        come = come || has_come(&when);
        double piece = come && when.seconds < 0.01 ? when.seconds : 0.01;
        nap(piece);
        when.seconds -= come ? piece : 0;
        ended = waitpid(child, &status, WNOHANG) == child;
    }
    if (sig && !ended) {
        send_to(child, sig, (enum Whom)whom);
        /* The first may be gone before the last: until it is waited for, its number stays taken. */
        while (sig == SIGKILL && whom == ALL && send_to(child, sig, ALL) > 0)
            nap(0.005);
    }
    double alone_s = 0;
    while (sig == SIGKILL && !ended && alone_s < ALONE_S) {
        nap(0.01);
        alone_s = send_to(child, 0, REST) > 0 ? 0 : alone_s + 0.01; /* 0 counts them */
        ended = waitpid(child, &status, WNOHANG) == child;
    }
    if (sig == SIGKILL && !ended) {
        fprintf(stderr, "signal_after: %s is alone for %d s: killed\n", argv[4], ALONE_S);
        kill(child, SIGKILL);
    }
    while (!ended && waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return 2;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
