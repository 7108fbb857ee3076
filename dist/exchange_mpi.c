/* dist/exchange_mpi.c - the exchange over MPI, with rows in host memory; see exchange.h.
 *
 * begin swaps two numbers per pair of ranks (rows coming, rounds needed) and then the choices of
 * each row, so that afterwards both ends of every list know all windows. A round of dispatch or
 * combine is one alltoallv of whole rows. Results land at home in their final place, by
 * (destination, token, slot), without a copy. */
#include "dist/exchange.h"

#include "dist/comm_mpi.h"
#include "dist/exchange_plan.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS_FAILED = -1 /* in place of a count: the sender failed in this step */ };
enum { ALIGN = 64 };

typedef struct Greeting { /* what opens a layer between two ranks */
    int32_t n_rows, n_rounds;
} Greeting;

struct Exchange {
    Comm *comm;
    ExchangeShape shape;
    Plan plan;
    size_t row_bytes;

    const char *rows; /* the caller's, from begin */
    char *home_rows;  /* own rows [max_tokens], then received ones; NULL when alone */
    char *
        results; /* results at home [max_tokens * top_k] (none when alone), then this round's out */
    size_t out_row; /* where out begins, in rows of results */
    char *send;
    Greeting *say, *hear; /* [size] */
    int *counts; /* [4 * size]: send counts and displacements, receive counts and displacements */
    MPI_Datatype row_type, choice_type;
    int n_rounds;
    ExchangeStats stats;
};

/* Rows that each buffer holds. */
typedef struct BufferRows {
    size_t home, results, out_row, send;
} BufferRows;

static BufferRows buffer_rows(int rank, int size, const Placement *placement,
                              const ExchangeShape *shape)
{
    size_t tokens = (size_t)shape->max_tokens, pairs = tokens * (size_t)shape->top_k;
    if (size <= 1)
        return (BufferRows){0, pairs, 0, 0};
    size_t window = (size_t)plan_window_pairs(size, shape), others = (size_t)size - 1;
    size_t window_rows = window < tokens ? window : tokens;
    bool owns = placement->n_local[rank] > 0;
    return (BufferRows){
        .home = tokens + (owns ? others * window_rows : 0),
        .results = pairs + (owns ? (size_t)size * window : 0),
        .out_row = pairs,
        .send = others * (owns ? window : window_rows),
    };
}

static size_t aligned_bytes(size_t rows, const ExchangeShape *shape)
{
    return (rows * (size_t)shape->row_bytes + ALIGN - 1) / ALIGN * ALIGN;
}

size_t exchange_plan_bytes(const Comm *comm, const Placement *placement, const ExchangeShape *shape)
{
    BufferRows n = buffer_rows(comm->rank, comm->size, placement, shape);
    return sizeof(Exchange) + plan_bytes(comm->rank, comm->size, placement, shape) +
           aligned_bytes(n.home, shape) + aligned_bytes(n.results, shape) +
           aligned_bytes(n.send, shape) +
           (size_t)comm->size * (2 * sizeof(Greeting) + 4 * sizeof(int));
}

static Status take_rows(char **out, size_t rows, const ExchangeShape *shape, Err *e)
{
    size_t bytes = aligned_bytes(rows, shape);
    if (bytes == 0)
        return ST_OK;
    *out = aligned_alloc(ALIGN, bytes);
    return *out ? ST_OK : err_set(e, ST_MEMORY, "exchange: no memory for %zu bytes of rows", bytes);
}

static Status make_type(MPI_Datatype *out, int n, MPI_Datatype of, Err *e)
{
    int code = MPI_Type_contiguous(n, of, out);
    if (code == MPI_SUCCESS)
        code = MPI_Type_commit(out);
    return code == MPI_SUCCESS ? ST_OK : comm_mpi_error(e, code, "MPI_Type_contiguous");
}

Status exchange_create(Exchange **out, Comm *comm, const Placement *placement,
                       const ExchangeShape *shape, Err *e)
{
    Status st;
    Exchange *x = calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ST_MEMORY, "exchange: no memory");
    x->comm = comm;
    x->shape = *shape;
    x->row_type = x->choice_type = MPI_DATATYPE_NULL;
    TRY_GOTO(plan_create(&x->plan, comm->rank, comm->size, placement, shape, e));
    x->row_bytes = (size_t)shape->row_bytes;
    BufferRows n = buffer_rows(comm->rank, comm->size, placement, shape);
    x->out_row = n.out_row;
    TRY_GOTO(take_rows(&x->home_rows, n.home, shape, e));
    TRY_GOTO(take_rows(&x->results, n.results, shape, e));
    TRY_GOTO(take_rows(&x->send, n.send, shape, e));
    x->say = calloc(2 * (size_t)comm->size, sizeof *x->say);
    x->counts = calloc(4 * (size_t)comm->size, sizeof *x->counts);
    if (!x->say || !x->counts) {
        st = err_set(e, ST_MEMORY, "exchange: no memory for the counts of %d ranks", comm->size);
        goto fail;
    }
    x->hear = x->say + comm->size;
    if (comm->size > 1) {
        /* Counts and displacements are int: in rows, they cannot overflow. */
        TRY_GOTO(make_type(&x->row_type, shape->row_bytes, MPI_BYTE, e));
        TRY_GOTO(make_type(&x->choice_type, shape->top_k, MPI_INT32_T, e));
    }
    *out = x;
    return ST_OK;
