/* model/weight_digest.c - see weight_digest.h. */
#include "model/weight_digest.h"

#include "io/digest.h"
#include "model/kept.h"

#include <stdlib.h>
#include <string.h>

/* Some rows at a time, so that a vocabulary's embedding needs no second copy of itself. */
static Status add_rows(Sha256 *s, const QuantTensor *q, float *row, Err *e)
{
    for (int64_t r = 0; r < q->rows; r++) {
        q->format->decode(q, r, 0, q->cols, row);
        TRY(sha256_add(s, row, (size_t)q->cols * sizeof *row, e));
    }
    return ST_OK;
}

/* all [rows, cols], column by column through line [rows]. */
static Status add_turned(Sha256 *s, const QuantTensor *q, float *all, float *line, Err *e)
{
    quant_decode(q, all);
    for (int64_t k = 0; k < q->cols; k++) {
        for (int64_t r = 0; r < q->rows; r++)
            line[r] = all[r * q->cols + k];
        TRY(sha256_add(s, line, (size_t)q->rows * sizeof *line, e));
    }
    return ST_OK;
}

Status weight_digest(const Checkpoint *c, const Module *m, uint8_t out[32], Err *e)
{
    const QuantTensor *q = &m->t->q;
    Sha256 *s = NULL;
    float *line = NULL, *all = NULL;
    Status st;
    TRY(sha256_create(&s, e));
    line = malloc((size_t)(q->rows > q->cols ? q->rows : q->cols) * sizeof *line);
    if (m->n_stack)
        all = malloc((size_t)(q->rows * q->cols) * sizeof *all);
    if (!line || (m->n_stack && !all)) {
        st = err_set(e, ST_MEMORY, "not enough memory to decode \"%.200s\"", m->t->weight->name);
        goto fail;
    }
    for (int x = 0; x < (m->n_stack ? m->n_stack : 1); x++) {
        QuantTensor view;
        TRY_GOTO(linear_view(&c->files, m->t, x, &view, e));
        TRY_GOTO(all ? add_turned(s, &view, all, line, e) : add_rows(s, &view, line, e));
    }
    st = sha256_end(s, out, e);
fail:
    kept_drop(&c->files, m->t->weight);
    free(all);
    free(line);
    sha256_free(s);
    return st;
}

/* --- all of them --- */

typedef struct Work {
    const Checkpoint *c;
    const Modules *modules;
    const Comm *comm;
    uint8_t (*out)[32];
    Err *errors; /* [tasks] */
} Work;

static int n_tasks(const Comm *comm, int n)
{
    return n / comm->size + (comm->rank < n % comm->size);
}

static void digest_one(void *ctx, int task, int thread)
{
    Work *w = ctx;
    int i = task * w->comm->size + w->comm->rank;
    (void)thread;
    w->errors[task].code = ST_OK;
    if (w->modules->at[i].t->scheme)
        weight_digest(w->c, &w->modules->at[i], w->out[i], &w->errors[task]);
}

/* Of the first task that failed. */
static Status first_failure(const Err *errors, int n, Err *e)
{
    for (int i = 0; i < n; i++)
        if (errors[i].code != ST_OK) {
            *e = errors[i];
            return e->code;
        }
    return ST_OK;
}

Status weight_digests(const Checkpoint *c, const Modules *modules, Comm *comm, Team *team,
                      uint8_t (*out)[32], Err *e)
{
    size_t bytes = (size_t)modules->n * sizeof *out;
    int mine = n_tasks(comm, modules->n);
    uint8_t(*all)[32] = comm->rank == 0 ? malloc(bytes * (size_t)comm->size + 1) : NULL;
    Work w = {c, modules, comm, out, calloc((size_t)mine + 1, sizeof *w.errors)};
    Status st = ST_OK;
    if (!w.errors || (comm->rank == 0 && !all))
        st = err_set(e, ST_MEMORY, "not enough memory for %d digests", modules->n);
    memset(out, 0, bytes);
    if (st == ST_OK) {
        team_run(team, mine, digest_one, &w);
        st = first_failure(w.errors, mine, e);
    }
    TRY_GOTO(dist_agree(comm, st, e));
    TRY_GOTO(comm_gather(comm, out, bytes, all, 0, e));
    for (int i = 0; i < modules->n && comm->rank == 0; i++)
        memcpy(out[i], all[(size_t)(i % comm->size) * (size_t)modules->n + (size_t)i], 32);
fail:
    free(w.errors);
    free(all);
    return st;
}
