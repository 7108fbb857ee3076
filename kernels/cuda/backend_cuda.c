/* kernels/cuda/backend_cuda.c - the CUDA backend: its table of ops, its memory, and the ring through
 * which index arrays travel. */
#include "kernels/check.h"
#include "kernels/cuda/cuda.h"
#include "kernels/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RING_BYTES = 16 << 20, RING_ALIGN = 256 };

static const int32_t no_row = INT32_MAX;

Status cuda_status(const Backend *b, int code, const char *op, Err *e)
{
    if (code == 0)
        return ST_OK;
    return err_set(e, b->api->is_out_of_memory(code) ? ST_MEMORY : ST_DEVICE, "%s: %s", op,
                   b->api->error_text(code));
}

Status cuda_alloc(Backend *b, size_t bytes, const char *what, void **out, Err *e)
{
    int code = b->api->take(out, bytes ? bytes : RING_ALIGN);
    if (code == 0)
        return ST_OK;
    size_t free_bytes = 0, total = 0;
    if (!b->api->is_out_of_memory(code) || b->api->memory(&free_bytes, &total) != 0)
        return cuda_status(b, code, what, e);
    return err_set(e, ST_MEMORY, "out of GPU memory: %zu bytes for %s, %zu of %zu are free", bytes,
                   what, free_bytes, total);
}

/* The runtime waits for work that still uses the memory. */
void cuda_release(Backend *b, void *p)
{
    if (p)
        (void)b->api->release(p);
}

/* --- the ring --- */

static void ring_free(Backend *b, Ring *r)
{
    if (r->host)
        (void)b->api->release_host(r->host);
    *r = (Ring){0};
}

static Status ring_make(Backend *b, size_t bytes, Err *e)
{
    void *host = NULL;
    ring_free(b, &b->ring);
    TRY(cuda_status(b, b->api->take_host(&host, bytes), "pinned memory for index arrays", e));
    b->ring = (Ring){.host = host, .cap = bytes};
    return ST_OK;
}

Status cuda_ring_reserve(Backend *b, size_t bytes, int n, Err *e)
{
    Ring *r = &b->ring;
    size_t most = bytes + (size_t)n * RING_ALIGN;
    if (most <= r->cap - r->at)
        return ST_OK;
    /* What lies in front may still be in use. */
    TRY(cuda_status(b, b->api->wait(b->stream), "wait", e));
    r->at = 0;
    return most <= r->cap ? ST_OK : ring_make(b, 4 * most, e);
}

Status cuda_ring_take(Backend *b, size_t bytes, void **host, Err *e)
{
    Ring *r = &b->ring;
    TRY(cuda_ring_reserve(b, bytes, 1, e));
    *host = r->host + r->at;
    r->at += (bytes + RING_ALIGN - 1) / RING_ALIGN * RING_ALIGN;
    return ST_OK;
}

Status cuda_ring_send(Backend *b, void *dst, const void *host, size_t bytes, Err *e)
{
    if (bytes == 0)
        return ST_OK;
    return cuda_status(b, b->api->to_device(dst, host, bytes, b->stream), "index arrays", e);
}

static Status stage(Backend *b, void *dst, const void *src_host, size_t bytes, Err *e)
{
    void *host;
    TRY(cuda_ring_take(b, bytes, &host, e));
    if (bytes > 0)
        memcpy(host, src_host, bytes);
    return cuda_ring_send(b, dst, host, bytes, e);
}

/* --- the backend --- */

static void destroy(Backend *b)
{
    if (!b)
        return;
    if (b->stream)
        (void)b->api->wait(b->stream);
    ring_free(b, &b->ring);
    cuda_spans_destroy(b);
    cuda_upload_destroy(b);
    cuda_attention_close(b);
    cuda_release(b, b->bad);
    cuda_release(b, b->edits);
    cuda_staging_close(b);
    if (b->stream)
        (void)b->api->close(b->stream);
    free(b);
}

static Status usable(int local_rank, const PluginInfo **out, int *device, Err *e)
{
    char why[256];
    /* The plugin brings libraries of the toolkit, which take half a second to open. */
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!driver)
        return err_set(e, ST_DEVICE, BACKEND_NO_DRIVER);
    dlclose(driver);
    TRY(plugin_open(out, e));
    if ((*out)->n_devices == 0)
        return err_set(e, ST_DEVICE, "no GPU: %s", (*out)->why_no_device);
    *device = plugin_device(*out, local_rank);
    if ((*out)->try_device(*device, why, sizeof why) != 0)
        return err_set(e, ST_DEVICE, "%s", why);
    return ST_OK;
}

static Status can_run(int local_rank, char name[BACKEND_DEVICE_NAME], Err *e)
{
    const PluginInfo *plugin;
    int device;
    TRY(usable(local_rank, &plugin, &device, e));
    if (name)
        snprintf(name, BACKEND_DEVICE_NAME, "%s", plugin->devices[device].bus_id);
    return ST_OK;
}