fail:
    exchange_destroy(x);
    return st;
}

void exchange_destroy(Exchange *x)
{
    if (!x)
        return;
    if (x->row_type != MPI_DATATYPE_NULL)
        MPI_Type_free(&x->row_type);
    if (x->choice_type != MPI_DATATYPE_NULL)
        MPI_Type_free(&x->choice_type);
    free(x->counts);
    free(x->say);
    free(x->send);
    free(x->results);
    free(x->home_rows);
    plan_free(&x->plan);
    free(x);
}

int exchange_max_pairs(const Exchange *x)
{
    return x->plan.n_local ? x->plan.size * x->plan.window_pairs : 0;
}

void *exchange_home_rows(Exchange *x)
{
    return x->home_rows;
}

static Status waited(Exchange *x, Err *e, const char *name, int code)
{
    x->stats.wait_s += watchdog_leave(x->comm->state->watchdog);
    return code == MPI_SUCCESS ? ST_OK : comm_mpi_error(e, code, name);
}

/* COMM_WAIT that counts the seconds. */
#define WAIT(x, e, name, call)                                                                     \
    (watchdog_enter((x)->comm->state->watchdog, name), waited((x), (e), name, (call)))

/* One alltoallv with the counts and displacements that stand in x->counts. */
static Status swap(Exchange *x, const void *send, void *recv, MPI_Datatype type, const char *name,
                   Err *e)
{
    int n = x->comm->size, *c = x->counts;
    return WAIT(
        x, e, name,
        MPI_Alltoallv(send, c, c + n, type, recv, c + 2 * n, c + 3 * n, type, x->comm->state->mpi));
}

/* Tells every rank how many rows it will get, or that this rank failed, and hears the same from
 * them. */
static Status greet(Exchange *x, Status mine, int my_rounds, Err *e)
{
    Plan *p = &x->plan;
    for (int d = 0; d < p->size; d++)
        x->say[d] =
            mine == ST_OK ? (Greeting){p->to[d].n_rows, my_rounds} : (Greeting){ROWS_FAILED, 0};
    if (p->size > 1) {
        TRY(WAIT(
            x, e, "MPI_Alltoall (counts)",
            MPI_Alltoall(x->say, 2, MPI_INT32_T, x->hear, 2, MPI_INT32_T, x->comm->state->mpi)));
    } else {
        x->hear[0] = x->say[0];
    }
    x->n_rounds = 0;
    for (int s = 0; s < p->size; s++) {
        if (x->hear[s].n_rows == ROWS_FAILED)
            return mine != ST_OK ? ST_COMM : err_set(e, ST_COMM, "rank %d failed in this step", s);
        if (x->hear[s].n_rounds > x->n_rounds)
            x->n_rounds = x->hear[s].n_rounds;
    }
    return ST_OK;
}

static Status swap_choices(Exchange *x, Err *e)
{
    Plan *p = &x->plan;
    int n = p->size, *c = x->counts;
    for (int r = 0; r < n; r++)
        c[r] = x->hear[r].n_rows;
    TRY(plan_expect(p, c, e));
    for (int r = 0; r < n; r++) {
        c[r] = r == p->rank ? 0 : p->to[r].n_rows;
        c[n + r] = p->to[r].first_row;
        c[2 * n + r] = r == p->rank ? 0 : p->from[r].n_rows;
        c[3 * n + r] = p->from[r].first_row;
    }
    size_t k = (size_t)p->top_k;
    const RowList *to = &p->to[p->rank], *from = &p->from[p->rank];
    memcpy(p->from_choice + (size_t)from->first_row * k, p->choice + (size_t)to->first_row * k,
           (size_t)to->n_rows * k * sizeof *p->choice);
    if (n <= 1 || x->n_rounds == 0)
        return ST_OK;
    return swap(x, p->choice, p->from_choice, x->choice_type, "MPI_Alltoallv (choices)", e);
}

Status exchange_begin(Exchange *x, const void *rows, const int32_t *expert, int n_tokens,
                      Status mine, int *n_rounds, Err *e)
{
    *n_rounds = 0;
    x->rows = rows;
    int my_rounds = 0;
    Status found = ST_OK;
    if (mine == ST_OK)
        found = plan_route(&x->plan, expert, n_tokens, &my_rounds, e);
    Status st = greet(x, mine != ST_OK ? mine : found, my_rounds, e);
    if (found != ST_OK)
        return found;
    TRY(st);
    TRY(swap_choices(x, e));
    x->stats.n_rounds += x->n_rounds;
    *n_rounds = x->n_rounds;
    return ST_OK;
}

