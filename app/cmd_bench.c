/* app/cmd_bench.c - moebatch bench: a whole job on random weights of a published shape, or the loading
 * of a checkpoint, each beside what the device gives at best in the same run. */
#include "app/commands.h"
#include "app/job_options.h"
#include "io/strbuf.h"
#include "jobs/bench_run.h"
#include "model/synthetic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct BenchCommand {
    BenchConfig config;
    JobOptions words; /* --activations and its like */
    bool json;
} BenchCommand;

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* "1.23 G" and what follows. */
typedef struct Scaled {
    char text[32];
} Scaled;

static Scaled scaled(double v)
{
    static const char *const units[] = {"", "k", "M", "G", "T", "P", "E"};
    int i = 0;
    Scaled out;
    for (; v >= 999.5 && i < 6; i++)
        v /= 1000;
    snprintf(out.text, sizeof out.text, "%.3g %s", v, units[i]);
    return out;
}

/* --- the ranks together --- */

/* Sums of counts; times are rank 0's, since ranks step together. */
static BenchResult together(const BenchResult *all, int n)
{
    BenchResult sum = all[0];
    for (int r = 1; r < n; r++) {
        sum.weight_bytes += all[r].weight_bytes;
        sum.loaded_bytes += all[r].loaded_bytes;
        sum.kv_bytes += all[r].kv_bytes;
        sum.preemptions += all[r].preemptions;
        for (int p = 0; p < N_BENCH_PHASES; p++) {
            sum.phase[p].prompt_tokens += all[r].phase[p].prompt_tokens;
            sum.phase[p].output_tokens += all[r].phase[p].output_tokens;
            for (int i = 0; i < N_ROOF_OPS; i++) {
                RoofCount *to = &sum.phase[p].roof.op[i];
                const RoofCount *from = &all[r].phase[p].roof.op[i];
                to->flops += from->flops;
                to->weight_bytes += from->weight_bytes;
                to->kv_bytes += from->kv_bytes;
                to->row_bytes += from->row_bytes;
                to->floor_s += from->floor_s;
            }
        }
    }
    return sum;
}

typedef struct Shares { /* of the limits of all ranks */
    double efficiency, mfu, mbu;
} Shares;

static Shares shares_of(const RoofCount *c, double seconds, const BenchResult *r)
{
    double all = seconds * r->n_ranks;
    return (Shares){.efficiency = ratio(c->floor_s, all),
                    .mfu = ratio(c->flops, all * r->limits.flops),
                    .mbu = ratio(c->weight_bytes + c->kv_bytes, all * r->limits.memory_bytes_s)};
}

static void add_count(RoofCount *to, RoofCount from)
{
    to->flops += from.flops;
    to->weight_bytes += from.weight_bytes;
    to->kv_bytes += from.kv_bytes;
    to->row_bytes += from.row_bytes;
    to->floor_s += from.floor_s;
}

/* --- for people --- */

static void tell_limits(const BenchResult *r, StrBuf *out)
{
    const BackendCeilings *c = &r->limits;
    strbuf_fmt(out, "limits     memory %sB/s", scaled(c->memory_bytes_s).text);
    if (c->upload_bytes_s > 0)
        strbuf_fmt(out, ", pinned upload %sB/s", scaled(c->upload_bytes_s).text);
    if (c->flops > 0)
        strbuf_fmt(out, ", products %sFLOP/s", scaled(c->flops).text);
    if (c->fp8_flops > 0)
        strbuf_fmt(out, ", FP8 %sFLOP/s", scaled(c->fp8_flops).text);
    if (c->gemm)
        strbuf_fmt(out, " (%s)", c->gemm);
    strbuf_str(out, "\n");
}

static void tell_shares(const RoofCount *c, double seconds, const BenchResult *r, StrBuf *out)
{
    Shares s = shares_of(c, seconds, r);
    strbuf_fmt(out, "floor %.3f s: roofline efficiency %.3f, MFU %.3f, MBU %.3f\n",
               c->floor_s / r->n_ranks, s.efficiency, s.mfu, s.mbu);
}

static void tell_phase(const char *name, const BenchPhase *p, const BenchResult *r, StrBuf *out)
{
    RoofCount c = roof_total(&p->roof);
    double tokens = (double)(p->prompt_tokens + p->output_tokens);
    strbuf_fmt(out, "%-10s %lld steps, %.3f s, %lld tokens in, %lld out: %stok/s; ", name,
               (long long)p->steps, p->seconds, (long long)p->prompt_tokens,
               (long long)p->output_tokens, scaled(ratio(tokens, p->seconds)).text);
    tell_shares(&c, p->seconds, r, out);
}

