/* model/pack.c - see pack.h.
 *
 * Twice through the model as if to load it: once to learn which banks there are, which rank 0 then
 * makes room for, and once to fill them. HDF5 is rank 0's alone; the others write at offsets that
 * it tells them. */
#include "model/pack.h"

#include "io/clock.h"
#include "io/digest.h"
#include "io/h5.h"
#include "io/side_files.h"
#include "model/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_CAP = 512 };

typedef struct Pack {
    const char *dir, *out;
    const Arch *arch;
    Comm *comm;
    BankKeeper keeper;
    TensorSet files;
    uint8_t **banked;      /* [n_parts][tensors] whether the codes are in banks */
    uint64_t *data_offset; /* [n_parts] of the tensors that are not */
    int64_t *crc;          /* [files.n] of those, by this rank; the others 0 */
    H5Out *h5;             /* rank 0 */
    char tmp[FILE_PATH_MAX + 8];
} Pack;

/* --- what there is --- */

static Status walk(Pack *p, const Placement *placement, int rank, Err *e)
{
    const Precision as_decoded = {0};
    WeightsConfig config = {.dir = p->dir,
                            .arch = p->arch,
                            .precision = &as_decoded,
                            .placement = placement,
                            .rank = rank,
                            .ops = p->keeper.ops,
                            .backend = p->keeper.backend};
    Weights none = {0};
    Status st = weights_load_for(&config, &p->keeper, &none, e);
    weights_free(&none);
    return st;
}

static int by_tensor(const void *a, const void *b)
{
    const KeeperPlace *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->at.tensor != y->at.tensor)
        return x->at.tensor < y->at.tensor ? -1 : 1;
    return (x->at.offset > y->at.offset) - (x->at.offset < y->at.offset);
}

/* Readers find banks by name, and places by the number of the bank in that order. */
static Status sort_banks(BankKeeper *k, Err *e)
{
    int *number = malloc((size_t)k->n_banks * sizeof *number);
    if (!number)
        return err_set(e, ST_MEMORY, "out of memory for %d banks", k->n_banks);
    for (int i = 0; i < k->n_banks; i++) {
        number[i] = 0;
        for (int j = 0; j < k->n_banks; j++)
            number[i] += strcmp(k->banks[j].name, k->banks[i].name) < 0;
    }
    for (int64_t i = 0; i < k->n_places; i++)
        k->places[i].at.bank = number[k->places[i].at.bank];
    free(number);
    qsort(k->places, (size_t)k->n_places, sizeof *k->places, by_tensor);
    return ST_OK;
}

/* The same on every rank. */
static Status plan(Pack *p, Err *e)
{
    Placement whole = {0};
    TRY(placement_create(&whole, p->arch->router.n_experts, 1, e));
    p->keeper.plan = true;
    Status st = walk(p, &whole, 0, e);
    p->keeper.plan = false;
    placement_free(&whole);
    TRY(st);
    TRY(sort_banks(&p->keeper, e));
    TRY(tensor_set_open(p->dir, &p->files, e));
    p->keeper.crc = calloc((size_t)p->keeper.n_mats + 1, sizeof *p->keeper.crc);
    p->crc = calloc((size_t)p->files.n + 1, sizeof *p->crc);
    p->banked = calloc((size_t)p->files.n_parts, sizeof *p->banked);
    p->data_offset = calloc((size_t)p->files.n_parts, sizeof *p->data_offset);
    if (!p->keeper.crc || !p->crc || !p->banked || !p->data_offset)
        return err_set(e, ST_MEMORY, "out of memory for checksums");
    for (int i = 0; i < p->files.n_parts; i++) {
        p->banked[i] = calloc((size_t)p->files.parts[i].header.n + 1, 1);
        if (!p->banked[i])
            return err_set(e, ST_MEMORY, "out of memory for checksums");
    }
    for (int64_t i = 0; i < p->keeper.n_places; i++)
        p->banked[p->keeper.places[i].file][p->keeper.places[i].at.tensor] = 1;
    return ST_OK;
}

static int64_t data_bytes(const Pack *p, int part)
{
    int64_t n = 0;
    const SafeTensors *s = &p->files.parts[part].header;
    for (int i = 0; i < s->n; i++)
        n += p->banked[part][i] ? 0 : (s->entries[i].bytes + 15) / 16 * 16;
    return n;
}

