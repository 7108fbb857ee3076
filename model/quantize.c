/* model/quantize.c - see quantize.h. */
#include "model/quantize.h"

#include "io/digest.h"
#include "io/durable.h"
#include "io/log.h"
#include "io/side_files.h"
#include "model/quantize_config.h"
#include "model/quantize_write.h"
#include "model/weights.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct Run {
    const QuantizeJob *job;
    Arch arch;
    Checkpoint source;
    QuantizeRules rules;
    QuantizePlan plan;
    StrBuf config, hf_quant, index;
    QuantizeCounts counts;
    int n_kept;
} Run;

/* --- what is to be done --- */

static Status add_text(Sha256 *s, const char *text, Err *e)
{
    return sha256_add(s, text, strlen(text) + 1, e);
}

static Status add_rules(Sha256 *s, const QuantizeRules *r, Err *e)
{
    for (int i = 0; i < r->n; i++) {
        char group[24];
        snprintf(group, sizeof group, "%d", r->rules[i].group);
        TRY(add_text(s, r->rules[i].match, e));
        TRY(add_text(s, quantize_target(r->rules[i].target)->name, e));
        TRY(add_text(s, group, e));
    }
    return ST_OK;
}

static Status add_seen(Sha256 *s, const Observer *o, Err *e)
{
    for (int i = 0; o && i < o->n_layers; i++) {
        const LayerSeen *l = &o->layers[i];
        const float values[] = {l->attn_in,     l->q_low,        l->latent, l->attn_out, l->ffn_in,
                                l->dense_inner, l->shared_inner, l->key,    l->value};
        TRY(sha256_add(s, values, sizeof values, e));
        TRY(sha256_add(s, l->expert_in, (size_t)o->n_experts * sizeof(float), e));
        TRY(sha256_add(s, l->expert_inner, (size_t)o->n_experts * sizeof(float), e));
    }
    return o ? sha256_add(s, &o->head_in, sizeof o->head_in, e) : ST_OK;
}

/* All that the tensors depend on; hex[65]. */
static Status identify(const Run *r, char *hex, Err *e)
{
    char source[65];
    uint8_t sum[32];
    Sha256 *s;
    TRY(weights_digest(r->job->model, source, e));
    TRY(sha256_create(&s, e));
    Status st;
    TRY_GOTO(add_text(s, "moebatch quantize 1", e));
    TRY_GOTO(add_text(s, source, e));
    TRY_GOTO(add_rules(s, &r->rules, e));
    TRY_GOTO(add_seen(s, r->job->seen, e));
    TRY_GOTO(sha256_end(s, sum, e));
    hex_of(sum, sizeof sum, hex);
fail:
    sha256_free(s);
    return st;
}

static Status open_source(Run *r, Err *e)
{
    const QuantizeJob *job = r->job;
    const Observer *seen = job->seen;
    GenerationDefaults generation;
    TRY(arch_load(job->model, job->accept_keys, job->n_accept_keys, &r->arch, &generation, e));
    TRY(checkpoint_open(job->model, &r->arch, &r->source, e));
    if (seen && (seen->n_layers < r->arch.n_layers || seen->n_experts < r->arch.router.n_experts))
        return err_set(e, ST_USAGE, "calibrated with a model of %d layers and %d experts",
                       seen->n_layers, seen->n_experts);
    return quantize_rules_load(job->recipe, job->experts_only, job->seen || job->will_calibrate,
                               &r->rules, e);
}

static Status make_request(Run *r, PlanRequest *out, Err *e)
{
    const QuantizeJob *job = r->job;
    *out = (PlanRequest){.source = &r->source,
                         .arch = &r->arch,
                         .rules = &r->rules,
                         .seen = job->seen,
                         .will_calibrate = job->will_calibrate,
                         .part_bytes = job->part_bytes,
                         .kv_fp8 = r->rules.kv_given ? r->rules.kv_fp8 : job->kv_fp8};
    if (job->kv_given)
        out->kv_fp8 = job->kv_fp8;
    if (out->kv_fp8 && !job->seen && !job->will_calibrate)
        return err_set(e, ST_USAGE, "scales of the KV cache need --calibrate");
    return ST_OK;
}

static Status check_plan(Run *r, Err *e)
{
    PlanRequest request;
    TRY(open_source(r, e));
    TRY(make_request(r, &request, e));
    return quantize_plan_check(&request, e);
}

