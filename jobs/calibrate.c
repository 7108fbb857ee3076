/* jobs/calibrate.c - see calibrate.h.
 *
 * Every rank reads all rows, so that all know how many steps each round of prompts takes without
 * asking; prompt r of a round is at home on rank r. Every position is wanted in the last layer, so
 * that its activations are seen like any other's. */
#include "jobs/calibrate.h"

#include "io/clock.h"
#include "io/file.h"
#include "io/json.h"
#include "jobs/score.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 1 << 30 };

typedef struct Prompts {
    Engine engine;
    int32_t *ids; /* of all prompts, one after the other */
    int64_t n_ids, cap;
    int64_t *first; /* [n + 1] */
    int64_t n, first_cap;
    int64_t n_rows, max_tokens; /* max_tokens 0: no limit */
} Prompts;

static bool full(const Prompts *p)
{
    return p->max_tokens > 0 && p->n_ids >= p->max_tokens;
}

/* Room for n more ids and one more prompt. */
static Status make_room(Prompts *p, int64_t n, Err *e)
{
    if (p->n_ids + n > p->cap) {
        int64_t cap = 2 * p->cap + n;
        int32_t *ids = realloc(p->ids, (size_t)cap * sizeof *ids);
        if (!ids)
            return err_set(e, ST_MEMORY, "out of memory for %lld token ids", (long long)cap);
        p->ids = ids;
        p->cap = cap;
    }
    if (p->n + 2 > p->first_cap) {
        int64_t cap = 2 * p->first_cap + 16;
        int64_t *first = realloc(p->first, (size_t)cap * sizeof *first);
        if (!first)
            return err_set(e, ST_MEMORY, "out of memory for %lld prompts", (long long)cap);
        p->first = first;
        p->first_cap = cap;
    }
    return ST_OK;
}

static Status add_prompt(Prompts *p, const TokenIds *ids, Err *e)
{
    int64_t n = (int64_t)ids->n, most = p->engine.context.max_len;
    n = n < most ? n : most;
    if (p->max_tokens > 0 && n > p->max_tokens - p->n_ids)
        n = p->max_tokens - p->n_ids;
    if (n <= 0)
        return ST_OK;
    TRY(make_room(p, n, e));
    memcpy(p->ids + p->n_ids, ids->ids, (size_t)n * sizeof *p->ids);
    p->first[p->n++] = p->n_ids;
    p->n_ids += n;
    p->first[p->n] = p->n_ids;
    return ST_OK;
}

/* A line with "text" is a row of `score`, any other one of `run`. */
static Status parse_line(Prompts *p, const char *line, size_t len, int64_t number, Row **out,
                         Err *e)
{
    Arena arena = {0};
    JsonValue *v;
    Engine *g = &p->engine;
    bool text = json_parse(line, len, &arena, &v, NULL) == ST_OK && json_get(v, "text") != NULL;
    arena_free(&arena);
    return text ? score_parse(&g->context, g->tokenizer_cache, line, len, p->n_rows, number, 0,
                              false, out, e)
                : row_parse(&g->context, g->tokenizer_cache, line, len, p->n_rows, number, 0, out,
                            e);
}

static Status read_line(Prompts *p, const char *line, size_t len, int64_t number, Err *e)
{
    Row *row;
    if (len > 0 && line[len - 1] == '\r')
        len--;
    if (strspn(line, " \t") >= len)
        return ST_OK;
    TRY(parse_line(p, line, len, number, &row, e));
    Status st = ST_OK;
    if (row->error.status)
        st = err_set(e, ST_INPUT, "line %lld: %s", (long long)number, row->error.message);
    for (int i = 0; i < row->n_prompts && st == ST_OK && !full(p); i++)
        st = add_prompt(p, &row->prompts[i].ids, e);
    p->n_rows++;
    row_free(row);
    return st;
}

static Status read_rows(Prompts *p, const char *path, Err *e)
{
    char *text;
    size_t len;
    Status st = ST_OK;
    int64_t number = 0;
    TRY(file_read(path, MAX_FILE, &text, &len, e));
    for (const char *at = text, *end = text + len; at < end && st == ST_OK && !full(p);) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t n = (size_t)((stop ? stop : end) - at);
        st = read_line(p, at, n, ++number, e);
        at += n + 1;
    }
    free(text);
    if (st != ST_OK)
        return err_in(e, "%s", path);
    return p->n > 0 ? ST_OK : err_set(e, ST_INPUT, "%s: has no rows to calibrate with", path);
}

static int64_t length_of(const Prompts *p, int64_t prompt)
{
    return prompt < p->n ? p->first[prompt + 1] - p->first[prompt] : 0;
}

