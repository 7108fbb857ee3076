/* dist/exchange_device.c - the exchange between devices, over NCCL; see exchange.h.
 *
 * Everything is queued on the backend's stream: kernels pack the rows of a window of tokens,
 * messages go out and come in, the experts' rows are grouped where they have come. So the host knows
 * neither choices nor, while a step is fixed, how many rows there are: then every message holds as
 * many rows as a rank has tokens in the window, and results as if every choice were the same rank's.
 * Else each rank counts at begin what it has for whom in all rounds, the counts are gathered, and the
 * host reads them once a layer, at the first dispatch; what the caller queues in between runs
 * meanwhile.
 *
 * Own rows stay in the buffer where the model has written them, and received ones lie behind them,
 * message after message, each with its mail at its end. A rank alone only groups. */
#include "dist/comm_mpi.h"
#include "dist/exchange_kind.h"
#include "io/clock.h"
#include "kernels/backend.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN_ROWS = 16 /* so that messages begin at multiples of 16 bytes, whatever a row has */ };

/* What is planned from the shape, the same on every rank. */
typedef struct Sizes {
    int window;            /* tokens per rank and round */
    int rounds;            /* the most */
    int64_t home, message; /* rows of the home part, and of a message's place */
    int64_t pairs_here, pairs_there,
        row_pairs;  /* of one round: all; of the other ranks; a rank's */
    int64_t blocks; /* of a window, as count has them */
} Sizes;

typedef struct Window { /* the current round */
    int first, n;       /* own tokens */
    int rows;           /* of every message; 0: as counted */
} Window;

typedef struct DeviceExchange {
    Exchange base;
    const BackendOps *ops;
    const ExchangeOps *device;
    Backend *backend;
    Link *link; /* NULL when alone */
    int rank, size, top_k, n_local;
    size_t row_bytes;
    Sizes sizes;

    /* Backend memory. */
    char *home;     /* [home + others * message, row_bytes]; NULL when alone */
    char *coded;    /* likewise, of codes; NULL: none ever */
    char *messages; /* to others */
    char *results;  /* [pairs_here + pairs_there, row_bytes]: of the experts here; of those there */
    char *returned; /* results for the others */
    int32_t *owner, *local, *here; /* [n_experts]; here: number, or -1 on another rank */
    int32_t *slot, *first, *row_of, *place, *group_counts;
    int32_t *token, *pair, *counts, *totals, *all_totals;

    /* Host memory that the device writes. */
    int32_t
        *counted;  /* [size, rounds, size, 2] rows and pairs: of whom, in which round, for whom */
    int32_t *mark; /* where the device is: 2 * layer + 1 at dispatch, + 2 at combine */

    CodedRows *ranges;
    LinkMove *moves;
    GroupSpec group;
    ResultSpec back;

    /* The current layer. */
    const char *rows, *travel; /* the caller's; what travels: the same, or its codes */
    size_t travel_bytes;       /* of one of them */
    bool travels_coded, codes_read;
    const int32_t *expert;
    int n_tokens, n_rounds;
    ExchangeStep step;
    bool announced, counts_known;
} DeviceExchange;

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static Sizes plan_sizes(int size, const ExchangeShape *shape)
{
    int64_t k = shape->top_k, tokens = shape->max_tokens;
    int64_t pairs = (int64_t)(shape->round_bytes / (size_t)shape->row_bytes) / size / k;
    int64_t window = pairs < tokens ? pairs : tokens;
    Sizes s = {.window = window < 1 ? 1 : (int)window};
    s.rounds = (int)((tokens + s.window - 1) / s.window);
    s.row_pairs = s.window * k;
    s.pairs_here = size * s.row_pairs;
    s.pairs_there = (size - 1) * s.row_pairs;
    s.home = round_up(tokens, ALIGN_ROWS);
    /* Mail in rows of 4 bits a value, which no coding goes below. */
    int64_t mail = (int64_t)exchange_message_bytes((size_t)s.window, 0, shape->top_k) + 16;
    s.message = round_up(s.window + 2 * mail / shape->hidden + 1, ALIGN_ROWS);
    s.blocks = (s.window + EXCHANGE_BLOCK_TOKENS - 1) / EXCHANGE_BLOCK_TOKENS;
    return s;
}

