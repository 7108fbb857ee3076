/* io/tensor_set.h - every tensor of a checkpoint directory, over all of its parts. */
#ifndef MB_IO_TENSOR_SET_H
#define MB_IO_TENSOR_SET_H

#include "io/file.h"
#include "io/name_table.h"
#include "io/pack_file.h"
#include "io/safetensors.h"

#include <stdatomic.h>

/* What became of a tensor of a pack in this process. */
typedef enum KeptState { KEPT_UNSEEN, KEPT_BUSY, KEPT_READY } KeptState;

typedef struct TensorPart {
    const char *name; /* file name without directory */
    FileMap map;
    SafeTensors header;
    /* Of a pack: codes that lie in banks have addresses in reserved, which hold nothing until
     * somebody has put them there (model/kept.h). */
    const PackPart *kept;
    uint8_t *reserved;
    atomic_uchar *state; /* [header.n] KeptState */
} TensorPart;

typedef struct TensorSet {
    const char *list_name; /* the file to blame for a tensor that is nowhere: the index, or the
                              single part */
    TensorPart *parts;
    int n_parts;
    const TensorEntry **entries; /* [n] all tensors; part tells where each lies */
    int n;
    NameTable names; /* of entries, in the same order */
    Arena arena;     /* names of parts */
    PackFile *pack;  /* NULL: a directory */
} TensorSet;

/* dir may be a pack: then the data of tensors may be read after kept_need alone.
 * Maps DIR/model.safetensors, or the parts of DIR/model.safetensors.index.json, read-only. With an
 * index, it must list exactly what the parts hold, and parts must lie in DIR. Headers are read,
 * data is not. Messages name file and tensor. */
Status tensor_set_open(const char *dir, TensorSet *out, Err *e);
/* A set that no file holds: one part of that name (static storage), whose entries, with the arena that
 * they lie in, become the set's, on failure too. What their data points to must outlive it. */
Status tensor_set_of(const char *name, SafeTensors *entries, TensorSet *out, Err *e);
void tensor_set_close(TensorSet *s); /* all zero is fine, and so is twice */
const TensorEntry *tensor_set_find(const TensorSet *s, const char *name); /* NULL: not there */
/* The first place of t among the banks of a pack, and how many there are; 0: t lies as it is. */
const PackPlace *tensor_set_places(const TensorSet *s, const TensorEntry *t, int64_t *n);
/* The file name of the part that holds t. */
const char *tensor_set_file(const TensorSet *s, const TensorEntry *t);

#endif
