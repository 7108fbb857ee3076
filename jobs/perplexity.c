/* jobs/perplexity.c - see perplexity.h. */
#include "jobs/perplexity.h"

#include "io/clock.h"
#include "io/file.h"
#include "jobs/driver.h"
#include "jobs/score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char END_OF_TEXT[] = "<|endoftext|>";
enum { MAX_TEXT = 1 << 30 };

typedef struct Windows {
    Engine engine;
    TokenIds ids;
    int window;
    int64_t n;
    /* [n] bits of a double: this rank's windows, 0 elsewhere, so that an integer sum is exact */
    int64_t *nll;
    Scheduler *scheduler;
} Windows;

/* A tokenizer at work: where its ids go. */
typedef struct Encoder {
    const Tokenizer *tokenizer;
    TokenizerCache *cache;
    TokenIds *ids;
} Encoder;

static Status encode_document(const Encoder *c, const char *text, size_t len, Err *e)
{
    StrBuf paragraph = {0};
    Status st = ST_OK;
    const char *end = text + len;
    while (text < end && st == ST_OK) {
        const char *gap = memmem(text, (size_t)(end - text), "\n\n", 2);
        const char *stop = gap ? gap : end;
        if (stop > text) {
            strbuf_clear(&paragraph);
            strbuf_add(&paragraph, text, (size_t)(stop - text));
            strbuf_str(&paragraph, "\n\n");
            st = paragraph.failed ? err_set(e, ST_MEMORY, "out of memory for a paragraph")
                                  : tokenizer_encode(c->tokenizer, c->cache, paragraph.data,
                                                     paragraph.len, false, c->ids, e);
        }
        text = gap ? gap + 2 : end;
    }
    strbuf_free(&paragraph);
    return st;
}

/* The token that starts a document, or -1. */
static int32_t document_id(const Tokenizer *t)
{
    int32_t id = tokenizer_token_id(t, END_OF_TEXT, sizeof END_OF_TEXT - 1);
    if (id < 0)
        id = tokenizer_bos_id(t);
    return id >= 0 ? id : tokenizer_eos_id(t);
}

Status perplexity_encode(const Tokenizer *tokenizer, TokenizerCache *cache, const char *text,
                         size_t len, TokenIds *ids, Err *e)
{
    const Encoder c = {tokenizer, cache, ids};
    int32_t start = document_id(tokenizer);
    const char *end = text + len;
    while (text < end) {
        const char *mark = memmem(text, (size_t)(end - text), END_OF_TEXT, sizeof END_OF_TEXT - 1);
        const char *stop = mark ? mark : end;
        bool failed = false;
        if (stop > text && start >= 0)
            tokenids_push(ids, start, &failed);
        if (failed)
            return err_set(e, ST_MEMORY, "out of memory for token ids");
        TRY(encode_document(&c, text, (size_t)(stop - text), e));
        text = mark ? mark + sizeof END_OF_TEXT - 1 : end;
    }
    return ST_OK;
}

static Status read_windows(Windows *w, const char *path, Err *e)
{
    char *text = NULL;
    size_t len = 0;
    if (!w->engine.tokenizer)
        return err_set(e, ST_INPUT,
                       "%s: has no tokenizer.json or tiktoken.model, which perplexity needs",
                       w->engine.config.model_dir);
    if (w->window + 1 > w->engine.context.max_len)
        return err_set(e, ST_USAGE, "--window %d: the model's context is %d positions", w->window,
                       w->engine.context.max_len);
    TRY(file_read(path, MAX_TEXT, &text, &len, e));
    Status st =
        perplexity_encode(w->engine.tokenizer, w->engine.tokenizer_cache, text, len, &w->ids, e);
    free(text);
    if (st != ST_OK)
        return err_in(e, "%s", path);
    w->n = w->ids.n > 0 ? ((int64_t)w->ids.n - 1) / w->window : 0;
    if (w->n == 0)
        return err_set(e, ST_INPUT, "%s: %zu tokens, fewer than one window of %d and one more",
                       path, w->ids.n, w->window);
    w->nll = calloc((size_t)w->n, sizeof *w->nll);
    return w->nll ? ST_OK
                  : err_set(e, ST_MEMORY, "out of memory for %lld windows", (long long)w->n);
}

static Status load_window(void *ctx, int64_t record, Row **out, Err *e)
{
    Windows *w = ctx;
    return score_row_from_ids(w->ids.ids + record * w->window, (size_t)w->window + 1, record, out,
                              e);
}

static Status finish_window(void *ctx, Row *row, Err *e)
{
    Windows *w = ctx;
    if (row->error.status)
        return err_set(e, ST_INPUT, "window %lld: %s", (long long)row->index, row->error.message);
    double sum = 0;
    for (int i = 1; i <= w->window; i++)
        sum -= (double)row->prompts[0].logprobs[i].logprob;
    memcpy(&w->nll[row->index], &sum, sizeof sum);
    return ST_OK;
}

static Status save_nothing(void *ctx, Row *row, Err *e)
{
    (void)ctx, (void)row, (void)e;
    return ST_OK;
}

static Status no_tick(void *ctx, Err *e)
{
    (void)ctx, (void)e;
    return ST_OK;
}

static Status run(Windows *w, Comm *comm, const char *path, ProgressMode mode,
                  PerplexityResult *out, Err *e)
{
    Progress progress;
    DriverResult result;
    TRY(dist_agree(comm, read_windows(w, path, e), e));
    TRY(engine_load(&w->engine, e));
    const EngineConfig *c = &w->engine.config;
    SchedulerConfig sc = {c->max_batch, c->prefill_chunk, false};
    Status st = scheduler_create(&w->scheduler, w->engine.model, &w->engine.context, w->engine.team,
                                 &sc, e);
    if (st == ST_OK)
        st = comm_watch(comm, c->wait_timeout_s, NULL, NULL, e);
    TRY(dist_agree(comm, st, e));
    progress_start(&progress, mode);
    RowFlow flow = {w, w->n, load_window, finish_window, save_nothing, no_tick};
    DriverConfig d = {.rows_total = w->n, .progress = &progress};
    double start = clock_s();
    TRY(driver_run(w->scheduler, w->engine.model, comm, &flow, &d, &result, e));
    out->seconds = clock_s() - start;
    TRY(comm_sum_int64(comm, w->nll, (int)w->n, e));
    double total = 0;
    for (int64_t i = 0; i < w->n; i++) {
        double v;
        memcpy(&v, &w->nll[i], sizeof v);
        total += v;
    }
    out->n_windows = w->n;
    out->n_tokens = w->n * w->window;
    out->nll = total / (double)out->n_tokens;
    return ST_OK;
}

Status perplexity_run(const EngineConfig *config, Comm *comm, const char *path, int window,
                      ProgressMode progress, PerplexityResult *out, Err *e)
{
    Windows w = {.window = window};
    Status st = engine_open(&w.engine, config, comm, e);
    if (st == ST_OK)
        st = run(&w, comm, path, progress, out, e);
    Err late;
    (void)comm_watch(comm, 0, NULL, NULL, &late); /* closing after a failure has nothing to add */
    scheduler_destroy(w.scheduler);
    engine_close(&w.engine);
    tokenids_free(&w.ids);
    free(w.nll);
    return st;
}
