/* model/quant_map.c - see quant_map.h. */
#include "model/quant_map.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* --- names --- */

/* Without what stands in front of the layer's own name, and with * for an expert's number. */
static void short_name(const Module *m, char *out)
{
    char name[MODULE_NAME_MAX];
    module_name(m, name);
    char *start = m->layer < 0 ? NULL : strstr(name, "layers.");
    start = start ? strchr(start + strlen("layers."), '.') : NULL;
    snprintf(out, MODULE_NAME_MAX, "%s", start ? start + 1 : name);
    char *number = strstr(out, "experts.");
    if (!number || !isdigit((unsigned char)number[8]))
        return;
    number += 8;
    size_t digits = strspn(number, "0123456789");
    number[0] = '*';
    memmove(number + 1, number + digits, strlen(number + digits) + 1);
}

static void describe(const LinearTensors *t, char *out, size_t size)
{
    const QuantScheme *s = t->scheme;
    char grid[64] = "", rows[64] = "";
    *out = 0;
    if (!s)
        return;
    if (s->grid == GRID_BLOCK)
        snprintf(grid, sizeof grid, ", blocks of %d x %d", s->block_rows, s->block_cols);
    else if (s->grid == GRID_TENSOR)
        snprintf(grid, sizeof grid, ", a scale per tensor");
    else if (s->grid == GRID_CHANNEL)
        snprintf(grid, sizeof grid, ", a scale per row");
    else if (t->q.scales)
        snprintf(grid, sizeof grid, ", groups of %lld", (long long)t->q.group);
    if (s->rows != ROWS_AS_THEY_ARE)
        snprintf(rows, sizeof rows, ", rows %s%s", row_scheme_name(s->rows),
                 s->rows_power_of_two ? " in powers of two" : "");
    snprintf(out, size, "%s%s%s", s->algo, grid, rows);
}

/* --- the map --- */

static void add_total(QuantMap *out, const char *format, const Module *m)
{
    int i = 0;
    while (i < out->n_totals && strcmp(out->totals[i].format, format) != 0)
        i++;
    if (i == out->n_totals)
        out->totals[out->n_totals++] = (FormatTotal){.format = format};
    out->totals[i].n += m->n_stack ? m->n_stack : 1;
    out->totals[i].params += module_params(m);
    out->totals[i].bytes += module_bytes(m);
}

static bool add_module(QuantMap *out, const Module *m)
{
    const char *format = m->t->q.format->name;
    char name[MODULE_NAME_MAX], detail[200];
    short_name(m, name);
    describe(m->t, detail, sizeof detail);
    add_total(out, format, m);
    MapEntry *e = NULL;
    for (int i = out->n - 1; i >= 0 && out->entries[i].layer == m->layer && !e; i--)
        if (strcmp(out->entries[i].module, name) == 0 &&
            strcmp(out->entries[i].format, format) == 0 &&
            strcmp(out->entries[i].detail, detail) == 0)
            e = &out->entries[i];
    if (!e) {
        e = &out->entries[out->n++];
        *e = (MapEntry){.layer = m->layer,
                        .module = arena_copy(&out->arena, name, strlen(name)),
                        .format = format,
                        .detail = arena_copy(&out->arena, detail, strlen(detail))};
        if (!e->module || !e->detail)
            return false;
    }
    e->n += m->n_stack ? m->n_stack : 1;
    e->params += module_params(m);
    e->bytes += module_bytes(m);
    return true;
}

Status quant_map_create(const Checkpoint *c, const Arch *arch, QuantMap *out, Err *e)
{
    static const char *const kv[] = {"none", "fp8", "nvfp4"};
    const char *recipe = recipe_name(c->recipe);
    Modules modules;
    *out = (QuantMap){.kv = kv[recipe_kv_algo(c->recipe)]};
    TRY(modules_create(c, arch, &modules, e));
    out->recipe = arena_copy(&out->arena, recipe, strlen(recipe));
    out->entries = arena_alloc(&out->arena, (size_t)modules.n * sizeof *out->entries);
    bool ok = out->recipe && out->entries;
    for (int i = 0; i < modules.n && ok; i++)
        ok = add_module(out, &modules.at[i]);
    modules_free(&modules);
    if (ok)
        return ST_OK;
    quant_map_free(out);
    return err_set(e, ST_MEMORY, "not enough memory for the quantization map");
}

void quant_map_free(QuantMap *m)
{
    arena_free(&m->arena);
    *m = (QuantMap){0};
}

/* --- for people --- */