static Status make_plan(Run *r, Err *e)
{
    PlanRequest request;
    char identity[65];
    TRY(open_source(r, e));
    TRY(make_request(r, &request, e));
    TRY(identify(r, identity, e));
    request.identity = identity;
    return quantize_plan_make(&request, &r->plan, e);
}

static Status make_configs(Run *r, Err *e)
{
    char path[FILE_PATH_MAX], *text;
    size_t len;
    TRY(file_join(path, r->job->model, "config.json", e));
    TRY(file_read(path, SIDE_FILE_MAX, &text, &len, e));
    Status st = quantize_config(&r->plan, &r->source, text, len, &r->config, &r->hf_quant, e);
    free(text);
    if (st != ST_OK)
        return err_in(e, "%.300s", path);
    if (r->plan.n_parts > 1)
        quantize_index(&r->plan, &r->index);
    return r->index.failed ? err_set(e, ST_MEMORY, "not enough memory for the index") : ST_OK;
}

/* --- the directory --- */

static int part_of(const Run *r, const char *name)
{
    for (int i = 0; i < r->plan.n_parts; i++)
        if (strcmp(r->plan.parts[i].name, name) == 0)
            return i;
    return -1;
}

static Status is_done(const Run *r, int part, bool *done, Err *e)
{
    const PlanPart *p = &r->plan.parts[part];
    char path[FILE_PATH_MAX];
    TRY(file_join(path, r->job->out, p->name, e));
    *done = tensor_file_is(path, &p->header, p->bytes);
    return ST_OK;
}

/* What is in the output directory is of this run, or may be removed. */
static Status check_file(Run *r, const char *name, Err *e)
{
    char path[FILE_PATH_MAX];
    bool ours = false;
    int part = part_of(r, name);
    /* An unfinished part is of no use to anybody. */
    if (!file_name_ends(name, ".safetensors") && !file_name_ends(name, ".safetensors.tmp"))
        return ST_OK;
    if (part >= 0)
        TRY(is_done(r, part, &ours, e));
    if (ours)
        return ST_OK;
    TRY(file_join(path, r->job->out, name, e));
    if (!r->job->overwrite && file_name_ends(name, ".safetensors"))
        return err_set(
            e, ST_INPUT,
            "%.300s: not of this model, recipe and calibration; give an empty directory, "
            "or --overwrite",
            path);
    return unlink(path) == 0 ? ST_OK : err_errno(e, "%.300s", path);
}

static Status check_files(Run *r, Err *e)
{
    const char *dir = r->job->out;
    Status st = ST_OK;
    DIR *d = opendir(dir);
    if (!d)
        return err_errno(e, "%.300s", dir);
    struct dirent *entry;
    while (st == ST_OK && (errno = 0, entry = readdir(d)) != NULL)
        st = check_file(r, entry->d_name, e);
    if (st == ST_OK && errno != 0)
        st = err_errno(e, "%.300s", dir);
    closedir(d);
    return st;
}

static Status make_directory(const Run *r, Err *e)
{
    struct stat in, out;
    if (mkdir(r->job->out, 0777) != 0 && errno != EEXIST)
        return err_errno(e, "%.300s", r->job->out);
    if (stat(r->job->model, &in) != 0)
        return err_errno(e, "%.300s", r->job->model);
    if (stat(r->job->out, &out) != 0)
        return err_errno(e, "%.300s", r->job->out);
    if (in.st_dev == out.st_dev && in.st_ino == out.st_ino)
        return err_set(e, ST_USAGE, "%.300s: is the model itself", r->job->out);
    return S_ISDIR(out.st_mode) ? ST_OK
                                : err_set(e, ST_USAGE, "%.300s: is no directory", r->job->out);
}

static Status prepare_directory(Run *r, Err *e)
{
    char path[FILE_PATH_MAX];
    TRY(make_directory(r, e));
    TRY(check_files(r, e));
    TRY(file_join(path, r->job->out, "config.json", e));
    /* Until all parts are there, nobody should take this for a checkpoint. */
    bool all = true;
    for (int i = 0; i < r->plan.n_parts && all; i++)
        TRY(is_done(r, i, &all, e));
    if (!all && unlink(path) != 0 && errno != ENOENT)
        return err_errno(e, "%.300s", path);
    return ST_OK;
}

static Status copy_file(const Run *r, const char *name, Err *e)
{
    char from[FILE_PATH_MAX], to[FILE_PATH_MAX], *text;
    size_t len;
    TRY(file_join(from, r->job->model, name, e));
    TRY(file_join(to, r->job->out, name, e));
    TRY(file_read(from, SIDE_FILE_MAX, &text, &len, e));
    Status st = durable_replace(to, text, len, e);
    free(text);
    return st;
}

