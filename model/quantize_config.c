/* model/quantize_config.c - see quantize_config.h. */
#include "model/quantize_config.h"

#include "io/json_print.h"

#include <stdio.h>
#include <string.h>

typedef enum Dialect { DIALECT_NONE, DIALECT_MODELOPT, DIALECT_PACKED, DIALECT_BLOCKS } Dialect;

typedef struct Summary {
    Dialect dialect;
    const PlanModule *first; /* quantized */
    bool mixed;              /* not all quantized modules are like the first */
    bool kv_fp8;
} Summary;

static bool quantized(const PlanModule *m)
{
    return m->target != TARGET_KEEP && m->target != TARGET_BF16;
}

static Summary summarize(const QuantizePlan *p, const Checkpoint *c)
{
    Summary s = {.dialect = DIALECT_NONE,
                 .kv_fp8 = p->kv_fp8 || recipe_kv_algo(c->recipe) == KV_ALGO_FP8};
    for (int i = 0; i < p->n_modules; i++) {
        const PlanModule *m = &p->modules[i];
        if (!quantized(m))
            continue;
        if (!s.first) {
            s.first = m;
            s.dialect = m->target == TARGET_INT4 ? DIALECT_PACKED
                        : m->target == TARGET_MXFP4 && m->experts && m->experts->interleaved
                            ? DIALECT_BLOCKS
                            : DIALECT_MODELOPT;
        }
        s.mixed |= m->target != s.first->target || m->group != s.first->group;
    }
    return s;
}

/* --- lists of names --- */

static void begin_item(StrBuf *b, bool *first, int indent)
{
    strbuf_fmt(b, "%s\n%*s", *first ? "" : ",", indent, "");
    *first = false;
}

static void add_name(StrBuf *b, bool *first, int indent, const char *name, const char *after)
{
    char text[600]; /* longer names are refused before */
    begin_item(b, first, indent);
    snprintf(text, sizeof text, "%s%s", name, after);
    strbuf_json_string(b, text, strlen(text));
}

/* A regular expression for everything below a module, as compressed-tensors compares it. */
static void add_pattern(StrBuf *b, bool *first, int indent, const char *name)
{
    char text[1200] = "re:";
    size_t n = strlen(text);
    for (const char *p = name; *p && n < sizeof text - 8; p++) {
        if (*p == '.')
            text[n++] = '\\';
        text[n++] = *p;
    }
    memcpy(text + n, "\\..*", sizeof "\\..*");
    begin_item(b, first, indent);
    strbuf_json_string(b, text, strlen(text));
}

/* "model.layers.61" of a tensor that no layer of the model has: predicting further tokens. 0: it is
 * something else. */
static int beyond_layers(const Checkpoint *c, const TensorEntry *t)
{
    const char *at = strstr(t->name, "layers.");
    int layer;
    if (!at || sscanf(at, "layers.%d.", &layer) != 1 || layer < c->n_layers)
        return 0;
    const char *dot = strchr(at + strlen("layers."), '.');
    return dot ? (int)(dot - t->name) : 0;
}

/* Every linear layer that is not quantized, so that no reader takes it for one that is. */
static void add_ignored(const QuantizePlan *p, const Checkpoint *c, Dialect dialect, int indent,
                        StrBuf *b)
{
    bool first = true;
    strbuf_str(b, "[");
    for (int i = 0; i < p->n_modules; i++) {
        const PlanModule *m = &p->modules[i];
        if (quantized(m))
            continue;
        if (m->kind != MODULE_EXPERTS)
            add_name(b, &first, indent + 2, m->name, "");
        else if (dialect == DIALECT_PACKED)
            add_pattern(b, &first, indent + 2, m->name);
        else
            add_name(b, &first, indent + 2, m->name, "*");
    }
    char last[300] = "";
    for (int i = 0; i < c->files.n; i++) {
        const TensorEntry *t = c->files.entries[i];
        int n = c->use[i].bound ? 0 : beyond_layers(c, t);
        if (n <= 0 || n >= (int)sizeof last || (strncmp(last, t->name, (size_t)n) == 0 && !last[n]))
            continue;
        snprintf(last, sizeof last, "%.*s", n, t->name);
        if (dialect == DIALECT_PACKED)
            add_pattern(b, &first, indent + 2, last);
        else
            add_name(b, &first, indent + 2, last, ".*");
    }
    if (first)
        strbuf_str(b, "]");
    else
        strbuf_fmt(b, "\n%*s]", indent, "");
}

/* --- ModelOpt --- */

static const char kv_scheme[] = "{\"dynamic\": false, \"num_bits\": 8, \"type\": \"float\"}";

