/* io/pack_file.c - reading a pack; see pack_file.h. */
#include "io/pack_file.h"

#include "io/digest.h"
#include "io/h5.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_MATS = 1 << 16, NAME_CAP = 512 };

bool pack_file_is(const char *path)
{
    static const char signature[8] = "\x89HDF\r\n\x1a\n";
    char start[8];
    if (!file_exists(path))
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool is = fd >= 0 && read(fd, start, sizeof start) == (ssize_t)sizeof start &&
              memcmp(start, signature, sizeof start) == 0;
    if (fd >= 0)
        close(fd);
    return is;
}

/* "PACK/NAME": PACK to pack, and NAME; NULL where PACK is none. */
static const char *split(const char *path, char pack[FILE_PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path || slash - path >= FILE_PATH_MAX || !slash[1])
        return NULL;
    memcpy(pack, path, (size_t)(slash - path));
    pack[slash - path] = 0;
    return pack_file_is(pack) ? slash + 1 : NULL;
}

bool pack_file_has(const char *path)
{
    char pack[FILE_PATH_MAX], object[NAME_CAP];
    const char *name = split(path, pack);
    H5In *h;
    Err e;
    if (!name || snprintf(object, sizeof object, "/files/%s", name) >= (int)sizeof object ||
        h5_open(pack, &h, &e) != ST_OK)
        return false;
    bool has = h5_has(h, "/files") && h5_has(h, object);
    h5_close(h);
    return has;
}

Status pack_file_names(const char *pack, char ***out, int *n, Err *e)
{
    H5In *h;
    TRY(h5_open(pack, &h, e));
    Status st = h5_names(h, "/files", out, n, e);
    h5_close(h);
    return st;
}

static Status read_object(H5In *h, const char *path, const char *object, size_t limit, char **out,
                          size_t *len, Err *e)
{
    H5Place place;
    int64_t crc;
    TRY(h5_find(h, object, &place, e));
    TRY(h5_get_int64(h, object, "crc32", &crc, 1, e));
    if ((uint64_t)place.bytes > limit)
        return err_set(e, ST_INPUT, "%s: %lld bytes, at most %zu expected", path,
                       (long long)place.bytes, limit);
    char *text = malloc((size_t)place.bytes + 1), pack[FILE_PATH_MAX];
    if (!text)
        return err_set(e, ST_MEMORY, "%s: not enough memory for %lld bytes", path,
                       (long long)place.bytes);
    (void)split(path, pack);
    int fd = open(pack, O_RDONLY | O_CLOEXEC);
    Status st = fd < 0 ? err_errno(e, "%s", pack)
                       : file_read_at(fd, path, place.offset, text, (size_t)place.bytes, e);
    if (fd >= 0)
        close(fd);
    if (st == ST_OK && crc32_of(0, text, (size_t)place.bytes) != (uint32_t)crc)
        st = err_set(e, ST_INPUT, "%s: has been altered: its CRC-32 is not %08x", path,
                     (unsigned)crc);
    if (st != ST_OK) {
        free(text);
        return st;
    }
    text[place.bytes] = 0;
    *out = text;
    *len = (size_t)place.bytes;
    return ST_OK;
}

Status pack_file_read(const char *path, size_t limit, char **out, size_t *len, Err *e)
{
    char pack[FILE_PATH_MAX], object[NAME_CAP];
    const char *name = split(path, pack);
    H5In *h;
    *out = NULL;
    *len = 0;
    if (!name) {
        errno = ENOENT;
        return err_errno(e, "%s", path);
    }
    snprintf(object, sizeof object, "/files/%.400s", name);
    TRY(h5_open(pack, &h, e));
    Status st;
    if (h5_has(h, "/files") && h5_has(h, object)) {
        st = read_object(h, path, object, limit, out, len, e);
    } else {
        errno = ENOENT;
        st = err_errno(e, "%s", path);
    }
    h5_close(h);
    return st;
}

/* --- banks --- */

static Status read_bank(H5In *h, PackFile *p, const char *name, PackBank *out, Err *e)
{
    char object[NAME_CAP];
    H5Place place;
    int64_t n_parts, geometry[PACK_MAX_PARTS * 4];
    snprintf(object, sizeof object, "/banks/%.400s", name);
    TRY(h5_find(h, object, &place, e));
    TRY(h5_get_int64(h, object, "n_parts", &n_parts, 1, e));
    if (place.rank != 2 || place.dims[0] < 1 || place.dims[0] > MOST_MATS || n_parts < 1 ||
        n_parts > PACK_MAX_PARTS)
        return err_set(e, ST_INPUT, "%s: %s: is not what a pack has", p->path, object);
    out->name = arena_copy(&p->arena, name, strlen(name));
    out->n_mats = place.dims[0];
    out->mat_bytes = place.dims[1];
    out->offset = place.offset;
    out->n_parts = (int)n_parts;
    out->crc = arena_alloc(&p->arena, (size_t)out->n_mats * sizeof *out->crc);
    if (!out->name || !out->crc)
        return err_set(e, ST_MEMORY, "%s: out of memory", p->path);
    TRY(h5_get_int64(h, object, "cols", &out->cols, 1, e));
    TRY(h5_get_int64(h, object, "use", &out->use, 1, e));
    TRY(h5_get_int64(h, object, "crc32", out->crc, (int)out->n_mats, e));
    TRY(h5_get_int64(h, object, "geometry", geometry, 4 * out->n_parts, e));
    for (int i = 0; i < out->n_parts; i++)
        out->part[i] = (PackBankPart){geometry[4 * i], geometry[4 * i + 1], geometry[4 * i + 2],
                                      geometry[4 * i + 3]};
    return ST_OK;
}

