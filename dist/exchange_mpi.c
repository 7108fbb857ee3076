/* dist/exchange_mpi.c - the exchange over MPI, with rows in host memory; see exchange.h.
 *
 * Each rank sends each other rank its mail (how many rows, how many rounds, the choices) and,
 * without waiting for an answer, the rows of the first window; results go back in one more
 * message with a word on whether the sender failed. So a layer waits twice, where collectives
 * over counts, choices, rows and results would wait five times, and while a rank decodes a few
 * tokens those waits are what a layer costs. Results land at home in their final place, by
 * (destination, token, slot), without a copy. */
#include "dist/comm_mpi.h"
#include "dist/exchange_kind.h"
#include "dist/exchange_plan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 };
enum { TAG_MAIL = 1, TAG_ROWS, TAG_FAILED, TAG_RESULTS };

typedef struct MpiExchange {
    Exchange base;
    Plan plan;
    size_t row_bytes;

    const char *rows;    /* the caller's, from begin */
    const char *travel;  /* what travels: the same, or its codes */
    size_t travel_bytes; /* of one of them */
    bool travels_coded;
    char *coded;       /* received codes: window_rows of each other rank; NULL: none ever */
    CodedRows *ranges; /* [size] */
    char *
        home_rows; /* own rows [max_tokens], then window_rows of each other rank; NULL when alone */
    char *
        results; /* results at home [max_tokens * top_k] (none when alone), then this round's out */
    size_t out_row; /* where out begins, in rows of results */
    char *send;
    int32_t *failed;       /* [size + 1] what the others say in combine, and what this rank says */
    MPI_Request *requests; /* [4 * size] */
    int n_requests;
    MPI_Datatype row_type;   /* results, and rows that travel as they are */
    MPI_Datatype coded_type; /* of coded_type_bytes: the last layer's that had coded rows */
    int coded_type_bytes;
    int n_rounds;
} MpiExchange;

/* Rows that each buffer holds. */
typedef struct BufferRows {
    size_t home, coded, results, out_row, send;
} BufferRows;

static BufferRows buffer_rows(int rank, int size, const Placement *placement,
                              const ExchangeShape *shape)
{
    size_t tokens = (size_t)shape->max_tokens, pairs = tokens * (size_t)shape->top_k;
    if (size <= 1)
        return (BufferRows){.results = pairs};
    size_t window = (size_t)plan_window_pairs(size, shape), others = (size_t)size - 1;
    size_t window_rows = (size_t)plan_window_rows(size, shape);
    bool owns = placement->n_local[rank] > 0;
    return (BufferRows){
        .home = tokens + (owns ? others * window_rows : 0),
        .coded = owns ? others * window_rows : 0,
        .results = pairs + (owns ? (size_t)size * window : 0),
        .out_row = pairs,
        .send = others * (owns ? window : window_rows),
    };
}

