/* io/h5_read.c - reading; see h5.h. Whatever a file says is checked before it is believed. */
#include "io/h5.h"

#include "io/h5_internal.h"

#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct H5In {
    hid_t file;
    uint64_t len;
    char path[4096];
};

static Status failed(const H5In *h, const char *what, Err *e)
{
    return err_set(e, ST_IO, "%s: %s: HDF5: %s", h->path, what, h5_why());
}

Status h5_open(const char *path, H5In **out, Err *e)
{
    struct stat info;
    H5In *h = calloc(1, sizeof *h);
    *out = NULL;
    if (!h)
        return err_set(e, ST_MEMORY, "%s: out of memory", path);
    h->file = -1;
    Status st = ST_OK;
    int n = snprintf(h->path, sizeof h->path, "%s", path);
    if (n < 0 || (size_t)n >= sizeof h->path)
        st = err_set(e, ST_USAGE, "%.100s...: path too long", path);
    else if (stat(path, &info) != 0)
        st = err_errno(e, "%s", path);
    if (st == ST_OK) {
        h->len = (uint64_t)info.st_size;
        h5_begin();
        hid_t props = H5Pcreate(H5P_FILE_ACCESS);
#if H5_VERSION_GE(1, 10, 7)
        (void)H5Pset_file_locking(props, false, true); /* nobody writes; some file systems cannot */
#endif
        h->file = H5Fopen(path, H5F_ACC_RDONLY, props);
        if (h->file < 0)
            st = failed(h, "cannot be opened", e);
        if (props >= 0)
            H5Pclose(props);
    }
    if (st != ST_OK) {
        h5_close(h);
        return st;
    }
    *out = h;
    return ST_OK;
}

void h5_close(H5In *h)
{
    if (!h)
        return;
    if (h->file >= 0)
        H5Fclose(h->file);
    free(h);
}

bool h5_has(H5In *h, const char *name)
{
    return H5Lexists(h->file, name, H5P_DEFAULT) > 0;
}

/* Lengths first, then one block: pointers, then their texts. */
Status h5_names(H5In *h, const char *group, char ***out, int *n, Err *e)
{
    H5G_info_t info;
    *out = NULL;
    *n = 0;
    hid_t g = H5Gopen2(h->file, group, H5P_DEFAULT);
    if (g < 0 || H5Gget_info(g, &info) < 0 || info.nlinks > 1 << 24) {
        if (g >= 0)
            H5Gclose(g);
        return failed(h, group, e);
    }
    Status st = ST_OK;
    size_t bytes = (size_t)info.nlinks * sizeof(char *) + 1;
    for (hsize_t i = 0; i < info.nlinks; i++) {
        ssize_t len =
            H5Lget_name_by_idx(g, ".", H5_INDEX_NAME, H5_ITER_INC, i, NULL, 0, H5P_DEFAULT);
        bytes += len < 0 ? 0 : (size_t)len + 1;
    }
    char **names = malloc(bytes);
    if (!names)
        st = err_set(e, ST_MEMORY, "%s: out of memory for the names in %s", h->path, group);
    char *text = (char *)(names + info.nlinks), *end = (char *)names + bytes;
    for (hsize_t i = 0; i < info.nlinks && st == ST_OK; i++) {
        ssize_t len = H5Lget_name_by_idx(g, ".", H5_INDEX_NAME, H5_ITER_INC, i, text,
                                         (size_t)(end - text), H5P_DEFAULT);
        if (len < 0 || len >= end - text)
            st = failed(h, group, e);
        names[i] = text;
        text += len + 1;
    }
    H5Gclose(g);
    if (st != ST_OK) {
        free(names);
        return st;
    }
    *out = names;
    *n = (int)info.nlinks;
    return ST_OK;
}

Status h5_find(H5In *h, const char *name, H5Place *out, Err *e)
{
    hsize_t dims[H5S_MAX_RANK];
    *out = (H5Place){0};
    hid_t set = H5Dopen2(h->file, name, H5P_DEFAULT);
    if (set < 0)
        return failed(h, name, e);
    hid_t space = H5Dget_space(set), props = H5Dget_create_plist(set), type = H5Dget_type(set);
    int rank = space < 0 ? -1 : H5Sget_simple_extent_ndims(space);
    haddr_t at = H5Dget_offset(set);
    Status st = ST_OK;
    if (rank < 1 || rank > H5_MAX_RANK || type < 0 || props < 0 ||
        H5Sget_simple_extent_dims(space, dims, NULL) < 0 || H5Pget_layout(props) != H5D_CONTIGUOUS)
        st = err_set(e, ST_INPUT, "%s: %s: not a contiguous dataset", h->path, name);
    uint64_t bytes = type < 0 ? 0 : H5Tget_size(type);
    for (int i = 0; i < rank && st == ST_OK; i++) {
        if (dims[i] > 0 && bytes > h->len / dims[i])
            st = err_set(e, ST_INPUT, "%s: %s: larger than the file", h->path, name);
        bytes *= dims[i];
        out->dims[i] = (int64_t)dims[i];
    }
    if (st == ST_OK && bytes > 0 && (at == HADDR_UNDEF || at > h->len || bytes > h->len - at))
        st = err_set(e, ST_INPUT, "%s: %s: its bytes are not in the file", h->path, name);
    out->offset = bytes > 0 ? at : 0;
    out->bytes = (int64_t)bytes;
    out->rank = rank;
    if (type >= 0)
        H5Tclose(type);
    if (props >= 0)
        H5Pclose(props);
    if (space >= 0)
        H5Sclose(space);
    H5Dclose(set);
    return st;
}

/* type: what the values are read as; -1: the attribute's own, which must be a short text. */
static Status get_attribute(H5In *h, const char *object, const char *name, hid_t memory, void *out,
                            size_t size, int n, Err *e)
{
    hid_t at = H5Aopen_by_name(h->file, object, name, H5P_DEFAULT, H5P_DEFAULT);
    if (at < 0)
        return failed(h, name, e);
    hid_t space = H5Aget_space(at), type = H5Aget_type(at);
    bool text = memory < 0;
    Status st = ST_OK;
    if (space < 0 || type < 0 || H5Sget_simple_extent_npoints(space) != n ||
        (text ? H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) != 0 ||
                    H5Tget_size(type) > size
              : H5Tget_class(type) != H5T_INTEGER))
        st = err_set(e, ST_INPUT, "%s: %s: attribute %s is not what a pack has", h->path, object,
                     name);
    else if (H5Aread(at, text ? type : memory, out) < 0)
        st = failed(h, name, e);
    if (type >= 0)
        H5Tclose(type);
    if (space >= 0)
        H5Sclose(space);
    H5Aclose(at);
    return st;
}

Status h5_get_text(H5In *h, const char *object, const char *name, char *out, size_t cap, Err *e)
{
    memset(out, 0, cap);
    TRY(get_attribute(h, object, name, -1, out, cap, 1, e));
    out[cap - 1] = 0;
    return ST_OK;
}

Status h5_get_int64(H5In *h, const char *object, const char *name, int64_t *values, int n, Err *e)
{
    return get_attribute(h, object, name, H5T_NATIVE_INT64, values, 0, n, e);
}
