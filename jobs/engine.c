/* jobs/engine.c - see engine.h. */
#include "jobs/engine.h"

#include "io/clock.h"
#include "io/log.h"
#include "io/pack_file.h"
#include "jobs/backend_choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A device samples a whole step at once, where it can. */
enum { LOGITS_BYTES = 64 << 20, DEVICE_LOGITS_BYTES = 1 << 30 };
static const size_t ROUND_BYTES = 256u << 20, DEVICE_ROUND_BYTES = 2048u << 20;

/* "dir/name///" -> "name"; of a pack, that of the directory it was made from. */
static void base_name(const char *path, char *out, size_t cap)
{
    PackFile pack;
    Err e;
    if (pack_file_is(path) && pack_file_open(path, &pack, &e) == ST_OK) {
        snprintf(out, cap, "%s", pack.model_name);
        pack_file_close(&pack);
        return;
    }
    char full[4096];
    if (!realpath(path, full))
        snprintf(full, sizeof full, "%s", path);
    const char *slash = strrchr(full, '/');
    snprintf(out, cap, "%.255s", slash ? slash + 1 : full);
}

static Status agree_isa(Engine *g, Err *e)
{
    IsaLevel wanted;
    TRY(isa_parse(g->config.isa, &wanted, e));
    int64_t level = wanted;
    if (strcmp(g->config.isa, "auto") == 0) {
        TRY(comm_min_int64(g->comm, &level, 1, e));
        g->isa = (IsaLevel)level;
        return ST_OK;
    }
    return engine_use_isa(g, g->config.isa, e);
}

Status engine_use_isa(Engine *g, const char *isa, Err *e)
{
    IsaLevel wanted;
    Status st = isa_parse(isa, &wanted, e);
    if (st == ST_OK && wanted > isa_best())
        st = err_set(e, ST_INPUT,
                     "%s: this processor has no %s (its best level is %s), which the job's results "
                     "depend on",
                     g->comm->host, isa, isa_name(isa_best()));
    g->isa = wanted;
    return dist_agree(g->comm, st, e);
}

/* What of the precision this architecture cannot have. */
static Status check_precision(const Engine *g, Err *e)
{
    KvDtype kv = g->config.precision.kv;
    if (!g->ops->host_memory && kv == KV_F32)
        return err_set(
            e, ST_INPUT,
            "--kv-dtype fp32: the %s backend keeps keys and values as bf16, fp8 or nvfp4",
            g->ops->name);
    if (kv != KV_NVFP4)
        return ST_OK;
    if (g->arch.attn == ATTN_LATENT)
        return err_set(e, ST_INPUT, "--kv-dtype nvfp4: not for latent attention (%s); fp8 is",
                       g->arch.model_type);
    if (g->arch.head_dim % 16)
        return err_set(e, ST_INPUT,
                       "--kv-dtype nvfp4: needs heads of 16 lanes or a multiple, %s "
                       "has %d",
                       g->arch.model_type, g->arch.head_dim);
    return ST_OK;
}

/* Collective. */
static Status choose_backend(Engine *g, Err *e)
{
    const EngineConfig *c = &g->config;
    BackendChoice choice = {.ops = backend_find(c->backend), .n_sharing = 1};
    if (!c->computes_nothing || !choice.ops)
        TRY(backend_choose(g->comm, c->backend, c->share_gpu, &choice, e));
    if (choice.why[0])
        log_note_once("--backend auto takes the CPU: %s", choice.why);
    g->ops = choice.ops;
    g->n_sharing = choice.n_sharing;
    return ST_OK;
}

/* Enough rows for each expert to keep its arithmetic busy: on a GPU that takes more. */
static void choose_batch(EngineConfig *c, const BackendOps *ops)
{
    if (c->max_batch == 0)
        c->max_batch = ops->host_memory ? 256 : 1024;
    if (c->prefill_chunk == 0)
        c->prefill_chunk = ops->host_memory ? 512 : 8192;
}

static Status read_config(Engine *g, Err *e)
{
    const EngineConfig *c = &g->config;
    if (!c->synthetic)
        return arch_load(c->model_dir, c->accept_keys, c->n_accept_keys, &g->arch, &g->generation,
                         e);
    size_t len;
    const char *config = synthetic_config(c->synthetic, &len);
    return arch_parse(config, len, NULL, 0, NULL, 0, &g->arch, &g->generation, e);
}

