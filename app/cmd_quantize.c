/* app/cmd_quantize.c - moebatch quantize: a checkpoint in another format. */
#include "app/commands.h"
#include "app/job_options.h"
#include "io/clock.h"
#include "io/log.h"
#include "jobs/calibrate.h"
#include "model/quantize.h"

#include <stdio.h>
#include <string.h>

typedef struct Quantize {
    JobOptions o;
    QuantizeJob job;
    const char *rows, *kv_cache;
    int64_t calib_tokens;
    size_t part_bytes;
} Quantize;

static void print_result(const Quantize *q, const QuantizeResult *r, double seconds)
{
    printf("%s: %lld matrices, %.1f MB from %.1f MB, in %d files", q->job.out,
           (long long)r->matrices, (double)r->tensor_bytes / 1e6, (double)r->source_bytes / 1e6,
           r->parts);
    if (r->parts_kept > 0)
        printf(" (%d were there)", r->parts_kept);
    printf(", %.1f s", seconds);
    if (seconds > 0 && r->bytes_read > 0)
        printf(", %.0f MB/s", (double)r->bytes_read / 1e6 / seconds);
    putchar('\n');
}

static int run(void *ctx, Comm *comm, Status *st, Err *e)
{
    Quantize *q = ctx;
    Calibration seen = {0};
    QuantizeResult r;
    Team *team = NULL;
    int threads = q->o.job.engine.threads ? q->o.job.engine.threads : comm->n_cores;
    q->job.will_calibrate = q->rows != NULL;
    *st = quantize_check(&q->job, comm, e);
    if (*st == ST_OK && q->rows)
        *st = calibrate_run(&q->o.job.engine, comm, q->rows, q->calib_tokens, q->o.job.progress,
                            &seen, e);
    if (*st == ST_OK && q->rows)
        q->job.seen = &seen.seen;
    if (*st == ST_OK)
        *st = dist_agree(comm, threads > 1 ? team_create(&team, threads, e) : ST_OK, e);
    double start = clock_s();
    q->job.team = team;
    if (*st == ST_OK)
        *st = quantize_run(&q->job, comm, &r, e);
    if (*st == ST_OK && comm->rank == 0) {
        if (r.unseen_experts > 0)
            log_warn("%d projections of experts saw no token: their layer's largest input is used",
                     r.unseen_experts);
        if (r.not_lossless > 0)
            log_warn("%lld MXFP4 matrices span more exponents than NVFP4 has: quantized anew, with "
                     "loss",
                     (long long)r.not_lossless);
        print_result(q, &r, clock_s() - start);
    }
    team_destroy(team);
    calibration_free(&seen);
    return 0;
}

static void print_help(const Option *options, size_t n)
{
    puts("Usage: [mpirun -n RANKS] moebatch quantize MODEL -o DIR --recipe NAME|FILE [options]\n\n"
         "Writes a checkpoint with its linear layers and experts in another format, in the layout "
         "that\n"
         "ModelOpt, compressed-tensors (int4) or gpt-oss (its mxfp4) publish. Interrupted, the "
         "same\n"
         "command goes on where it stopped.\n\n"
         "Recipes: fp8-static and nvfp4 (both with --calibrate), fp8-dynamic (a scale per row), "
         "fp8\n"
         "(static with --calibrate, else dynamic), fp8-block, w4a16_nvfp4, mxfp8, mxfp4, int4, "
         "q8_0;\n"
         "or a JSON file of rules,\n"
         "  {\"rules\": [{\"match\": \"experts\", \"format\": \"nvfp4\"},\n"
         "             {\"match\": \"attention\", \"format\": \"fp8\"}]}\n"
         "where match is all, experts, shared, dense, attention or a module's name with *, and the "
         "first\n"
         "that matches counts; format may also be bf16 or keep.\n"
         "Options of a model's run (--max-model-len to --isa) are those of calibration.\n");
    options_print(options, n);
}

static Status check(Quantize *q, int n_models, const char *const *models, Err *e)
{
    EngineConfig *g = &q->o.job.engine;
    TRY(app_one_model(&g->model_dir, models, n_models, e));
    TRY(job_options_finish(&q->o, e));
    q->job.model = g->model_dir;
    if (!q->job.out || !q->job.recipe)
        return err_set(e, ST_USAGE, "%s is missing", q->job.out ? "--recipe" : "--output");
    if (q->calib_tokens > 0 && !q->rows)
        return err_set(e, ST_USAGE, "--calib-tokens needs --calibrate");
    q->job.kv_fp8 = q->rows != NULL;
    if (q->kv_cache) {
        q->job.kv_given = true;
        q->job.kv_fp8 = strcmp(q->kv_cache, "fp8") == 0;
        if (!q->job.kv_fp8 && strcmp(q->kv_cache, "none") != 0)
            return err_set(e, ST_USAGE, "--kv-cache is %s, expected fp8 or none", q->kv_cache);
    }
    q->job.part_bytes = (int64_t)q->part_bytes;
    q->job.quiet = q->o.job.progress == PROGRESS_NONE;
    q->job.accept_keys = g->accept_keys;
    q->job.n_accept_keys = g->n_accept_keys;
    return ST_OK;
}

int cmd_quantize(int argc, char **argv)
{
    Quantize q = {.part_bytes = (size_t)4 << 30};
    Option options[MAX_OPTIONS];
    const char *models[1];
    Err e;
    bool help;
    int n_models = 0;
    job_options_init(&q.o);
    size_t n = job_options_engine(&q.o, options);
    const Option own[] = {
        {"--output", "-o", OPTION_TEXT, &q.job.out, NULL, 0, 0, "DIR", "where to write"},
        {"--recipe", NULL, OPTION_TEXT, &q.job.recipe, NULL, 0, 0, "NAME",
         "a recipe's name, or a file of rules"},
        {"--experts-only", NULL, OPTION_FLAG, &q.job.experts_only, NULL, 0, 0, NULL,
         "a named recipe for the routed experts alone"},
        {"--calibrate", NULL, OPTION_TEXT, &q.rows, NULL, 0, 0, "FILE",
         "rows with text or input_ids, for the scales of inputs"},
        {"--calib-tokens", NULL, OPTION_INT64, &q.calib_tokens, NULL, 1, 1e15, "N",
         "stop reading rows after so many tokens"},
        {"--kv-cache", NULL, OPTION_TEXT, &q.kv_cache, NULL, 0, 0, "TYPE",
         "fp8 (default with --calibrate), none: scales for the cache"},
        {"--part-size", NULL, OPTION_SIZE, &q.part_bytes, NULL, 0, 0, "SIZE",
         "a file ends with the module that takes it there (4G)"},
        {"--overwrite", NULL, OPTION_FLAG, &q.job.overwrite, NULL, 0, 0, NULL,
         "replace another checkpoint in DIR"},
    };
    memcpy(options + n, own, sizeof own);
    n += sizeof own / sizeof *own;
    Status st = options_parse(options, n, argc, argv, models, 1, &n_models, &help, &e);
    if (st == ST_OK && help) {
        print_help(options, n);
        return 0;
    }
    if (st == ST_OK)
        st = check(&q, n_models, models, &e);
    return st == ST_OK ? app_with_ranks(argc, argv, run, &q) : app_usage("quantize", &e);
}