static size_t aligned_bytes(size_t rows, const ExchangeShape *shape)
{
    return (rows * (size_t)shape->row_bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t memory_bytes(const Comm *comm, const Placement *placement, const ExchangeShape *shape)
{
    BufferRows n = buffer_rows(comm->rank, comm->size, placement, shape);
    return sizeof(MpiExchange) + n.coded * (size_t)shape->coded_bytes +
           (size_t)comm->size * sizeof(CodedRows) +
           plan_bytes(comm->rank, comm->size, placement, shape) + aligned_bytes(n.home, shape) +
           aligned_bytes(n.results, shape) + aligned_bytes(n.send, shape) +
           ((size_t)comm->size + 1) * sizeof(int32_t) +
           4 * (size_t)comm->size * sizeof(MPI_Request);
}

static Status take_rows(char **out, size_t rows, const ExchangeShape *shape, Err *e)
{
    size_t bytes = aligned_bytes(rows, shape);
    if (bytes == 0)
        return ST_OK;
    *out = aligned_alloc(ALIGN, bytes);
    return *out ? ST_OK : err_set(e, ST_MEMORY, "exchange: no memory for %zu bytes of rows", bytes);
}

static void destroy(Exchange *base)
{
    MpiExchange *x = (MpiExchange *)base;
    if (x->row_type != MPI_DATATYPE_NULL)
        MPI_Type_free(&x->row_type);
    if (x->coded_type != MPI_DATATYPE_NULL)
        MPI_Type_free(&x->coded_type);
    free(x->coded);
    free(x->ranges);
    free(x->requests);
    free(x->failed);
    free(x->send);
    free(x->results);
    free(x->home_rows);
    plan_free(&x->plan);
    free(x);
}

static Status create(Exchange **out, Comm *comm, const Placement *placement,
                     const ExchangeShape *shape, Err *e)
{
    Status st;
    MpiExchange *x = calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ST_MEMORY, "exchange: no memory");
    x->base.kind = &exchange_mpi;
    x->base.comm = comm;
    x->base.shape = *shape;
    x->row_type = x->coded_type = MPI_DATATYPE_NULL;
    if (shape->coded_bytes < 0 || shape->coded_bytes > shape->row_bytes) {
        st = err_set(e, ST_USAGE, "exchange: rows of %d bytes in codes of %d", shape->row_bytes,
                     shape->coded_bytes);
        goto fail;
    }
    TRY_GOTO(plan_create(&x->plan, comm->rank, comm->size, placement, shape, e));
    x->row_bytes = (size_t)shape->row_bytes;
    BufferRows n = buffer_rows(comm->rank, comm->size, placement, shape);
    x->out_row = n.out_row;
    TRY_GOTO(take_rows(&x->home_rows, n.home, shape, e));
    TRY_GOTO(take_rows(&x->results, n.results, shape, e));
    TRY_GOTO(take_rows(&x->send, n.send, shape, e));
    size_t coded_bytes = n.coded * (size_t)shape->coded_bytes;
    if (coded_bytes > 0 && !(x->coded = malloc(coded_bytes))) {
        st = err_set(e, ST_MEMORY, "exchange: no memory for %zu bytes of coded rows", coded_bytes);
        goto fail;
    }
    x->ranges = calloc((size_t)comm->size, sizeof *x->ranges);
    x->failed = calloc((size_t)comm->size + 1, sizeof *x->failed);
    x->requests = calloc(4 * (size_t)comm->size, sizeof *x->requests);
    if (!x->ranges || !x->failed || !x->requests) {
        st = err_set(e, ST_MEMORY, "exchange: no memory for the messages of %d ranks", comm->size);
        goto fail;
    }
    if (comm->size > 1) {
        /* Counts are int: in rows, they cannot overflow. */
        int code = MPI_Type_contiguous(shape->row_bytes, MPI_BYTE, &x->row_type);
        if (code == MPI_SUCCESS)
            code = MPI_Type_commit(&x->row_type);
        if (code != MPI_SUCCESS) {
            st = comm_mpi_error(e, code, "MPI_Type_contiguous");
            goto fail;
        }
    }
    *out = &x->base;
    return ST_OK;
fail:
    destroy(&x->base);
    return st;
}

static int max_pairs(const Exchange *base)
{
    const MpiExchange *x = (const MpiExchange *)base;
    return x->plan.n_local ? x->plan.size * x->plan.window_pairs : 0;
}

static void *home_rows(Exchange *base)
{
    return ((MpiExchange *)base)->home_rows;
}

/* The k-th of the other ranks, starting after this one, so that not all send to the same rank at
 * first. */
static int other_rank(const MpiExchange *x, int k)
{
    return (x->base.comm->rank + 1 + k) % x->base.comm->size;
}

static Status post_receive(MpiExchange *x, void *to, int n, MPI_Datatype type, int rank, int tag,
                           Err *e)
{
    int code =
        MPI_Irecv(to, n, type, rank, tag, x->base.comm->state->mpi, &x->requests[x->n_requests]);
    if (code != MPI_SUCCESS)
        return comm_mpi_error(e, code, "MPI_Irecv");
    x->n_requests++;
    return ST_OK;
}

static Status post_send(MpiExchange *x, const void *from, int n, MPI_Datatype type, int rank,
                        int tag, Err *e)
{
    int code =
        MPI_Isend(from, n, type, rank, tag, x->base.comm->state->mpi, &x->requests[x->n_requests]);
    if (code != MPI_SUCCESS)
        return comm_mpi_error(e, code, "MPI_Isend");
    x->n_requests++;
    return ST_OK;
}

static Status wait_all(MpiExchange *x, const char *name, Err *e)
{
    int n = x->n_requests;
    x->n_requests = 0;
    if (n == 0)
        return ST_OK;
    watchdog_enter(x->base.comm->state->watchdog, name);
    int code = MPI_Waitall(n, x->requests, MPI_STATUSES_IGNORE);
    x->base.stats.wait_s += watchdog_leave(x->base.comm->state->watchdog);
    return code == MPI_SUCCESS ? ST_OK : comm_mpi_error(e, code, name);
}

/* Where rows of a rank go in rows, and where they arrive: there, or as codes. */
static char *place_of_rows(MpiExchange *x, int from)
{
    return x->home_rows + (size_t)plan_first_received(&x->plan, from) * x->row_bytes;
}

static char *received_rows(MpiExchange *x, int from)
{
    if (!x->travels_coded)
        return place_of_rows(x, from);
    size_t row = (size_t)plan_first_received(&x->plan, from) - (size_t)x->plan.max_tokens;
    return x->coded + row * x->travel_bytes;
}

static MPI_Datatype travel_type(const MpiExchange *x)
{
    return x->travels_coded ? x->coded_type : x->row_type;
}

/* Most layers of a model have codes of the same size, so the last type is kept. */
static Status choose_travel(MpiExchange *x, const ExchangeRows *rows, Err *e)
{
    bool coded = rows->coded_bytes > 0 && x->base.comm->size > 1;
    assert(rows->coded_bytes <= x->base.shape.coded_bytes && !rows->codes_read);
    x->rows = rows->rows;
    x->travel = coded ? rows->coded : rows->rows;
    x->travel_bytes = coded ? (size_t)rows->coded_bytes : x->row_bytes;
    x->travels_coded = coded;
    if (!coded || rows->coded_bytes == x->coded_type_bytes)
        return ST_OK;
    if (x->coded_type != MPI_DATATYPE_NULL)
        MPI_Type_free(&x->coded_type);
    x->coded_type_bytes = rows->coded_bytes;
    int code = MPI_Type_contiguous(rows->coded_bytes, MPI_BYTE, &x->coded_type);
    if (code == MPI_SUCCESS)
        code = MPI_Type_commit(&x->coded_type);
    return code == MPI_SUCCESS ? ST_OK : comm_mpi_error(e, code, "MPI_Type_contiguous");
}

/* Sends the window's rows to a rank; they are packed at *at, which moves on. */
static Status send_window(MpiExchange *x, int to, char **at, Err *e)
{
    Plan *p = &x->plan;
    const RowList *list = &p->to[to];
    const int32_t *token = p->token_of + list->first_row + list->row;
    char *first = *at;
    for (int i = 0; i < list->window_rows; i++, *at += x->travel_bytes)
        memcpy(*at, x->travel + (size_t)token[i] * x->travel_bytes, x->travel_bytes);
    x->base.stats.dispatch_bytes += (int64_t)list->window_rows * (int64_t)x->travel_bytes;
    return post_send(x, first, list->window_rows, travel_type(x), to, TAG_ROWS, e);
}

/* What arrived coded in this window. */
static int list_coded(MpiExchange *x)
{
    int n = 0;
    for (int r = 0; r < x->plan.size && x->travels_coded; r++)
        if (r != x->plan.rank && x->plan.from[r].window_rows > 0)
            x->ranges[n++] =
                (CodedRows){received_rows(x, r), place_of_rows(x, r), x->plan.from[r].window_rows};
    return n;
}

/* Mail and the first windows, to and from every other rank, also where there are no rows: the
 * receiver cannot know. */
static Status open_layer(MpiExchange *x, Err *e)
{
    Plan *p = &x->plan;
    const RowList *own = &p->to[p->rank];
    int most_rows = p->n_local > 0 ? p->window_rows : 0;
    char *at = x->send;
    memcpy(p->from[p->rank].mail, own->mail,
           (size_t)plan_mail_ints(p, p->rank) * sizeof *own->mail);
    for (int k = 0; k < p->size - 1; k++) {
        int r = other_rank(x, k);
        TRY(post_receive(x, p->from[r].mail, plan_most_mail_ints(p), MPI_INT32_T, r, TAG_MAIL, e));
        TRY(post_receive(x, most_rows ? received_rows(x, r) : NULL, most_rows, travel_type(x), r,
                         TAG_ROWS, e));
    }
    for (int k = 0; k < p->size - 1; k++) {
        int r = other_rank(x, k);
        TRY(post_send(x, p->to[r].mail, plan_mail_ints(p, r), MPI_INT32_T, r, TAG_MAIL, e));
        TRY(send_window(x, r, &at, e));
    }
    return wait_all(x, "dispatch", e);
}

static Status begin(Exchange *base, ExchangeRows rows, const int32_t *expert, int n_tokens,
                    ExchangeStep step, Status mine, int *n_rounds, Err *e)
{
    MpiExchange *x = (MpiExchange *)base;
    (void)step; /* the mail says all */
    *n_rounds = 0;
    Status found = mine == ST_OK ? plan_route(&x->plan, expert, n_tokens, e) : ST_OK;
    if (mine != ST_OK || found != ST_OK)
        plan_route_failure(&x->plan);
    Err trouble = {0}; /* e may hold this rank's own failure, which is worth more */
    Status st = choose_travel(x, &rows, &trouble);
    if (st == ST_OK)
        st = open_layer(x, &trouble);
    int failed = -1;
    if (st == ST_OK)
        st = plan_expect(&x->plan, &x->n_rounds, &failed, &trouble);
    if (st == ST_OK && failed >= 0)
        st = err_set(&trouble, ST_COMM, "rank %d failed in this step", failed);
    if (found != ST_OK)
        return found;
    if (st != ST_OK && mine == ST_OK && e)
        *e = trouble;
    TRY(st);
    x->base.stats.n_rounds += x->n_rounds;
    *n_rounds = x->n_rounds;
    return ST_OK;
}

/* Rows that stay here lie beside the received ones, so that one base pointer reaches both. */
static void keep_own_rows(MpiExchange *x)
{
    if (x->rows == x->home_rows)
        return;
    const RowList *own = &x->plan.to[x->plan.rank];
    for (int i = 0; i < own->n_rows; i++) {
        size_t at = (size_t)x->plan.token_of[own->first_row + i] * x->row_bytes;
        memcpy(x->home_rows + at, x->rows + at, x->row_bytes);
    }
}

/* Windows after the first: both ends know what moves. */
static Status move_windows(MpiExchange *x, Err *e)
{
    Plan *p = &x->plan;
    char *at = x->send;
    for (int k = 0; k < p->size - 1; k++) {
        int r = other_rank(x, k);
        if (p->from[r].window_rows > 0)
            TRY(post_receive(x, received_rows(x, r), p->from[r].window_rows, travel_type(x), r,
                             TAG_ROWS, e));
    }
    for (int k = 0; k < p->size - 1; k++)
        if (p->to[other_rank(x, k)].window_rows > 0)
            TRY(send_window(x, other_rank(x, k), &at, e));
    return wait_all(x, "dispatch", e);
}

static Status dispatch(Exchange *base, int round, RecvRows *recv, Err *e)
{
    MpiExchange *x = (MpiExchange *)base;
    Plan *p = &x->plan;
    bool alone = p->size == 1;
    if (round > 0)
        plan_next_send(p);
    plan_next_receive(p);
    if (round > 0)
        TRY(move_windows(x, e));
    else if (!alone)
        keep_own_rows(x);
    plan_group(p);
    *recv = (RecvRows){
        .rows = alone ? x->rows : x->home_rows,
        .row_of = p->row_of,
        .first = p->first,
        .max_pairs = p->n_pairs,
        .out = x->results + x->out_row * x->row_bytes,
        .coded = x->ranges,
        .n_coded = list_coded(x),
    };
    return ST_OK;
}

/* Results of own rows stay where they are in the last round, and are put aside before another
 * one. */
static void keep_own_results(MpiExchange *x, int round, const int32_t *place)
{
    Plan *p = &x->plan;
    const RowList *own = &p->to[p->rank];
    size_t k = (size_t)p->top_k;
    const int32_t *choice = own->mail + MAIL_HEAD + (size_t)own->row * k;
    int32_t home = own->first_pair + own->pair;
    for (int r = 0; r < own->window_rows; r++) {
        size_t token = (size_t)p->token_of[own->first_row + own->row + r];
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

static Status receive_results(MpiExchange *x, Err *e)
{
    for (int k = 0; k < x->base.comm->size - 1; k++) {
        int r = other_rank(x, k);
        const RowList *list = &x->plan.to[r];
        char *home = x->results + (size_t)(list->first_pair + list->pair) * x->row_bytes;
        TRY(post_receive(x, &x->failed[r], 1, MPI_INT32_T, r, TAG_FAILED, e));
        if (list->window_pairs > 0)
            TRY(post_receive(x, home, list->window_pairs, x->row_type, r, TAG_RESULTS, e));
    }
    return ST_OK;
}

/* place: where the results for this rank's first pair lie in out. */
static Status send_results(MpiExchange *x, int to, const int32_t *place, char **at, Err *e)
{
    int n = x->plan.from[to].window_pairs;
    const char *out = x->results + x->out_row * x->row_bytes;
    char *first = *at;
    for (int i = 0; i < n; i++, *at += x->row_bytes)
        memcpy(*at, out + (size_t)place[i] * x->row_bytes, x->row_bytes);
    x->base.stats.combine_bytes += (int64_t)n * x->base.shape.row_bytes;
    TRY(post_send(x, &x->failed[x->base.comm->size], 1, MPI_INT32_T, to, TAG_FAILED, e));
    return n > 0 ? post_send(x, first, n, x->row_type, to, TAG_RESULTS, e) : ST_OK;
}

/* A rank that failed sends what lies in out all the same, so that nobody waits for it in vain;
 * nobody will use it. */
static Status swap_results(MpiExchange *x, int round, Err *e)
{
    Plan *p = &x->plan;
    char *at = x->send;
    const int32_t *place = p->place;
    TRY(receive_results(x, e));
    for (int r = 0; r < p->size; r++) {
        if (r == p->rank)
            keep_own_results(x, round, place);
        else
            TRY(send_results(x, r, place, &at, e));
        place += p->from[r].window_pairs;
    }
    return wait_all(x, "combine", e);
}

static Status combine(Exchange *base, int round, Status mine, HomeRows *home, Err *e)
{
    MpiExchange *x = (MpiExchange *)base;
    int n = x->base.comm->size;
    Err trouble = {0};
    x->failed[n] = mine != ST_OK;
    Status st = swap_results(x, round, &trouble);
    x->failed[x->base.comm->rank] = mine != ST_OK;
    for (int r = 0; r < n && st == ST_OK; r++)
        if (x->failed[r])
            st = err_set(&trouble, ST_COMM, "rank %d failed in this step", r);
    if (st != ST_OK && mine == ST_OK && e)
        *e = trouble;
    bool last = round == x->n_rounds - 1;
    *home = (HomeRows){.rows = x->results, .slot = x->plan.slot};
    home->n_tokens = last ? x->plan.n_tokens : 0;
    return st;
}

const ExchangeKind exchange_mpi = {
    .create = create,
    .destroy = destroy,
    .plan_bytes = memory_bytes,
    .max_pairs = max_pairs,
    .home_rows = home_rows,
    .begin = begin,
    .dispatch = dispatch,
    .combine = combine,
};