static void tell_ops(const BenchResult *r, StrBuf *out)
{
    strbuf_fmt(out, "%-12s %10s %12s %12s %12s %10s %10s\n", "operation", "FLOP", "weight B",
               "KV B", "row B", "prefill s", "decode s");
    for (int i = 0; i < N_ROOF_OPS; i++) {
        RoofCount c = {0};
        for (int p = 0; p < N_BENCH_PHASES; p++)
            add_count(&c, r->phase[p].roof.op[i]);
        if (c.flops > 0)
            strbuf_fmt(out, "%-12s %10.4g %12.4g %12.4g %12.4g %10.4f %10.4f\n", roof_op_names[i],
                       c.flops, c.weight_bytes, c.kv_bytes, c.row_bytes,
                       r->phase[BENCH_PREFILL].roof.op[i].floor_s / r->n_ranks,
                       r->phase[BENCH_DECODE].roof.op[i].floor_s / r->n_ranks);
    }
}

static void tell_shape(const BenchCommand *b, const BenchResult *r, StrBuf *out)
{
    RoofCount all = {0};
    double seconds = 0, prompt = 0, output = 0;
    for (int p = 0; p < N_BENCH_PHASES; p++) {
        add_count(&all, roof_total(&r->phase[p].roof));
        seconds += r->phase[p].seconds;
        prompt += (double)r->phase[p].prompt_tokens;
        output += (double)r->phase[p].output_tokens;
    }
    strbuf_fmt(out, "shape      %s: %s, %d layers, weights %sB with random values; %d rank%s\n",
               b->config.shape, r->model_type, r->n_layers, scaled((double)r->weight_bytes).text,
               r->n_ranks, r->n_ranks == 1 ? "" : "s");
    tell_limits(r, out);
    strbuf_fmt(out, "load       %sB in %.3f s: %sB/s\n", scaled((double)r->loaded_bytes).text,
               r->load_s, scaled(ratio((double)r->loaded_bytes, r->load_s)).text);
    strbuf_fmt(out,
               "job        %d sequences of %d + %d tokens a rank, %d at a time, chunks of %d; KV "
               "cache %sB\n",
               r->sequences, b->config.prompt_tokens, b->config.output_tokens, r->batch,
               r->prefill_chunk, scaled((double)r->kv_bytes).text);
    tell_phase("prefill", &r->phase[BENCH_PREFILL], r, out);
    tell_phase("decode", &r->phase[BENCH_DECODE], r, out);
    strbuf_fmt(out,
               "of these   scheduling %.3f s, sampling %.3f s; %lld preemptions; the busiest "
               "expert of a layer has %.2f times the mean\n",
               r->schedule_s, r->sample_s, (long long)r->preemptions, r->busiest);
    tell_ops(r, out);
    strbuf_fmt(out, "total      %.3f s, in %stok/s, out %stok/s; ", seconds,
               scaled(ratio(prompt, seconds)).text, scaled(ratio(output, seconds)).text);
    tell_shares(&all, seconds, r, out);
}

static double load_limit(const BenchResult *r)
{
    double read = ratio((double)r->file_bytes, r->read_s), upload = r->limits.upload_bytes_s;
    return upload > 0 && upload < read ? upload : read;
}

static void tell_load(const BenchCommand *b, const BenchResult *r, StrBuf *out)
{
    double rate = ratio((double)r->loaded_bytes, r->load_s);
    strbuf_fmt(out, "checkpoint %s: files %sB, %d layers; %d rank%s\n", b->config.load,
               scaled((double)r->file_bytes).text, r->n_layers, r->n_ranks,
               r->n_ranks == 1 ? "" : "s");
    tell_limits(r, out);
    strbuf_fmt(out, "raw read   %sB/s, then %sB/s\n",
               scaled(ratio((double)r->file_bytes, r->first_read_s)).text,
               scaled(ratio((double)r->file_bytes, r->read_s)).text);
    strbuf_fmt(out, "load       %sB in %.3f s: %sB/s, %.2f of the slower of read and upload\n",
               scaled((double)r->loaded_bytes).text, r->load_s, scaled(rate).text,
               ratio(rate, load_limit(r)));
}

/* --- for programs --- */

static void json_limits(const BenchResult *r, StrBuf *out)
{
    const BackendCeilings *c = &r->limits;
    strbuf_fmt(out,
               "\"limits\": {\"memory_bytes_s\": %.4g, \"upload_bytes_s\": %.4g, \"flops\": %.4g, "
               "\"fp8_flops\": %.4g}",
               c->memory_bytes_s, c->upload_bytes_s, c->flops, c->fp8_flops);
}

