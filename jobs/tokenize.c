/* jobs/tokenize.c - see tokenize.h. Lines are gathered into a batch; its groups are dealt to the
 * threads, and each group writes into a buffer of its own, so that the order of the input is
 * kept. */
#include "jobs/tokenize.h"

#include "io/durable.h"
#include "io/json.h"
#include "io/team.h"
#include "io/tokenizer.h"
#include "io/utf8.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    READ_BYTES = 1 << 20,
    BATCH_BYTES = 2 << 20,  /* as soon as there is this much, work */
    GROUP_BYTES = 64 << 10, /* one task: long enough to be worth dealing, short enough to balance */
    MOST_GROUPS = 4096
};

/* Lines of one task: the bytes, and what came of them. */
typedef struct Group {
    const char *lines;
    size_t bytes;
    int64_t first_line; /* physical line number, from 1 */
    StrBuf out;
    TokenizeTotals totals;
    Err fault; /* what ends the whole run: memory */
} Group;

typedef struct Worker {
    TokenizerCache *cache;
    Arena arena;
    TokenIds ids;
    StrBuf text;
} Worker;

typedef struct Tokenize {
    const TokenizeConfig *config;
    Tokenizer *tokenizer;
    Team *team;
    Worker *workers; /* [team_size] */
    Group *groups;   /* [MOST_GROUPS] */
} Tokenize;

/* ---- one row ---- */

static void write_start(StrBuf *out, const JsonValue *row)
{
    const JsonValue *id = json_get(row, "custom_id");
    strbuf_str(out, "{");
    if (!id)
        return;
    strbuf_str(out, "\"custom_id\":");
    if (id->type == JSON_STRING)
        strbuf_json_string(out, id->text, id->len);
    else
        strbuf_str(out, "null");
    strbuf_str(out, ",");
}

/* row may be NULL: a line that is not JSON has no custom_id. */
static void write_error(StrBuf *out, const JsonValue *row, const char *code, int64_t line,
                        const char *message)
{
    write_start(out, row);
    strbuf_fmt(out, "\"error\":{\"code\":\"%s\",\"message\":", code);
    StrBuf text = {0};
    strbuf_fmt(&text, "line %lld: %s", (long long)line, message);
    strbuf_json_string(out, text.data ? text.data : "", text.len);
    out->failed = out->failed || text.failed;
    strbuf_free(&text);
    strbuf_str(out, "}}\n");
}

static void write_ids(StrBuf *out, const Tokenizer *t, const TokenIds *ids)
{
    strbuf_str(out, "\"ids\":[");
    for (size_t i = 0; i < ids->n; i++)
        strbuf_fmt(out, i ? ",%d" : "%d", (int)ids->ids[i]);
    strbuf_str(out, "],\"tokens\":[");
    for (size_t i = 0; i < ids->n; i++) {
        size_t len;
        const char *token = tokenizer_token_string(t, ids->ids[i], &len);
        if (i)
            strbuf_str(out, ",");
        strbuf_json_string(out, token ? token : "", len);
    }
    strbuf_str(out, "]}\n");
}

static Status encode_row(const Tokenize *k, Worker *w, const JsonValue *row, Group *g, Err *e)
{
    const JsonValue *text = json_get(row, "text");
    if (!text || text->type != JSON_STRING)
        return err_set(e, ST_INPUT, "\"text\" is %s", text ? "not a string" : "missing");
    w->ids.n = 0;
    TRY(tokenizer_encode(k->tokenizer, w->cache, text->text, text->len, k->config->add_special,
                         &w->ids, e));
    g->totals.n_tokens += (int64_t)w->ids.n;
    g->totals.text_bytes += (int64_t)text->len;
    if (k->config->count)
        return ST_OK;
    write_start(&g->out, row);
    write_ids(&g->out, k->tokenizer, &w->ids);
    return ST_OK;
}