/* One piece of backend memory. */
typedef struct Piece {
    void **at;
    size_t bytes;
    const char *what;
} Piece;

enum { MOST_PIECES = 18 };

static int list_pieces(DeviceExchange *x, const Placement *placement, Piece *out)
{
    const Sizes *s = &x->sizes;
    const ExchangeShape *shape = &x->base.shape;
    size_t others = (size_t)x->size - 1, int_bytes = sizeof(int32_t);
    size_t places = (size_t)s->home + others * (size_t)s->message;
    size_t message = exchange_message_bytes((size_t)s->window, x->row_bytes, x->top_k);
    size_t totals = (size_t)s->rounds * 2 * (size_t)x->size * int_bytes;
    int n = 0;
#define PIECE(field, size_of, name) out[n++] = (Piece){(void **)&x->field, size_of, name}
    PIECE(results, (size_t)(s->pairs_here + s->pairs_there) * x->row_bytes, "experts' results");
    PIECE(slot, (size_t)shape->max_tokens * (size_t)x->top_k * int_bytes, "places of results");
    PIECE(first, ((size_t)x->n_local + 1) * int_bytes, "groups of rows");
    PIECE(row_of, (size_t)s->pairs_here * int_bytes, "groups of rows");
    PIECE(group_counts, EXCHANGE_GROUP_BLOCKS * (size_t)(x->n_local + 1) * int_bytes, "counts");
    if (x->size == 1)
        return n;
    PIECE(home, places * x->row_bytes, "normed and received rows");
    if (shape->coded_bytes > 0)
        PIECE(coded, places * (size_t)shape->coded_bytes, "received codes");
    PIECE(messages, others * (size_t)round_up((int64_t)message, 16), "rows for other ranks");
    PIECE(returned, (size_t)s->pairs_there * x->row_bytes, "results for other ranks");
    PIECE(owner, (size_t)placement->n_experts * int_bytes, "owners of experts");
    PIECE(local, (size_t)placement->n_experts * int_bytes, "owners of experts");
    PIECE(here, (size_t)placement->n_experts * int_bytes, "owners of experts");
    PIECE(place, (size_t)s->pairs_there * int_bytes, "places of results");
    PIECE(token, (size_t)x->size * (size_t)s->window * int_bytes, "lists of rows");
    PIECE(pair, (size_t)x->size * (size_t)s->window * int_bytes, "lists of rows");
    PIECE(counts, (size_t)s->blocks * totals, "counts");
    PIECE(totals, totals, "counts");
    PIECE(all_totals, (size_t)x->size * totals, "counts");
#undef PIECE
    assert(n <= MOST_PIECES);
    return n;
}

/* The fields that sizes and pieces follow from. */
static void set_shape(DeviceExchange *x, const Comm *comm, const Placement *placement,
                      const ExchangeShape *shape)
{
    x->base.shape = *shape;
    x->rank = comm->rank;
    x->size = comm->size;
    x->top_k = shape->top_k;
    x->n_local = placement->n_local[comm->rank];
    x->row_bytes = (size_t)shape->row_bytes;
    x->sizes = plan_sizes(comm->size, shape);
}

static size_t memory_bytes(const Comm *comm, const Placement *placement, const ExchangeShape *shape)
{
    DeviceExchange x = {0};
    Piece piece[MOST_PIECES];
    size_t sum = 0;
    set_shape(&x, comm, placement, shape);
    for (int n = list_pieces(&x, placement, piece), i = 0; i < n; i++)
        sum += piece[i].bytes;
    return sum;
}

static void destroy(Exchange *base)
{
    DeviceExchange *x = (DeviceExchange *)base;
    Piece piece[MOST_PIECES];
    if (x->link) {
        watchdog_device(base->comm->state->watchdog, NULL);
        watchdog_enter(base->comm->state->watchdog, "ncclCommDestroy");
        x->device->link_close(x->backend, x->link);
        watchdog_leave(base->comm->state->watchdog);
    }
    Placement none = {0};
    for (int n = list_pieces(x, &none, piece), i = 0; i < n; i++)
        if (*piece[i].at)
            x->ops->release(x->backend, *piece[i].at);
    x->device->host_release(x->backend, x->counted);
    x->device->host_release(x->backend, x->mark);
    free(x->ranges);
    free(x->moves);
    free(x);
}

