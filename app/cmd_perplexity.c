/* app/cmd_perplexity.c - moebatch perplexity: the perplexity of a text file. */
#include "app/commands.h"
#include "app/job_options.h"
#include "jobs/perplexity.h"

#include <math.h>
#include <stdio.h>

typedef struct Perplexity {
    JobOptions o;
    const char *file;
    int window;
} Perplexity;

static int run(void *ctx, Comm *comm, Status *st, Err *e)
{
    Perplexity *p = ctx;
    PerplexityResult r;
    *st = perplexity_run(&p->o.job.engine, comm, p->file, p->window, p->o.job.progress, &r, e);
    if (*st == ST_OK && comm->rank == 0)
        printf(
            "perplexity %.6g  nll %.6f per token  %lld tokens in %lld windows of %d  %.0f tok/s\n",
            exp(r.nll), r.nll, (long long)r.n_tokens, (long long)r.n_windows, p->window,
            (double)r.n_tokens / r.seconds);
    return 0;
}

int cmd_perplexity(int argc, char **argv)
{
    Perplexity p = {.window = 512};
    Option options[MAX_OPTIONS];
    Err e;
    bool help;
    int n_files = 0;
    job_options_init(&p.o);
    size_t n = job_options_engine(&p.o, options);
    n += job_options_ranks(&p.o, options + n);
    options[n++] = (Option){
        "--window", NULL, OPTION_INT, &p.window, NULL, 1, 1 << 30, "N", "tokens per window (512)"};
    Status st = options_parse(options, n, argc, argv, &p.file, 1, &n_files, &help, &e);
    if (st == ST_OK && help) {
        puts("Usage: moebatch perplexity -m DIR FILE [options]\n\n"
             "Perplexity of a text file, in windows that each start without earlier context.\n");
        options_print(options, n);
        return 0;
    }
    if (st == ST_OK)
        st = job_options_finish(&p.o, &e);
    if (st == ST_OK && n_files != 1)
        st = err_set(&e, ST_USAGE, "FILE is missing");
    return st == ST_OK ? app_with_ranks(argc, argv, run, &p) : app_usage("perplexity", &e);
}