/* One chunk of this rank's prompt, or nothing. */
static Status run_chunk(Prompts *p, KvSeq *kv, int64_t prompt, int pos, int chunk, int64_t number,
                        int32_t *position, Err *e)
{
    Model *m = p->engine.model;
    int64_t rest = length_of(p, prompt) - pos;
    int rows = rest <= 0 ? 0 : rest < chunk ? (int)rest : chunk;
    bool ok = true, all_know = false;
    StepSeq seq = {0, rows, pos, rows, pos + rows, kv};
    Step step = {.number = number, .position = position, .seqs = &seq};
    if (rows > 0) {
        step.ids = p->ids + p->first[prompt] + pos;
        step.n_rows = rows;
        step.n_seqs = 1;
        for (int i = 0; i < rows; i++)
            position[i] = pos + i;
        step.mine = kv_seq_extend(&m->kv, kv, pos, rows, &ok, e);
        if (step.mine == ST_OK && !ok)
            step.mine = err_set(e, ST_MEMORY, "the KV cache holds no prompt of %lld tokens",
                                (long long)length_of(p, prompt));
    }
    return model_step(m, &step, &all_know, e);
}

/* One prompt for each rank, in as many steps as the longest takes. */
static Status run_round(Prompts *p, Comm *comm, int64_t round, int64_t *number, int32_t *position,
                        Err *e)
{
    int chunk = p->engine.config.prefill_chunk;
    int64_t longest = 0, mine = round * comm->size + comm->rank;
    KvSeq kv = {0};
    Status st = ST_OK;
    for (int r = 0; r < comm->size; r++) {
        int64_t n = length_of(p, round * comm->size + r);
        longest = n > longest ? n : longest;
    }
    for (int64_t pos = 0; pos < longest && st == ST_OK; pos += chunk)
        st =
            dist_agree(comm, run_chunk(p, &kv, mine, (int)pos, chunk, (*number)++, position, e), e);
    kv_seq_free(&p->engine.model->kv, &kv);
    return st;
}

static Status run_prompts(Prompts *p, Comm *comm, ProgressMode mode, Err *e)
{
    Progress progress;
    ProgressCounts counts = {.rows_total = p->n};
    int64_t number = 0, rounds = (p->n + comm->size - 1) / comm->size;
    int32_t *position = malloc((size_t)p->engine.config.prefill_chunk * sizeof *position);
    Status st = position ? ST_OK : err_set(e, ST_MEMORY, "out of memory for positions");
    st = dist_agree(comm, st, e);
    progress_start(&progress, mode);
    for (int64_t r = 0; r < rounds && st == ST_OK; r++) {
        st = run_round(p, comm, r, &number, position, e);
        counts.rows_done = (r + 1) * comm->size < p->n ? (r + 1) * comm->size : p->n;
        counts.prompt_tokens = p->first[counts.rows_done];
        if (comm->rank == 0)
            progress_update(&progress, &counts);
    }
    if (comm->rank == 0 && st == ST_OK)
        progress_end(&progress, &counts);
    free(position);
    return st;
}

static Status run(Prompts *p, Comm *comm, const char *path, ProgressMode mode, Calibration *out,
                  Err *e)
{
    const Arch *a = &p->engine.arch;
    Status st = read_rows(p, path, e);
    if (st == ST_OK)
        st = observer_create(&out->seen, a->n_layers, a->router.n_experts, e);
    TRY(dist_agree(comm, st, e));
    TRY(engine_load(&p->engine, e));
    TRY(dist_agree(comm, comm_watch(comm, p->engine.config.wait_timeout_s, NULL, NULL, e), e));
    p->engine.model->observer = &out->seen;
    TRY(run_prompts(p, comm, mode, e));
    out->n_rows = p->n_rows;
    out->n_tokens = p->n_ids;
    return observer_share(&out->seen, comm, e);
}

Status calibrate_run(const EngineConfig *config, Comm *comm, const char *path, int64_t max_tokens,
                     ProgressMode progress, Calibration *out, Err *e)
{
    Prompts p = {.max_tokens = max_tokens};
    *out = (Calibration){0};
    EngineConfig on_cpu = *config; /* what meets each layer is read in host memory */
    on_cpu.backend = "cpu";
    Status st = engine_open(&p.engine, &on_cpu, comm, e);
    if (st == ST_OK)
        st = run(&p, comm, path, progress, out, e);
    Err late;
    (void)comm_watch(comm, 0, NULL, NULL, &late); /* closing after a failure has nothing to add */
    engine_close(&p.engine);
    free(p.ids);
    free(p.first);
    return st;
}

void calibration_free(Calibration *c)
{
    observer_free(&c->seen);
    *c = (Calibration){0};
}
