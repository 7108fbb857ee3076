/* model/rope.c - see rope.h and arch.h. Frequencies are computed in double and rounded once. */
#include "model/rope.h"

#include "model/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define INNER(key) "rope_scaling." key, "rope_parameters." key

const char *const rope_keys[] = {"rope_theta",
                                 "rope_scaling",
                                 "rope_parameters",
                                 INNER("type"),
                                 INNER("rope_type"),
                                 INNER("rope_theta"),
                                 INNER("factor"),
                                 INNER("partial_rotary_factor"),
                                 INNER("original_max_position_embeddings"),
                                 INNER("beta_fast"),
                                 INNER("beta_slow"),
                                 INNER("truncate"),
                                 INNER("attention_factor"),
                                 INNER("mscale"),
                                 INNER("mscale_all_dim"),
                                 INNER("low_freq_factor"),
                                 INNER("high_freq_factor"),
                                 NULL};

static const double PI = 3.14159265358979323846;

/* The numbers of one configuration; what a type does not use keeps its default. */
typedef struct RopeParams {
    double theta, factor, beta_fast, beta_slow, low_freq, high_freq;
    double attention_factor, mscale, mscale_all_dim; /* 0: not given */
    int original;                                    /* positions before scaling */
    bool truncate;
    int dim; /* lanes that rotate */
} RopeParams;

typedef void FillFunction(const RopeParams *p, Rope *out);

static double plain_freq(const RopeParams *p, int i)
{
    return pow(p->theta, -2.0 * i / p->dim);
}

static void fill_default(const RopeParams *p, Rope *out)
{
    for (int i = 0; i < p->dim / 2; i++)
        out->inv_freq[i] = (float)plain_freq(p, i);
}

static void fill_linear(const RopeParams *p, Rope *out)
{
    for (int i = 0; i < p->dim / 2; i++)
        out->inv_freq[i] = (float)(plain_freq(p, i) / p->factor);
}

static double yarn_gain(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* YaRN (Peng et al. 2023): lanes that turn often within the original context keep their frequency,
 * those that never complete a turn are interpolated, with a ramp between. */
static void fill_yarn(const RopeParams *p, Rope *out)
{
    double scale = p->dim / (2 * log(p->theta));
    double low = scale * log(p->original / (2 * PI * p->beta_fast));
    double high = scale * log(p->original / (2 * PI * p->beta_slow));
    if (p->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, p->dim - 1);
    if (low == high)
        high += 0.001;
    for (int i = 0; i < p->dim / 2; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1), f = plain_freq(p, i);
        out->inv_freq[i] = (float)((1 - ramp) * f + ramp * f / p->factor);
    }
    if (p->attention_factor != 0)
        out->attention_factor = p->attention_factor;
    else if (p->mscale != 0 && p->mscale_all_dim != 0)
        out->attention_factor =
            yarn_gain(p->factor, p->mscale) / yarn_gain(p->factor, p->mscale_all_dim);
    else
        out->attention_factor = yarn_gain(p->factor, 1);
    if (p->mscale_all_dim != 0)
        out->latent_gain = yarn_gain(p->factor, p->mscale_all_dim);
}

static void fill_llama3(const RopeParams *p, Rope *out)
{
    for (int i = 0; i < p->dim / 2; i++) {
        double f = plain_freq(p, i), turns = p->original * f / (2 * PI);
        double s = (turns - p->low_freq) / (p->high_freq - p->low_freq);
        s = fmin(fmax(s, 0), 1);
        out->inv_freq[i] = (float)((1 - s) * f / p->factor + s * f);
    }
}

