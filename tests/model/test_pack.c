/* tests/model/test_pack.c - a pack holds what its directory held, lies as its readers expect,
 * and is refused when anything in it was altered or cut. */
#include "io/h5.h"
#include "model/kept.h"
#include "model/pack.h"
#include "model/weights.h"
#include "tests/support/check.h"
#include "tests/support/temp_dir.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char PACK[] = "model.h5";
static const BackendOps *ops;
static Backend *backend;
static Comm comm;
static char model[600]; /* the story teller: gpt_oss, MXFP4, with a tokenizer */

static Status load(const char *from, Err *e)
{
    Arch arch = {0};
    GenerationDefaults generation;
    Placement placement = {0};
    Weights w = {0};
    Status st = arch_load(from, NULL, 0, &arch, &generation, e);
    if (st == ST_OK)
        st = placement_create(&placement, arch.router.n_experts, 1, e);
    WeightsConfig config = {from, NULL, &arch, &(Precision){0}, &placement, 0, ops, backend, NULL};
    if (st == ST_OK)
        st = weights_load(&config, &w, e);
    weights_free(&w);
    placement_free(&placement);
    arch_free(&arch);
    return st;
}

static Status make(const char *from, const char *to, Err *e)
{
    Arch arch = {0};
    GenerationDefaults generation;
    PackReport report;
    Status st = arch_load(from, NULL, 0, &arch, &generation, e);
    if (st == ST_OK)
        st = pack_write(from, &arch, ops, backend, &comm, to, &report, e);
    arch_free(&arch);
    return st;
}

/* As h5ls and h5py see it. */
static int test_what_it_shows(void)
{
    int failed = 0, n;
    Err e;
    H5In *h;
    H5Place place;
    char **names, text[400];
    int64_t cols;
    if (check_int("open", h5_open(PACK, &h, &e), ST_OK))
        return 1;
    failed += check_int("files", h5_names(h, "/files", &names, &n, &e), ST_OK);
    failed += check_true("config.json", n > 3 && strcmp(names[1], "config.json") == 0);
    free(names);
    failed += check_int("banks", h5_names(h, "/banks", &names, &n, &e), ST_OK);
    failed += check_int("banks: embedding, head, and five of each layer", n, 2 + 4 * 5);
    for (int i = 0; i < n; i++) {
        char object[300];
        snprintf(object, sizeof object, "/banks/%s", names[i]);
        failed += check_int(object, h5_find(h, object, &place, &e), ST_OK);
        failed += check_int(object, (int64_t)(place.offset % H5_ALIGN), 0);
        failed += check_int(object, place.rank, 2);
        failed += check_int(object, place.dims[0], strstr(names[i], "experts") ? 16 : 1);
    }
    free(names);
    const char *bank = "/banks/layers.0.experts.gate_up";
    failed += check_int("holds", h5_get_text(h, bank, "holds", text, sizeof text, &e), ST_OK);
    failed += check_has("holds", text, "[256, 256] mxfp4, e8m0 scales of 32 columns; [256, 256]");
    failed += check_int("cols", h5_get_int64(h, bank, "cols", &cols, 1, &e), ST_OK);
    failed += check_int("cols", cols, 256);
    failed += check_int("no such", h5_get_int64(h, bank, "columns", &cols, 1, &e), ST_IO);
    failed += check_int("no such", h5_find(h, "/banks/nothing", &place, &e), ST_IO);
    failed += check_int("layout", h5_get_text(h, "/", "layout", text, sizeof text, &e), ST_OK);
    failed += check_true("layout", strcmp(text, ops->weight_layout(backend)) == 0);
    h5_close(h);
    return failed;
}

/* Tensor by tensor, byte by byte, twice with the memory given back between. */
static int test_tensors(void)
{
    int failed = 0;
    Err e;
    TensorSet dir, pack;
    if (check_int("directory", tensor_set_open(model, &dir, &e), ST_OK) ||
        check_int("pack", tensor_set_open(PACK, &pack, &e), ST_OK))
        return 1;
    failed += check_int("tensors", pack.n, dir.n);
    int64_t n_places, n_banked = 0;
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < dir.n; i++) {
            const TensorEntry *want = dir.entries[i], *t = tensor_set_find(&pack, want->name);
            if (!t) {
                failed += check_true(want->name, false);
                continue;
            }
            failed += check_int(want->name, kept_need(&pack, t, &e), ST_OK);
            failed +=
                check_true(want->name, t->bytes == want->bytes &&
                                           memcmp(t->data, want->data, (size_t)t->bytes) == 0);
            n_banked += tensor_set_places(&pack, t, &n_places) != NULL;
            kept_drop(&pack, t);
        }
    /* embedding, head; q, k, v, o, router, gate_up and down of four layers */
    failed += check_int("tensors in banks", n_banked, 2 * (2 + 4 * 7));
    tensor_set_close(&pack);
    tensor_set_close(&dir);
    return failed;
}

static void flip(const char *path, uint64_t at)
{
    uint8_t byte = 0;
    int fd = open(path, O_RDWR);
    if (fd < 0 || pread(fd, &byte, 1, (off_t)at) != 1)
        exit(1);
    byte ^= 0x10;
    if (pwrite(fd, &byte, 1, (off_t)at) != 1 || close(fd) != 0)
        exit(1);
}

