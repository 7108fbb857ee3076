/* app/cmd_tokenize.c - moebatch tokenize: texts to token ids and back, without ranks and without
 * weights. */
#include "app/commands.h"
#include "app/job_options.h"
#include "io/durable.h"
#include "jobs/tokenize.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_stream(const char *path)
{
    return !path || strcmp(path, "-") == 0;
}

/* A file appears under its name only when it is whole; other things (/dev/null, a pipe) are
 * written to. */
static Status open_output(const char *path, char *tmp, size_t cap, int *fd, Err *e)
{
    struct stat info;
    tmp[0] = 0;
    if (stat(path, &info) != 0 || S_ISREG(info.st_mode)) {
        int n = snprintf(tmp, cap, "%s.tmp", path);
        if (n < 0 || (size_t)n >= cap)
            return err_set(e, ST_USAGE, "%.200s...: the path is too long", path);
    }
    *fd = open(tmp[0] ? tmp : path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return *fd < 0 ? err_errno(e, "%s", tmp[0] ? tmp : path) : ST_OK;
}

static Status run(const TokenizeConfig *config, const char *in_path, const char *out_path,
                  TokenizeTotals *totals, Err *e)
{
    char tmp[4096] = "";
    int in = STDIN_FILENO, out = STDOUT_FILENO;
    Status st = ST_OK;
    if (!is_stream(in_path)) {
        in = open(in_path, O_RDONLY | O_CLOEXEC);
        if (in < 0)
            return err_errno(e, "%s", in_path);
    }
    if (!is_stream(out_path))
        st = open_output(out_path, tmp, sizeof tmp, &out, e);
    const char *in_name = is_stream(in_path) ? "standard input" : in_path;
    const char *out_name = is_stream(out_path) ? "standard output" : tmp[0] ? tmp : out_path;
    if (st == ST_OK)
        st = tokenize_run(config, in, in_name, out, out_name, totals, e);
    if (st == ST_OK && config->count) {
        char line[200];
        int n = snprintf(line, sizeof line,
                         "{\"rows\":%lld,\"failed\":%lld,\"tokens\":%lld,\"bytes\":%lld}\n",
                         (long long)totals->n_rows, (long long)totals->n_failed,
                         (long long)totals->n_tokens, (long long)totals->text_bytes);
        st = durable_write(out, out_name, line, (size_t)n, e);
    }
    if (in != STDIN_FILENO)
        close(in);
    if (out != STDOUT_FILENO && out >= 0 && close(out) != 0 && st == ST_OK)
        st = err_errno(e, "%s", out_name);
    if (tmp[0] && st == ST_OK)
        st = durable_rename(tmp, out_path, e);
    if (tmp[0] && st != ST_OK)
        unlink(tmp);
    return st;
}

int cmd_tokenize(int argc, char **argv)
{
    TokenizeConfig config = {.add_special = true};
    const char *in = NULL, *out = NULL;
    bool help, no_special = false;
    int n_positional = 0;
    Err e;
    const Option options[] = {
        {"--model", "-m", OPTION_TEXT, &config.model, NULL, 0, 0, "PATH",
         "directory (with its BOS rule), or a tokenizer.json alone"},
        {"--input", "-i", OPTION_TEXT, &in, NULL, 0, 0, "FILE", "rows to read (standard input)"},
        {"--output", "-o", OPTION_TEXT, &out, NULL, 0, 0, "FILE",
         "rows to write (standard output)"},
        {"--decode", NULL, OPTION_FLAG, &config.decode, NULL, 0, 0, NULL, "from ids to text"},
        {"--skip-special-tokens", NULL, OPTION_FLAG, &config.skip_special, NULL, 0, 0, NULL,
         "with --decode: leave special tokens out"},
        {"--no-special-tokens", NULL, OPTION_FLAG, &no_special, NULL, 0, 0, NULL,
         "do not add BOS and the like around a text"},
        {"--count", NULL, OPTION_FLAG, &config.count, NULL, 0, 0, NULL,
         "totals only, as one line of JSON"},
        {"--threads", NULL, OPTION_INT, &config.threads, NULL, 1, 1024, "N",
         "threads (one per core)"},
    };
    size_t n = sizeof options / sizeof *options;
    Status st = options_parse(options, n, argc, argv, NULL, 0, &n_positional, &help, &e);
    if (st == ST_OK && help) {
        puts(
            "Usage: moebatch tokenize -m PATH [options]\n\n"
            "Reads rows {\"text\": ...} and writes {\"ids\": [...], \"tokens\": [...]}, one a "
            "line, in\n"
            "the same order; --decode goes from {\"ids\": [...]} to {\"text\": ...}. A custom_id "
            "is\n"
            "passed on. A row that cannot be used becomes {\"error\": {\"code\", \"message\"}}.\n");
        options_print(options, n);
        puts("\nExit codes: 0 done, 3 some rows failed, 2 usage, 1 failure.\n\n"
             "Example: echo '{\"text\":\"Hello world\"}' | moebatch tokenize -m DIR");
        return 0;
    }
    if (st == ST_OK && !config.model)
        st = err_set(&e, ST_USAGE, "-m PATH is missing");
    if (st == ST_OK && config.skip_special && !config.decode)
        st = err_set(&e, ST_USAGE, "--skip-special-tokens goes with --decode");
    if (st == ST_OK && no_special && config.decode)
        st = err_set(&e, ST_USAGE, "--no-special-tokens does not go with --decode");
    if (st != ST_OK)
        return app_usage("tokenize", &e);
    config.add_special = !no_special;
    TokenizeTotals totals;
    st = run(&config, in, out, &totals, &e);
    if (st != ST_OK) {
        fprintf(stderr, "moebatch: %s\n", e.text);
        return st == ST_USAGE ? 2 : 1;
    }
    return totals.n_failed ? 3 : 0;
}