/* --- the file, by rank 0 --- */

static Status put_file(Pack *p, const char *name, Err *e)
{
    char path[FILE_PATH_MAX], object[NAME_CAP], *text;
    size_t len;
    TRY(file_join(path, p->dir, name, e));
    TRY(file_read(path, SIDE_FILE_MAX, &text, &len, e));
    snprintf(object, sizeof object, "/files/%.400s", name);
    int64_t n = (int64_t)len, crc = crc32_of(0, text, len);
    Status st = h5_write(p->h5, object, H5_UINT8, 1, &n, text, e);
    if (st == ST_OK)
        st = h5_put_int64(p->h5, object, "crc32", &crc, 1, e);
    free(text);
    return st;
}

/* Configuration, tokenizer and template, in the order of their names so that equal models make
 * equal packs. */
static Status put_files(Pack *p, Err *e)
{
    char **names;
    int n;
    TRY(side_files_list(p->dir, &names, &n, e));
    Status st = ST_OK;
    for (int i = 0; i < n && st == ST_OK; i++)
        st = put_file(p, names[i], e);
    free(names);
    return st;
}

/* "gate_up [1408, 2048] nvfp4, groups of 16 with e4m3 scales": what a reader of the file sees. */
static void describe(const KeeperBank *b, char *out, size_t cap)
{
    static const char *const scales[N_SCALE_TYPES] = {"no", "f32", "bf16", "f16", "e4m3", "e8m0"};
    size_t at = 0;
    for (int i = 0; i < b->n_parts && at < cap; i++) {
        const WeightPart *p = &b->parts[i];
        at +=
            (size_t)snprintf(out + at, cap - at, "%s[%lld, %lld] %s", i ? "; " : "",
                             (long long)p->rows, (long long)b->cols, quant_format(p->format)->name);
        if (p->scale != SCALE_NONE && at < cap)
            at += (size_t)snprintf(out + at, cap - at, ", %s scales of %lld columns",
                                   scales[p->scale], (long long)p->group);
    }
}

static Status put_bank(Pack *p, KeeperBank *b, Err *e)
{
    char object[NAME_CAP], holds[400];
    int64_t dims[2] = {b->n_mats, (int64_t)b->mat_bytes}, geometry[4 * MAX_PARTS];
    int64_t n_parts = b->n_parts, use = b->use;
    snprintf(object, sizeof object, "/banks/%s", b->name);
    for (int i = 0; i < b->n_parts; i++) {
        geometry[4 * i] = b->parts[i].format;
        geometry[4 * i + 1] = b->parts[i].rows;
        geometry[4 * i + 2] = b->parts[i].group;
        geometry[4 * i + 3] = b->parts[i].scale;
    }
    describe(b, holds, sizeof holds);
    TRY(h5_reserve(p->h5, object, 2, dims, &b->offset, e));
    TRY(h5_put_text(p->h5, object, "holds", holds, e));
    TRY(h5_put_int64(p->h5, object, "n_parts", &n_parts, 1, e));
    TRY(h5_put_int64(p->h5, object, "geometry", geometry, 4 * b->n_parts, e));
    TRY(h5_put_int64(p->h5, object, "cols", &b->cols, 1, e));
    return h5_put_int64(p->h5, object, "use", &use, 1, e);
}

static Status make_file(Pack *p, Err *e)
{
    char digest[65], name[FILE_PATH_MAX], object[NAME_CAP];
    int64_t version = PACK_VERSION;
    TRY(weights_digest(p->dir, digest, e));
    if (!realpath(p->dir, name))
        return err_errno(e, "%s", p->dir);
    const char *slash = strrchr(name, '/');
    TRY(h5_create(p->out, &p->h5, e));
    TRY(h5_put_text(p->h5, "/", "layout", p->keeper.ops->weight_layout(p->keeper.backend), e));
    TRY(h5_put_text(p->h5, "/", "model_digest", digest, e));
    TRY(h5_put_text(p->h5, "/", "model_name", slash ? slash + 1 : name, e));
    TRY(h5_put_int64(p->h5, "/", "moebatch_pack", &version, 1, e));
    TRY(put_files(p, e));
    for (int i = 0; i < p->keeper.n_banks; i++)
        TRY(put_bank(p, &p->keeper.banks[i], e));
    for (int i = 0; i < p->files.n_parts; i++) {
        const TensorPart *part = &p->files.parts[i];
        int64_t bytes = data_bytes(p, i);
        snprintf(object, sizeof object, "/parts/%.300s/header", part->name);
        TRY(h5_write(p->h5, object, H5_UINT8, 1, &part->header.header_bytes, part->map.data, e));
        snprintf(object, sizeof object, "/parts/%.300s/data", part->name);
        TRY(h5_reserve(p->h5, object, 1, &bytes, &p->data_offset[i], e));
    }
    return ST_OK;
}

