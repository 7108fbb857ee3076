/* model/keeper.c - see keeper.h. */
#include "model/keeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPEN_BANKS = 2 };

void keeper_files(BankKeeper *k, const TensorSet *files)
{
    k->files = files;
}

static int slot_of(const BankKeeper *k, const Weight *w)
{
    for (int i = 0; i < OPEN_BANKS; i++)
        if (k->open[i].w == w)
            return i;
    return -1;
}

/* Room for one more in an array that doubles. */
static bool grow(void *array, int64_t n, size_t size)
{
    void **at = array;
    if (n & (n - 1))
        return true;
    void *more = realloc(*at, (size_t)(n ? 2 * n : 1) * size);
    if (more)
        *at = more;
    return more != NULL;
}

static Status note_bank(BankKeeper *k, const NewBank *bank, const Weight *w, Err *e)
{
    if (!grow(&k->banks, k->n_banks, sizeof *k->banks))
        return err_set(e, ST_MEMORY, "out of memory for the list of banks");
    KeeperBank *b = &k->banks[k->n_banks++];
    *b = (KeeperBank){.use = bank->use,
                      .n_mats = bank->n_all,
                      .n_parts = bank->n_parts,
                      .spread = bank->spread,
                      .cols = bank->cols,
                      .mat_bytes = k->ops->weight_mat_bytes(w),
                      .first_crc = k->n_mats};
    snprintf(b->name, sizeof b->name, "%s", bank->name);
    for (int i = 0; i < bank->n_parts; i++)
        b->parts[i] = bank->parts[i];
    k->n_mats += bank->n_all;
    return ST_OK;
}

Status keeper_begin(BankKeeper *k, const NewBank *bank, const Weight *w, Err *e)
{
    int slot = slot_of(k, NULL), i = 0;
    if (k->plan)
        TRY(note_bank(k, bank, w, e));
    while (i < k->n_banks && strcmp(k->banks[i].name, bank->name) != 0)
        i++;
    if (slot < 0 || i == k->n_banks || k->banks[i].mat_bytes != k->ops->weight_mat_bytes(w))
        return err_set(e, ST_INPUT, "%s: is another bank than it was planned", bank->name);
    k->open[slot].w = w;
    k->open[slot].bank = i;
    k->open[slot].mats = bank->mats;
    k->open[slot].n_mats = bank->n_mats;
    return ST_OK;
}

/* Banks that all ranks hold are written by one of them, in turn. */
static bool is_mine(const BankKeeper *k, int bank)
{
    return k->banks[bank].spread || bank % k->n_ranks == k->rank;
}

bool keeper_reads(const BankKeeper *k, const Weight *w)
{
    int slot = slot_of(k, w);
    return !k->plan && slot >= 0 && is_mine(k, k->open[slot].bank);
}

static void note_place(BankKeeper *k, int bank, int mat, int part, const QuantTensor *q,
                       const TensorEntry *t)
{
    /* Values that were made rather than stored are no codes of the tensor. */
    if (q->data < t->data || q->data >= t->data + t->bytes)
        return;
    if (!grow(&k->places, k->n_places, sizeof *k->places)) {
        k->short_of_memory = true;
        return;
    }
    k->places[k->n_places++] = (KeeperPlace){t->part,
                                             {.tensor = t - k->files->parts[t->part].header.entries,
                                              .bank = bank,
                                              .mat = mat,
                                              .part = part,
                                              .offset = q->data - t->data,
                                              .row_bytes = q->row_bytes,
                                              .unit_stride = q->unit_stride}};
}

bool keeper_wants(BankKeeper *k, const Weight *w, int mat, int part, const QuantTensor *q,
                  const TensorEntry *t)
{
    int slot = slot_of(k, w);
    if (k->plan && slot >= 0)
        note_place(k, k->open[slot].bank, k->open[slot].mats[mat], part, q, t);
    return keeper_reads(k, w);
}

static Status write_bank(BankKeeper *k, int slot, const Weight *w, Err *e)
{
    const KeeperBank *b = &k->banks[k->open[slot].bank];
    int n = k->open[slot].n_mats;
    uint64_t *offset = malloc((size_t)n * sizeof *offset);
    uint32_t *crc = malloc((size_t)n * sizeof *crc);
    Status st = ST_OK;
    if (!offset || !crc)
        st = err_set(e, ST_MEMORY, "out of memory: matrices of %s", b->name);
    for (int i = 0; i < n && st == ST_OK; i++)
        offset[i] = b->offset + (uint64_t)k->open[slot].mats[i] * b->mat_bytes;
    if (st == ST_OK) {
        BankFile f = {k->fd, k->path, offset};
        st = k->ops->weight_save(k->backend, w, &f, crc, e);
    }
    for (int i = 0; i < n && st == ST_OK; i++)
        k->crc[b->first_crc + k->open[slot].mats[i]] = crc[i];
    k->bytes_written += n * (int64_t)b->mat_bytes;
    free(offset);
    free(crc);
    return st;
}

Status keeper_take(BankKeeper *k, const Weight *w, Err *e)
{
    int slot = slot_of(k, w);
    if (k->short_of_memory)
        return err_set(e, ST_MEMORY, "out of memory for the list of places");
    Status st = keeper_reads(k, w) ? write_bank(k, slot, w, e) : ST_OK;
    if (slot >= 0)
        k->open[slot].w = NULL;
    return st;
}

void keeper_free(BankKeeper *k)
{
    free(k->banks);
    free(k->places);
    free(k->crc);
    *k = (BankKeeper){0};
}
