/* model/kept.c - see kept.h. */
#include "model/kept.h"

#include "io/digest.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static Status altered(const TensorSet *files, const TensorEntry *t, Err *e)
{
    return err_set(e, ST_INPUT, "%s: tensor \"%.200s\": has been altered since it was packed",
                   files->pack->path, t->name);
}

/* A bank as the kernels describe it; what the file says is checked there and here. */
static Status describe(const PackFile *pack, const PackBank *bank, KeptBank *out, Err *e)
{
    size_t bytes;
    *out = (KeptBank){.layout = pack->layout,
                      .use = bank->use == WEIGHT_LOOKUP ? WEIGHT_LOOKUP : WEIGHT_MATMUL,
                      .n_parts = bank->n_parts,
                      .cols = bank->cols};
    for (int i = 0; i < bank->n_parts; i++) {
        const PackBankPart *p = &bank->part[i];
        if (p->format < 0 || p->format >= N_FORMATS || p->scale < 0 || p->scale >= N_SCALE_TYPES)
            return err_set(e, ST_INPUT, "%s: %s: a part has an unknown format", pack->path,
                           bank->name);
        out->parts[i] =
            (WeightPart){(FormatId)p->format, p->rows, p->group, (ScaleType)p->scale, 1};
    }
    if (unpack_mat_bytes(out, &bytes, e) != ST_OK)
        return err_in(e, "%s: %s", pack->path, bank->name);
    if ((int64_t)bytes != bank->mat_bytes)
        return err_set(e, ST_INPUT, "%s: %s: matrices of %lld bytes, expected %zu", pack->path,
                       bank->name, (long long)bank->mat_bytes, bytes);
    return ST_OK;
}

/* Whether the codes of one place stay within the tensor. */
static bool place_fits(const TensorEntry *t, const PackPlace *p, const KeptBank *k)
{
    const WeightPart *part = &k->parts[p->part];
    const QuantFormat *f = quant_format(part->format);
    int64_t units = (k->cols - 1) / f->unit + 1, rows, along, end;
    return p->offset >= 0 && p->row_bytes >= 0 && p->unit_stride >= 0 &&
           !__builtin_mul_overflow(part->rows - 1, p->row_bytes, &rows) &&
           !__builtin_mul_overflow(units - 1, p->unit_stride, &along) &&
           !__builtin_add_overflow(rows, along, &end) &&
           !__builtin_add_overflow(end, p->offset, &end) && end <= t->bytes - f->unit_bytes;
}

static Status put_back(const TensorSet *files, const TensorEntry *t, const PackPlace *p,
                       uint8_t *codes, Err *e)
{
    const PackFile *pack = files->pack;
    KeptBank k;
    if (p->bank < 0 || p->bank >= pack->n_banks)
        return altered(files, t, e);
    const PackBank *bank = &pack->banks[p->bank];
    TRY(describe(pack, bank, &k, e));
    if (p->mat < 0 || p->mat >= bank->n_mats || p->part < 0 || p->part >= bank->n_parts ||
        !place_fits(t, p, &k))
        return altered(files, t, e);
    const uint8_t *mat = pack->map.data + bank->offset + (uint64_t)(p->mat * bank->mat_bytes);
    if (crc32_of(0, mat, (size_t)bank->mat_bytes) != (uint32_t)bank->crc[p->mat])
        return altered(files, t, e);
    unpack_part(&k, (int)p->part, mat, codes + p->offset, p->row_bytes, p->unit_stride);
    return ST_OK;
}

/* The pages that hold t: neighbours share the first and the last. */
static Status open_pages(const TensorEntry *t, Err *e)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)t->data & ~(page - 1);
    if (mprotect((void *)start, (uintptr_t)t->data + (size_t)t->bytes - start,
                 PROT_READ | PROT_WRITE) != 0)
        return err_errno(e, "memory for tensor \"%.200s\"", t->name);
    return ST_OK;
}

