/* jobs/metrics.c - see metrics.h. */
#include "jobs/metrics.h"

#include "io/durable.h"

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* One table says what a rank reports, for its own object and for the sum over ranks. */
static const struct {
    const char *name;
    size_t offset;
    bool seconds; /* a double, else an int64_t */
    enum { IN_RANK, IN_PHASES, IN_PARTS } where;
} fields[] = {
    {"start_s", offsetof(RankMetrics, start_s), true, IN_PHASES},
    {"input_s", offsetof(RankMetrics, input_s), true, IN_PHASES},
    {"load_s", offsetof(RankMetrics, load_s), true, IN_PHASES},
    {"run_s", offsetof(RankMetrics, run_s), true, IN_PHASES},
    {"finish_s", offsetof(RankMetrics, finish_s), true, IN_PHASES},
    {"embed_s", offsetof(RankMetrics, embed_s), true, IN_PARTS},
    {"attention_s", offsetof(RankMetrics, attention_s), true, IN_PARTS},
    {"router_s", offsetof(RankMetrics, router_s), true, IN_PARTS},
    {"dispatch_s", offsetof(RankMetrics, dispatch_s), true, IN_PARTS},
    {"experts_s", offsetof(RankMetrics, experts_s), true, IN_PARTS},
    {"combine_s", offsetof(RankMetrics, combine_s), true, IN_PARTS},
    {"head_s", offsetof(RankMetrics, head_s), true, IN_PARTS},
    {"sample_s", offsetof(RankMetrics, sample_s), true, IN_PARTS},
    {"schedule_s", offsetof(RankMetrics, schedule_s), true, IN_PARTS},
    {"rows", offsetof(RankMetrics, rows), false, IN_RANK},
    {"rows_failed", offsetof(RankMetrics, rows_failed), false, IN_RANK},
    {"prompt_tokens", offsetof(RankMetrics, prompt_tokens), false, IN_RANK},
    {"output_tokens", offsetof(RankMetrics, output_tokens), false, IN_RANK},
    {"preemptions", offsetof(RankMetrics, preemptions), false, IN_RANK},
    {"loaded_bytes", offsetof(RankMetrics, loaded_bytes), false, IN_RANK},
    {"kv_bytes", offsetof(RankMetrics, kv_bytes), false, IN_RANK},
    {"dispatch_bytes", offsetof(RankMetrics, dispatch_bytes), false, IN_RANK},
    {"combine_bytes", offsetof(RankMetrics, combine_bytes), false, IN_RANK},
    {"n_rounds", offsetof(RankMetrics, n_rounds), false, IN_RANK},
    {"peak_rss_bytes", offsetof(RankMetrics, peak_rss_bytes), false, IN_RANK},
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static double value_of(const RankMetrics *r, int field)
{
    const char *at = (const char *)r + fields[field].offset;
    double seconds;
    int64_t count;
    memcpy(&seconds, at, sizeof seconds);
    memcpy(&count, at, sizeof count);
    return fields[field].seconds ? seconds : (double)count;
}

/* Every cJSON call below gives NULL or false when memory is short; *ok keeps that until the end. */
static void put_number(cJSON *o, const char *name, double v, bool *ok)
{
    *ok = *ok && cJSON_AddNumberToObject(o, name, v);
}

static void put_string(cJSON *o, const char *name, const char *v, bool *ok)
{
    *ok = *ok && (v ? cJSON_AddStringToObject(o, name, v) : cJSON_AddNullToObject(o, name));
}

/* The largest over ranks for what they do side by side, since the slowest decides; their sum for
 * counts. */
static double over_ranks(const JobMetrics *m, int field)
{
    double all = 0;
    for (int r = 0; r < m->n_ranks; r++) {
        double v = value_of(&m->ranks[r], field);
        all = !fields[field].seconds ? all + v : v > all ? v : all;
    }
    return all;
}

static double named(const JobMetrics *m, const char *name)
{
    int field = 0;
    while (field < N_FIELDS - 1 && strcmp(fields[field].name, name) != 0)
        field++;
    return over_ranks(m, field);
}

static void put_job(cJSON *o, const JobMetrics *m, bool *ok)
{
    put_string(o, "version", m->version, ok);
    put_string(o, "backend", m->backend, ok);
    put_string(o, "isa", m->isa, ok);
    put_string(o, "model", m->model, ok);
    put_string(o, "input", m->input, ok);
    put_string(o, "output", m->out, ok);
    put_number(o, "run", m->run, ok);
    *ok = *ok && cJSON_AddBoolToObject(o, "stopped", m->stopped);
    put_number(o, "n_ranks", m->n_ranks, ok);
    put_number(o, "rows", (double)m->rows, ok);
    put_number(o, "rows_done", (double)m->rows_done, ok);
    put_number(o, "rows_failed", (double)m->rows_failed, ok);
    put_number(o, "rows_resumed", (double)m->rows_resumed, ok);
    put_number(o, "steps", (double)m->steps, ok);
    put_number(o, "idle_steps", (double)m->idle_steps, ok);
    put_number(o, "wall_s", m->wall_s, ok);
    double run_s = named(m, "run_s"), in = named(m, "prompt_tokens"),
           out = named(m, "output_tokens");
    put_number(o, "prompt_tokens", in, ok);
    put_number(o, "output_tokens", out, ok);
    put_number(o, "prompt_tok_per_s", run_s > 0 ? in / run_s : 0, ok);
    put_number(o, "output_tok_per_s", run_s > 0 ? out / run_s : 0, ok);
    double loaded = named(m, "loaded_bytes"), load_s = named(m, "load_s");
    put_number(o, "loaded_bytes", loaded, ok);
    put_number(o, "loaded_bytes_per_s", load_s > 0 ? loaded / load_s : 0, ok);
    put_number(o, "exchanged_bytes", named(m, "dispatch_bytes") + named(m, "combine_bytes"), ok);
}

/* {"start_s": ...} of the slowest rank each. */
static void put_times(cJSON *o, const char *name, const JobMetrics *m, int where, bool *ok)
{
    cJSON *times = cJSON_AddObjectToObject(o, name);
    for (int field = 0; field < N_FIELDS; field++)
        if ((int)fields[field].where == where)
            put_number(times, fields[field].name, over_ranks(m, field), ok);
    *ok = *ok && times;
}

static void put_loads(cJSON *o, const JobMetrics *m, bool *ok)
{
    cJSON *layers = cJSON_AddArrayToObject(o, "expert_load");
    *ok = *ok && layers;
    for (int layer = 0; *ok && m->expert_load && layer < m->n_layers; layer++) {
        double sum = 0, most = 0;
        for (int i = 0; i < m->n_experts; i++) {
            double n = (double)m->expert_load[(size_t)layer * (size_t)m->n_experts + (size_t)i];
            sum += n;
            most = n > most ? n : most;
        }
        cJSON *entry = cJSON_CreateObject();
        *ok = entry && cJSON_AddItemToArray(layers, entry);
        if (!*ok) {
            cJSON_Delete(entry);
            return;
        }
        put_number(entry, "layer", layer, ok);
        put_number(entry, "pairs", sum, ok);
        put_number(entry, "max", most, ok);
        if (sum > 0)
            put_number(entry, "max_over_mean", most * m->n_experts / sum, ok);
        else
            put_string(entry, "max_over_mean", NULL, ok);
    }
}

static void put_ranks(cJSON *o, const JobMetrics *m, bool *ok)
{
    cJSON *ranks = cJSON_AddArrayToObject(o, "ranks");
    *ok = *ok && ranks;
    for (int r = 0; *ok && r < m->n_ranks; r++) {
        cJSON *entry = cJSON_CreateObject();
        *ok = entry && cJSON_AddItemToArray(ranks, entry);
        if (!*ok) {
            cJSON_Delete(entry);
            return;
        }
        put_number(entry, "rank", r, ok);
        put_string(entry, "host", m->ranks[r].host, ok);
        put_number(entry, "n_threads", m->ranks[r].n_threads, ok);
        for (int field = 0; field < N_FIELDS; field++)
            put_number(entry, fields[field].name, value_of(&m->ranks[r], field), ok);
    }
}

Status metrics_format(const JobMetrics *m, StrBuf *out, Err *e)
{
    cJSON *o = cJSON_CreateObject();
    bool ok = o != NULL;
    put_job(o, m, &ok);
    put_times(o, "phases", m, IN_PHASES, &ok);
    put_times(o, "parts", m, IN_PARTS, &ok);
    put_loads(o, m, &ok);
    put_ranks(o, m, &ok);
    char *text = ok ? cJSON_Print(o) : NULL;
    cJSON_Delete(o);
    if (text) {
        strbuf_str(out, text);
        strbuf_str(out, "\n");
        cJSON_free(text);
    }
    return text && !out->failed ? ST_OK : err_set(e, ST_MEMORY, "out of memory for the metrics");
}

Status metrics_write(const char *path, const JobMetrics *m, Err *e)
{
    StrBuf text = {.data = NULL};
    Status st = metrics_format(m, &text, e);
    if (st == ST_OK)
        st = durable_replace(path, text.data, text.len, e);
    strbuf_free(&text);
    return st;
}

int64_t metrics_peak_rss(void)
{
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) == 0 ? (int64_t)u.ru_maxrss * 1024 : 0;
}
