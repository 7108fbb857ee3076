/* dist/exchange.c - see exchange.h; which of the exchanges, by where rows lie. */
#include "dist/exchange_kind.h"

static const ExchangeKind *kind_of(const ExchangeShape *shape)
{
    return shape->ops ? &exchange_device : &exchange_mpi;
}

Status exchange_create(Exchange **out, Comm *comm, const Placement *placement,
                       const ExchangeShape *shape, Err *e)
{
    *out = NULL;
    return kind_of(shape)->create(out, comm, placement, shape, e);
}

Status exchange_connect(Exchange *x, Err *e)
{
    return x->kind->connect ? x->kind->connect(x, e) : ST_OK;
}

void exchange_destroy(Exchange *x)
{
    if (x)
        x->kind->destroy(x);
}

size_t exchange_plan_bytes(const Comm *comm, const Placement *placement, const ExchangeShape *shape)
{
    return kind_of(shape)->plan_bytes(comm, placement, shape);
}

int exchange_max_pairs(const Exchange *x)
{
    return x->kind->max_pairs(x);
}

void *exchange_home_rows(Exchange *x)
{
    return x->kind->home_rows(x);
}

void *exchange_home_codes(Exchange *x)
{
    return x->kind->home_codes ? x->kind->home_codes(x) : NULL;
}

Status exchange_announce(Exchange *x, const int32_t *expert, int n_tokens, ExchangeStep step,
                         Err *e)
{
    return x->kind->announce ? x->kind->announce(x, expert, n_tokens, step, e) : ST_OK;
}

Status exchange_begin(Exchange *x, ExchangeRows rows, const int32_t *expert, int n_tokens,
                      ExchangeStep step, Status mine, int *n_rounds, Err *e)
{
    return x->kind->begin(x, rows, expert, n_tokens, step, mine, n_rounds, e);
}

Status exchange_dispatch(Exchange *x, int round, RecvRows *recv, Err *e)
{
    return x->kind->dispatch(x, round, recv, e);
}

Status exchange_combine(Exchange *x, int round, Status mine, HomeRows *home, Err *e)
{
    return x->kind->combine(x, round, mine, home, e);
}

ExchangeStats exchange_stats(const Exchange *x)
{
    return x->stats;
}

void exchange_count_replay(Exchange *x, const ExchangeStats *moved)
{
    x->stats.dispatch_bytes += moved->dispatch_bytes;
    x->stats.combine_bytes += moved->combine_bytes;
    x->stats.n_rounds += moved->n_rounds;
}