static void json_phase(const char *name, const BenchPhase *p, const BenchResult *r, StrBuf *out)
{
    RoofCount sum = roof_total(&p->roof);
    Shares s = shares_of(&sum, p->seconds, r);
    strbuf_fmt(out,
               ",\n \"%s\": {\"steps\": %lld, \"seconds\": %.6f, \"prompt_tokens\": %lld, "
               "\"output_tokens\": %lld, \"floor_s\": %.6g, \"efficiency\": %.4f, \"mfu\": %.4f, "
               "\"mbu\": %.4f, \"operations\": {",
               name, (long long)p->steps, p->seconds, (long long)p->prompt_tokens,
               (long long)p->output_tokens, sum.floor_s / r->n_ranks, s.efficiency, s.mfu, s.mbu);
    for (int i = 0; i < N_ROOF_OPS; i++) {
        const RoofCount *c = &p->roof.op[i];
        strbuf_fmt(out,
                   "%s\n  \"%s\": {\"flops\": %.0f, \"weight_bytes\": %.0f, \"kv_bytes\": %.0f, "
                   "\"row_bytes\": %.0f, \"floor_s\": %.6g}",
                   i ? "," : "", roof_op_names[i], c->flops, c->weight_bytes, c->kv_bytes,
                   c->row_bytes, c->floor_s / r->n_ranks);
    }
    strbuf_str(out, "}}");
}

static void tell_json(const BenchCommand *b, const BenchResult *r, StrBuf *out)
{
    strbuf_fmt(out, "{\"version\": \"%s\", \"ranks\": %d, \"layers\": %d, ", MOEBATCH_VERSION,
               r->n_ranks, r->n_layers);
    json_limits(r, out);
    strbuf_fmt(
        out,
        ",\n \"load\": {\"bytes\": %lld, \"seconds\": %.6f, \"file_bytes\": %lld, "
        "\"first_read_s\": %.6f, \"read_s\": %.6f, \"share\": %.4f}",
        (long long)r->loaded_bytes, r->load_s, (long long)r->file_bytes, r->first_read_s, r->read_s,
        b->config.load ? ratio(ratio((double)r->loaded_bytes, r->load_s), load_limit(r)) : 0);
    if (b->config.shape) {
        strbuf_fmt(out,
                   ",\n \"shape\": \"%s\", \"weight_bytes\": %lld, \"batch\": %d, "
                   "\"sequences\": %d, \"schedule_s\": %.6f, \"sample_s\": %.6f, "
                   "\"preemptions\": %lld, \"busiest_expert\": %.4f",
                   b->config.shape, (long long)r->weight_bytes, r->batch, r->sequences,
                   r->schedule_s, r->sample_s, (long long)r->preemptions, r->busiest);
        json_phase("prefill", &r->phase[BENCH_PREFILL], r, out);
        json_phase("decode", &r->phase[BENCH_DECODE], r, out);
    }
    strbuf_str(out, "}\n");
}

/* --- the command --- */

static Status one(BenchCommand *b, Comm *comm, Err *e)
{
    BenchResult mine, *all = NULL;
    StrBuf out = {0};
    TRY(b->config.load ? bench_load(&b->config, comm, &mine, e)
                       : bench_run(&b->config, comm, &mine, e));
    Status st = ST_OK;
    if (comm->rank == 0 && !(all = malloc((size_t)comm->size * sizeof *all)))
        st = err_set(e, ST_MEMORY, "out of memory: results of %d ranks", comm->size);
    st = dist_agree(comm, st, e);
    if (st == ST_OK)
        st = comm_gather(comm, &mine, sizeof mine, all, 0, e);
    if (st == ST_OK && comm->rank == 0) {
        BenchResult sum = b->config.load ? mine : together(all, comm->size);
        (b->json ? tell_json : b->config.load ? tell_load : tell_shape)(b, &sum, &out);
        fputs(out.failed ? "" : out.data, stdout);
    }
    strbuf_free(&out);
    free(all);
    return st;
}

static int run(void *ctx, Comm *comm, Status *st, Err *e)
{
    *st = one(ctx, comm, e);
    return *st == ST_OK ? 0 : 1;
}

static Status finish(BenchCommand *b, Err *e)
{
    EngineConfig *g = &b->config.engine;
    JobOptions *w = &b->words;
    if (!b->config.shape == !b->config.load)
        return err_set(e, ST_USAGE, "either --shape NAME or --load DIR is needed");
    return precision_parse(w->activations, NULL, NULL, w->kv_dtype, w->quantize,
                           w->quantize_experts_only, &g->precision, e);
}