/* Tokenizer, template and the like; the new checkpoint has a configuration of its own. */
static Status copy_files(const Run *r, Err *e)
{
    char **names;
    int n;
    TRY(side_files_list(r->job->model, &names, &n, e));
    Status st = ST_OK;
    for (int i = 0; i < n && st == ST_OK; i++)
        if (strcmp(names[i], "config.json") != 0 && strcmp(names[i], "hf_quant_config.json") != 0)
            st = copy_file(r, names[i], e);
    free(names);
    return st;
}

/* The text as a file, or no file where the text is empty. */
static Status put_text(const Run *r, const char *name, const StrBuf *text, Err *e)
{
    char path[FILE_PATH_MAX];
    TRY(file_join(path, r->job->out, name, e));
    if (text->len > 0)
        return durable_replace(path, text->data, text->len, e);
    return unlink(path) == 0 || errno == ENOENT ? ST_OK : err_errno(e, "%.300s", path);
}

static Status finish_directory(Run *r, Err *e)
{
    TRY(copy_files(r, e));
    TRY(put_text(r, "model.safetensors.index.json", &r->index, e));
    TRY(put_text(r, "hf_quant_config.json", &r->hf_quant, e));
    return put_text(r, "config.json", &r->config, e);
}

/* --- the parts --- */

static Status write_parts(Run *r, const Comm *comm, Err *e)
{
    for (int i = comm->rank; i < r->plan.n_parts; i += comm->size) {
        bool done;
        TRY(is_done(r, i, &done, e));
        r->n_kept += done;
        if (done)
            continue;
        TRY(quantize_write_part(&r->plan, i, &r->source, r->job->out, r->job->team, &r->counts, e));
        if (!r->job->quiet)
            log_note("%s written, %d of %d: %lld MB", r->plan.parts[i].name, i + 1, r->plan.n_parts,
                     (long long)(r->plan.parts[i].bytes / 1000000));
    }
    return ST_OK;
}

static Status sum_up(const Run *r, Comm *comm, QuantizeResult *out, Err *e)
{
    int64_t sums[] = {r->counts.matrices, r->counts.bytes_read, r->counts.bytes_written,
                      r->counts.not_lossless, r->n_kept};
    TRY(comm_sum_int64(comm, sums, sizeof sums / sizeof *sums, e));
    *out = (QuantizeResult){.matrices = sums[0],
                            .bytes_read = sums[1],
                            .bytes_written = sums[2],
                            .not_lossless = sums[3],
                            .parts = r->plan.n_parts,
                            .parts_kept = (int)sums[4],
                            .tensor_bytes = r->plan.tensor_bytes,
                            .unseen_experts = r->plan.n_unseen_experts};
    for (int i = 0; i < r->source.files.n; i++)
        out->source_bytes += r->source.files.entries[i]->bytes;
    return ST_OK;
}

static void close_run(Run *r)
{
    quantize_plan_free(&r->plan);
    quantize_rules_free(&r->rules);
    checkpoint_close(&r->source);
    arch_free(&r->arch);
    strbuf_free(&r->config);
    strbuf_free(&r->hf_quant);
    strbuf_free(&r->index);
}

Status quantize_check(const QuantizeJob *job, Comm *comm, Err *e)
{
    Run r = {.job = job};
    Status st = dist_agree(comm, check_plan(&r, e), e);
    if (st == ST_OK)
        st = dist_agree(comm, comm->rank == 0 ? make_directory(&r, e) : ST_OK, e);
    close_run(&r);
    return st;
}

Status quantize_run(const QuantizeJob *job, Comm *comm, QuantizeResult *out, Err *e)
{
    Run r = {.job = job};
    *out = (QuantizeResult){0};
    Status st = make_plan(&r, e);
    if (st == ST_OK)
        st = make_configs(&r, e);
    TRY_GOTO(dist_agree(comm, st, e));
    TRY_GOTO(dist_agree(comm, comm->rank == 0 ? prepare_directory(&r, e) : ST_OK, e));
    TRY_GOTO(dist_agree(comm, write_parts(&r, comm, e), e));
    TRY_GOTO(dist_agree(comm, comm->rank == 0 ? finish_directory(&r, e) : ST_OK, e));
    st = sum_up(&r, comm, out, e);
fail:
    close_run(&r);
    return st;
}