static Status check_shape(const DeviceExchange *x, const Placement *placement, Err *e)
{
    const ExchangeShape *shape = &x->base.shape;
    if (x->top_k < 1 || shape->max_tokens < 1 || shape->row_bytes < 1 || shape->hidden < 1)
        return err_set(e, ST_USAGE, "exchange: top_k %d, %d tokens, rows of %d values in %d bytes",
                       x->top_k, shape->max_tokens, shape->hidden, shape->row_bytes);
    if (x->size > EXCHANGE_MAX_RANKS || placement->n_experts > EXCHANGE_MAX_EXPERTS ||
        x->top_k > EXCHANGE_MAX_TOP_K)
        return err_set(e, ST_INPUT,
                       "exchange: %d ranks, top %d of %d experts; on devices at most %d ranks, top "
                       "%d of %d",
                       x->size, x->top_k, placement->n_experts, EXCHANGE_MAX_RANKS,
                       EXCHANGE_MAX_TOP_K, EXCHANGE_MAX_EXPERTS);
    if (placement->n_ranks != x->size)
        return err_set(e, ST_USAGE, "exchange: experts are placed on %d ranks, but there are %d",
                       placement->n_ranks, x->size);
    if (shape->row_bytes % 4 || shape->coded_bytes % 4 || shape->coded_bytes > shape->row_bytes)
        return err_set(e, ST_USAGE, "exchange: rows of %d bytes in codes of %d", shape->row_bytes,
                       shape->coded_bytes);
    if ((double)x->size * shape->max_tokens * x->top_k > INT32_MAX / 4)
        return err_set(
            e, ST_USAGE,
            "exchange: %d tokens per rank and step are too many for %d ranks and top_k %d",
            shape->max_tokens, x->size, x->top_k);
    return ST_OK;
}

static Status place_experts(DeviceExchange *x, const Placement *placement, Err *e)
{
    int32_t here[EXCHANGE_MAX_EXPERTS];
    size_t bytes = (size_t)placement->n_experts * sizeof *here;
    for (int i = 0; i < placement->n_experts; i++)
        here[i] = placement->owner[i] == x->rank ? placement->local_expert[i] : -1;
    TRY(x->ops->upload(x->backend, x->owner, placement->owner, bytes, e));
    TRY(x->ops->upload(x->backend, x->local, placement->local_expert, bytes, e));
    return x->ops->upload(x->backend, x->here, here, bytes, e);
}

static Status take_memory(DeviceExchange *x, const Placement *placement, Err *e)
{
    Piece piece[MOST_PIECES];
    void *counted, *mark;
    for (int n = list_pieces(x, placement, piece), i = 0; i < n; i++)
        TRY(x->ops->alloc(x->backend, piece[i].bytes, piece[i].what, piece[i].at, e));
    if (x->size == 1)
        return ST_OK;
    size_t n = (size_t)x->size;
    TRY(x->device->host_alloc(x->backend, n * n * (size_t)x->sizes.rounds * 2 * sizeof(int32_t),
                              &counted, e));
    x->counted = counted;
    TRY(x->device->host_alloc(x->backend, sizeof *x->mark, &mark, e));
    x->mark = mark;
    *x->mark = 0;
    x->ranges = calloc(n, sizeof *x->ranges);
    x->moves = calloc(2 * n, sizeof *x->moves);
    if (!x->ranges || !x->moves)
        return err_set(e, ST_MEMORY, "exchange: no memory for the messages of %d ranks", x->size);
    return place_experts(x, placement, e);
}

/* --- the link --- */

/* The k-th of the other ranks, in order of rank; and which one a rank is. */
static int other_rank(const DeviceExchange *x, int k)
{
    return k < x->rank ? k : k + 1;
}

static int other_index(const DeviceExchange *x, int rank)
{
    return rank < x->rank ? rank : rank - 1;
}

static void abort_link(void *ctx)
{
    DeviceExchange *x = ctx;
    x->device->link_abort(x->link);
}

static const char *link_trouble(void *ctx)
{
    DeviceExchange *x = ctx;
    return x->device->link_trouble(x->link);
}

