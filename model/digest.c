/* model/digest.c - which model, and which tokenizer, a job ran with; see weights.h.
 *
 * Reading every byte of a large checkpoint would take longer than many jobs. So all small files and
 * headers are digested whole, and of every tensor a fixed sample: retrained or requantized weights
 * differ nearly everywhere. */
#include "io/digest.h"
#include "io/file.h"
#include "io/tensor_set.h"
#include "io/tokenizer.h"
#include "model/weights.h"

#include <stdlib.h>
#include <string.h>

enum { SMALL_FILE_BYTES = 256 << 20, SAMPLE_BYTES = 64, N_SAMPLES = 8 };

static Status add_u64(Sha256 *s, uint64_t v, Err *e)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(v >> 8 * i);
    return sha256_add(s, bytes, sizeof bytes, e);
}

/* Length and bytes, so that no two lists of pieces run together. */
static Status add_piece(Sha256 *s, const void *bytes, size_t len, Err *e)
{
    TRY(add_u64(s, len, e));
    return sha256_add(s, bytes, len, e);
}

/* Name and contents; a file that is not there adds nothing, and so differs from an empty one. */
static Status add_file(Sha256 *s, const char *dir, const char *name, Err *e)
{
    char path[FILE_PATH_MAX], *text;
    size_t len;
    TRY(file_join(path, dir, name, e));
    if (!file_exists(path))
        return ST_OK;
    TRY(file_read(path, SMALL_FILE_BYTES, &text, &len, e));
    Status st = add_piece(s, name, strlen(name), e);
    if (st == ST_OK)
        st = add_piece(s, text, len, e);
    free(text);
    return st;
}

/* The vocabulary where it is not in tokenizer.json, which the lists below have. */
static Status add_ranks(Sha256 *s, const char *dir, Err *e)
{
    char name[TOKENIZER_NAME_MAX];
    TRY(tokenizer_vocab_file(dir, name, e));
    return *name && strcmp(name, "tokenizer.json") != 0 ? add_file(s, dir, name, e) : ST_OK;
}

static Status add_files(Sha256 *s, const char *dir, const char *const *names, size_t n, Err *e)
{
    for (size_t i = 0; i < n; i++)
        TRY(add_file(s, dir, names[i], e));
    return ST_OK;
}

/* The first and the last bytes, and pieces at fixed fractions between; all of a small tensor. */
static Status add_sample(Sha256 *s, const TensorEntry *t, Err *e)
{
    if (t->bytes <= SAMPLE_BYTES * N_SAMPLES)
        return add_piece(s, t->data, (size_t)t->bytes, e);
    for (int i = 0; i < N_SAMPLES; i++) {
        int64_t at = (t->bytes - SAMPLE_BYTES) / (N_SAMPLES - 1) * i;
        if (i == N_SAMPLES - 1)
            at = t->bytes - SAMPLE_BYTES;
        TRY(add_piece(s, t->data + at, SAMPLE_BYTES, e));
    }
    return ST_OK;
}

/* Parts in the order of their names, whatever the order in the index. */
static int by_name(const void *a, const void *b)
{
    return strcmp((*(const TensorPart *const *)a)->name, (*(const TensorPart *const *)b)->name);
}

static Status add_part(Sha256 *s, const TensorPart *p, Err *e)
{
    TRY(add_piece(s, p->name, strlen(p->name), e));
    TRY(add_u64(s, p->map.len, e));
    TRY(add_piece(s, p->map.data, (size_t)p->header.header_bytes, e));
    for (int i = 0; i < p->header.n; i++)
        TRY(add_sample(s, &p->header.entries[i], e));
    return ST_OK;
}

static Status add_tensors(Sha256 *s, const char *dir, Err *e)
{
    TensorSet set;
    TRY(tensor_set_open(dir, &set, e));
    Status st = ST_OK;
    const TensorPart **order = malloc((size_t)set.n_parts * sizeof *order);
    if (!order)
        st = err_set(e, ST_MEMORY, "not enough memory for %d parts", set.n_parts);
    for (int i = 0; order && i < set.n_parts; i++)
        order[i] = &set.parts[i];
    if (order)
        qsort(order, (size_t)set.n_parts, sizeof *order, by_name);
    for (int i = 0; order && i < set.n_parts && st == ST_OK; i++)
        st = add_part(s, order[i], e);
    free(order);
    tensor_set_close(&set);
    return st;
}

static Status finish(Sha256 *s, char *hex, Err *e)
{
    uint8_t sum[32];
    TRY(sha256_end(s, sum, e));
    hex_of(sum, sizeof sum, hex);
    return ST_OK;
}

/* A pack is the model that it was made from. */
static Status digest_of_pack(const char *path, char *hex, Err *e)
{
    PackFile pack;
    TRY(pack_file_open(path, &pack, e));
    memcpy(hex, pack.model_digest, sizeof pack.model_digest);
    pack_file_close(&pack);
    return ST_OK;
}

Status weights_digest(const char *dir, char *hex, Err *e)
{
    static const char *const names[] = {
        "config.json",    "hf_quant_config.json",  "generation_config.json",
        "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};
    Sha256 *s;
    if (pack_file_is(dir))
        return digest_of_pack(dir, hex, e);
    TRY(sha256_create(&s, e));
    Status st;
    TRY_GOTO(add_files(s, dir, names, sizeof names / sizeof *names, e));
    TRY_GOTO(add_ranks(s, dir, e));
    TRY_GOTO(add_tensors(s, dir, e));
    st = finish(s, hex, e);
fail:
    sha256_free(s);
    return st;
}

Status tokenizer_digest(const char *dir, char *hex, Err *e)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                        "generation_config.json"};
    Sha256 *s;
    TRY(sha256_create(&s, e));
    Status st;
    TRY_GOTO(add_files(s, dir, names, sizeof names / sizeof *names, e));
    TRY_GOTO(add_ranks(s, dir, e));
    st = finish(s, hex, e);
fail:
    sha256_free(s);
    return st;
}
