/* model/keeper.h - takes a model's banks one after the other as weights.c fills them: first only to
 * learn which there are, then to write them into a pack. */
#ifndef MB_MODEL_KEEPER_H
#define MB_MODEL_KEEPER_H

#include "dist/placement.h"
#include "io/tensor_set.h"
#include "model/arch.h"
#include "model/precision.h"
#include "model/weights.h"

typedef struct NewBank {
    const char *name;
    WeightUse use;
    const int *mats; /* [n_mats] of the bank's n_all matrices that this rank holds */
    int n_mats, n_all;
    bool spread; /* over ranks; else every rank holds it whole */
    const WeightPart *parts;
    int n_parts;
    int64_t cols;
} NewBank;

typedef struct KeeperBank {
    char name[64];
    WeightUse use;
    int n_mats, n_parts;
    bool spread;
    WeightPart parts[MAX_PARTS];
    int64_t cols;
    size_t mat_bytes;
    uint64_t offset;   /* in the file, of matrix 0 */
    int64_t first_crc; /* of its matrices in BankKeeper.crc */
} KeeperBank;

typedef struct KeeperPlace {
    int file; /* part of the set that the tensor is in */
    PackPlace at;
} KeeperPlace;

typedef struct BankKeeper {
    const BackendOps *ops; /* borrowed, with the backend */
    Backend *backend;
    bool plan; /* notes banks and places, and wants no values */
    int rank, n_ranks;
    const TensorSet *files;
    KeeperBank *banks;
    int n_banks;
    KeeperPlace *places;
    int64_t n_places, n_mats; /* n_mats: of all banks */
    int64_t *crc;             /* [n_mats] those of this rank; the others 0 */
    int fd;                   /* of the pack that is written */
    const char *path;
    int64_t bytes_written;
    /* banks that are being filled */
    struct {
        const Weight *w;
        int bank, n_mats;
        const int *mats;
    } open[2];
    bool short_of_memory;
} BankKeeper;

/* As weights_load, but every bank goes to keeper when it is full, and *out has none. */
Status weights_load_for(const WeightsConfig *config, BankKeeper *keeper, Weights *out, Err *e);

/* What weights.c calls: the files; a bank begins; whether its values must be looked at; whether
 * these rows of a tensor are to be set; the bank is full. mats must live until then. */
void keeper_files(BankKeeper *k, const TensorSet *files);
Status keeper_begin(BankKeeper *k, const NewBank *bank, const Weight *w, Err *e);
bool keeper_reads(const BankKeeper *k, const Weight *w);
bool keeper_wants(BankKeeper *k, const Weight *w, int mat, int part, const QuantTensor *q,
                  const TensorEntry *t);
Status keeper_take(BankKeeper *k, const Weight *w, Err *e);
void keeper_free(BankKeeper *k);

#endif