static void add_algo(const PlanModule *m, StrBuf *b)
{
    const Target *t = quantize_target(m->target);
    strbuf_fmt(b, "\"quant_algo\": \"%s\"", t->algo);
    if (t->format == FORMAT_NVFP4 || m->target == TARGET_MXFP8)
        strbuf_fmt(b, ", \"group_size\": %d", m->group);
    if (m->target == TARGET_Q8_0)
        strbuf_str(b, ", \"group_size\": 32, \"block_payload_bytes\": 34, \"packing\": \"ggml\"");
}

/* What the exporter says of formats that it can describe so. */
static void add_groups(const PlanModule *m, int indent, StrBuf *b)
{
    const Target *t = quantize_target(m->target);
    bool fp4 = t->format == FORMAT_NVFP4;
    char quantizer[120], group[40] = "";
    if (!fp4 && m->target != TARGET_FP8_STATIC)
        return;
    if (fp4)
        snprintf(group, sizeof group, ", \"group_size\": %d", m->group);
    snprintf(quantizer, sizeof quantizer,
             "{\"dynamic\": false, \"num_bits\": %d, \"type\": \"float\"%s}", fp4 ? 4 : 8, group);
    strbuf_fmt(b, "\"config_groups\": {\n%*s\"group_0\": {\n", indent + 2, "");
    if (t->static_inputs)
        strbuf_fmt(b, "%*s\"input_activations\": %s,\n", indent + 4, "", quantizer);
    strbuf_fmt(b, "%*s\"weights\": %s,\n%*s\"targets\": [\"Linear\"]\n%*s}\n%*s},\n%*s", indent + 4,
               "", quantizer, indent + 4, "", indent + 2, "", indent, "", indent, "");
}

static void add_layers(const QuantizePlan *p, int indent, StrBuf *b)
{
    bool first = true;
    strbuf_str(b, "\"quantized_layers\": {");
    for (int i = 0; i < p->n_modules; i++) {
        const PlanModule *m = &p->modules[i];
        if (!quantized(m))
            continue;
        add_name(b, &first, indent + 2, m->name, "");
        strbuf_str(b, ": {");
        add_algo(m, b);
        strbuf_str(b, "}");
    }
    strbuf_fmt(b, "\n%*s}", indent, "");
}

/* Readers ask that the producer be called modelopt; its version is that of the layout. */
static const char producer[] = "\"producer\": {\"name\": \"modelopt\", \"version\": \"0.47.0\", "
                               "\"written_by\": \"moebatch " MOEBATCH_VERSION "\"}";

static void add_modelopt(const QuantizePlan *p, const Checkpoint *c, const Summary *s, int indent,
                         StrBuf *b)
{
    strbuf_fmt(b, "{\n%*s", indent, "");
    if (s->mixed) {
        add_layers(p, indent, b);
        strbuf_fmt(b, ",\n%*s\"ignore\": [],\n%*s\"quant_algo\": \"MIXED_PRECISION\"", indent, "",
                   indent, "");
    } else {
        add_groups(s->first, indent, b);
        strbuf_str(b, "\"ignore\": ");
        add_ignored(p, c, s->dialect, indent, b);
        strbuf_fmt(b, ",\n%*s", indent, "");
        add_algo(s->first, b);
        if (s->first->target == TARGET_Q8_0)
            strbuf_str(b, ", \"effective_bits\": 8.5");
    }
    if (s->kv_fp8)
        strbuf_fmt(b, ",\n%*s\"kv_cache_scheme\": %s", indent, "", kv_scheme);
    strbuf_fmt(b, ",\n%*s%s,\n%*s\"quant_method\": \"modelopt\"\n%*s}", indent, "", producer,
               indent, "", indent - 2, "");
}

static void add_second_file(const QuantizePlan *p, const Checkpoint *c, const Summary *s, StrBuf *b)
{
    strbuf_fmt(b, "{\n  %s,\n  \"quantization\": {\n    ", producer);
    if (s->mixed) {
        strbuf_str(b, "\"quant_algo\": \"MIXED_PRECISION\"");
    } else {
        add_algo(s->first, b);
        if (s->first->target == TARGET_Q8_0)
            strbuf_str(b, ", \"effective_bits\": 8.5");
    }
    strbuf_fmt(b, ",\n    \"kv_cache_quant_algo\": %s,\n    ", s->kv_fp8 ? "\"FP8\"" : "null");
    if (s->mixed) {
        add_layers(p, 4, b);
    } else {
        strbuf_str(b, "\"exclude_modules\": ");
        add_ignored(p, c, s->dialect, 4, b);
    }
    strbuf_str(b, "\n  }\n}\n");
}

/* --- the others --- */

