/* io/h5.c - see h5.h. */
#include "io/h5.h"

#include "io/durable.h"

#include <fcntl.h>
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_RANK = 4 };

struct H5Out {
    hid_t file;
    hid_t link_props; /* makes groups on the way */
    hid_t set_props;  /* no time stamps: equal results are equal files */
    char path[4096], tmp[4104];
};

static herr_t first_message(unsigned n, const H5E_error2_t *err, void *ctx)
{
    (void)n;
    *(const char **)ctx = err->desc;
    return 1; /* the innermost is enough */
}

static Status h5_failed(const H5Out *h, const char *what, Err *e)
{
    const char *why = NULL;
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, first_message, &why);
    return err_set(e, ST_IO, "%s: %s: HDF5: %s", h->tmp, what, why ? why : "failed");
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
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* errors travel as Err, not to stderr */
    h->link_props = H5Pcreate(H5P_LINK_CREATE);
    h->set_props = H5Pcreate(H5P_DATASET_CREATE);
    h->file = H5Fcreate(h->tmp, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
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

Status h5_write(H5Out *h, const char *name, H5Type type, int rank, const int64_t *dims,
                const void *data, Err *e)
{
    hid_t memory = type == H5_FLOAT32 ? H5T_NATIVE_FLOAT
                   : type == H5_INT32 ? H5T_NATIVE_INT32
                                      : H5T_NATIVE_INT64;
    hid_t stored = type == H5_FLOAT32 ? H5T_IEEE_F32LE
                   : type == H5_INT32 ? H5T_STD_I32LE
                                      : H5T_STD_I64LE;
    hsize_t extent[MAX_RANK];
    for (int i = 0; i < rank && i < MAX_RANK; i++)
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
    if (h->tmp[0])
        unlink(h->tmp);
    free(h);
}
