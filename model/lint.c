/* model/lint.c - deals modules and vectors to ranks and threads, and brings what they find together
 * in an order that depends on neither; see lint.h. */
#include "model/lint_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOT = 0 };

/* --- findings --- */

static void add_line(StrBuf *out, LintLevel level, const char *where, const char *fmt, va_list args)
{
    char text[700];
    int n = snprintf(text, sizeof text, "%s", where);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    vsnprintf(text + len, sizeof text - len, fmt, args);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = '?';
    strbuf_fmt(out, "%d %s\n", (int)level, text);
}

void lint_add(StrBuf *out, LintLevel level, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add_line(out, level, "", fmt, args);
    va_end(args);
}

void lint_tensor(StrBuf *out, LintLevel level, const Checkpoint *c, const TensorEntry *t,
                 const char *fmt, ...)
{
    char where[400];
    va_list args;
    snprintf(where, sizeof where, "%s: tensor \"%.200s\": ", tensor_set_file(&c->files, t),
             t->name);
    va_start(args, fmt);
    add_line(out, level, where, fmt, args);
    va_end(args);
}

const char *lint_level_name(LintLevel level)
{
    static const char *const names[] = {"note", "warning", "error"};
    return names[level];
}

/* --- the work --- */

typedef struct Work {
    const Checkpoint *c;
    const Modules *modules;
    const TensorEntry **vectors; /* [n_vectors] */
    int n_vectors;
    const Comm *comm;
    StrBuf *found; /* [n_tasks] of this rank */
    int64_t *crcs; /* [modules->n] */
} Work;

static void lint_one(void *ctx, int task, int thread)
{
    Work *w = ctx;
    int i = task * w->comm->size + w->comm->rank;
    uint32_t crc = 0;
    (void)thread;
    if (i >= w->modules->n) {
        lint_vector(w->c, w->vectors[i - w->modules->n], &w->found[task]);
        return;
    }
    lint_module(w->c, &w->modules->at[i], &w->found[task], &crc);
    w->crcs[i] = crc;
}

/* Tensors of a plain type that are no matrix: norms, biases, sinks, scales of the cache. */
static Status find_vectors(Work *w, Err *e)
{
    const TensorSet *files = &w->c->files;
    w->vectors = calloc((size_t)files->n + 1, sizeof *w->vectors);
    if (!w->vectors)
        return err_set(e, ST_MEMORY, "not enough memory for %d tensors", files->n);
    for (int i = 0; i < files->n; i++) {
        const TensorEntry *t = files->entries[i];
        bool plain = t->dtype == DTYPE_F32 || t->dtype == DTYPE_BF16 || t->dtype == DTYPE_F16;
        if (w->c->use[i].bound && !w->c->use[i].skipped && plain && t->n_dims == 1 &&
            w->c->use[i].params > 0)
            w->vectors[w->n_vectors++] = t;
    }
    return ST_OK;
}

/* --- to rank 0 --- */

static Status keep_line(Lint *l, char *line, Err *e)
{
    int level = *line - '0';
    const char *text = arena_copy(&l->arena, line + 2, strlen(line + 2));
    if (!text)
        return err_set(e, ST_MEMORY, "not enough memory for the findings");
    l->at[l->n++] = (Finding){(LintLevel)level, text};
    l->n_of[level]++;
    return ST_OK;
}

static int count_lines(const char *text, size_t len)
{
    int n = 0;
    for (size_t i = 0; i < len; i++)
        n += text[i] == '\n';
    return n;
}

/* Every rank's tasks end in an empty line, so that the tasks can be taken in turn: task t of rank r
 * is item t * size + r. */
