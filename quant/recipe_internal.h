/* quant/recipe_internal.h - what the files of the recipe share; start at recipe.h. */
#ifndef MB_QUANT_RECIPE_INTERNAL_H
#define MB_QUANT_RECIPE_INTERNAL_H

#include "io/arena.h"
#include "io/json.h"
#include "io/name_table.h"
#include "io/regex.h"
#include "quant/recipe.h"

/* An entry of exclude_modules, ignore, modules_to_not_convert, or a target of a group. */
typedef struct Pattern {
    const char *text;
    Regex *regex; /* of "re:..." in compressed-tensors; owned */
    bool wild;    /* holds *, ? or [ */
    bool used, warned;
} Pattern;

typedef struct PatternList {
    Pattern *p; /* [n] in file order */
    int n;
    const char *key; /* "ignore", for messages */
    /* A pattern that matches a module's parent excludes the module, too: transformers reads the
     * lists of "fp8" and "mxfp4" so, ModelOpt's are taken as they are. */
    bool parents;
} PatternList;

/* Of quantized_layers. */
typedef struct LayerEntry {
    const char *module;
    const QuantScheme *scheme;
    bool used;
} LayerEntry;

/* Of compressed-tensors' config_groups. */
typedef struct Group {
    const char *name;
    PatternList targets;
    const QuantScheme *scheme;
} Group;

struct Recipe {
    Arena arena;       /* everything below but the regular expressions and the table's slots */
    const char *file;  /* that the configuration was found in, */
    const char *where; /* and the key under which: "quantization_config" */
    const char *name;
    KvAlgo kv;
    /* What modules have that no entry below is about: linear layers, routed experts one tensor
     * each, and routed experts in one tensor. NULL: they are unquantized. */
    const QuantScheme *linear, *experts, *stacked;
    bool stacked_is_foreign; /* experts have a scheme, but stacked ones with it are unknown */
    const QuantScheme *embedding;
    PatternList exclude; /* from those */
    bool implicit_head;  /* "fp8": the head and routers are unquantized though no list says so */
    LayerEntry *layers;  /* [n_layers] quantized_layers, which come first */
    int n_layers;
    NameTable layer_names;     /* the same order */
    PatternList layer_exclude; /* from quantized_layers */
    Group *groups;             /* [n_groups] */
    int n_groups;
    PatternList ignore; /* from the groups */
    const char **warnings;
    int n_warnings, max_warnings;
    QuantScheme **schemes; /* each different one once */
    int n_schemes, max_schemes;
    RegexStack stack;
};

/* ---- recipe_json.c: typed access to the configuration ---- */

/* "FILE: WHERE.KEY: text". */
Status recipe_bad(const Recipe *r, const char *key, Err *e, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
Status recipe_no_memory(Err *e);
/* NULL: absent or null. */
const JsonValue *recipe_get(const JsonValue *object, const char *key);
/* *out NULL: absent or null. Anything but a string without NULs is refused. */
Status recipe_string(const Recipe *r, const JsonValue *object, const char *key, const char **out,
                     Err *e);
/* As int() of Python reads it (E05): 16, "16", 16.9, true. *out is left as it was where the key is
 * absent or null. */
Status recipe_int(const Recipe *r, const JsonValue *object, const char *key, int *out, Err *e);
/* A list of strings, appended to *out. null_is_empty: null stands for no entries, else it is
 * refused (E04). */
Status recipe_patterns(Recipe *r, const JsonValue *object, const char *key, bool null_is_empty,
                       PatternList *out, Err *e);
/* No key of a small object twice. */
Status recipe_no_duplicates(const Recipe *r, const JsonValue *object, const char *what, Err *e);
/* The same text in upper or lower case; NULL when memory is short. */
char *recipe_fold(Recipe *r, const char *text, bool upper);
/* A printf into the arena; NULL when memory is short. */
char *recipe_text(Recipe *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Another line for recipe_warning. */
Status recipe_warn(Recipe *r, Err *e, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Keys of object that are in no table and hold something become warnings. */
Status recipe_check_keys(Recipe *r, const JsonValue *object, const char *const *known, Err *e);
/* The one copy of a scheme, so that equal ones are the same pointer. */
Status recipe_scheme(Recipe *r, const QuantScheme *s, const QuantScheme **out, Err *e);

/* ---- recipe_exclude.c ---- */

/* Section 3.4, steps 0 to 4, for a linear layer, embedding or expert bank. Marks every pattern that
 * matches. */
Status recipe_excluded(Recipe *r, PatternList *list, const char *module, bool *out, Err *e);
/* Whether a pattern with wildcards matches an expert's projection "bank.E.name". */
bool recipe_excluded_projection(PatternList *list, const char *bank, const char *projection);
/* Step 4. */
bool recipe_is_vision(const char *module);
/* Python's fnmatch on the whole of text: *, ?, [seq], [!seq]. */
bool recipe_glob(const char *pattern, const char *text);
/* The other spelling of a multimodal wrapper's module, in out[size]: language_model.model.X and
 * model.language_model.X. False: there is none, or it does not fit. */
bool recipe_swap(const char *module, char *out, size_t size);
/* "q_proj" is a shard of "qkv_proj" with its NULL-terminated shards; NULL: of nothing. */
const char *recipe_fused_name(const char *last, const char *const **shards);
const char *recipe_last_part(const char *module);
/* One of compressed-tensors' names: equal, or "re:..." matching from the start. */
Status recipe_name_matches(Recipe *r, const Pattern *p, const char *module, bool *out, Err *e);

/* ---- one file per dialect ---- */

/* ModelOpt: quantization_config itself, or what hf_quant_config.json holds. method is the folded
 * quant_method. hf_quant: the parsed hf_quant_config.json or NULL. */
Status recipe_parse_modelopt(Recipe *r, const JsonValue *config, const char *method,
                             const JsonValue *hf_quant, Err *e);
/* MiniMax's "mxfp8". */
Status recipe_parse_mxfp8(Recipe *r, const JsonValue *config, Err *e);
/* quantized_layers of an object, with its list of exclusions in r->layer_exclude. */
Status recipe_parse_layers(Recipe *r, const JsonValue *layers, Err *e);
/* quant_algo -> scheme, with the keys of group sizes in holder. key: for messages. */
Status recipe_algo(Recipe *r, const JsonValue *holder, const char *key, const char *algo,
                   const QuantScheme **out, Err *e);
/* The scheme of experts in one tensor; NULL: there is no such layout. */
Status recipe_stacked_algo(Recipe *r, const QuantScheme *single, const QuantScheme **out, Err *e);
Status recipe_kv_scheme(Recipe *r, const JsonValue *config, const char *key, Err *e);

/* "fp8" of DeepSeek and Qwen; root is all of config.json. */
Status recipe_parse_fp8(Recipe *r, const JsonValue *config, const JsonValue *root, Err *e);
Status recipe_parse_mxfp4(Recipe *r, const JsonValue *config, Err *e);
Status recipe_parse_compressed(Recipe *r, const JsonValue *config, Err *e);
/* The group's scheme of a module; NULL: none. is_linear: class "Linear" counts. */
Status recipe_group_scheme(Recipe *r, const char *module, const char *class_name,
                           const QuantScheme **out, Err *e);

#endif