static const struct RopeType {
    const char *name;
    FillFunction *fill;
    const char *keys[8]; /* beyond type, rope_theta and partial_rotary_factor */
} rope_types[] = {
    {"default", fill_default, {NULL}},
    {"linear", fill_linear, {"factor", NULL}},
    {"yarn",
     fill_yarn,
     {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate",
      "attention_factor", "mscale", "mscale_all_dim"}},
    {"llama3",
     fill_llama3,
     {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", NULL}},
};
enum { N_ROPE_TYPES = sizeof rope_types / sizeof *rope_types, N_TYPE_KEYS = 8 };

/* scaling may be NULL: the default type. */
static Status find_type(const cJSON *scaling, const struct RopeType **out, Err *e)
{
    const char *name = NULL, *old = NULL;
    *out = &rope_types[0];
    if (!scaling)
        return ST_OK;
    TRY(config_string(scaling, "rope_type", &name, e));
    TRY(config_string(scaling, "type", &old, e));
    if (name && old && strcmp(name, old) != 0)
        return err_set(e, ST_INPUT, "rope_type is \"%s\" but type is \"%s\"", name, old);
    name = name ? name : old;
    if (!name)
        return config_get(scaling, "factor")
                   ? err_set(e, ST_INPUT, "factor is given, but no rope_type")
                   : ST_OK;
    for (int i = 0; i < N_ROPE_TYPES; i++)
        if (strcmp(name, rope_types[i].name) == 0) {
            *out = &rope_types[i];
            return ST_OK;
        }
    return err_set(e, ST_INPUT,
                   "rope_type \"%s\" is not supported (default, linear, yarn and llama3 are)",
                   name);
}

/* A key of another type says that the file means something else than its type does. */
static Status check_type_keys(const cJSON *scaling, const struct RopeType *type, Err *e)
{
    for (const cJSON *v = scaling->child; v; v = v->next) {
        bool of_other = false, of_this = false;
        for (int t = 0; t < N_ROPE_TYPES; t++)
            for (int k = 0; k < N_TYPE_KEYS && rope_types[t].keys[k]; k++)
                if (strcmp(v->string, rope_types[t].keys[k]) == 0) {
                    of_other = true;
                    of_this |= &rope_types[t] == type;
                }
        if (of_other && !of_this && !config_is_empty(v))
            return err_set(e, ST_INPUT, "%s means nothing to rope_type \"%s\"", v->string,
                           type->name);
    }
    return ST_OK;
}

static Status parse_params(const cJSON *s, const struct RopeType *type, int max_positions,
                           double *partial, RopeParams *p, Err *e)
{
    const double big = 1e9;
    TRY(config_double(s, "rope_theta", 1.0001, 1e15, &p->theta, e));
    TRY(config_double(s, "partial_rotary_factor", 1e-3, 1, partial, e));
    TRY(config_double(s, "factor", 1e-6, big, &p->factor, e));
    TRY(config_int(s, "original_max_position_embeddings", 1, 1 << 30, &p->original, e));
    TRY(config_double(s, "beta_fast", 1e-6, big, &p->beta_fast, e));
    TRY(config_double(s, "beta_slow", 1e-6, big, &p->beta_slow, e));
    TRY(config_bool(s, "truncate", &p->truncate, e));
    TRY(config_double(s, "attention_factor", 1e-6, big, &p->attention_factor, e));
    TRY(config_double(s, "mscale", 0, big, &p->mscale, e));
    TRY(config_double(s, "mscale_all_dim", 0, big, &p->mscale_all_dim, e));
    TRY(config_double(s, "low_freq_factor", 1e-6, big, &p->low_freq, e));
    TRY(config_double(s, "high_freq_factor", 1e-6, big, &p->high_freq, e));
    bool yarn = type->fill == fill_yarn, llama3 = type->fill == fill_llama3;
    if (yarn && p->factor == 0)
        p->factor = (double)max_positions / p->original;
    if (p->factor == 0 && (type->fill == fill_linear || llama3))
        return err_set(e, ST_INPUT, "factor is missing");
    if (llama3 && !config_get(s, "original_max_position_embeddings"))
        return err_set(e, ST_INPUT, "original_max_position_embeddings is missing");
    if (llama3 && (p->low_freq == 0 || p->high_freq <= p->low_freq))
        return err_set(e, ST_INPUT, "high_freq_factor must be greater than low_freq_factor");
    return ST_OK;
}

Status rope_parse(const cJSON *config, int head_dim, int max_positions, double theta, Rope *out,
                  Err *e)
{
    const char *key = config_get(config, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    const cJSON *scaling = config_get(config, key);
    const struct RopeType *type;
    RopeParams p = {.theta = theta,
                    .beta_fast = 32,
                    .beta_slow = 1,
                    .truncate = true,
                    .original = max_positions};
    double partial = 0;
    int lanes = out->rotary_dim > 0 ? out->rotary_dim : head_dim;
    *out = (Rope){.layout = out->layout, .attention_factor = 1, .latent_gain = 1};
    if (scaling && !cJSON_IsObject(scaling))
        return err_set(e, ST_INPUT, "%s is not an object", key);
    TRY(config_double(config, "rope_theta", 1.0001, 1e15, &p.theta, e));
    TRY(config_double(config, "partial_rotary_factor", 1e-3, 1, &partial, e));
    if (find_type(scaling, &type, e) != ST_OK)
        return err_in(e, "%s", key);
    if (scaling && (check_type_keys(scaling, type, e) != ST_OK ||
                    parse_params(scaling, type, max_positions, &partial, &p, e) != ST_OK))
        return err_in(e, "%s", key);
    p.dim = partial > 0 ? (int)(head_dim * partial) : lanes;
    if (p.dim < 2 || p.dim % 2 != 0)
        return err_set(e, ST_INPUT,
                       "rotary embedding of %d lanes (head_dim %d), expected an even number", p.dim,
                       head_dim);
    out->rotary_dim = p.dim;
    out->inv_freq = malloc((size_t)(p.dim / 2) * sizeof *out->inv_freq);
    if (!out->inv_freq)
        return err_set(e, ST_MEMORY, "not enough memory for %d rotary frequencies", p.dim / 2);
    type->fill(&p, out);
    return ST_OK;
}

void rope_fill_table(const Rope *rope, int n_positions, float *table)
{
    int half = rope->rotary_dim / 2;
    for (int pos = 0; pos < n_positions; pos++) {
        float *row = table + (int64_t)pos * rope->rotary_dim;
        for (int i = 0; i < half; i++) {
            /* The angle is a float32 product, as the reference has it: at position 100,000 its
             * rounding is visible, and it is what models were trained with. */
            double angle = (float)pos * rope->inv_freq[i];
            row[i] = (float)(cos(angle) * rope->attention_factor);
            row[half + i] = (float)(sin(angle) * rope->attention_factor);
        }
    }
}