static double bits_each(int64_t bytes, int64_t params)
{
    return params ? 8.0 * (double)bytes / (double)params : 0;
}

/* The entries of the layer that begins at i: how many. */
static int layer_len(const QuantMap *m, int i)
{
    int n = 0;
    while (i + n < m->n && m->entries[i + n].layer == m->entries[i].layer)
        n++;
    return n;
}

static bool layers_alike(const QuantMap *m, int a, int b, int n)
{
    if (b >= m->n || layer_len(m, b) != n || m->entries[a].layer < 0 || m->entries[b].layer < 0)
        return false;
    for (int i = 0; i < n; i++)
        if (strcmp(m->entries[a + i].module, m->entries[b + i].module) != 0 ||
            strcmp(m->entries[a + i].format, m->entries[b + i].format) != 0 ||
            strcmp(m->entries[a + i].detail, m->entries[b + i].detail) != 0)
            return false;
    return true;
}

static void text_layer(const QuantMap *m, int at, int n, StrBuf *out)
{
    for (int i = at; i < at + n; i++) {
        const MapEntry *e = &m->entries[i];
        char count[24] = "";
        if (e->n > 1)
            snprintf(count, sizeof count, " (%d)", e->n);
        strbuf_fmt(out, "  %-34s%-8s %s", e->module, count, e->format);
        if (*e->detail)
            strbuf_fmt(out, "%*s%s", (int)(8 - strlen(e->format)), "", e->detail);
        strbuf_str(out, "\n");
    }
}

void quant_map_text(const QuantMap *m, StrBuf *out)
{
    bool kv = strcmp(m->kv, "none") != 0;
    strbuf_fmt(out, "quantized   %s%s%s\n", m->recipe, kv ? ", KV cache " : "", kv ? m->kv : "");
    for (int i = 0; i < m->n_totals; i++)
        strbuf_fmt(out, "  %-7s %lld bytes, %lld weights in %d matrices, %.4g bits each\n",
                   m->totals[i].format, (long long)m->totals[i].bytes,
                   (long long)m->totals[i].params, m->totals[i].n,
                   bits_each(m->totals[i].bytes, m->totals[i].params));
    if (strcmp(m->recipe, "none") == 0)
        return;
    for (int at = 0, end; at < m->n; at = end) {
        int n = layer_len(m, at), last = m->entries[at].layer;
        for (end = at + n; layers_alike(m, at, end, n); end += n)
            last = m->entries[end].layer;
        if (m->entries[at].layer >= 0 && last > m->entries[at].layer)
            strbuf_fmt(out, "layers %d-%d\n", m->entries[at].layer, last);
        else if (last >= 0)
            strbuf_fmt(out, "layer %d\n", last);
        else
            strbuf_str(out, "outside of the layers\n");
        text_layer(m, at, n, out);
    }
}

/* --- for programs --- */

static void json_text(const char *key, const char *value, StrBuf *out)
{
    strbuf_fmt(out, "\"%s\": ", key);
    strbuf_json_string(out, value, strlen(value));
    strbuf_str(out, ", ");
}

void quant_map_json(const QuantMap *m, StrBuf *out)
{
    strbuf_str(out, "{\n    ");
    json_text("recipe", m->recipe, out);
    json_text("kv_cache", m->kv, out);
    strbuf_str(out, "\n    \"formats\": {");
    for (int i = 0; i < m->n_totals; i++)
        strbuf_fmt(out,
                   "%s\n      \"%s\": {\"matrices\": %d, \"weights\": %lld, \"bytes\": %lld, "
                   "\"bits_per_weight\": %.4f}",
                   i ? "," : "", m->totals[i].format, m->totals[i].n,
                   (long long)m->totals[i].params, (long long)m->totals[i].bytes,
                   bits_each(m->totals[i].bytes, m->totals[i].params));
    strbuf_str(out, "\n    },\n    \"modules\": [");
    for (int i = 0; i < m->n; i++) {
        const MapEntry *e = &m->entries[i];
        strbuf_fmt(out, "%s\n      {", i ? "," : "");
        if (e->layer >= 0)
            strbuf_fmt(out, "\"layer\": %d, ", e->layer);
        json_text("module", e->module, out);
        json_text("format", e->format, out);
        if (*e->detail)
            json_text("detail", e->detail, out);
        strbuf_fmt(out, "\"matrices\": %d, \"weights\": %lld, \"bytes\": %lld}", e->n,
                   (long long)e->params, (long long)e->bytes);
    }
    strbuf_str(out, "\n    ]\n  }");
}