static void help(const Option *options, size_t n)
{
    puts("Usage: [mpirun -n RANKS] moebatch bench --shape NAME [options], or --load DIR\n\n"
         "--shape: runs a whole job in memory on a model of that shape with random weights, and "
         "prints\ntokens per second, seconds and what they would be at the limits of memory and "
         "products, which\nare measured first. --load: loads a checkpoint, beside reading its "
         "files and uploading.\nExit: 0, 2 usage, 1 failure. Shapes:");
    for (int i = 0; synthetic_shape(i); i++)
        printf("%s%s%s", i % 5 == 0 ? "  " : " ", synthetic_shape(i),
               !synthetic_shape(i + 1) || i % 5 == 4 ? "\n" : ",");
    putchar('\n');
    options_print(options, n);
}

int cmd_bench(int argc, char **argv)
{
    Err e;
    bool asks;
    BenchCommand b = {.config = {.prompt_tokens = 1024, .output_tokens = 1024}};
    BenchConfig *c = &b.config;
    EngineConfig *g = &c->engine;
    job_options_init(&b.words);
    *g = b.words.job.engine;
    const Option options[] = {
        {"--shape", NULL, OPTION_TEXT, &c->shape, NULL, 0, 0, "NAME", "the model to run"},
        {"--load", NULL, OPTION_TEXT, &c->load, NULL, 0, 0, "DIR", "the checkpoint to load"},
        {"--layers", NULL, OPTION_INT, &c->n_layers, NULL, 1, 1000, "N",
         "fewer or more of them than published"},
        {"--prompt-tokens", NULL, OPTION_INT, &c->prompt_tokens, NULL, 1, 1 << 20, "N",
         "of a sequence (1024)"},
        {"--output-tokens", NULL, OPTION_INT, &c->output_tokens, NULL, 1, 1 << 20, "N",
         "of a sequence (1024)"},
        {"--batch", NULL, OPTION_INT, &c->batch, NULL, 1, 65536, "N",
         "sequences in flight per rank (what fits; CPU: 32)"},
        {"--sequences", NULL, OPTION_INT, &c->sequences, NULL, 1, 1 << 24, "N",
         "per rank (as many as in flight)"},
        {"--prefill-chunk", NULL, OPTION_INT, &g->prefill_chunk, NULL, 1, 1 << 20, "N",
         "prompt tokens per rank and step (512; GPU: 8192)"},
        {"--threads", NULL, OPTION_INT, &g->threads, NULL, 1, 1024, "N",
         "per rank (default: cores / ranks of the node)"},
        {"--activations", NULL, OPTION_TEXT, &b.words.activations, NULL, 0, 0, "MODE",
         "none, stored (as the shape declares), native"},
        {"--kv-dtype", NULL, OPTION_TEXT, &b.words.kv_dtype, NULL, 0, 0, "TYPE",
         "fp32, bf16, fp8, nvfp4 (default: fp32 on the CPU)"},
        {"--quantize", NULL, OPTION_TEXT, &b.words.quantize, NULL, 0, 0, "FORMAT",
         "plain weights, at load: nvfp4, mxfp4, ..."},
        {"--quantize-experts-only", NULL, OPTION_FLAG, &b.words.quantize_experts_only, NULL, 0, 0,
         NULL, "leave everything but routed experts as it is"},
        {"--exchange-memory", NULL, OPTION_SIZE, &g->round_bytes, NULL, 0, 0, "SIZE",
         "rows that meet in a round, per rank (256M; GPU 2G)"},
        {"--backend", NULL, OPTION_TEXT, &g->backend, NULL, 0, 0, "NAME",
         "auto (a GPU for each rank, else cpu), cpu, cuda"},
        {"--share-gpu", NULL, OPTION_FLAG, &g->share_gpu, NULL, 0, 0, NULL,
         "allow several ranks on one GPU (slow, for tests)"},
        {"--isa", NULL, OPTION_TEXT, &g->isa, NULL, 0, 0, "LEVEL", "auto, scalar, avx2, avx512"},
        {"--json", NULL, OPTION_FLAG, &b.json, NULL, 0, 0, NULL, "for programs"},
    };
    size_t n = sizeof options / sizeof *options;
    Status st = options_parse(options, n, argc, argv, NULL, 0, NULL, &asks, &e);
    if (st == ST_OK && asks) {
        help(options, n);
        return 0;
    }
    if (st == ST_OK)
        st = finish(&b, &e);
    return st == ST_OK ? app_with_ranks(argc, argv, run, &b) : app_usage("bench", &e);
}