/* Where the rows of another rank come in, in dense rows or codes. */
static char *place_in(const DeviceExchange *x, char *base, int k, size_t row_bytes)
{
    return base + (size_t)(x->sizes.home + k * x->sizes.message) * row_bytes;
}

/* A first message between each two ranks: what cannot connect shows now and not in a step, and
 * nothing is set up while a step is recorded. */
static Status try_link(DeviceExchange *x, Err *e)
{
    enum { BYTES = 16 };
    int n = 0;
    for (int k = 0; k < x->size - 1; k++) {
        int r = other_rank(x, k);
        x->moves[n++] = (LinkMove){x->totals, BYTES, r, true};
        x->moves[n++] = (LinkMove){place_in(x, x->home, k, x->row_bytes), BYTES, r, false};
    }
    TRY(x->device->clear(x->backend, x->totals, BYTES, e));
    TRY(x->device->link_move(x->backend, x->link, x->moves, n, e));
    TRY(x->device->link_gather(x->backend, x->link, x->totals, x->all_totals, BYTES, e));
    return x->ops->wait(x->backend, e);
}

static Status connect(Exchange *base, Err *e)
{
    DeviceExchange *x = (DeviceExchange *)base;
    Comm *c = base->comm;
    Watchdog *w = c->state->watchdog;
    char id[LINK_ID_BYTES] = {0};
    if (x->size == 1)
        return ST_OK;
    TRY(dist_agree(c, c->rank == 0 ? x->device->link_id(x->backend, id, e) : ST_OK, e));
    TRY(comm_bcast(c, id, sizeof id, 0, e));
    watchdog_enter(w, "ncclCommInitRankConfig");
    Status st = x->device->link_open(x->backend, id, c->rank, c->size, &x->link, e);
    watchdog_leave(w);
    TRY(dist_agree(c, st, e));
    WatchedDevice device = {link_trouble, abort_link, x, x->mark};
    watchdog_device(w, &device);
    watchdog_enter(w, "the first NCCL messages");
    st = try_link(x, e);
    watchdog_leave(w);
    return dist_agree(c, st, e);
}

static Status create(Exchange **out, Comm *comm, const Placement *placement,
                     const ExchangeShape *shape, Err *e)
{
    DeviceExchange *x = calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ST_MEMORY, "exchange: no memory");
    x->base.kind = &exchange_device;
    x->base.comm = comm;
    x->ops = shape->ops;
    x->device = shape->ops->exchange;
    x->backend = shape->backend;
    set_shape(x, comm, placement, shape);
    Status st = check_shape(x, placement, e);
    if (st == ST_OK)
        st = take_memory(x, placement, e);
    if (st != ST_OK) {
        destroy(&x->base);
        return st;
    }
    *out = &x->base;
    return ST_OK;
}

static int max_pairs(const Exchange *base)
{
    const DeviceExchange *x = (const DeviceExchange *)base;
    return x->n_local > 0 ? (int)x->sizes.pairs_here : 0;
}

static void *home_rows(Exchange *base)
{
    return ((DeviceExchange *)base)->home;
}

static void *home_codes(Exchange *base)
{
    return ((DeviceExchange *)base)->coded;
}

/* --- a layer --- */

/* No other rank can be told while its device waits for this one. */
static Status stop(DeviceExchange *x, Status st, Err *e)
{
    Comm *c = x->base.comm;
    if (st == ST_OK || c->size == 1)
        return st;
    WatchedPlace at = watchdog_place(c->state->watchdog);
    err_in(e, "step %lld, layer %d, %s", (long long)at.step, at.layer, at.name ? at.name : "?");
    dist_abort(c, 1, e);
}

static const int32_t *counted(const DeviceExchange *x, int source, int round, int destination)
{
    size_t row = (size_t)source * (size_t)x->n_rounds + (size_t)round;
    return x->counted + (row * (size_t)x->size + (size_t)destination) * 2;
}

static int rows_of(const DeviceExchange *x, const Window *w, int round, int source, int destination)
{
    return w->rows > 0 ? w->rows : counted(x, source, round, destination)[0];
}

