/* model/rope.h - inverse frequencies of rotary embedding from a configuration, old and new key
 * style. */
#ifndef MB_MODEL_ROPE_H
#define MB_MODEL_ROPE_H

#include "model/arch.h"

#include <cjson/cJSON.h>

/* The keys of configurations that rope_parse reads, NULL-terminated, for config_check_keys. */
extern const char *const rope_keys[];

/* Reads rope_parameters, or else rope_theta and rope_scaling; theta where neither gives one. Types
 * default, linear, yarn and llama3, which are one table for all lengths; others are refused by
 * name. Fills in out, whose layout the caller has set, and whose rotary_dim holds the lanes that
 * rotate where no partial_rotary_factor says so (0: all). out->inv_freq is the caller's to free. */
Status rope_parse(const cJSON *config, int head_dim, int max_positions, double theta, Rope *out,
                  Err *e);

#endif
