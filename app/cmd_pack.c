/* app/cmd_pack.c - moebatch pack: a checkpoint as one file that loads as fast as it is read. */
#include "app/commands.h"
#include "app/job_options.h"
#include "io/file.h"
#include "model/pack.h"

#include <stdio.h>
#include <sys/stat.h>

typedef struct Asked {
    const char *model, *out, *isa;
    int threads;
    bool overwrite;
    OptionList accept;
} Asked;

static Status agree_isa(Comm *comm, const char *name, IsaLevel *out, Err *e)
{
    TRY(dist_agree(comm, isa_parse(name, out, e), e));
    int64_t level = *out;
    TRY(comm_min_int64(comm, &level, 1, e));
    *out = (IsaLevel)level;
    return ST_OK;
}

/* Before hours of packing that could not get this name. */
static Status check_output(const Asked *k, Err *e)
{
    struct stat info;
    if (stat(k->out, &info) == 0 && S_ISDIR(info.st_mode))
        return err_set(e, ST_USAGE, "%s: is a directory, expected the name of a file", k->out);
    if (!k->overwrite && file_exists(k->out))
        return err_set(e, ST_USAGE, "%s: is there already; --overwrite replaces it", k->out);
    return ST_OK;
}

static Status pack(const Asked *k, Comm *comm, PackReport *report, Err *e)
{
    Arch arch = {0};
    GenerationDefaults generation;
    Team *team = NULL;
    Backend *backend = NULL;
    const BackendOps *ops = backend_find("cpu");
    int threads = k->threads ? k->threads : comm->n_cores;
    IsaLevel isa = ISA_SCALAR;
    TRY(agree_isa(comm, k->isa, &isa, e));
    Status st = arch_load(k->model, k->accept.at, k->accept.n, &arch, &generation, e);
    if (st == ST_OK && comm->rank == 0)
        st = check_output(k, e);
    if (st == ST_OK && threads > 1)
        st = team_create(&team, threads, e);
    BackendConfig config = {.team = team, .isa = isa};
    if (st == ST_OK)
        st = ops->create(&config, &backend, e);
    st = dist_agree(comm, st, e);
    if (st == ST_OK)
        st = pack_write(k->model, &arch, ops, backend, comm, k->out, report, e);
    ops->destroy(backend);
    team_destroy(team);
    arch_free(&arch);
    return st;
}

static int run(void *ctx, Comm *comm, Status *st, Err *e)
{
    const Asked *k = ctx;
    PackReport r = {0};
    *st = pack(k, comm, &r, e);
    if (*st == ST_OK && comm->rank == 0)
        printf("%s: %.2f GiB in %.1f s, %.2f GB/s\n", k->out, (double)r.bytes / (1 << 30),
               r.seconds, (double)r.bytes / r.seconds * 1e-9);
    return 0;
}

int cmd_pack(int argc, char **argv)
{
    Asked k = {.isa = "auto"};
    const char *dirs[1] = {NULL};
    bool help = false;
    int n_dirs = 0;
    Err e = {0};
    const Option options[] = {
        {"--model", "-m", OPTION_TEXT, &k.model, NULL, 0, 0, "DIR", "the same as MODEL"},
        {"--output", "-o", OPTION_TEXT, &k.out, NULL, 0, 0, "FILE", "the pack, usually NAME.h5"},
        {"--overwrite", NULL, OPTION_FLAG, &k.overwrite, NULL, 0, 0, NULL, "replace FILE"},
        {"--isa", NULL, OPTION_TEXT, &k.isa, NULL, 0, 0, "LEVEL",
         "whose layout: scalar, avx2, avx512 or auto, the lowest of all ranks' best (auto)"},
        {"--threads", NULL, OPTION_INT, &k.threads, NULL, 1, 1024, "N",
         "of each rank (its share of the cores)"},
        {"--accept-config-key", NULL, OPTION_LIST, &k.accept, NULL, 0, 0, "KEY",
         "go on although config.json has this unknown key"},
    };
    size_t n = sizeof options / sizeof *options;
    Status st = options_parse(options, n, argc, argv, dirs, 1, &n_dirs, &help, &e);
    if (st == ST_OK && help) {
        puts("Usage: [mpirun -n RANKS] moebatch pack MODEL -o FILE [options]\n\n"
             "Writes a checkpoint as one HDF5 file: configuration, tokenizer, and the weights in "
             "the "
             "layout\n"
             "that the kernels read. Wherever a command takes a model's directory it takes FILE, "
             "with the\n"
             "same results; on a processor of another level the weights are put into its layout as "
             "they load.\n");
        options_print(options, n);
        puts("\nExample: mpirun -n 4 moebatch pack MODEL -o model.h5");
        return 0;
    }
    if (st == ST_OK)
        st = app_one_model(&k.model, dirs, n_dirs, &e);
    if (st == ST_OK && !k.out)
        st = err_set(&e, ST_USAGE, "-o FILE is missing");
    return st == ST_OK ? app_with_ranks(argc, argv, run, &k) : app_usage("pack", &e);
}
