/* model/pack.h - writes a checkpoint as one file of banks that a backend reads as they are; the
 * layout of the file is in io/pack_file.h. */
#ifndef MB_MODEL_PACK_H
#define MB_MODEL_PACK_H

#include "dist/comm.h"
#include "model/arch.h"

typedef struct PackReport {
    int64_t bytes; /* of the file */
    double seconds;
} PackReport;

/* Collective. Packs the checkpoint in dir for the layout of backend into the file out, which
 * appears when it is whole. Every rank writes the experts that it would hold and its share of
 * the rest, one layer at a time; rank 0 makes the file. arch is that of dir. */
Status pack_write(const char *dir, const Arch *arch, const BackendOps *ops, Backend *backend,
                  Comm *comm, const char *out, PackReport *report, Err *e);

#endif
