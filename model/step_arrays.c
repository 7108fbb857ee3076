/* model/step_arrays.c - see step_arrays.h. */
#include "model/step_arrays.h"

#include <stdlib.h>
#include <string.h>

/* Roles that the layers of an architecture ask for. */
static bool asks_for(const Arch *a, RowRole role)
{
    return role == ROWS_ALL || a->attn == ATTN_LATENT;
}

static Status take(StepArrays *s, int n, const char *what, int32_t **out, Err *e)
{
    void *p = NULL;
    size_t bytes = (size_t)(n > 0 ? n : 1) * sizeof **out;
    TRY(s->ops->alloc(s->backend, bytes, what, &p, e));
    *out = p;
    /* What pads a step reads ids and positions of an earlier one, so there must be some. */
    memset(s->host, 0, bytes);
    return s->ops->upload(s->backend, p, s->host, bytes, e);
}

Status step_arrays_create(StepArrays *s, const Arch *arch, const KvCache *kv, const BackendOps *ops,
                          Backend *backend, int max_rows, int max_seqs, int max_len, Err *e)
{
    int max_pages = (max_len + KV_PAGE - 1) / KV_PAGE;
    *s = (StepArrays){.ops = ops, .backend = backend};
    s->last_group = kv->layer_group[arch->n_layers - 1];
    s->host = malloc((size_t)(max_rows > 0 ? max_rows : 1) * sizeof *s->host);
    s->seqs = malloc((size_t)(max_seqs > 0 ? max_seqs : 1) * sizeof *s->seqs);
    if (!s->host || !s->seqs)
        return err_set(e, ST_MEMORY, "out of memory for the step's tables of %d rows", max_rows);
    TRY(take(s, max_rows, "token ids", &s->ids, e));
    TRY(take(s, max_rows, "positions", &s->position, e));
    TRY(take(s, max_rows, "wanted rows", &s->wanted, e));
    TRY(take(s, 1, "the number of rows", &s->live, e));
    for (int role = 0; role < N_ROW_ROLES; role++) {
        if (!asks_for(arch, role))
            continue;
        for (int g = 0; g < kv->n_groups; g++)
            TRY(ops->list_create(backend, max_rows, max_seqs, max_pages, &s->lists[g][role].list,
                                 e));
        TRY(ops->list_create(backend, max_rows, max_seqs, max_pages, &s->last[role].list, e));
    }
    return ST_OK;
}

void step_arrays_free(StepArrays *s)
{
    if (!s->ops)
        return;
    for (int role = 0; role < N_ROW_ROLES; role++) {
        for (int g = 0; g < MAX_KV_GROUPS; g++)
            s->ops->list_destroy(s->backend, s->lists[g][role].list);
        s->ops->list_destroy(s->backend, s->last[role].list);
    }
    int32_t *const arrays[] = {s->ids, s->position, s->wanted, s->live};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        if (arrays[i])
            s->ops->release(s->backend, arrays[i]);
    free(s->host);
    free(s->seqs);
    *s = (StepArrays){0};
}

bool step_is_decode(const Step *step)
{
    for (int i = 0; i < step->n_seqs; i++) {
        const StepSeq *s = &step->seqs[i];
        if (s->n_rows != 1 || s->n_wanted != 1 || s->pos < s->n_prompt)
            return false;
    }
    return step->n_seqs > 0;
}

static Status set_list(StepArrays *s, RoleList *l, const Step *step, int group, RowRole role,
                       bool wanted_only, int n_padded, Err *e)
{
    l->n_seqs = 0;
    if (!l->list)
        return ST_OK;
    for (int i = 0; i < step->n_seqs; i++) {
        const StepSeq *q = &step->seqs[i];
        int first = wanted_only ? q->n_rows - q->n_wanted : 0, end = q->n_rows;
        int boundary = q->n_prompt - q->pos; /* the first row that is not prompt */
        if (role == ROWS_PROMPT && end > boundary)
            end = boundary;
        if (role == ROWS_GENERATED && first < boundary)
            first = boundary;
        if (first < end)
            s->seqs[l->n_seqs++] =
                (AttnSeq){q->row + first, end - first, q->pos + first, q->kv->pages[group]};
    }
    bool padded = n_padded > 0 && role != ROWS_PROMPT;
    TRY(s->ops->list_set(s->backend, l->list, s->seqs, l->n_seqs, padded ? n_padded : 0, e));
    if (padded)
        l->n_seqs = n_padded;
    return ST_OK;
}

Status step_arrays_set(StepArrays *s, const Step *step, int n_padded, Err *e)
{
    size_t n = (size_t)step->n_rows;
    TRY(s->ops->stage(s->backend, s->ids, step->ids, n * sizeof *s->ids, e));
    TRY(s->ops->stage(s->backend, s->position, step->position, n * sizeof *s->position, e));
    s->n_wanted = 0;
    for (int i = 0; i < step->n_seqs; i++) {
        const StepSeq *q = &step->seqs[i];
        for (int r = q->n_rows - q->n_wanted; r < q->n_rows; r++)
            s->host[s->n_wanted++] = q->row + r;
    }
    s->all_wanted = s->n_wanted == step->n_rows;
    if (!s->all_wanted)
        TRY(s->ops->stage(s->backend, s->wanted, s->host, (size_t)s->n_wanted * sizeof *s->wanted,
                          e));
    int32_t live = step->n_rows;
    TRY(s->ops->stage(s->backend, s->live, &live, sizeof live, e));
    for (int role = 0; role < N_ROW_ROLES; role++) {
        for (int g = 0; g < MAX_KV_GROUPS; g++)
            TRY(set_list(s, &s->lists[g][role], step, g, role, false, n_padded, e));
        if (!s->all_wanted)
            TRY(set_list(s, &s->last[role], step, s->last_group, role, true, n_padded, e));
    }
    return ST_OK;
}