static Status read_banks(H5In *h, PackFile *p, Err *e)
{
    char **names;
    TRY(h5_names(h, "/banks", &names, &p->n_banks, e));
    Status st = ST_OK;
    p->banks = calloc((size_t)p->n_banks + 1, sizeof *p->banks);
    if (!p->banks)
        st = err_set(e, ST_MEMORY, "%s: out of memory for %d banks", p->path, p->n_banks);
    for (int i = 0; i < p->n_banks && st == ST_OK; i++)
        st = read_bank(h, p, names[i], &p->banks[i], e);
    free(names);
    return st;
}

const PackBank *pack_file_bank(const PackFile *p, const char *name)
{
    int lo = 0, hi = p->n_banks;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2, order = strcmp(p->banks[mid].name, name);
        if (order == 0)
            return &p->banks[mid];
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

/* --- parts --- */

static Status find_in(H5In *h, PackFile *p, const char *part, const char *what, H5Place *place,
                      const uint8_t **bytes, Err *e)
{
    char object[NAME_CAP];
    snprintf(object, sizeof object, "/parts/%.300s/%s", part, what);
    TRY(h5_find(h, object, place, e));
    *bytes = p->map.data + place->offset;
    return ST_OK;
}

static Status read_part(H5In *h, PackFile *p, const char *name, PackPart *out, Err *e)
{
    char object[NAME_CAP];
    H5Place header, data, crc, places;
    int64_t header_crc;
    out->name = arena_copy(&p->arena, name, strlen(name));
    if (!out->name)
        return err_set(e, ST_MEMORY, "%s: out of memory", p->path);
    snprintf(object, sizeof object, "/parts/%.300s", name);
    TRY(h5_get_int64(h, object, "file_bytes", &out->file_bytes, 1, e));
    TRY(find_in(h, p, name, "header", &header, &out->header, e));
    TRY(find_in(h, p, name, "data", &data, &out->data, e));
    TRY(find_in(h, p, name, "crc32", &crc, &out->crc, e));
    const uint8_t *packed;
    TRY(find_in(h, p, name, "places", &places, &packed, e));
    out->places = arena_alloc(&p->arena, (size_t)places.bytes + 1);
    if (!out->places)
        return err_set(e, ST_MEMORY, "%s: out of memory", p->path);
    memcpy(out->places, packed, (size_t)places.bytes);
    TRY(h5_get_int64(h, object, "crc32", &header_crc, 1, e));
    out->header_bytes = header.bytes;
    out->data_bytes = data.bytes;
    out->n_tensors = crc.bytes / 4;
    out->n_places = places.bytes / (int64_t)sizeof(PackPlace);
    /* Header and places are what everything else is found by. */
    uint32_t got = crc32_of(0, out->header, (size_t)out->header_bytes);
    got = crc32_of(got, out->crc, (size_t)crc.bytes);
    got = crc32_of(got, out->places, (size_t)places.bytes);
    if (got != (uint32_t)header_crc)
        return err_set(e, ST_INPUT, "%s: %s: its header has been altered", p->path, object);
    return ST_OK;
}

static Status read_parts(H5In *h, PackFile *p, Err *e)
{
    char **names;
    TRY(h5_names(h, "/parts", &names, &p->n_parts, e));
    Status st = ST_OK;
    p->parts = calloc((size_t)p->n_parts + 1, sizeof *p->parts);
    if (!p->parts)
        st = err_set(e, ST_MEMORY, "%s: out of memory for %d parts", p->path, p->n_parts);
    for (int i = 0; i < p->n_parts && st == ST_OK; i++)
        st = read_part(h, p, names[i], &p->parts[i], e);
    free(names);
    return st;
}

Status pack_file_open(const char *path, PackFile *out, Err *e)
{
    H5In *h = NULL;
    int64_t version;
    Status st = ST_OK;
    *out = (PackFile){.fd = -1};
    if (snprintf(out->path, sizeof out->path, "%s", path) >= (int)sizeof out->path)
        return err_set(e, ST_USAGE, "%.100s...: path too long", path);
    TRY_GOTO(h5_open(path, &h, e));
    st = h5_get_int64(h, "/", "moebatch_pack", &version, 1, e);
    if (st != ST_OK || version != PACK_VERSION) {
        st = err_set(e, ST_INPUT, "%s: is no model pack of version %d", path, PACK_VERSION);
        goto fail;
    }
    TRY_GOTO(h5_get_text(h, "/", "layout", out->layout, sizeof out->layout, e));
    TRY_GOTO(h5_get_text(h, "/", "model_digest", out->model_digest, sizeof out->model_digest, e));
    TRY_GOTO(h5_get_text(h, "/", "model_name", out->model_name, sizeof out->model_name, e));
    TRY_GOTO(file_map(path, &out->map, e));
    out->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (out->fd < 0) {
        st = err_errno(e, "%s", path);
        goto fail;
    }
    TRY_GOTO(read_banks(h, out, e));
    TRY_GOTO(read_parts(h, out, e));
    h5_close(h);
    return ST_OK;
fail:
    h5_close(h);
    pack_file_close(out);
    return st;
}

void pack_file_close(PackFile *p)
{
    if (p->path[0] && p->fd >= 0)
        close(p->fd);
    free(p->banks);
    free(p->parts);
    file_unmap(&p->map);
    arena_free(&p->arena);
    *p = (PackFile){.fd = -1};
}