/* Checksums, when all ranks have written; then the file is whole. */
static Status end_part(Pack *p, int part, const int64_t *crc_of_tensors, Err *e)
{
    const TensorPart *t = &p->files.parts[part];
    const BankKeeper *k = &p->keeper;
    char object[NAME_CAP];
    int64_t n = t->header.n, first = 0, n_places = 0, file_bytes = (int64_t)t->map.len;
    uint32_t *crc = malloc((size_t)(n + 1) * sizeof *crc);
    while (first < k->n_places && k->places[first].file < part)
        first++;
    while (first + n_places < k->n_places && k->places[first + n_places].file == part)
        n_places++;
    PackPlace *places = malloc((size_t)(n_places + 1) * sizeof *places);
    Status st = ST_OK;
    if (!crc || !places) {
        st = err_set(e, ST_MEMORY, "out of memory for the places in %s", t->name);
        goto fail;
    }
    for (int64_t i = 0; i < n; i++)
        crc[i] = (uint32_t)crc_of_tensors[i];
    for (int64_t i = 0; i < n_places; i++)
        places[i] = k->places[first + i].at;
    int64_t dims[2] = {n_places, sizeof *places / sizeof(int64_t)};
    int64_t whole = crc32_of(0, t->map.data, (size_t)t->header.header_bytes);
    whole = crc32_of((uint32_t)whole, crc, (size_t)n * sizeof *crc);
    whole = crc32_of((uint32_t)whole, places, (size_t)n_places * sizeof *places);
    snprintf(object, sizeof object, "/parts/%.300s/crc32", t->name);
    TRY_GOTO(h5_write(p->h5, object, H5_UINT32, 1, &n, crc, e));
    snprintf(object, sizeof object, "/parts/%.300s/places", t->name);
    TRY_GOTO(h5_write(p->h5, object, H5_INT64, 2, dims, places, e));
    snprintf(object, sizeof object, "/parts/%.300s", t->name);
    TRY_GOTO(h5_put_int64(p->h5, object, "file_bytes", &file_bytes, 1, e));
    TRY_GOTO(h5_put_int64(p->h5, object, "crc32", &whole, 1, e));
fail:
    free(crc);
    free(places);
    return st;
}

static Status end_file(Pack *p, Err *e)
{
    const BankKeeper *k = &p->keeper;
    const int64_t *crc = p->crc;
    for (int i = 0; i < k->n_banks; i++) {
        char object[NAME_CAP];
        snprintf(object, sizeof object, "/banks/%s", k->banks[i].name);
        TRY(h5_put_int64(p->h5, object, "crc32", k->crc + k->banks[i].first_crc, k->banks[i].n_mats,
                         e));
    }
    for (int i = 0; i < p->files.n_parts; crc += p->files.parts[i].header.n, i++)
        TRY(end_part(p, i, crc, e));
    H5Out *h = p->h5;
    p->h5 = NULL;
    return h5_commit(h, e);
}

/* --- the bytes, by all --- */

/* Tensors that are in no bank, dealt out by their number. */
static Status write_data(Pack *p, Err *e)
{
    int number = 0;
    for (int i = 0; i < p->files.n_parts; i++) {
        const SafeTensors *s = &p->files.parts[i].header;
        uint64_t at = p->data_offset[i];
        for (int j = 0; j < s->n; j++, number++) {
            const TensorEntry *t = &s->entries[j];
            if (p->banked[i][j])
                continue;
            if (number % p->comm->size == p->comm->rank) {
                TRY(file_write_at(p->keeper.fd, p->tmp, at, t->data, (size_t)t->bytes, e));
                p->crc[number] = crc32_of(0, t->data, (size_t)t->bytes);
                p->keeper.bytes_written += t->bytes;
            }
            at += (uint64_t)(t->bytes + 15) / 16 * 16;
        }
    }
    return ST_OK;
}

