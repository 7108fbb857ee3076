/* dist/exchange_kind.h - the two exchanges behind exchange.h: what each of them does; for dist/
 * only. */
#ifndef MB_DIST_EXCHANGE_KIND_H
#define MB_DIST_EXCHANGE_KIND_H

#include "dist/exchange.h"

typedef struct ExchangeKind {
    Status (*create)(Exchange **out, Comm *comm, const Placement *placement,
                     const ExchangeShape *shape, Err *e);
    Status (*connect)(Exchange *x, Err *e); /* NULL: nothing to do; announce likewise */
    void (*destroy)(Exchange *x);           /* never NULL; whatever a failed create holds */
    size_t (*plan_bytes)(const Comm *comm, const Placement *placement, const ExchangeShape *shape);
    int (*max_pairs)(const Exchange *x);
    void *(*home_rows)(Exchange *x);
    void *(*home_codes)(Exchange *x); /* NULL: there are none */
    Status (*announce)(Exchange *x, const int32_t *expert, int n_tokens, ExchangeStep step, Err *e);
    Status (*begin)(Exchange *x, ExchangeRows rows, const int32_t *expert, int n_tokens,
                    ExchangeStep step, Status mine, int *n_rounds, Err *e);
    Status (*dispatch)(Exchange *x, int round, RecvRows *recv, Err *e);
    Status (*combine)(Exchange *x, int round, Status mine, HomeRows *home, Err *e);
} ExchangeKind;

struct Exchange { /* each kind's own fields follow */
    const ExchangeKind *kind;
    Comm *comm;
    ExchangeShape shape;
    ExchangeStats stats;
};

extern const ExchangeKind exchange_mpi;    /* rows in host memory */
extern const ExchangeKind exchange_device; /* rows in a device's memory */

#endif