static Status merge(Lint *l, char *all, size_t each, int n_ranks, int n_items, StrBuf *whole,
                    Err *e)
{
    int n = count_lines(all, each * (size_t)n_ranks) + count_lines(whole->data, whole->len);
    char **at = calloc((size_t)n_ranks, sizeof *at);
    Status st = ST_OK;
    l->at = arena_alloc(&l->arena, ((size_t)n + 1) * sizeof *l->at);
    if (!at || !l->at) {
        st = err_set(e, ST_MEMORY, "not enough memory for the findings");
        goto fail;
    }
    for (int r = 0; r < n_ranks; r++)
        at[r] = all + (size_t)r * each;
    for (int i = 0; i < n_items; i++) {
        char **p = &at[i % n_ranks], *end;
        for (; **p && **p != '\n'; *p = end + 1) {
            end = strchr(*p, '\n');
            *end = 0;
            TRY_GOTO(keep_line(l, *p, e));
        }
        *p += **p == '\n';
    }
    for (char *p = whole->data, *end; p && *p; p = end + 1) {
        end = strchr(p, '\n');
        *end = 0;
        TRY_GOTO(keep_line(l, p, e));
    }
fail:
    free(at);
    return st;
}

static Status gather(Work *w, const char *mine, size_t len, StrBuf *whole, Lint *out, Err *e)
{
    Comm *comm = (Comm *)w->comm;
    int64_t most = (int64_t)len + 1;
    char *padded = NULL, *all = NULL;
    Status st = ST_OK;
    TRY(comm_max_int64(comm, &most, 1, e));
    padded = calloc((size_t)most, 1);
    if (comm->rank == ROOT)
        all = malloc((size_t)most * (size_t)comm->size);
    if (!padded || (comm->rank == ROOT && !all))
        st = err_set(e, ST_MEMORY, "not enough memory for the findings");
    TRY_GOTO(dist_agree(comm, st, e));
    if (len)
        memcpy(padded, mine, len);
    TRY_GOTO(comm_gather(comm, padded, (size_t)most, all, ROOT, e));
    if (comm->rank == ROOT)
        st = merge(out, all, (size_t)most, comm->size, w->modules->n + w->n_vectors, whole, e);
    st = dist_agree(comm, st, e);
fail:
    free(padded);
    free(all);
    return st;
}

/* Every task's lines, one after the other. */
static Status join(StrBuf *found, int n, StrBuf *out, Err *e)
{
    for (int i = 0; i < n; i++) {
        out->failed |= found[i].failed;
        if (found[i].len)
            strbuf_add(out, found[i].data, found[i].len);
        strbuf_str(out, "\n");
    }
    return out->failed ? err_set(e, ST_MEMORY, "not enough memory for the findings") : ST_OK;
}

Status lint_run(const char *dir, Checkpoint *c, const Modules *modules, Comm *comm, Team *team,
                Lint *out, Err *e)
{
    Work w = {.c = c, .modules = modules, .comm = comm};
    StrBuf mine = {0}, whole = {0};
    int n_tasks = 0;
    *out = (Lint){0};
    Status st = find_vectors(&w, e);
    if (st == ST_OK) {
        int n = modules->n + w.n_vectors;
        n_tasks = n / comm->size + (comm->rank < n % comm->size);
        w.found = calloc((size_t)n_tasks + 1, sizeof *w.found);
        w.crcs = calloc((size_t)modules->n + 1, sizeof *w.crcs);
        if (!w.found || !w.crcs)
            st = err_set(e, ST_MEMORY, "not enough memory for %d findings", n);
    }
    TRY_GOTO(dist_agree(comm, st, e));
    team_run(team, n_tasks, lint_one, &w);
    TRY_GOTO(comm_sum_int64(comm, w.crcs, modules->n, e));
    if (comm->rank == ROOT)
        lint_whole(dir, c, modules, w.crcs, &whole);
    st = join(w.found, n_tasks, &mine, e);
    if (st == ST_OK && whole.failed)
        st = err_set(e, ST_MEMORY, "not enough memory for the findings");
    TRY_GOTO(dist_agree(comm, st, e));
    st = gather(&w, mine.data, mine.len, &whole, out, e);
fail:
    for (int i = 0; w.found && i < n_tasks; i++)
        strbuf_free(&w.found[i]);
    free(w.found);
    free(w.crcs);
    free(w.vectors);
    strbuf_free(&mine);
    strbuf_free(&whole);
    if (st != ST_OK)
        lint_free(out);
    return st;
}

void lint_free(Lint *l)
{
    arena_free(&l->arena);
    *l = (Lint){0};
}
