/* io/h5.c - writing; see h5.h. */
#include "io/h5.h"

#include "io/durable.h"
#include "io/h5_internal.h"

#include <fcntl.h>
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct H5Out {
    hid_t file;
    hid_t link_props; /* makes groups on the way */
    hid_t set_props;  /* no time stamps: equal results are equal files */
    hid_t file_props; /* large datasets begin at a page */
    char path[4096], tmp[4104];
};

void h5_begin(void)
{
    /* A file on a full disk cannot be closed, and HDF5 crashes when it tries again at exit. It may
     * not: nothing of ours waits for that. */
    (void)H5dont_atexit();
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* errors travel as Err, not to stderr */
}

static herr_t first_message(unsigned n, const H5E_error2_t *err, void *ctx)
{
    (void)n;
    *(const char **)ctx = err->desc;
    return 1; /* the innermost is enough */
}

const char *h5_why(void)
{
    const char *why = NULL;
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, first_message, &why);
    return why ? why : "failed";
}

static Status h5_failed(const H5Out *h, const char *what, Err *e)
{
    return err_set(e, ST_IO, "%s: %s: HDF5: %s", h->tmp, what, h5_why());
}

Status h5_create(const char *path, H5Out **out, Err *e)
{
    H5Out *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, ST_MEMORY, "%s: out of memory", path);
    int n = snprintf(h->path, sizeof h->path, "%s", path);
    if (n < 0 || (size_t)n >= sizeof h->path) {
        free(h);
        return err_set(e, ST_USAGE, "%.100s...: path too long", path);
    }
    snprintf(h->tmp, sizeof h->tmp, "%s.tmp", path);
    h5_begin();
    h->link_props = H5Pcreate(H5P_LINK_CREATE);
    h->set_props = H5Pcreate(H5P_DATASET_CREATE);
    h->file_props = H5Pcreate(H5P_FILE_ACCESS);
    h->file = h->file_props < 0 || H5Pset_alignment(h->file_props, H5_ALIGN, H5_ALIGN) < 0
                  ? -1
                  : H5Fcreate(h->tmp, H5F_ACC_TRUNC, H5P_DEFAULT, h->file_props);
    if (h->link_props < 0 || h->set_props < 0 || h->file < 0 ||
        H5Pset_create_intermediate_group(h->link_props, 1) < 0 ||
        H5Pset_obj_track_times(h->set_props, 0) < 0) {
        Status st = h5_failed(h, "cannot be created", e);
        h5_abandon(h);
        return st;
    }
    *out = h;
    return ST_OK;
}

static hid_t memory_type(H5Type type)
{
    switch (type) {
    case H5_FLOAT32:
        return H5T_NATIVE_FLOAT;
    case H5_INT32:
        return H5T_NATIVE_INT32;
    case H5_UINT8:
        return H5T_NATIVE_UINT8;
    case H5_UINT32:
        return H5T_NATIVE_UINT32;
    default:
        return H5T_NATIVE_INT64;
    }
}

static hid_t stored_type(H5Type type)
{
    switch (type) {
    case H5_FLOAT32:
        return H5T_IEEE_F32LE;
    case H5_INT32:
        return H5T_STD_I32LE;
    case H5_UINT8:
        return H5T_STD_U8LE;
    case H5_UINT32:
        return H5T_STD_U32LE;
    default:
        return H5T_STD_I64LE;
    }
}

