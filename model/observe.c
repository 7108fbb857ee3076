/* model/observe.c - see observe.h. */
#include "model/observe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

Status observer_create(Observer *o, int n_layers, int n_experts, Err *e)
{
    size_t layers = (size_t)n_layers, experts = (size_t)n_experts;
    *o = (Observer){.n_layers = n_layers, .n_experts = n_experts};
    o->layers = calloc(layers, sizeof *o->layers);
    o->experts = calloc(2 * layers * experts + 1, sizeof *o->experts);
    if (!o->layers || !o->experts) {
        observer_free(o);
        return err_set(e, ST_MEMORY, "not enough memory to observe %d layers", n_layers);
    }
    for (size_t i = 0; i < layers; i++) {
        o->layers[i].expert_in = o->experts + 2 * i * experts;
        o->layers[i].expert_inner = o->layers[i].expert_in + experts;
    }
    return ST_OK;
}

void observer_free(Observer *o)
{
    free(o->layers);
    free(o->experts);
    *o = (Observer){0};
}

/* Magnitudes are ordered like their bits. */
static Status share(float *const *values, int n, Comm *comm, Err *e)
{
    int64_t *bits = calloc((size_t)n + 1, sizeof *bits);
    Status st = bits ? ST_OK : err_set(e, ST_MEMORY, "not enough memory to share %d magnitudes", n);
    st = dist_agree(comm, st, e); /* nobody waits for a rank that has no memory */
    for (int i = 0; i < n && st == ST_OK; i++) {
        uint32_t u;
        memcpy(&u, values[i], sizeof u);
        bits[i] = u;
    }
    if (st == ST_OK)
        st = comm_max_int64(comm, bits, n, e);
    for (int i = 0; i < n && st == ST_OK; i++) {
        uint32_t u = (uint32_t)bits[i];
        memcpy(values[i], &u, sizeof u);
    }
    free(bits);
    return st;
}

Status observer_share(Observer *o, Comm *comm, Err *e)
{
    enum { SINGLE = 9 };
    int n = 0, most = o->n_layers * (SINGLE + 2 * o->n_experts) + 1;
    float **values = calloc((size_t)most, sizeof *values);
    Status st =
        values ? ST_OK : err_set(e, ST_MEMORY, "not enough memory to share %d magnitudes", most);
    TRY_GOTO(dist_agree(comm, st, e));
    values[n++] = &o->head_in;
    for (int i = 0; i < o->n_layers; i++) {
        LayerSeen *s = &o->layers[i];
        float *single[SINGLE] = {&s->attn_in,      &s->q_low,  &s->latent,
                                 &s->attn_out,     &s->ffn_in, &s->dense_inner,
                                 &s->shared_inner, &s->key,    &s->value};
        for (int k = 0; k < SINGLE; k++)
            values[n++] = single[k];
    }
    for (int i = 0; i < 2 * o->n_layers * o->n_experts; i++)
        values[n++] = &o->experts[i];
    st = share(values, n, comm, e);
fail:
    free(values);
    return st;
}

void observe_rows(float *seen, const float *x, int64_t n, int64_t width, int64_t stride)
{
    float most = *seen;
    for (int64_t r = 0; r < n; r++, x += stride)
        for (int64_t i = 0; i < width; i++) {
            float v = fabsf(x[i]);
            most = v <= most ? most : v;
        }
    *seen = isnan(most) ? INFINITY : most;
}
