/* app/job_options.c - see job_options.h. */
#include "app/job_options.h"

#include "app/commands.h"

#include "io/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

void job_options_init(JobOptions *o)
{
    *o = (JobOptions){.generation_config = "auto", .progress = "auto"};
    o->job.engine = (EngineConfig){.backend = "auto", .isa = "auto", .wait_timeout_s = 300};
    o->job.sync_interval_s = 5;
}

size_t job_options_engine(JobOptions *o, Option *out)
{
    EngineConfig *g = &o->job.engine;
    const Option table[] = {
        {"--model", "-m", OPTION_TEXT, &g->model_dir, NULL, 0, 0, "DIR",
         "Hugging Face checkpoint directory, or a pack of one"},
        {"--max-model-len", NULL, OPTION_INT, &g->max_model_len, NULL, 1, 1 << 30, "N",
         "lower the context below the model's own"},
        {"--threads", NULL, OPTION_INT, &g->threads, NULL, 1, 1024, "N",
         "per rank (default: cores / ranks of the node)"},
        {"--max-batch", NULL, OPTION_INT, &g->max_batch, NULL, 1, 65536, "N",
         "sequences in flight per rank (256; on a GPU 1024)"},
        {"--prefill-chunk", NULL, OPTION_INT, &g->prefill_chunk, NULL, 1, 1 << 20, "N",
         "prompt tokens per rank and step (512; GPU 8192)"},
        {"--kv-memory", NULL, OPTION_SIZE, &g->kv_bytes, NULL, 0, 0, "SIZE",
         "KV cache per rank: 512M, 8G (default: fits)"},
        {"--activations", NULL, OPTION_TEXT, &o->activations, NULL, 0, 0, "MODE",
         "none, stored (as the checkpoint declares), native"},
        {"--activation-override", NULL, OPTION_TEXT, &o->activation_override, NULL, 0, 0, "KIND",
         "nvfp4_per_token: rows of W4A4 experts get own scales"},
        {"--missing-input-scale", NULL, OPTION_TEXT, &o->missing_input_scale, NULL, 0, 0, "KIND",
         "layer-max: experts without one take their layer's"},
        {"--kv-dtype", NULL, OPTION_TEXT, &o->kv_dtype, NULL, 0, 0, "TYPE",
         "fp32, bf16, fp8, nvfp4 (default: fp32 on the CPU)"},
        {"--quantize", NULL, OPTION_TEXT, &o->quantize, NULL, 0, 0, "FORMAT",
         "at load: nvfp4, mxfp4, mxfp8, fp8-dynamic, fp8-block, int4, q8_0"},
        {"--quantize-experts-only", NULL, OPTION_FLAG, &o->quantize_experts_only, NULL, 0, 0, NULL,
         "leave everything but routed experts as it is"},
        {"--backend", NULL, OPTION_TEXT, &g->backend, NULL, 0, 0, "NAME",
         "auto (a GPU for each rank, else cpu), cpu, cuda"},
        {"--isa", NULL, OPTION_TEXT, &g->isa, NULL, 0, 0, "LEVEL", "auto, scalar, avx2, avx512"},
        {"--accept-config-key", NULL, OPTION_LIST, &o->accept_keys, NULL, 0, 0, "KEY",
         "run although config.json has this unknown key"},
        {"--wait-timeout", NULL, OPTION_NUMBER, &g->wait_timeout_s, NULL, 0, 1e9, "S",
         "give up when a rank is silent so long (300)"},
        {"--progress", NULL, OPTION_TEXT, &o->progress, NULL, 0, 0, "MODE",
         "auto, live, log, none"},
    };
    memcpy(out, table, sizeof table);
    return sizeof table / sizeof *table;
}

size_t job_options_ranks(JobOptions *o, Option *out)
{
    EngineConfig *g = &o->job.engine;
    const Option table[] = {
        {"--exchange-memory", NULL, OPTION_SIZE, &g->round_bytes, NULL, 0, 0, "SIZE",
         "rows that meet in a round, per rank (256M; GPU 2G)"},
        {"--share-gpu", NULL, OPTION_FLAG, &g->share_gpu, NULL, 0, 0, NULL,
         "allow several ranks on one GPU (slow, for tests)"},
    };
    memcpy(out, table, sizeof table);
    return sizeof table / sizeof *table;
}

Status job_options_finish(JobOptions *o, Err *e)
{
    EngineConfig *g = &o->job.engine;
    if (!g->model_dir)
        return err_set(e, ST_USAGE, "-m DIR is missing");
    TRY(precision_parse(o->activations, o->activation_override, o->missing_input_scale, o->kv_dtype,
                        o->quantize, o->quantize_experts_only, &g->precision, e));
    g->accept_keys = o->accept_keys.at;
    g->n_accept_keys = o->accept_keys.n;
    if (strcmp(o->generation_config, "auto") == 0)
        g->use_generation_config = true;
    else if (strcmp(o->generation_config, "none") != 0)
        return err_set(e, ST_USAGE, "--generation-config %s: expected auto or none",
                       o->generation_config);
    return progress_parse(o->progress, &o->job.progress, e);
}

Status app_one_model(const char **model, const char *const *args, int n_args, Err *e)
{
    if ((*model != NULL) + n_args != 1)
        return err_set(e, ST_USAGE, *model ? "MODEL is given twice" : "MODEL is missing");
    if (n_args == 1)
        *model = args[0];
    return ST_OK;
}

int app_with_ranks(int argc, char **argv, int (*run)(void *ctx, Comm *comm, Status *st, Err *e),
                   void *ctx)
{
    Comm comm;
    Err e = {0};
    Status st = comm_start(&argc, &argv, &comm, &e);
    if (st != ST_OK) {
        fprintf(stderr, "moebatch: %s\n", e.text);
        return 1;
    }
    log_init(comm.rank, comm.size);
    int code = run(ctx, &comm, &st, &e);
    if (st != ST_OK) {
        code = st == ST_USAGE ? 2 : 1;
        if (comm.rank == 0 && comm.size > 1)
            fprintf(stderr, "moebatch: rank %d: %s\n", e.rank, e.text);
        else if (comm.rank == 0)
            fprintf(stderr, "moebatch: %s\n", e.text);
    }
    fflush(NULL);
    comm_end(&comm);
    return code;
}

bool app_speaks(void)
{
    const struct timespec half_a_second = {0, 500000000};
    if (comm_launched_rank() == 0)
        return true;
    nanosleep(&half_a_second, NULL);
    return false;
}

int app_usage(const char *command, const Err *e)
{
    if (app_speaks())
        fprintf(stderr, "moebatch %s: %s\nTry: moebatch %s --help\n", command, e->text, command);
    return 2;
}
