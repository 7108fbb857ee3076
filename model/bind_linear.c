/* model/bind_linear.c - the tensors of one linear layer, as its scheme says that they lie.
 *
 * Whatever shapes say is taken from the shapes (group sizes, rows per scale) and compared with what
 * the configuration declares. */
#include "model/bind.h"
#include "model/kept.h"

#include <stdio.h>
#include <string.h>

typedef struct Job {
    Binder *b;
    const char *module; /* as these files call it */
    const QuantScheme *scheme;
    int64_t rows, cols;
    LinearTensors *out;
} Job;

static int64_t ceil_div(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

static void tensor_name(const Job *j, const char *suffix, char *out)
{
    snprintf(out, BIND_NAME_MAX, "%.400s.%.60s", j->module, suffix);
}

static Status refuse_columns(const Job *j, int multiple)
{
    return err_set(j->b->e, ST_INPUT,
                   "%s: tensor \"%.200s\": %lld inputs, but %s needs them in "
                   "multiples of %d",
                   tensor_set_file(&j->b->c->files, j->out->weight), j->out->weight->name,
                   (long long)j->cols, j->scheme->algo, multiple);
}

/* --- codes --- */

static Status bind_codes(Job *j)
{
    const QuantFormat *f = quant_format(j->scheme->format);
    QuantTensor *q = &j->out->q;
    char name[BIND_NAME_MAX];
    int64_t params = j->rows * j->cols, units = ceil_div(j->cols, f->unit);
    *q = quant_plain(f->id, NULL, j->rows, j->cols);
    q->row_bytes = units * f->unit_bytes;
    tensor_name(j, j->scheme->weight, name);
    Shape shape = SHAPE2(j->rows, units);
    DtypeSet set = CODES;
    switch (f->id) {
    case FORMAT_FP8:
    case FORMAT_MXFP8:
        set = CODES8;
        break;
    case FORMAT_INT4: /* whole 32-bit words */
        set = CODES32;
        shape.dims[1] = ceil_div(j->cols, 8);
        q->row_bytes = shape.dims[1] * 4;
        break;
    case FORMAT_Q8_0:
    case FORMAT_IQ2_XS:
    case FORMAT_IQ2_XXS:
        shape = SHAPE3(j->rows, units, f->unit_bytes);
        break;
    default:
        break;
    }
    int at = bind_find(j->b, name);
    const TensorEntry *t = at < 0 ? NULL : j->b->c->files.entries[at];
    if (t && bind_is_plain(t))
        return err_set(j->b->e, ST_INPUT,
                       "%s: tensor \"%.200s\": dtype %s, expected %s codes: quantization_config "
                       "does not exclude this layer, which is not quantized",
                       tensor_set_file(&j->b->c->files, t), t->name, dtype_name(t->dtype),
                       j->scheme->algo);
    TRY(bind_name(j->b, name, set, shape, params, &j->out->weight));
    q->data = j->out->weight->data;
    return ST_OK;
}

/* --- scales --- */

/* P.suffix; or, where only that is there, P.alias. */
static void either_name(const Job *j, const char *suffix, const char *alias, char *out)
{
    tensor_name(j, suffix, out);
    if (!alias || bind_find(j->b, out) >= 0)
        return;
    tensor_name(j, alias, out);
    if (bind_find(j->b, out) < 0)
        tensor_name(j, suffix, out);
}

static Status find_scale(Job *j, DtypeSet set)
{
    char name[BIND_NAME_MAX];
    either_name(j, j->scheme->scale, j->scheme->scale_alias, name);
    TRY(bind_optional(j->b, name, set, &j->out->scale));
    if (!j->out->scale)
        return err_set(j->b->e, ST_INPUT,
                       "%s: tensor \"%.300s\": missing, expected the scales of "
                       "%s weights",
                       j->b->c->files.list_name, name, j->scheme->algo);
    j->out->q.scales = j->out->scale->data;
    j->out->q.scale_type = linear_scale_type(j->out->scale);
    return ST_OK;
}

static bool has_shape(const TensorEntry *t, int n_dims, const int64_t *dims)
{
    return t->n_dims == n_dims && memcmp(t->shape, dims, (size_t)n_dims * sizeof *dims) == 0;
}

static bool is_scalar(const TensorEntry *t)
{
    return t->bytes == dtype_bytes(t->dtype) && t->n_dims <= 2;
}

/* Codes times one scale for all, a row, or a block; formats.md 2.1 to 2.4. */
static Status place_grid(Job *j)
{
    const QuantScheme *s = j->scheme;
    const TensorEntry *t = j->out->scale;
    QuantTensor *q = &j->out->q;
    int size = dtype_bytes(t->dtype);
    char want[128];
    q->group = j->cols;
    if (s->grid == GRID_TENSOR) {
        return is_scalar(t) ? ST_OK : bind_wrong_shape(j->b, t, "[]: one scale for the tensor");
    }
    if (s->grid == GRID_CHANNEL) {
        const int64_t column[] = {j->rows, 1};
        q->scale_row_bytes = size;
        snprintf(want, sizeof want, "[%lld] or [%lld, 1]: a scale for each row", (long long)j->rows,
                 (long long)j->rows);
        return has_shape(t, 1, column) || has_shape(t, 2, column) ? ST_OK
                                                                  : bind_wrong_shape(j->b, t, want);
    }
    if (s->whole_blocks && j->cols % s->block_cols)
        return refuse_columns(j, s->block_cols);
    int64_t down = ceil_div(j->rows, s->block_rows), across = ceil_div(j->cols, s->block_cols);
    const int64_t flat[] = {down, across}, tall[] = {down, 1, across, 1};
    q->group = s->block_cols;
    q->scale_rows = s->block_rows;
    q->scale_row_bytes = across * size;
    q->scale_col_bytes = size;
    snprintf(want, sizeof want, "[%lld, %lld] or [%lld, 1, %lld, 1]: blocks of %d x %d",
             (long long)down, (long long)across, (long long)down, (long long)across, s->block_rows,
             s->block_cols);
    if (has_shape(t, 2, flat) || has_shape(t, 4, tall) || (down * across == 1 && is_scalar(t)))
        return ST_OK;
    return bind_wrong_shape(j->b, t, want);
}

/* The group that a scale tensor [rows, n] of a matrix with cols inputs has. */
static Status group_of(const Job *j, int64_t *group)
{
    const TensorEntry *t = j->out->scale;
    int64_t n = t->n_dims == 2 ? t->shape[1] : 0, declared = j->scheme->group;
    char want[128];
    if (declared > 0)
        *group = declared;
    else
        *group = n > 0 && j->cols % n == 0 ? j->cols / n : 0;
    if (n > 0 && *group > 0 && ceil_div(j->cols, *group) == n)
        return ST_OK;
    if (declared > 0 && n > 0 && j->cols % n == 0)
        return err_set(j->b->e, ST_INPUT,
                       "%s: tensor \"%.200s\": a scale for each %lld inputs, but "
                       "quantization_config says groups of %lld",
                       tensor_set_file(&j->b->c->files, t), t->name, (long long)(j->cols / n),
                       (long long)declared);
    snprintf(want, sizeof want, "[%lld, %lld / group]", (long long)j->rows, (long long)j->cols);
    return bind_wrong_shape(j->b, t, want);
}

static Status place_groups(Job *j, int64_t group)
{
    const TensorEntry *t = j->out->scale;
    QuantTensor *q = &j->out->q;
    int64_t n = ceil_div(j->cols, group);
    char want[128];
    q->group = group;
    q->scale_col_bytes = dtype_bytes(t->dtype);
    q->scale_row_bytes = n * q->scale_col_bytes;
    /* Row-coarse scales (formats.md 2.8): each serves as many rows as the shape says. */
    if (j->scheme->format == FORMAT_MXFP8 && t->n_dims == 2 && t->shape[0] > 0 &&
        j->rows % t->shape[0] == 0)
        q->scale_rows = j->rows / t->shape[0];
    const int64_t shape[] = {j->rows / q->scale_rows, n};
    snprintf(want, sizeof want, "[%lld, %lld]: a scale for each %lld inputs", (long long)j->rows,
             (long long)n, (long long)group);
    return has_shape(t, 2, shape) ? ST_OK : bind_wrong_shape(j->b, t, want);
}

/* Float scales of MXFP4 become the bytes that PyTorch casts them to (formats.md 1.3). */
static Status cast_scales(Job *j)
{
    const TensorEntry *t = j->out->scale;
    QuantTensor *q = &j->out->q;
    int size = dtype_bytes(t->dtype);
    int64_t n = t->bytes / size;
    if (q->scale_type == SCALE_E8M0)
        return ST_OK;
    TRY(kept_need(&j->b->c->files, t, j->b->e));
    uint8_t *bytes = arena_alloc(&j->b->c->arena, (size_t)n);
    if (!bytes)
        return err_set(j->b->e, ST_MEMORY, "not enough memory for %lld scales", (long long)n);
    for (int64_t i = 0; i < n; i++)
        bytes[i] = float_to_e8m0(scale_value(q->scale_type, t->data + i * size));
    q->scales = bytes;
    q->scale_type = SCALE_E8M0;
    q->scale_col_bytes = 1;
    q->scale_row_bytes /= size;
    return ST_OK;
}

static Status bind_scales(Job *j)
{
    const QuantScheme *s = j->scheme;
    int64_t group = 32;
    switch (s->format) {
    case FORMAT_FP8:
        TRY(find_scale(j, FLOATS_OR_POWERS));
        return place_grid(j);
    case FORMAT_NVFP4:
        TRY(find_scale(j, E4M3_SCALES));
        TRY(group_of(j, &group));
        if (group != 16 && group != 32)
            return err_set(
                j->b->e, ST_INPUT,
                "%s: tensor \"%.200s\": a scale for each %lld inputs, expected groups of "
                "16 or 32",
                tensor_set_file(&j->b->c->files, j->out->scale), j->out->scale->name,
                (long long)group);
        return j->cols % group ? refuse_columns(j, (int)group) : place_groups(j, group);
    case FORMAT_MXFP8:
        TRY(find_scale(j, POWERS));
        return j->cols % group ? refuse_columns(j, 32) : place_groups(j, group);
    case FORMAT_MXFP4:
        TRY(find_scale(j, s->scale_may_be_float ? POWERS_OR_FLOATS : POWERS));
        TRY(j->cols % group ? refuse_columns(j, 32) : place_groups(j, group));
        return cast_scales(j);
    case FORMAT_INT4:
        TRY(find_scale(j, FLOATS));
        if (s->grid == GRID_CHANNEL)
            return place_grid(j);
        TRY(group_of(j, &group));
        return place_groups(j, group);
    default:
        return ST_OK;
    }
}

/* One value, for the whole tensor. */
static Status bind_scalar(Job *j, const char *suffix, const char *alias, bool needed,
                          const TensorEntry **out)
{
    char name[BIND_NAME_MAX];
    either_name(j, suffix, alias, name);
    TRY(bind_optional(j->b, name, FLOATS, out));
    if (!*out)
        return needed
                   ? err_set(j->b->e, ST_INPUT, "%s: tensor \"%.300s\": missing, expected F32 []",
                             j->b->c->files.list_name, name)
                   : ST_OK;
    return is_scalar(*out) ? ST_OK : bind_wrong_shape(j->b, *out, "[]: one value");
}

/* Tensors that may lie beside the weights and say nothing that this scheme needs. */
static Status bind_idle(Job *j)
{
    static const struct {
        const char *suffix, *why;
    } idle[] = {{"input_scale", "activation scales that this format does not use"},
                {"input_global_scale", "activation scales that this format does not use"},
                {"weight_padded_shape", "a padded shape, which the weights have themselves"}};
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++) {
        char name[BIND_NAME_MAX];
        if (j->scheme->input && strcmp(j->scheme->input, idle[i].suffix) == 0)
            continue;
        tensor_name(j, idle[i].suffix, name);
        int at = bind_find(j->b, name);
        if (at < 0)
            continue;
        j->b->c->use[at] = (TensorUse){.bound = true, .skipped = idle[i].why};
        j->b->c->n_skipped++;
    }
    return ST_OK;
}