static int pairs_of(const DeviceExchange *x, const Window *w, int round, int source,
                    int destination)
{
    return w->rows > 0 ? w->rows * x->top_k : counted(x, source, round, destination)[1];
}

static Window window_of(const DeviceExchange *x, int round)
{
    Window w = {.first = round * x->sizes.window};
    int left = x->n_tokens - w.first;
    w.n = left < 0 ? 0 : left < x->sizes.window ? left : x->sizes.window;
    if (x->step.fixed && x->size > 1) {
        left = x->step.most_tokens - w.first;
        w.rows = left < x->sizes.window ? left : x->sizes.window;
    }
    return w;
}

static WindowSpec window_spec(const DeviceExchange *x, int round, const Window *w)
{
    size_t ints = 2 * (size_t)x->size * (size_t)round, first = (size_t)w->first;
    int layer = watchdog_place(x->base.comm->state->watchdog).layer;
    return (WindowSpec){.expert = x->expert + first * (size_t)x->top_k,
                        .owner = x->owner,
                        .local = x->local,
                        .n = w->n,
                        .top_k = x->top_k,
                        .n_ranks = x->size,
                        .rank = x->rank,
                        .counts = x->counts + ints * (size_t)x->sizes.blocks,
                        .totals = x->totals + ints,
                        .token = x->token,
                        .pair = x->pair,
                        .room = x->sizes.window,
                        .slot = x->slot + first * (size_t)x->top_k,
                        .result_row = (int32_t)x->sizes.pairs_here,
                        .result_stride = w->rows * x->top_k,
                        .rows = x->travel + first * x->travel_bytes,
                        .row_bytes = x->travel_bytes,
                        .messages = x->messages,
                        .message_rows = w->rows,
                        .mark = x->mark,
                        .value = 2 * layer + 1};
}

/* What this rank has for whom, in all rounds, and the same of all ranks, on its way to the host. */
static Status count_rows(DeviceExchange *x, Err *e)
{
    size_t bytes = (size_t)x->n_rounds * 2 * (size_t)x->size * sizeof(int32_t);
    TRY(x->device->clear(x->backend, x->totals, bytes, e));
    for (int round = 0; round < x->n_rounds; round++) {
        Window w = window_of(x, round);
        WindowSpec spec = window_spec(x, round, &w);
        if (w.n > 0)
            TRY(x->device->count(x->backend, &spec, e));
    }
    TRY(x->device->link_gather(x->backend, x->link, x->totals, x->all_totals, bytes, e));
    return x->device->copy(x->backend, x->link, x->counted, x->all_totals, (size_t)x->size * bytes,
                           e);
}

/* Unless it is announced already: the choices of a layer, and the counts of them on their way. */
static Status open_layer(DeviceExchange *x, const int32_t *expert, int n_tokens, ExchangeStep step,
                         Err *e)
{
    int most = x->size > 1 ? step.most_tokens : n_tokens;
    if (x->announced)
        return ST_OK;
    if (n_tokens < 0 || n_tokens > x->base.shape.max_tokens || n_tokens > most ||
        most > x->base.shape.max_tokens)
        return stop(x,
                    err_set(e, ST_INPUT, "exchange: %d of %d tokens in a step, planned for %d",
                            n_tokens, most, x->base.shape.max_tokens),
                    e);
    x->expert = expert;
    x->n_tokens = n_tokens;
    x->step = step;
    x->n_rounds = (most + x->sizes.window - 1) / x->sizes.window;
    x->counts_known = x->size == 1 || step.fixed;
    return x->counts_known || x->n_rounds == 0 ? ST_OK : stop(x, count_rows(x, e), e);
}

static Status announce(Exchange *base, const int32_t *expert, int n_tokens, ExchangeStep step,
                       Err *e)
{
    DeviceExchange *x = (DeviceExchange *)base;
    x->announced = false;
    TRY(open_layer(x, expert, n_tokens, step, e));
    x->announced = true;
    return ST_OK;
}