static Status create(const BackendConfig *config, Backend **out, Err *e)
{
    const PluginInfo *plugin = NULL;
    int device = 0;
    Status st;
    void *bad = NULL;
    TRY(usable(config->local_rank, &plugin, &device, e));
    Backend *b = calloc(1, sizeof *b);
    if (!b)
        return err_set(e, ST_MEMORY, "out of memory: the CUDA backend");
    b->api = plugin->api;
    b->team = config->team;
    b->exchange = plugin->exchange;
    TRY_GOTO(cuda_status(b, b->api->open(device, &b->stream), "the GPU", e));
    TRY_GOTO(ring_make(b, RING_BYTES, e));
    TRY_GOTO(cuda_upload_create(b, e));
    TRY_GOTO(cuda_spans_create(b, e));
    TRY_GOTO(cuda_attention_open(b, e));
    TRY_GOTO(cuda_alloc(b, sizeof *b->bad, "the router's flag", &bad, e));
    b->bad = bad;
    TRY_GOTO(stage(b, b->bad, &no_row, sizeof no_row, e));
    *out = b;
    return ST_OK;
fail:
    destroy(b);
    return st;
}

static Status ceilings(Backend *b, BackendCeilings *out, Err *e)
{
    *out = (BackendCeilings){0};
    return cuda_status(b, b->api->ceilings(out, b->stream), "measuring the GPU's limits", e);
}

static size_t free_memory(const Backend *b)
{
    size_t free_bytes = 0, total = 0;
    return b->api->memory(&free_bytes, &total) == 0 ? free_bytes : 0;
}

static Status wait_stream(Backend *b, Err *e)
{
    return cuda_status(b, b->api->wait(b->stream), "the GPU", e);
}

static Status upload(Backend *b, void *dst, const void *src_host, size_t bytes, Err *e)
{
    return cuda_upload_bytes(b, dst, src_host, bytes, "upload", e);
}

static Status download(Backend *b, void *dst_host, const void *src, size_t bytes, Err *e)
{
    TRY(cuda_status(b, b->api->to_host(dst_host, src, bytes, b->stream), "download", e));
    return wait_stream(b, e);
}

Status cuda_wait(Backend *b, Err *e)
{
    void *host;
    TRY(cuda_ring_take(b, sizeof *b->bad, &host, e));
    TRY(download(b, host, b->bad, sizeof *b->bad, e));
    int32_t bad = *(const int32_t *)host;
    if (bad == no_row)
        return ST_OK;
    TRY(stage(b, b->bad, &no_row, sizeof no_row, e));
    return err_set(e, ST_INPUT,
                   "row %d: the router has no weights: a logit is not a finite number, or "
                   "all scores are 0",
                   (int)bad);
}

/* --- graphs --- */

struct Graph {
    void *ready;
};

static Status capture_begin(Backend *b, Err *e)
{
    return cuda_status(b, b->api->capture_begin(b->stream), "recording a graph", e);
}

static Status capture_end(Backend *b, Graph **out, Err *e)
{
    void *ready = NULL;
    *out = NULL;
    TRY(cuda_status(b, b->api->capture_end(b->stream, &ready), "recording a graph", e));
    *out = malloc(sizeof **out);
    if (!*out) {
        (void)b->api->graph_destroy(ready);
        return err_set(e, ST_MEMORY, "out of memory: a graph");
    }
    (*out)->ready = ready;
    return ST_OK;
}

static Status graph_launch(Backend *b, Graph *g, Err *e)
{
    return cuda_status(b, b->api->graph_launch(g->ready, b->stream), "a graph", e);
}

static void graph_destroy(Backend *b, Graph *g)
{
    if (!g)
        return;
    (void)b->api->graph_destroy(g->ready);
    free(g);
}

/* --- rows --- */

static Status embed(Backend *b, float *h, const Weight *table, const int32_t *ids, int n,
                    float scale, Err *e)
{
    return cuda_status(
        b, b->api->embed(h, table->part[0].codes, ids, n, table->cols, scale, b->stream), "embed",
        e);
}

static Status add_norm(Backend *b, void *y, float *h, const void *delta, float scale,
                       const float *weight, int n, int width, float eps, NormKind kind, Err *e)
{
    return cuda_status(b,
                       b->api->add_norm(y, h, delta, scale, weight, n, width, eps, kind, b->stream),
                       "add_norm", e);
}

static Status norm(Backend *b, void *y, const void *x, const float *weight, int n_rows,
                   int n_groups, int width, int64_t stride, float eps, NormKind kind, Err *e)
{
    return cuda_status(
        b, b->api->norm(y, x, weight, n_rows, n_groups, width, stride, eps, kind, b->stream),
        "norm", e);
}

static Status round_rows(Backend *b, void *y, int64_t y_stride, const void *x, int64_t x_stride,
                         int n, int width, const RowFormat *format, Err *e)
{
    TRY(check_row_format(format, width, e));
    if (format->scheme != ROWS_AS_THEY_ARE)
        return cuda_status(
            b, b->api->code_rows(y, y_stride, x, x_stride, NULL, 0, n, width, format, b->stream),
            "round_rows", e);
    if (x == y && x_stride == y_stride)
        return ST_OK;
    return cuda_status(
        b, b->api->copy_lanes(y, y_stride, 0, x, x_stride, 0, NULL, n, 1, width, b->stream),
        "round_rows", e);
}

