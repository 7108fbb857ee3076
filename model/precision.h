/* model/precision.h - how exactly a job computes: what activations and the cache are rounded to. */
#ifndef MB_MODEL_PRECISION_H
#define MB_MODEL_PRECISION_H

#include "io/strbuf.h"
#include "kernels/backend.h"

typedef enum ActivationMode {
    ACTIVATIONS_DEFAULT, /* none on the CPU, native on a GPU */
    ACTIVATIONS_NONE,    /* weights as decoded, no rounding */
    ACTIVATIONS_STORED,  /* as the checkpoint declares */
    ACTIVATIONS_NATIVE   /* what the hardware runs best; on the CPU none */
} ActivationMode;

/* What the weights of a plain checkpoint become at load (--quantize); model/online.h. */
typedef enum OnlineFormat {
    ONLINE_NONE,
    ONLINE_NVFP4,
    ONLINE_MXFP4,
    ONLINE_MXFP8,
    ONLINE_FP8_DYNAMIC,
    ONLINE_FP8_BLOCK,
    ONLINE_INT4,
    ONLINE_Q8_0,
    N_ONLINE_FORMATS
} OnlineFormat;

typedef struct Precision { /* all zero: the defaults */
    ActivationMode activations;
    /* The experts of a W4A4 NVFP4 checkpoint take rows with a scale per token, whatever
     * activations says for the rest (--activation-override nvfp4_per_token). */
    bool per_token_experts;
    bool fill_input_scales; /* experts without input_scale take their layer's largest */
    bool kv_given;          /* else kv is the backend's: fp32 on the CPU, bf16 on a GPU */
    KvDtype kv;
    OnlineFormat quantize;
    bool quantize_experts_only;
} Precision;

/* From the values of --activations, --activation-override, --missing-input-scale, --kv-dtype and
 * --quantize, NULL: not given, and --quantize-experts-only. ST_USAGE names what is not known. */
Status precision_parse(const char *activations, const char *override, const char *missing,
                       const char *kv_dtype, const char *quantize, bool experts_only,
                       Precision *out, Err *e);
/* Puts in what the defaults mean on this backend. */
void precision_resolve(Precision *p, const BackendOps *ops);
/* {"activations":"none", ...}: everything that can change a result, of a resolved one. */
void precision_json(const Precision *p, StrBuf *out);

#endif