static Status begin(Exchange *base, ExchangeRows rows, const int32_t *expert, int n_tokens,
                    ExchangeStep step, Status mine, int *n_rounds, Err *e)
{
    DeviceExchange *x = (DeviceExchange *)base;
    *n_rounds = 0;
    if (x->size == 1 && mine != ST_OK)
        return mine;
    /* The others need an answer all the same. */
    TRY(open_layer(x, expert, mine == ST_OK ? n_tokens : 0, step, e));
    x->announced = false;
    assert(x->size == 1 || rows.rows == (rows.codes_read ? x->coded : x->home) || x->n_tokens == 0);
    assert(rows.coded_bytes <= base->shape.coded_bytes && rows.coded_bytes % 4 == 0);
    x->travels_coded = rows.coded_bytes > 0 && x->size > 1;
    x->codes_read = rows.codes_read;
    x->rows = rows.rows;
    x->travel = x->travels_coded ? rows.coded : rows.rows;
    x->travel_bytes = x->travels_coded ? (size_t)rows.coded_bytes : x->row_bytes;
    *n_rounds = x->n_rounds;
    base->stats.n_rounds += x->n_rounds;
    return ST_OK;
}

static Status wait_counts(DeviceExchange *x, Err *e)
{
    if (x->counts_known)
        return ST_OK;
    double start_s = clock_s();
    Status st = x->device->wait_copy(x->backend, x->link, e);
    x->base.stats.wait_s += clock_s() - start_s;
    x->counts_known = true;
    return st;
}

/* Where another rank's message comes in. */
static char *place_of(const DeviceExchange *x, int k)
{
    return place_in(x, x->travels_coded ? x->coded : x->home, k, x->travel_bytes);
}

static Status send_rows(DeviceExchange *x, int round, const Window *w, Err *e)
{
    WindowSpec spec = window_spec(x, round, w);
    size_t message = exchange_message_bytes((size_t)x->sizes.window, x->travel_bytes, x->top_k);
    int n = 0;
    spec.message_stride = (size_t)round_up((int64_t)message, 16);
    spec.most_rows = w->rows;
    if (w->rows > 0 && w->n > EXCHANGE_BLOCK_TOKENS) {
        TRY(x->device->clear(x->backend, spec.totals, 2 * (size_t)x->size * sizeof(int32_t), e));
        TRY(x->device->count(x->backend, &spec, e));
    }
    for (int k = 0; k < x->size - 1; k++) {
        int r = other_rank(x, k), sent = rows_of(x, w, round, x->rank, r),
            got = rows_of(x, w, round, r, x->rank);
        spec.most_rows = sent > spec.most_rows ? sent : spec.most_rows;
        x->moves[n++] =
            (LinkMove){spec.messages + (size_t)k * spec.message_stride,
                       exchange_message_bytes((size_t)sent, x->travel_bytes, x->top_k), r, true};
        x->moves[n++] =
            (LinkMove){place_of(x, k),
                       exchange_message_bytes((size_t)got, x->travel_bytes, x->top_k), r, false};
        x->base.stats.dispatch_bytes += (int64_t)sent * (int64_t)x->travel_bytes;
    }
    TRY(x->device->pack(x->backend, &spec, e));
    return x->device->link_move(x->backend, x->link, x->moves, n, e);
}

/* Rows of every rank, in order of rank, and where group is to note the places of their pairs. */
static Status group_rows(DeviceExchange *x, int round, const Window *w, Err *e)
{
    GroupSpec *g = &x->group;
    int32_t *place = x->place, at = 0;
    *g = (GroupSpec){.first = x->first,
                     .row_of = x->row_of,
                     .counts = x->group_counts,
                     .local = x->size > 1 ? x->here : NULL,
                     .own = x->rank,
                     .n_local = x->n_local,
                     .top_k = x->top_k,
                     .n_lists = x->size};
    for (int r = 0; r < x->size; r++) {
        int k = other_index(x, r), n = r == x->rank ? w->n : rows_of(x, w, round, r, x->rank);
        if (r == x->rank) {
            size_t first = (size_t)w->first * (size_t)x->top_k;
            g->list[r] = (ChoiceRows){.choice = x->expert + first,
                                      .place = x->slot + first,
                                      .stride = x->top_k,
                                      .row = w->first};
        } else {
            const char *mail = place_of(x, k) + exchange_mail_at((size_t)n, x->travel_bytes);
            g->list[r] = (ChoiceRows){.choice = (const int32_t *)mail,
                                      .place = place,
                                      .stride = exchange_mail_ints(x->top_k),
                                      .row = (int32_t)(x->sizes.home + k * x->sizes.message)};
            place += (size_t)n * (size_t)x->top_k;
        }
        g->list[r].n = n;
        g->list[r].at = at;
        at += n;
    }
    return x->device->group(x->backend, g, e);
}

