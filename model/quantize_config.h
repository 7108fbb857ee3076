/* model/quantize_config.h - the configuration of a quantized checkpoint: what readers need to
 * know to find and decode its weights (formats.md 3 and 10). */
#ifndef MB_MODEL_QUANTIZE_CONFIG_H
#define MB_MODEL_QUANTIZE_CONFIG_H

#include "model/quantize_plan.h"

/* *config: the source's config.json, numbers as they were, with a quantization_config that
 * describes the plan, or none where nothing is quantized: ModelOpt's, compressed-tensors' for
 * int4, gpt-oss's own for its MXFP4 experts. *hf_quant: ModelOpt's second file; empty for the
 * others. Both are cleared first. source is config.json's bytes. ST_INPUT when the configuration
 * cannot say that the cache is quantized and the plan has its scales. */
Status quantize_config(const QuantizePlan *plan, const Checkpoint *checkpoint, const char *source,
                       size_t source_len, StrBuf *config, StrBuf *hf_quant, Err *e);

/* model.safetensors.index.json of a plan of several parts, onto *out. */
void quantize_index(const QuantizePlan *plan, StrBuf *out);

#endif