/* Rows that stay here lie beside the received ones, so that one base pointer reaches both. */
static void keep_own_rows(Exchange *x)
{
    if (x->rows == x->home_rows)
        return;
    const RowList *own = &x->plan.to[x->plan.rank];
    for (int i = 0; i < own->n_rows; i++) {
        size_t at = (size_t)x->plan.token_of[own->first_row + i] * x->row_bytes;
        memcpy(x->home_rows + at, x->rows + at, x->row_bytes);
    }
}

static Status send_rows(Exchange *x, Err *e)
{
    Plan *p = &x->plan;
    int n = p->size, *c = x->counts, n_send = 0, n_recv = 0;
    for (int r = 0; r < n; r++) {
        c[n + r] = n_send;
        c[3 * n + r] = n_recv;
        c[r] = r == p->rank ? 0 : p->to[r].window_rows;
        c[2 * n + r] = r == p->rank ? 0 : p->from[r].window_rows;
        const int32_t *token = p->token_of + p->to[r].first_row + p->to[r].row;
        char *send = x->send + (size_t)n_send * x->row_bytes;
        for (int i = 0; i < c[r]; i++, send += x->row_bytes)
            memcpy(send, x->rows + (size_t)token[i] * x->row_bytes, x->row_bytes);
        n_send += c[r];
        n_recv += c[2 * n + r];
    }
    x->stats.dispatch_bytes += (int64_t)n_send * x->shape.row_bytes;
    char *received = x->home_rows + (size_t)p->max_tokens * x->row_bytes;
    return swap(x, x->send, received, x->row_type, "MPI_Alltoallv (dispatch)", e);
}

Status exchange_dispatch(Exchange *x, int round, RecvRows *recv, Err *e)
{
    plan_next_round(&x->plan);
    if (x->comm->size > 1) {
        if (round == 0)
            keep_own_rows(x);
        TRY(send_rows(x, e));
    }
    *recv = (RecvRows){
        .rows = x->comm->size > 1 ? x->home_rows : x->rows,
        .row_of = x->plan.row_of,
        .first = x->plan.first,
        .n_pairs = x->plan.n_pairs,
        .out = x->results + x->out_row * x->row_bytes,
    };
    return ST_OK;
}

/* Results of own rows stay where they are in the last round, and are put aside before another one.
 */
static void keep_own_results(Exchange *x, int round, const int32_t *place)
{
    Plan *p = &x->plan;
    const RowList *own = &p->from[p->rank], *to = &p->to[p->rank];
    size_t k = (size_t)p->top_k;
    const int32_t *choice = p->from_choice + (size_t)(own->first_row + own->row) * k;
    int32_t home = to->first_pair + to->pair;
    for (int r = 0; r < own->window_rows; r++) {
        size_t token = (size_t)p->token_of[to->first_row + own->row + r];
        for (size_t s = 0; s < k; s++, choice++) {
            if (*choice < 0)
                continue;
            size_t row = x->out_row + (size_t)*place++;
            if (round == x->n_rounds - 1)
                p->slot[token * k + s] = (int32_t)row;
            else
                memcpy(x->results + (size_t)home * x->row_bytes, x->results + row * x->row_bytes,
                       x->row_bytes);
            home++;
        }
    }
}

/* One failing rank is enough: every rank leaves the round here. */
static Status agree_in_round(Exchange *x, Status mine, Err *e)
{
    int failed = mine != ST_OK ? 1 : 0;
    if (x->comm->size > 1)
        TRY(WAIT(x, e, "MPI_Allreduce (combine)",
                 MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, x->comm->state->mpi)));
    if (!failed)
        return ST_OK;
    return mine != ST_OK ? ST_COMM : err_set(e, ST_COMM, "another rank failed in this step");
}

Status exchange_combine(Exchange *x, int round, Status mine, Err *e)
{
    TRY(agree_in_round(x, mine, e));
    Plan *p = &x->plan;
    int n = p->size, *c = x->counts, n_send = 0;
    const char *out = x->results + x->out_row * x->row_bytes;
    const int32_t *place = p->place;
    for (int r = 0; r < n; r++, place += p->from[r - 1].window_pairs) {
        if (r == p->rank)
            keep_own_results(x, round, place);
        c[r] = r == p->rank ? 0 : p->from[r].window_pairs;
        c[n + r] = n_send;
        c[2 * n + r] = r == p->rank ? 0 : p->to[r].window_pairs;
        c[3 * n + r] = p->to[r].first_pair + p->to[r].pair;
        char *send = x->send + (size_t)n_send * x->row_bytes;
        for (int i = 0; i < c[r]; i++, send += x->row_bytes)
            memcpy(send, out + (size_t)place[i] * x->row_bytes, x->row_bytes);
        n_send += c[r];
    }
    x->stats.combine_bytes += (int64_t)n_send * x->shape.row_bytes;
    return n > 1 ? swap(x, x->send, x->results, x->row_type, "MPI_Alltoallv (combine)", e) : ST_OK;
}

void exchange_results(const Exchange *x, const void **rows, const int32_t **slot)
{
    *rows = x->results;
    *slot = x->plan.slot;
}

ExchangeStats exchange_stats(const Exchange *x)
{
    return x->stats;
}