static Status dispatch_round(DeviceExchange *x, int round, RecvRows *recv, Err *e)
{
    TRY(wait_counts(x, e));
    Window w = window_of(x, round);
    *recv = (RecvRows){.rows = x->size == 1    ? x->rows
                               : x->codes_read ? x->coded
                                               : x->home,
                       .row_of = x->row_of,
                       .first = x->first,
                       .max_pairs = w.n * x->top_k,
                       .out = x->results,
                       .coded = x->ranges};
    if (x->size > 1)
        TRY(send_rows(x, round, &w, e));
    TRY(group_rows(x, round, &w, e));
    if (x->size == 1)
        return ST_OK;
    recv->max_pairs = pairs_of(x, &w, round, x->rank, x->rank);
    for (int k = 0; k < x->size - 1; k++) {
        int r = other_rank(x, k), n = rows_of(x, &w, round, r, x->rank);
        recv->max_pairs += pairs_of(x, &w, round, r, x->rank);
        if (n > 0 && x->travels_coded && !x->codes_read)
            x->ranges[recv->n_coded++] =
                (CodedRows){place_of(x, k), place_in(x, x->home, k, x->row_bytes), n};
    }
    if (x->n_local == 0)
        recv->max_pairs = 0;
    return ST_OK;
}

static Status dispatch(Exchange *base, int round, RecvRows *recv, Err *e)
{
    DeviceExchange *x = (DeviceExchange *)base;
    return stop(x, dispatch_round(x, round, recv, e), e);
}

static Status send_results(DeviceExchange *x, int round, Err *e)
{
    Window w = window_of(x, round);
    ResultSpec *b = &x->back;
    char *out = x->returned, *in = x->results + (size_t)x->sizes.pairs_here * x->row_bytes;
    int n = 0;
    *b = (ResultSpec){.rows = x->results,
                      .row_bytes = x->row_bytes,
                      .top_k = x->top_k,
                      .n_lists = x->size - 1,
                      .mark = x->mark,
                      .value = 2 * watchdog_place(x->base.comm->state->watchdog).layer + 2};
    for (int k = 0; k < x->size - 1; k++) {
        int r = other_rank(x, k);
        const ChoiceRows *list = &x->group.list[r];
        size_t sent = (size_t)pairs_of(x, &w, round, r, x->rank) * x->row_bytes;
        size_t got = (size_t)pairs_of(x, &w, round, x->rank, r) * x->row_bytes;
        b->list[k] = (ResultList){list->choice, list->place, out, list->n};
        b->most_rows = list->n > b->most_rows ? list->n : b->most_rows;
        x->moves[n++] = (LinkMove){out, sent, r, true};
        x->moves[n++] = (LinkMove){in, got, r, false};
        x->base.stats.combine_bytes += (int64_t)sent;
        out += sent;
        in += got;
    }
    TRY(x->device->results(x->backend, b, e));
    return x->device->link_move(x->backend, x->link, x->moves, n, e);
}

static Status combine(Exchange *base, int round, Status mine, HomeRows *home, Err *e)
{
    DeviceExchange *x = (DeviceExchange *)base;
    Window w = window_of(x, round);
    *home = (HomeRows){.rows = x->results,
                       .slot = x->slot + (size_t)w.first * (size_t)x->top_k,
                       .first_token = w.first,
                       .n_tokens = w.n};
    if (x->size == 1)
        return mine;
    /* A rank that failed sends what lies there; it tells the others when the step is over. */
    return stop(x, send_results(x, round, e), e);
}

const ExchangeKind exchange_device = {
    .create = create,
    .connect = connect,
    .destroy = destroy,
    .plan_bytes = memory_bytes,
    .max_pairs = max_pairs,
    .home_rows = home_rows,
    .home_codes = home_codes,
    .announce = announce,
    .begin = begin,
    .dispatch = dispatch,
    .combine = combine,
};