/* weight_shape or weight_logical_shape [2]: whole words and blocks do not say how long rows are. */
static Status bind_shape(Job *j)
{
    const TensorEntry *t;
    char name[BIND_NAME_MAX];
    bool blocks = quant_format(j->scheme->format)->unit > 2;
    if (!j->scheme->shape && !blocks)
        return ST_OK;
    tensor_name(j, blocks ? "weight_logical_shape" : j->scheme->shape, name);
    TRY(bind_optional(j->b, name, SHAPES, &t));
    j->out->shape = t;
    const int64_t two[] = {2};
    return t && !has_shape(t, 1, two) ? bind_wrong_shape(j->b, t, "[2]") : ST_OK;
}

static Status bind_quantized(Job *j)
{
    TRY(bind_codes(j));
    TRY(bind_scales(j));
    if (j->scheme->global)
        TRY(bind_scalar(j, j->scheme->global, NULL, true, &j->out->global));
    if (j->scheme->input)
        TRY(bind_scalar(j, j->scheme->input, j->scheme->input_alias, false, &j->out->input));
    TRY(bind_shape(j));
    return bind_idle(j);
}

/* --- the module --- */

const TensorEntry *bind_spelled(const Binder *b, const char *module, char *out)
{
    static const char *const suffixes[] = {".weight", ".weight_packed"};
    snprintf(out, BIND_NAME_MAX, "%s", module);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        char name[BIND_NAME_MAX];
        snprintf(name, sizeof name, "%.400s%s", module, suffixes[i]);
        int at = bind_find(b, name);
        if (at < 0)
            continue;
        const TensorEntry *t = b->c->files.entries[at];
        snprintf(out, BIND_NAME_MAX, "%.*s", (int)(strlen(t->name) - strlen(suffixes[i])), t->name);
        return t;
    }
    return NULL;
}

