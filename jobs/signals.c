/* jobs/signals.c - see signals.h. */
#include "jobs/signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

static atomic_int first; /* the signal that asked for a stop; 0: none */
static atomic_int n_interrupts;

static void ask(int sig)
{
    int none = 0;
    atomic_compare_exchange_strong(&first, &none, sig);
    if (sig == SIGINT && atomic_fetch_add(&n_interrupts, 1) > 0) {
        signal(SIGINT, SIG_DFL); /* somebody at the keyboard does not want to wait */
        raise(SIGINT);
    }
}

Status signals_install(Err *e)
{
    static const int stops[] = {SIGTERM, SIGINT, SIGUSR1}, ignored[] = {SIGPIPE, SIGXFSZ};
    struct sigaction sa = {.sa_handler = ask, .sa_flags = SA_RESTART};
    sigemptyset(&sa.sa_mask);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++)
        if (sigaction(stops[i], &sa, NULL) != 0)
            return err_errno(e, "signal %d", stops[i]);
    sa.sa_handler = SIG_IGN;
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        if (sigaction(ignored[i], &sa, NULL) != 0)
            return err_errno(e, "signal %d", ignored[i]);
    return ST_OK;
}

bool signals_stop(void)
{
    return atomic_load_explicit(&first, memory_order_relaxed) != 0;
}

const char *signals_name(void)
{
    switch (atomic_load(&first)) {
    case 0:
        return NULL;
    case SIGTERM:
        return "SIGTERM";
    case SIGINT:
        return "SIGINT";
    default:
        return "SIGUSR1";
    }
}