static Status write_bytes(Pack *p, Err *e)
{
    Placement placement = {0};
    TRY(placement_create(&placement, p->arch->router.n_experts, p->comm->size, e));
    p->keeper.fd = open(p->tmp, O_WRONLY | O_CLOEXEC);
    p->keeper.path = p->tmp;
    Status st = p->keeper.fd < 0 ? err_errno(e, "%s", p->tmp) : ST_OK;
    if (st == ST_OK)
        st = walk(p, &placement, p->comm->rank, e);
    if (st == ST_OK)
        st = write_data(p, e);
    if (st == ST_OK && fsync(p->keeper.fd) != 0)
        st = err_errno(e, "%s", p->tmp);
    if (p->keeper.fd >= 0 && close(p->keeper.fd) != 0 && st == ST_OK)
        st = err_errno(e, "%s", p->tmp);
    placement_free(&placement);
    return st;
}

static Status share_offsets(Pack *p, Err *e)
{
    for (int i = 0; i < p->keeper.n_banks; i++)
        TRY(comm_bcast(p->comm, &p->keeper.banks[i].offset, sizeof(uint64_t), 0, e));
    return comm_bcast(p->comm, p->data_offset, (size_t)p->files.n_parts * sizeof *p->data_offset, 0,
                      e);
}

/* The sums are whole, since of each checksum all ranks but one have 0. */
static Status share_sums(Pack *p, Err *e)
{
    enum { AT_ONCE = 1 << 20 };
    for (int64_t i = 0; i < p->keeper.n_mats; i += AT_ONCE) {
        int64_t n = p->keeper.n_mats - i < AT_ONCE ? p->keeper.n_mats - i : AT_ONCE;
        TRY(comm_sum_int64(p->comm, p->keeper.crc + i, (int)n, e));
    }
    TRY(comm_sum_int64(p->comm, p->crc, p->files.n, e));
    return comm_sum_int64(p->comm, &p->keeper.bytes_written, 1, e);
}

static Status pack_all(Pack *p, Err *e)
{
    TRY(dist_agree(p->comm, plan(p, e), e));
    TRY(dist_agree(p->comm, p->comm->rank == 0 ? make_file(p, e) : ST_OK, e));
    TRY(share_offsets(p, e));
    TRY(dist_agree(p->comm, write_bytes(p, e), e));
    TRY(share_sums(p, e));
    return dist_agree(p->comm, p->comm->rank == 0 ? end_file(p, e) : ST_OK, e);
}

Status pack_write(const char *dir, const Arch *arch, const BackendOps *ops, Backend *backend,
                  Comm *comm, const char *out, PackReport *report, Err *e)
{
    double start = clock_s();
    Pack p = {
        .dir = dir,
        .out = out,
        .arch = arch,
        .comm = comm,
        .keeper = {
            .ops = ops, .backend = backend, .rank = comm->rank, .n_ranks = comm->size, .fd = -1}};
    *report = (PackReport){0};
    snprintf(p.tmp, sizeof p.tmp, "%.4095s.tmp", out);
    Status st;
    if (!ops->weight_layout)
        st = err_set(e, ST_USAGE, "the %s backend has no banks to pack", ops->name);
    else if (pack_file_is(dir))
        st = err_set(e, ST_USAGE, "%s: is a pack already", dir);
    else
        st = ST_OK;
    st = dist_agree(comm, st, e);
    if (st == ST_OK)
        st = pack_all(&p, e);
    *report = (PackReport){p.keeper.bytes_written, clock_s() - start};
    h5_abandon(p.h5);
    for (int i = 0; p.banked && i < p.files.n_parts; i++)
        free(p.banked[i]);
    free(p.banked);
    free(p.data_offset);
    free(p.crc);
    tensor_set_close(&p.files);
    keeper_free(&p.keeper);
    return st;
}