Status h5_write(H5Out *h, const char *name, H5Type type, int rank, const int64_t *dims,
                const void *data, Err *e)
{
    hid_t memory = memory_type(type), stored = stored_type(type);
    hsize_t extent[H5_MAX_RANK];
    for (int i = 0; i < rank && i < H5_MAX_RANK; i++)
        extent[i] = (hsize_t)dims[i];
    hid_t space = H5Screate_simple(rank, extent, NULL);
    hid_t set = space < 0 ? -1
                          : H5Dcreate2(h->file, name, stored, space, h->link_props, h->set_props,
                                       H5P_DEFAULT);
    Status st = ST_OK;
    if (set < 0 || H5Dwrite(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0)
        st = h5_failed(h, name, e);
    if (set >= 0 && H5Dclose(set) < 0 && st == ST_OK)
        st = h5_failed(h, name, e);
    if (space >= 0)
        H5Sclose(space);
    return st;
}

Status h5_reserve(H5Out *h, const char *name, int rank, const int64_t *dims, uint64_t *offset,
                  Err *e)
{
    hsize_t extent[H5_MAX_RANK];
    bool empty = false; /* and then nowhere */
    for (int i = 0; i < rank && i < H5_MAX_RANK; i++) {
        extent[i] = (hsize_t)dims[i];
        empty |= dims[i] == 0;
    }
    hid_t props = H5Pcopy(h->set_props), space = H5Screate_simple(rank, extent, NULL), set = -1;
    if (props >= 0 && space >= 0 && H5Pset_alloc_time(props, H5D_ALLOC_TIME_EARLY) >= 0 &&
        H5Pset_fill_time(props, H5D_FILL_TIME_NEVER) >= 0)
        set = H5Dcreate2(h->file, name, H5T_STD_U8LE, space, h->link_props, props, H5P_DEFAULT);
    haddr_t at = set < 0 ? HADDR_UNDEF : H5Dget_offset(set);
    Status st = set < 0 || (at == HADDR_UNDEF && !empty) ? h5_failed(h, name, e) : ST_OK;
    *offset = empty ? 0 : at;
    if (set >= 0 && H5Dclose(set) < 0 && st == ST_OK)
        st = h5_failed(h, name, e);
    if (space >= 0)
        H5Sclose(space);
    if (props >= 0)
        H5Pclose(props);
    return st;
}

static Status put_attribute(H5Out *h, const char *object, const char *name, hid_t type,
                            hid_t memory, hid_t space, const void *values, Err *e)
{
    hid_t at = H5Oopen(h->file, object, H5P_DEFAULT);
    hid_t attribute = at < 0 || type < 0 || space < 0
                          ? -1
                          : H5Acreate2(at, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    Status st = ST_OK;
    if (attribute < 0 || H5Awrite(attribute, memory, values) < 0)
        st = h5_failed(h, name, e);
    if (attribute >= 0)
        H5Aclose(attribute);
    if (at >= 0)
        H5Oclose(at);
    return st;
}

Status h5_put_text(H5Out *h, const char *object, const char *name, const char *text, Err *e)
{
    hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    Status st;
    if (type < 0 || H5Tset_size(type, strlen(text) + 1) < 0 || H5Tset_cset(type, H5T_CSET_UTF8) < 0)
        st = h5_failed(h, name, e);
    else
        st = put_attribute(h, object, name, type, type, space, text, e);
    if (type >= 0)
        H5Tclose(type);
    if (space >= 0)
        H5Sclose(space);
    return st;
}

Status h5_put_int64(H5Out *h, const char *object, const char *name, const int64_t *values, int n,
                    Err *e)
{
    hsize_t extent = (hsize_t)n;
    hid_t space = H5Screate_simple(1, &extent, NULL);
    Status st = put_attribute(h, object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, space, values, e);
    if (space >= 0)
        H5Sclose(space);
    return st;
}

static Status sync_file(const char *path, Err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    Status st = fd < 0 || fsync(fd) != 0 ? err_errno(e, "%s", path) : ST_OK;
    if (fd >= 0)
        close(fd);
    return st;
}

Status h5_commit(H5Out *h, Err *e)
{
    Status st = ST_OK;
    if (H5Fclose(h->file) < 0)
        st = h5_failed(h, "closing", e);
    h->file = -1;
    if (st == ST_OK)
        st = sync_file(h->tmp, e);
    if (st == ST_OK)
        st = durable_rename(h->tmp, h->path, e);
    if (st == ST_OK)
        h->tmp[0] = 0;
    h5_abandon(h);
    return st;
}

void h5_abandon(H5Out *h)
{
    if (!h)
        return;
    if (h->file >= 0)
        H5Fclose(h->file);
    if (h->link_props >= 0)
        H5Pclose(h->link_props);
    if (h->set_props >= 0)
        H5Pclose(h->set_props);
    if (h->file_props >= 0)
        H5Pclose(h->file_props);
    if (h->tmp[0])
        unlink(h->tmp);
    free(h);
}