static Status decode_row(const Tokenize *k, Worker *w, const JsonValue *row, Group *g, Err *e)
{
    const JsonValue *ids = json_get(row, "ids");
    bool failed = false;
    if (!ids || ids->type != JSON_ARRAY)
        return err_set(e, ST_INPUT, "\"ids\" is %s", ids ? "not a list" : "missing");
    w->ids.n = 0;
    for (const JsonValue *v = ids->child; v; v = v->next) {
        int64_t id;
        if (!json_int64(v, &id) || id < 0 || id > INT32_MAX)
            return err_set(e, ST_INPUT, "\"ids\" holds something that is not an id");
        tokenids_push(&w->ids, (int32_t)id, &failed);
    }
    if (failed)
        return err_set(e, ST_MEMORY, "no memory for %zu ids", ids->len);
    strbuf_clear(&w->text);
    TRY(tokenizer_decode(k->tokenizer, w->ids.ids, w->ids.n, k->config->skip_special, &w->text, e));
    g->totals.n_tokens += (int64_t)w->ids.n;
    g->totals.text_bytes += (int64_t)w->text.len;
    if (k->config->count)
        return ST_OK;
    write_start(&g->out, row);
    strbuf_str(&g->out, "\"text\":");
    strbuf_json_string(&g->out, w->text.data ? w->text.data : "", w->text.len);
    strbuf_str(&g->out, "}\n");
    return ST_OK;
}

static Status check_row(const JsonValue *row, Err *e)
{
    const JsonValue *id = json_get(row, "custom_id");
    if (row->type != JSON_OBJECT)
        return err_set(e, ST_INPUT, "a row must be an object");
    if (json_count_key(row, "custom_id") > 1)
        return err_set(e, ST_INPUT, "\"custom_id\" is there twice");
    if (id && id->type != JSON_STRING && id->type != JSON_NULL)
        return err_set(e, ST_INPUT, "\"custom_id\" is not a string");
    return ST_OK;
}

/* line is without its line end and not blank. */
static void do_row(const Tokenize *k, Worker *w, Group *g, const char *line, size_t len,
                   int64_t number)
{
    Err e;
    JsonValue *row = NULL;
    arena_reset(&w->arena);
    Status st = json_parse(line, len, &w->arena, &row, &e);
    const char *code = st == ST_OK ? "invalid_request" : "invalid_json";
    if (st == ST_OK)
        st = check_row(row, &e);
    if (st == ST_OK)
        st = k->config->decode ? decode_row(k, w, row, g, &e) : encode_row(k, w, row, g, &e);
    g->totals.n_rows++;
    if (st == ST_MEMORY)
        g->fault = e;
    if (st == ST_OK)
        return;
    g->totals.n_failed++;
    if (!k->config->count)
        write_error(&g->out, row, code, number, e.text);
}