Status bind_scheme(Binder *b, const char *module, const QuantScheme *scheme, int64_t rows,
                   int64_t cols, LinearTensors *out)
{
    Job j = {b, module, scheme, rows, cols, out};
    *out = (LinearTensors){.scheme = scheme};
    if (scheme)
        return bind_quantized(&j);
    char name[BIND_NAME_MAX];
    tensor_name(&j, "weight", name);
    int at = bind_find(b, name);
    const TensorEntry *t = at < 0 ? NULL : b->c->files.entries[at];
    if (t && !bind_is_plain(t))
        return err_set(
            b->e, ST_INPUT,
            "%s: tensor \"%.200s\": dtype %s, expected BF16, F16 or F32 [%lld, %lld]: the "
            "configuration leaves this layer unquantized",
            tensor_set_file(&b->c->files, t), t->name, dtype_name(t->dtype), (long long)rows,
            (long long)cols);
    TRY(bind_name(b, name, WEIGHTS, SHAPE2(rows, cols), rows * cols, &out->weight));
    out->q = linear_plain(out->weight, rows, cols);
    return ST_OK;
}

Status bind_linear_name(Binder *b, const char *module, LinearKind kind, int64_t rows, int64_t cols,
                        LinearTensors *out)
{
    char name[BIND_NAME_MAX];
    const QuantScheme *scheme;
    const TensorEntry *t = bind_spelled(b, module, name);
    TRY(recipe_linear(b->c->recipe, name, &scheme, b->e));
    if (kind == LINEAR_OR_PLAIN && t && bind_is_plain(t))
        scheme = NULL;
    return bind_scheme(b, name, scheme, rows, cols, out);
}

Status bind_linear(Binder *b, int layer, const char *module, LinearKind kind, int64_t rows,
                   int64_t cols, LinearTensors *out)
{
    char full[BIND_NAME_MAX];
    bind_layer_name(b, layer, module, full);
    return bind_linear_name(b, full, kind, rows, cols, out);
}

Status bind_embedding(Binder *b, const char *module, int64_t rows, int64_t cols, LinearTensors *out)
{
    char name[BIND_NAME_MAX];
    const QuantScheme *scheme;
    const TensorEntry *t = bind_spelled(b, module, name);
    TRY(recipe_embedding(b->c->recipe, name, &scheme, b->e));
    if (t && bind_is_plain(t))
        scheme = NULL;
    return bind_scheme(b, name, scheme, rows, cols, out);
}