static void add_packed(const QuantizePlan *p, const Checkpoint *c, const Summary *s, int indent,
                       StrBuf *b)
{
    strbuf_fmt(b,
               "{\n%*s\"config_groups\": {\n%*s\"group_0\": {\n%*s\"targets\": [\"Linear\"],\n"
               "%*s\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, "
               "\"group_size\": %d, \"strategy\": \"group\", \"dynamic\": false},\n"
               "%*s\"input_activations\": null,\n%*s\"output_activations\": null\n%*s}\n%*s},\n",
               indent, "", indent + 2, "", indent + 4, "", indent + 4, "", s->first->group,
               indent + 4, "", indent + 4, "", indent + 2, "", indent, "");
    strbuf_fmt(b, "%*s\"format\": \"pack-quantized\",\n%*s\"ignore\": ", indent, "", indent, "");
    add_ignored(p, c, s->dialect, indent, b);
    strbuf_fmt(b,
               ",\n%*s\"kv_cache_scheme\": null,\n%*s\"quant_method\": \"compressed-tensors\",\n"
               "%*s\"quantization_status\": \"compressed\"\n%*s}",
               indent, "", indent, "", indent, "", indent - 2, "");
}

static void add_blocks(int indent, StrBuf *b)
{
    static const char *const kept[] = {"model.layers.*.self_attn", "model.layers.*.mlp.router",
                                       "model.embed_tokens", "lm_head"};
    bool first = true;
    strbuf_fmt(b, "{\n%*s\"modules_to_not_convert\": [", indent, "");
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        add_name(b, &first, indent + 2, kept[i], "");
    strbuf_fmt(b, "\n%*s],\n%*s\"quant_method\": \"mxfp4\"\n%*s}", indent, "", indent, "",
               indent - 2, "");
}

/* --- the whole file --- */

static void add_config(const QuantizePlan *p, const Checkpoint *c, const Summary *s,
                       const JsonValue *root, StrBuf *b)
{
    static const char *const drop[] = {"quantization_config", "compression_config", NULL};
    bool first = true;
    strbuf_str(b, "{");
    for (const JsonValue *m = root->child; m; m = m->next) {
        if (strcmp(m->key, drop[0]) == 0 || strcmp(m->key, drop[1]) == 0)
            continue;
        begin_item(b, &first, 2);
        json_print_member(m, drop, 2, b);
    }
    if (s->dialect != DIALECT_NONE) {
        begin_item(b, &first, 2);
        strbuf_str(b, "\"quantization_config\": ");
    }
    if (s->dialect == DIALECT_MODELOPT)
        add_modelopt(p, c, s, 4, b);
    else if (s->dialect == DIALECT_PACKED)
        add_packed(p, c, s, 4, b);
    else if (s->dialect == DIALECT_BLOCKS)
        add_blocks(4, b);
    strbuf_str(b, "\n}\n");
}

static Status check_summary(const QuantizePlan *p, const Summary *s, Err *e)
{
    for (int i = 0; i < p->n_modules; i++)
        if (strlen(p->modules[i].name) > 500)
            return err_set(e, ST_INPUT, "%.200s...: the name is too long", p->modules[i].name);
    if (p->kv_fp8 && s->dialect != DIALECT_MODELOPT)
        return err_set(
            e, ST_INPUT,
            "scales of the KV cache go with ModelOpt's formats only: give --kv-cache none");
    return ST_OK;
}

Status quantize_config(const QuantizePlan *plan, const Checkpoint *checkpoint, const char *source,
                       size_t source_len, StrBuf *config, StrBuf *hf_quant, Err *e)
{
    Arena arena = {0};
    JsonValue *root;
    Summary s = summarize(plan, checkpoint);
    strbuf_clear(config);
    strbuf_clear(hf_quant);
    TRY(check_summary(plan, &s, e));
    Status st = json_parse(source, source_len, &arena, &root, e);
    if (st == ST_OK && root->type != JSON_OBJECT)
        st = err_set(e, ST_INPUT, "not a JSON object");
    if (st == ST_OK) {
        add_config(plan, checkpoint, &s, root, config);
        if (s.dialect == DIALECT_MODELOPT)
            add_second_file(plan, checkpoint, &s, hf_quant);
        if (config->failed || hf_quant->failed)
            st = err_set(e, ST_MEMORY, "not enough memory for config.json");
    }
    arena_free(&arena);
    return st;
}

void quantize_index(const QuantizePlan *plan, StrBuf *out)
{
    bool first = true;
    strbuf_fmt(out, "{\n  \"metadata\": {\"total_size\": %lld},\n  \"weight_map\": {",
               (long long)plan->tensor_bytes);
    for (int i = 0; i < plan->n_parts; i++)
        for (int j = 0; j < plan->parts[i].n_tensors; j++) {
            const TensorPlan *t = &plan->tensors[plan->parts[i].first_tensor + j];
            begin_item(out, &first, 4);
            strbuf_json_string(out, t->name, strlen(t->name));
            strbuf_fmt(out, ": \"%s\"", plan->parts[i].name);
        }
    strbuf_str(out, "\n  }\n}\n");
}
