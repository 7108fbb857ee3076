/* model/quant_map.h - which format each module of a checkpoint has, layer by layer, and how many
 * bytes each format takes: what inspect shows. */
#ifndef MB_MODEL_QUANT_MAP_H
#define MB_MODEL_QUANT_MAP_H

#include "io/arena.h"
#include "io/strbuf.h"
#include "model/modules.h"

/* Matrices of a layer that have one name, but for the expert's number, and are stored alike. */
typedef struct MapEntry {
    int layer;          /* -1: outside of the layers */
    const char *module; /* "self_attn.q_proj", "mlp.experts.*.up_proj"; "lm_head" */
    const char *format; /* "bf16", "nvfp4"; static */
    const char *detail; /* "NVFP4, groups of 16, rows nvfp4 static"; "" where unquantized */
    int n;              /* matrices */
    int64_t params, bytes;
} MapEntry;

typedef struct FormatTotal {
    const char *format;
    int n;
    int64_t params, bytes;
} FormatTotal;

typedef struct QuantMap {
    const char *recipe, *kv; /* "modelopt NVFP4"; "fp8", "nvfp4" or "none" */
    MapEntry *entries;       /* [n] */
    int n;
    FormatTotal totals[N_FORMATS]; /* [n_totals] in the order of the entries */
    int n_totals;
    Arena arena; /* strings and entries */
} QuantMap;

/* Copies what it needs; reads no tensor data. */
Status quant_map_create(const Checkpoint *c, const Arch *arch, QuantMap *out, Err *e);
void quant_map_free(QuantMap *m); /* all zero is fine, and so is twice */

/* For people: totals by format and, where anything is quantized, the modules; layers that follow
 * each other and are alike are written once. */
void quant_map_text(const QuantMap *m, StrBuf *out);
/* One JSON object. */
void quant_map_json(const QuantMap *m, StrBuf *out);

#endif