static Status make_ready(const TensorSet *files, const TensorEntry *t, Err *e)
{
    const TensorPart *part = &files->parts[t->part];
    int64_t n;
    const PackPlace *places = tensor_set_places(files, t, &n);
    uint32_t crc;
    memcpy(&crc, part->kept->crc + 4 * (t - part->header.entries), sizeof crc);
    if (t->bytes == 0)
        return ST_OK;
    if (n == 0)
        return crc32_of(0, t->data, (size_t)t->bytes) == crc ? ST_OK : altered(files, t, e);
    TRY(open_pages(t, e));
    for (int64_t i = 0; i < n; i++)
        TRY(put_back(files, t, &places[i], (uint8_t *)(uintptr_t)t->data, e));
    return ST_OK;
}

Status kept_need(const TensorSet *files, const TensorEntry *t, Err *e)
{
    if (!files->pack)
        return ST_OK;
    const TensorPart *part = &files->parts[t->part];
    atomic_uchar *state = &part->state[t - part->header.entries];
    for (;;) {
        unsigned char seen = KEPT_UNSEEN;
        if (atomic_load(state) == KEPT_READY)
            return ST_OK;
        if (atomic_compare_exchange_strong(state, &seen, KEPT_BUSY))
            break;
        sched_yield(); /* another thread is at it */
    }
    Status st = make_ready(files, t, e);
    atomic_store(state, st == ST_OK ? KEPT_READY : KEPT_UNSEEN);
    return st;
}

void kept_drop(const TensorSet *files, const TensorEntry *t)
{
    int64_t n;
    if (!files->pack || !tensor_set_places(files, t, &n))
        return;
    const TensorPart *part = &files->parts[t->part];
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t start = ((uintptr_t)t->data + page - 1) & ~(page - 1);
    uintptr_t end = ((uintptr_t)t->data + (size_t)t->bytes) & ~(page - 1);
    atomic_store(&part->state[t - part->header.entries], KEPT_UNSEEN);
    if (end > start)
        (void)madvise((void *)start, end - start, MADV_DONTNEED);
}

const PackBank *kept_bank(const TensorSet *files, const BackendOps *ops, const Backend *b,
                          const char *name)
{
    if (!files->pack || !ops->weight_layout ||
        strcmp(ops->weight_layout(b), files->pack->layout) != 0)
        return NULL;
    return pack_file_bank(files->pack, name);
}

Status kept_restore(const TensorSet *files, const PackBank *bank, const BackendOps *ops, Backend *b,
                    Weight *w, const int *mats, int n, Err *e)
{
    const PackFile *pack = files->pack;
    uint64_t *offset = malloc((size_t)n * sizeof *offset);
    uint32_t *crc = malloc((size_t)n * sizeof *crc);
    Status st = ST_OK;
    if (!offset || !crc)
        st = err_set(e, ST_MEMORY, "out of memory: matrices of %s", bank->name);
    else if ((int64_t)ops->weight_mat_bytes(w) != bank->mat_bytes)
        st = err_set(e, ST_INPUT, "%s: %s: matrices of %lld bytes, expected %zu", pack->path,
                     bank->name, (long long)bank->mat_bytes, ops->weight_mat_bytes(w));
    for (int i = 0; i < n && st == ST_OK; i++) {
        if (mats[i] < 0 || mats[i] >= bank->n_mats) {
            st = err_set(e, ST_INPUT, "%s: %s: has no matrix %d", pack->path, bank->name, mats[i]);
            break;
        }
        offset[i] = bank->offset + (uint64_t)(mats[i] * bank->mat_bytes);
        crc[i] = (uint32_t)bank->crc[mats[i]];
    }
    if (st == ST_OK) {
        BankFile f = {pack->fd, pack->path, offset};
        st = ops->weight_restore(b, w, &f, crc, e);
    }
    free(offset);
    free(crc);
    return st;
}