static Status open_local(Engine *g, Err *e)
{
    const EngineConfig *c = &g->config;
    choose_batch(&g->config, g->ops);
    TRY(read_config(g, e));
    precision_resolve(&g->config.precision, g->ops);
    TRY(check_precision(g, e));
    if (!c->synthetic)
        TRY(tokenizer_load(c->model_dir, &g->tokenizer, e));
    if (g->tokenizer)
        TRY(tokenizer_cache_create(g->tokenizer, &g->tokenizer_cache, e));
    if (g->tokenizer && tokenizer_n_ids(g->tokenizer) > g->arch.vocab)
        log_warn_once("%s: the tokenizer has ids up to %d, the model only %d rows of logits",
                      c->model_dir, tokenizer_n_ids(g->tokenizer) - 1, g->arch.vocab);
    if (!c->use_generation_config)
        g->generation = (GenerationDefaults){0};
    if (c->synthetic)
        snprintf(g->model_name, sizeof g->model_name, "%s", synthetic_name(c->synthetic));
    else
        base_name(c->model_dir, g->model_name, sizeof g->model_name);
    int max_len = g->arch.max_positions;
    if (c->max_model_len > 0 && c->max_model_len < max_len)
        max_len = c->max_model_len;
    g->context = (RowContext){.tokenizer = g->tokenizer,
                              .arch = &g->arch,
                              .generation = &g->generation,
                              .max_len = max_len,
                              .default_name = g->model_name};
    return ST_OK;
}

Status engine_open(Engine *out, const EngineConfig *config, Comm *comm, Err *e)
{
    *out = (Engine){.config = *config, .comm = comm};
    TRY(dist_agree(comm, choose_backend(out, e), e));
    TRY(dist_agree(comm, open_local(out, e), e));
    return agree_isa(out, e);
}

static size_t free_memory(void)
{
    char line[200];
    size_t kib = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %zu kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib << 10;
}

/* What max_batch full contexts need; within half of this node's free memory, shared by its ranks,
 * where that is where it lies. */
static size_t default_kv_bytes(const Engine *g)
{
    size_t block = kv_block_bytes(&g->arch, g->config.precision.kv, g->ops, g->backend);
    size_t pages = ((size_t)g->context.max_len + KV_PAGE - 1) / KV_PAGE;
    size_t most = pages * (size_t)g->config.max_batch * MAX_KV_GROUPS * block;
    size_t share = free_memory() / 2 / (size_t)g->comm->n_local;
    if (!g->ops->host_memory)
        return most;
    if (share < (size_t)64 << 20)
        share = (size_t)64 << 20;
    return most < share ? most : share;
}

static Status make_backend(Engine *g, Err *e)
{
    g->threads = g->config.threads > 0 ? g->config.threads : g->comm->n_cores;
    if (g->threads > 1)
        TRY(team_create(&g->team, g->threads, e));
    BackendConfig b = {.team = g->team, .isa = g->isa, .local_rank = g->comm->local_rank};
    return g->ops->create(&b, &g->backend, e);
}

static void warn_of_missing_scales(const Engine *g)
{
    const Weights *w = &g->model->weights;
    if (w->n_missing_input_scales > 0)
        log_warn_once("%s: %d layers and experts declare static activations without an input_scale",
                      g->config.model_dir, w->n_missing_input_scales);
    if (w->n_missing_kv_scales > 0)
        log_warn_once("%s: %d layers have no scale for a quantized KV cache; 1.0 is used",
                      g->config.model_dir, w->n_missing_kv_scales);
}

Status engine_start(Engine *g, Err *e)
{
    return dist_agree(g->comm, g->backend ? ST_OK : make_backend(g, e), e);
}

static size_t round_bytes(const Engine *g)
{
    if (g->config.round_bytes > 0)
        return g->config.round_bytes;
    return g->ops->host_memory ? ROUND_BYTES : DEVICE_ROUND_BYTES;
}

Status engine_load(Engine *g, Err *e)
{
    double start = clock_s();
    TRY(engine_start(g, e));
    ModelConfig c = {.dir = g->config.model_dir,
                     .synthetic = g->config.synthetic,
                     .precision = g->config.precision,
                     .ops = g->ops,
                     .backend = g->backend,
                     .team = g->team,
                     .max_rows = g->config.max_batch + g->config.prefill_chunk,
                     .max_seqs = g->config.max_batch,
                     .max_len = g->context.max_len,
                     .kv_bytes = g->config.kv_bytes ? g->config.kv_bytes : default_kv_bytes(g),
                     .kv_fits = g->config.kv_bytes == 0 || g->config.kv_fits,
                     .n_sharing = g->n_sharing,
                     .round_bytes = round_bytes(g),
                     .logits_bytes = g->ops->host_memory ? LOGITS_BYTES : DEVICE_LOGITS_BYTES};
    TRY(model_create(&g->model, &g->arch, &c, g->comm, e));
    warn_of_missing_scales(g);
    /* Weights may still be on their way. */
    TRY(dist_agree(g->comm, g->ops->wait(g->backend, e), e));
    g->load_s = clock_s() - start;
    return ST_OK;
}

void engine_close(Engine *g)
{
    model_destroy(g->model);
    if (g->backend)
        g->ops->destroy(g->backend);
    team_destroy(g->team);
    tokenizer_cache_free(g->tokenizer_cache);
    tokenizer_free(g->tokenizer);
    arch_free(&g->arch);
    *g = (Engine){0};
}