static bool blank(const char *line, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

static void do_group(void *ctx, int task, int thread)
{
    Tokenize *k = ctx;
    Group *g = &k->groups[task];
    int64_t number = g->first_line;
    for (size_t at = 0; at < g->bytes; number++) {
        const char *line = g->lines + at, *end = memchr(line, '\n', g->bytes - at);
        size_t len = end ? (size_t)(end - line) : g->bytes - at;
        at += len + 1;
        if (number == 1 && len >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) {
            line += 3;
            len -= 3;
        }
        if (!blank(line, len)) /* a final CR is white space to JSON */
            do_row(k, &k->workers[thread], g, line, len, number);
    }
}

/* ---- batches ---- */

/* Cuts text[0..len), whole lines, into groups; *line is the number of its first line and is
 * moved on. Returns how many bytes the groups hold: all, unless there are too many of them. */
static size_t make_groups(Tokenize *k, const char *text, size_t len, int64_t *line, int *n_groups)
{
    size_t at = 0;
    *n_groups = 0;
    while (at < len && *n_groups < MOST_GROUPS) {
        size_t end = len - at > GROUP_BYTES ? at + GROUP_BYTES : len;
        const char *stop = memchr(text + end - 1, '\n', len - end + 1);
        end = stop ? (size_t)(stop - text) + 1 : len;
        Group *g = &k->groups[(*n_groups)++];
        strbuf_clear(&g->out);
        g->totals = (TokenizeTotals){0};
        g->fault.code = ST_OK;
        g->lines = text + at;
        g->bytes = end - at;
        g->first_line = *line;
        for (const char *s = text + at;
             s < text + end && (s = memchr(s, '\n', (size_t)(text + end - s))); s++)
            ++*line;
        at = end;
    }
    return at;
}

static Status do_batch(Tokenize *k, const char *text, size_t len, int64_t *line, int out_fd,
                       const char *out_name, TokenizeTotals *totals, Err *e)
{
    while (len) {
        int n_groups;
        size_t done = make_groups(k, text, len, line, &n_groups);
        team_run(k->team, n_groups, do_group, k);
        for (int i = 0; i < n_groups; i++) {
            Group *g = &k->groups[i];
            if (g->out.failed)
                return err_set(e, ST_MEMORY, "no memory for output lines");
            if (g->fault.code != ST_OK) {
                *e = g->fault;
                return e->code;
            }
            TRY(durable_write(out_fd, out_name, g->out.data, g->out.len, e));
            totals->n_rows += g->totals.n_rows;
            totals->n_failed += g->totals.n_failed;
            totals->n_tokens += g->totals.n_tokens;
            totals->text_bytes += g->totals.text_bytes;
            if (g->out.cap > BATCH_BYTES) /* one huge line must not keep its memory */
                strbuf_free(&g->out);
        }
        text += done;
        len -= done;
    }
    return ST_OK;
}

/* Whether a read would return at once; a pipe may be slow, and its reader waits for our lines. */
static bool more_is_waiting(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

static bool reserve(StrBuf *in, size_t more)
{
    if (in->cap - in->len >= more)
        return true;
    size_t cap = in->cap * 2 > in->len + more ? in->cap * 2 : in->len + more;
    char *p = realloc(in->data, cap);
    if (!p)
        return false;
    in->data = p;
    in->cap = cap;
    return true;
}

static Status run_lines(Tokenize *k, int in_fd, const char *in_name, int out_fd,
                        const char *out_name, TokenizeTotals *totals, StrBuf *in, Err *e)
{
    int64_t line = 1;
    size_t whole = 0; /* bytes of in up to the last line end */
    for (bool at_end = false; !at_end;) {
        if (!reserve(in, READ_BYTES))
            return err_set(e, ST_MEMORY, "%s: no memory for a line of %zu bytes", in_name, in->len);
        ssize_t n = read(in_fd, in->data + in->len, READ_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(e, "%s", in_name);
        at_end = n == 0;
        const char *last = memrchr(in->data + in->len, '\n', (size_t)n);
        in->len += (size_t)n;
        if (last)
            whole = (size_t)(last + 1 - in->data);
        if (at_end)
            whole = in->len;
        if (whole == 0 || (!at_end && in->len < BATCH_BYTES && more_is_waiting(in_fd)))
            continue;
        TRY(do_batch(k, in->data, whole, &line, out_fd, out_name, totals, e));
        memmove(in->data, in->data + whole, in->len - whole);
        in->len -= whole;
        whole = 0;
    }
    return ST_OK;
}

/* ---- the whole ---- */

static int n_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    return 1;
}

static Status open_all(Tokenize *k, Err *e)
{
    const TokenizeConfig *c = k->config;
    TRY(tokenizer_load(c->model, &k->tokenizer, e));
    if (!k->tokenizer)
        return err_set(e, ST_INPUT, "%s: there is no tokenizer.json or tiktoken.model", c->model);
    TRY(team_create(&k->team, c->threads ? c->threads : n_cores(), e));
    k->workers = calloc((size_t)team_size(k->team), sizeof *k->workers);
    k->groups = calloc(MOST_GROUPS, sizeof *k->groups);
    if (!k->workers || !k->groups)
        return err_set(e, ST_MEMORY, "no memory for %d threads", team_size(k->team));
    for (int i = 0; i < team_size(k->team); i++)
        TRY(tokenizer_cache_create(k->tokenizer, &k->workers[i].cache, e));
    return ST_OK;
}

static void close_all(Tokenize *k)
{
    for (int i = 0; k->workers && i < team_size(k->team); i++) {
        tokenizer_cache_free(k->workers[i].cache);
        arena_free(&k->workers[i].arena);
        tokenids_free(&k->workers[i].ids);
        strbuf_free(&k->workers[i].text);
    }
    for (int i = 0; k->groups && i < MOST_GROUPS; i++)
        strbuf_free(&k->groups[i].out);
    free(k->workers);
    free(k->groups);
    team_destroy(k->team);
    tokenizer_free(k->tokenizer);
}

Status tokenize_run(const TokenizeConfig *config, int in_fd, const char *in_name, int out_fd,
                    const char *out_name, TokenizeTotals *totals, Err *e)
{
    Tokenize k = {.config = config};
    StrBuf in = {0};
    *totals = (TokenizeTotals){0};
    Status st = open_all(&k, e);
    if (st == ST_OK)
        st = run_lines(&k, in_fd, in_name, out_fd, out_name, totals, &in, e);
    strbuf_free(&in);
    close_all(&k);
    return st;
}