/* Rows that travel as they are are never encoded: the exchange sends them itself. */
static Status check_coded(const RowFormat *format, int width, Err *e)
{
    if (format->scheme == ROWS_AS_THEY_ARE)
        return err_set(e, ST_INPUT, "rows without a format cannot be encoded");
    return check_row_format(format, width, e);
}

static Status encode_rows(Backend *b, void *coded, const void *x, int n, int width,
                          const RowFormat *format, Err *e)
{
    TRY(check_coded(format, width, e));
    return cuda_status(b,
                       b->api->code_rows(NULL, 0, x, width, coded,
                                         row_encoded_bytes(format->scheme, width), n, width, format,
                                         b->stream),
                       "encode_rows", e);
}

static Status decode_rows(Backend *b, void *x, const void *coded, int n, int width,
                          const RowFormat *format, Err *e)
{
    TRY(check_coded(format, width, e));
    return cuda_status(b,
                       b->api->code_rows(x, width, NULL, 0, (void *)(uintptr_t)coded,
                                         row_encoded_bytes(format->scheme, width), n, width, format,
                                         b->stream),
                       "decode_rows", e);
}

static Status rope(Backend *b, void *x, int n_rows, int64_t stride, int n_heads, int head_dim,
                   const int32_t *position, const RopeSpec *spec, Err *e)
{
    return cuda_status(
        b, b->api->rope(x, n_rows, stride, n_heads, head_dim, position, spec, b->stream), "rope",
        e);
}

static Status combine(Backend *b, void *y, const void *rows, const int32_t *slot,
                      const float *weight, const void *plus, int n, int top_k, int width, Err *e)
{
    return cuda_status(b, b->api->combine(y, rows, slot, weight, plus, n, top_k, width, b->stream),
                       "combine", e);
}

static Status gate_rows(Backend *b, void *y, const void *gate, int n, int width, Err *e)
{
    return cuda_status(b, b->api->gate_rows(y, gate, n, width, b->stream), "gate_rows", e);
}

static Status clamp(Backend *b, void *x, int n_rows, int64_t stride, int width, float limit, Err *e)
{
    return cuda_status(b, b->api->clamp(x, n_rows, stride, width, limit, b->stream), "clamp", e);
}

static Status gather(Backend *b, void *y, const void *x, const int32_t *row, int n,
                     size_t row_bytes, Err *e)
{
    return cuda_status(b, b->api->gather(y, x, row, n, (int64_t)row_bytes, b->stream), "gather", e);
}

/* --- the router --- */

static Status route(Backend *b, int32_t *expert, float *weight, uint64_t *load, const float *logits,
                    const float *correction, int n, const int32_t *live, const RouterSpec *spec,
                    Err *e)
{
    TRY(check_router(spec, CUDA_MAX_GROUPS, e));
    return cuda_status(
        b,
        b->api->route(expert, weight, load, b->bad, logits, correction, n, live, spec, b->stream),
        "route", e);
}

const BackendOps cuda_backend = {
    .name = "cuda",
    .act_bytes = 2,
    .host_memory = false,
    .can_run = can_run,
    .create = create,
    .destroy = destroy,
    .ceilings = ceilings,
    .free_memory = free_memory,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .upload = upload,
    .download = download,
    .stage = stage,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_launch = graph_launch,
    .graph_destroy = graph_destroy,
    .weight_create = cuda_weight_create,
    .weight_set = cuda_weight_set,
    .weight_checks = cuda_weight_checks,
    .weight_ahead = cuda_weight_ahead,
    .weight_destroy = cuda_weight_destroy,
    .weight_bytes = cuda_weight_bytes,
    .embed = embed,
    .add_norm = add_norm,
    .norm = norm,
    .matmul = cuda_matmul,
    .matmul_float = cuda_matmul_float,
    .takes_codes = cuda_takes_codes,
    .code_row_bytes = cuda_code_row_bytes,
    .code_rows = cuda_code_rows,
    .matmul_codes = cuda_matmul_codes,
    .round_rows = round_rows,
    .encode_rows = encode_rows,
    .decode_rows = decode_rows,
    .rope = rope,
    .list_create = cuda_list_create,
    .list_set = cuda_list_set,
    .list_destroy = cuda_list_destroy,
    .kv_page_bytes = cuda_kv_page_bytes,
    .kv_write = cuda_kv_write,
    .attention = cuda_attention,
    .latent_page_bytes = cuda_latent_page_bytes,
    .latent_write = cuda_latent_write,
    .latent_scratch_bytes = cuda_latent_scratch_bytes,
    .latent_attention = cuda_latent_attention,
    .route = route,
    .ffn_scratch_bytes = cuda_ffn_scratch_bytes,
    .ffn = cuda_ffn,
    .combine = combine,
    .gate_rows = gate_rows,
    .clamp = clamp,
    .gather = gather,
    .sample_scratch_bytes = cuda_sample_scratch_bytes,
    .sample = cuda_sample,
    .wait = cuda_wait,
    .exchange = &cuda_exchange,
};
