/* jobs/summary.c - see summary.h. */
#include "jobs/summary.h"

#include "jobs/progress.h"

static void add_failed(const JobSummary *s, StrBuf *out)
{
    if (s->failed > 0)
        strbuf_fmt(out, ", %lld of them failed", (long long)s->failed);
}

static void add_speed(const JobSummary *s, StrBuf *out)
{
    char in[PROGRESS_WORD], tokens[PROGRESS_WORD], in_speed[PROGRESS_WORD],
        out_speed[PROGRESS_WORD], run[PROGRESS_WORD], wall[PROGRESS_WORD];
    double seconds = s->run_s > 0 ? s->run_s : 1; /* nothing was computed in no time */
    progress_human((double)s->prompt_tokens, in);
    progress_human((double)s->output_tokens, tokens);
    progress_human((double)s->prompt_tokens / seconds, in_speed);
    progress_human((double)s->output_tokens / seconds, out_speed);
    progress_duration(s->run_s, run);
    progress_duration(s->wall_s, wall);
    strbuf_fmt(out, "tokens: %s in (%s tok/s), %s out (%s tok/s); %s computing, %s in all\n", in,
               in_speed, tokens, out_speed, run, wall);
}

void summary_format(const JobSummary *s, StrBuf *out)
{
    if (s->finished_before) {
        strbuf_fmt(out, "%s: finished before, %lld rows", s->out, (long long)s->rows);
        add_failed(s, out);
        strbuf_str(out, "; nothing to do\n");
        return;
    }
    if (s->stopped_by) {
        strbuf_fmt(out, "stopped by %s: %lld of %lld rows are finished", s->stopped_by,
                   (long long)s->done, (long long)s->rows);
        add_failed(s, out);
        strbuf_fmt(out, "; all is kept in %s, and the same command goes on\n", s->dir);
    } else {
        strbuf_fmt(out, "%s: %lld rows", s->out, (long long)s->rows);
        add_failed(s, out);
        if (s->resumed > 0)
            strbuf_fmt(out, ", %lld from earlier runs", (long long)s->resumed);
        strbuf_str(out, "\n");
    }
    add_speed(s, out);
}