/* Everything that a command reads, one byte at a time. */
static int test_altered(void)
{
    int failed = 0;
    Err e;
    PackFile pack;
    H5In *h;
    H5Place place;
    char *text;
    size_t len;
    uint64_t at[64];
    const char *says[64];
    int n = 0;
    if (check_int("open", pack_file_open(PACK, &pack, &e), ST_OK))
        return 1;
    for (int i = 0; i < pack.n_banks; i++) { /* of the last matrix, somewhere */
        const PackBank *b = &pack.banks[i];
        at[n] = b->offset + (uint64_t)((b->n_mats - 1) * b->mat_bytes + (97 * i) % b->mat_bytes);
        says[n++] = "have been altered";
    }
    const uint8_t *base = pack.map.data;
    at[n] = (uint64_t)(pack.parts[0].header - base) + 100;
    says[n++] = "its header has been altered";
    at[n] = (uint64_t)(pack.parts[0].crc - base) + 5;
    says[n++] = "its header has been altered";
    at[n] = (uint64_t)(pack.parts[0].data - base); /* of the first tensor that is no matrix */
    says[n++] = "has been altered since it was packed";
    pack_file_close(&pack);
    if (check_int("open", h5_open(PACK, &h, &e), ST_OK))
        return 1;
    failed += check_int("config", h5_find(h, "/files/config.json", &place, &e), ST_OK);
    at[n] = place.offset + 3;
    says[n++] = "config.json: has been altered";
    h5_close(h);
    for (int i = 0; i < n; i++) {
        char name[64];
        snprintf(name, sizeof name, "byte %llu", (unsigned long long)at[i]);
        flip(PACK, at[i]);
        Status st = load(PACK, &e);
        failed += check_true(name, st == ST_INPUT);
        failed += check_has(name, st == ST_OK ? "" : e.text, says[i]);
        flip(PACK, at[i]);
    }
    failed += check_int("as it was", load(PACK, &e), ST_OK);
    failed +=
        check_int("no such file", file_read("model.h5/vocab.txt", 100, &text, &len, &e), ST_IO);
    failed += check_true("no such file", !file_exists("model.h5/vocab.txt"));
    failed += check_true("a file", file_exists("model.h5/tokenizer.json"));
    return failed;
}

static int test_cut(void)
{
    int failed = 0;
    Err e;
    struct stat info;
    if (stat(PACK, &info) != 0)
        return 1;
    const long long keep[] = {info.st_size - 1, info.st_size / 2, 4096, 100, 9, 0};
    for (size_t i = 0; i < sizeof keep / sizeof *keep; i++) {
        char name[64];
        snprintf(name, sizeof name, "cut to %lld bytes", keep[i]);
        temp_dir_put("cut.h5", "", 0);
        FileMap whole;
        failed += check_int(name, file_map(PACK, &whole, &e), ST_OK);
        temp_dir_put("cut.h5", whole.data, (size_t)keep[i]);
        file_unmap(&whole);
        failed += check_true(name, load("cut.h5", &e) != ST_OK);
    }
    temp_dir_put("other.h5", "not HDF5 at all", 15);
    failed += check_true("no HDF5", load("other.h5", &e) != ST_OK);
    H5Out *out;
    failed += check_int("other", h5_create("other.h5", &out, &e), ST_OK);
    failed += check_int("other", h5_commit(out, &e), ST_OK);
    TensorSet set;
    failed += check_int("no pack", tensor_set_open("other.h5", &set, &e), ST_INPUT);
    failed += check_has("no pack", e.text, "other.h5: is no model pack of version 1");
    return failed;
}

/* A pack that cannot be finished leaves nothing; a pack of a pack has no purpose. */
static int test_refused(void)
{
    int failed = 0;
    Err e;
    char *config;
    size_t len;
    char path[700];
    snprintf(path, sizeof path, "%s/config.json", model);
    failed += check_int("config", file_read(path, 1 << 20, &config, &len, &e), ST_OK);
    temp_dir_fresh("empty");
    temp_dir_put("empty/config.json", config, len);
    free(config);
    failed += check_int("no weights", make("empty", "new.h5", &e), ST_IO);
    failed += check_true("no weights", !file_exists("new.h5") && !file_exists("new.h5.tmp"));
    failed += check_int("of a pack", make(PACK, "new.h5", &e), ST_USAGE);
    failed += check_has("of a pack", e.text, "is a pack already");
    failed += check_true("nowhere", make(model, "no/such/place.h5", &e) != ST_OK);
    failed += check_true("nowhere", !file_exists("no/such/place.h5"));
    return failed;
}

int main(int argc, char **argv)
{
    int failed = 0;
    Err e;
    const char *source = getenv("SOURCE");
    char digest[2][65];
    snprintf(model, sizeof model, "%s/tests/data/storyteller", source ? source : ".");
    if (comm_start(&argc, &argv, &comm, &e) != ST_OK)
        return 1;
    ops = backend_find("cpu");
    BackendConfig config = {.isa = isa_best()};
    if (ops->create(&config, &backend, &e) != ST_OK)
        return 1;
    if (source && source[0] != '/')
        return 1;
    temp_dir_enter();
    failed += check_int("pack", make(model, PACK, &e), ST_OK);
    if (!failed) {
        failed += check_int("load", load(PACK, &e), ST_OK);
        failed += check_int("digest", weights_digest(model, digest[0], &e), ST_OK);
        failed += check_int("digest", weights_digest(PACK, digest[1], &e), ST_OK);
        failed += check_true("a pack is its model", strcmp(digest[0], digest[1]) == 0);
        failed +=
            test_what_it_shows() + test_tensors() + test_altered() + test_cut() + test_refused();
    }
    ops->destroy(backend);
    comm_end(&comm);
    return test_result(failed);
}
