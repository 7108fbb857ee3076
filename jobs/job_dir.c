/* jobs/job_dir.c - opening OUT and OUT.job/ before anything expensive, and whose they are. */
#include "jobs/marker.h"

#include "io/clock.h"
#include "io/digest.h"
#include "io/durable.h"
#include "io/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The ranks of a killed mpirun end within 1.5 to 2.7 s by themselves. */
static const double wait_for_dying_s = 5;

/* ---- the output path ---- */

static Status check_parent(const char *out, Err *e)
{
    char dir[JOB_OUT_MAX], real[PATH_MAX];
    struct stat st;
    TRY(path_parent(out, dir, sizeof dir, e));
    if (stat(dir, &st) != 0 || !realpath(dir, real))
        return err_errno(e, "%.300s: its directory", out);
    if (!S_ISDIR(st.st_mode))
        return err_set(e, ST_IO, "%.300s: %.100s is not a directory", out, dir);
    /* /dev/shm is a directory like others; /dev and /proc hold streams, also when they lead to
     * files. */
    if (strcmp(real, "/dev") == 0 || strncmp(real, "/proc/", 6) == 0)
        return err_set(e, ST_USAGE,
                       "%.300s: the output must be a regular file, since it is renamed into place",
                       out);
    if (access(dir, W_OK | X_OK) != 0)
        return err_errno(e, "%.300s: cannot create files in its directory", out);
    return ST_OK;
}

static Status check_out(const char *out, Err *e)
{
    struct stat st;
    size_t len = strlen(out);
    if (len == 0 || strcmp(out, "-") == 0)
        return err_set(e, ST_USAGE, "the output must be a file, since it is renamed into place");
    if (len >= JOB_OUT_MAX)
        return err_set(e, ST_USAGE,
                       "%.100s...: the output's path has %zu bytes, at most %d are possible", out,
                       len, JOB_OUT_MAX - 1);
    if (out[len - 1] == '/')
        return err_set(e, ST_USAGE, "%.300s: the output must be a file, not a directory", out);
    TRY(check_parent(out, e));
    if (lstat(out, &st) != 0)
        return errno == ENOENT ? ST_OK : err_errno(e, "%.300s", out);
    if (S_ISLNK(st.st_mode) && stat(out, &st) != 0)
        return err_set(e, ST_USAGE, "%.300s: a link that leads nowhere", out);
    if (S_ISDIR(st.st_mode))
        return err_set(e, ST_USAGE, "%.300s: the output must be a file, not a directory", out);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ST_USAGE,
                       "%.300s: the output must be a regular file, since it is renamed into place",
                       out);
    return ST_OK;
}

/* ---- the directory, alone in it ---- */

static Status make_dir(const char *dir, bool *made, Err *e)
{
    struct stat st;
    *made = mkdir(dir, 0777) == 0;
    if (!*made && errno != EEXIST)
        return err_errno(e, "%.300s: cannot create the job directory", dir);
    if (stat(dir, &st) != 0)
        return err_errno(e, "%.300s", dir);
    if (!S_ISDIR(st.st_mode))
        return err_set(e, ST_INPUT, "%.300s: is there and is not a job directory", dir);
    if (access(dir, R_OK | W_OK | X_OK) != 0)
        return err_errno(e, "%.300s: cannot create files in the job directory", dir);
    return ST_OK;
}

/* When mpirun or rank 0 is killed, the lock is free, but other ranks may still append for a moment.
 * What they finish must not be computed again. */
static Status wait_for_ghosts(const char *dir, char (*names)[SEGMENT_NAME_MAX], int n, Err *e)
{
    char path[JOB_PATH_MAX];
    double until = clock_s() + wait_for_dying_s;
    bool noted = false;
    for (int i = 0; i < n;) {
        TRY(job_path(path, dir, names[i], e));
        if (!segment_is_live(path)) {
            i++;
            continue;
        }
        if (clock_s() >= until)
            return err_set(e, ST_INPUT, "%.300s: a rank of an earlier run is still writing it",
                           path);
        if (!noted)
            log_note("%s: a rank of an earlier run is still writing it; waiting up to %.0f s", path,
                     wait_for_dying_s);
        noted = true;
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    return ST_OK;
}

static Status next_run(Job *job, Err *e)
{
    char(*names)[SEGMENT_NAME_MAX] = NULL;
    int n = 0, last = 0;
    TRY(journal_segments(job->dir, &names, &n, e));
    if (n > 0 && sscanf(names[n - 1], "segment-%d-", &last) != 1)
        last = 0;
    job->run = last + 1;
    Status st = wait_for_ghosts(job->dir, names, n, e);
    free(names);
    return st;
}

/* ---- whose output it is ---- */

static Status hash_file(const char *path, char hex[65], Err *e)
{
    enum { PIECE = 1 << 20 };
    Sha256 *sha = NULL;
    uint8_t digest[32], *piece = malloc(PIECE);
    Status st = ST_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        TRY_GOTO(err_errno(e, "%.300s", path));
    if (!piece)
        TRY_GOTO(err_set(e, ST_MEMORY, "%.300s: no memory to read it", path));
    TRY_GOTO(sha256_create(&sha, e));
    for (;;) {
        ssize_t n = read(fd, piece, PIECE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            TRY_GOTO(err_errno(e, "%.300s", path));
        if (n == 0)
            break;
        TRY_GOTO(sha256_add(sha, piece, (size_t)n, e));
    }
    TRY_GOTO(sha256_end(sha, digest, e));
    hex_of(digest, sizeof digest, hex);
fail:
    if (fd >= 0)
        close(fd);
    free(piece);
    sha256_free(sha);
    return st;
}

/* Whether OUT is what done.json describes. A copy that was put back has another inode and time:
 * then its bytes decide. */
static Status is_our_output(const char *out, const DoneMarker *done, bool *ours, Err *e)
{
    char hex[65];
    FileStamp now = stamp_of(out);
    *ours = stamp_same(&now, &done->out);
    if (*ours || now.bytes != done->out.bytes)
        return ST_OK;
    TRY(hash_file(out, hex, e));
    *ours = strcmp(hex, done->sha256) == 0;
    return ST_OK;
}

/* An output and a journal that is not done: allowed where the job was started to replace it. */
static Status find_state(Job *job, Err *e)
{
    JobHeader header;
    DoneMarker done;
    bool has_header = false, has_done = false, ours = false;
    FileStamp out = stamp_of(job->out);
    job->state = JOB_FRESH;
    Status st = header_read(job->dir, &header, &has_header, e);
    if (st == ST_OK && has_header)
        st = done_read(job->dir, &done, &has_done, e);
    if (st == ST_INPUT && job->overwrite)
        return ST_OK; /* not understood, and not wanted */
    if (st == ST_INPUT)
        return err_in(e, "the journal cannot be used (--overwrite starts again)");
    TRY(st);
    if (!has_header) {
        if (out.bytes >= 0 && !job->overwrite)
            return err_set(e, ST_INPUT,
                           "%.300s: is there without a journal; --overwrite replaces it", job->out);
        return ST_OK;
    }
    if (has_done && out.bytes >= 0)
        TRY(is_our_output(job->out, &done, &ours, e));
    if (ours) {
        job->state = job->overwrite ? JOB_FRESH : JOB_DONE;
        job->n_rows = done.n_rows;
        job->n_failed = done.n_failed;
        return ST_OK;
    }
    job->state = JOB_RESUMED;
    if (out.bytes < 0 || stamp_same(&out, &header.replaces))
        return ST_OK;
    if (!job->overwrite)
        return err_set(e, ST_INPUT,
                       "%.200s: is there, but is not what the journal %.200s wrote; "
                       "--overwrite replaces it",
                       job->out, job->dir);
    if (has_done) /* finished, and then OUT was changed */
        job->state = JOB_FRESH;
    return ST_OK;
}

Status job_open(const char *out, bool overwrite, Job *job, Err *e)
{
    char path[JOB_PATH_MAX];
    bool made = false;
    *job = (Job){.overwrite = overwrite};
    TRY(check_out(out, e));
    snprintf(job->out, sizeof job->out, "%s", out);
    snprintf(job->dir, sizeof job->dir, "%s.job", out);
    Status st = make_dir(job->dir, &made, e);
    if (st != ST_OK)
        return st;
    TRY(job_path(path, job->dir, "lock", e));
    TRY_GOTO(lock_take(path, wait_for_dying_s, &job->lock, e));
    TRY_GOTO(next_run(job, e));
    TRY_GOTO(find_state(job, e));
    return ST_OK;
fail:
    if (made && job->lock.held) /* nothing of ours stays beside an output that was refused */
        unlink(path);
    lock_release(&job->lock);
    if (made)
        rmdir(job->dir);
    return st;
}

/* ---- identity ---- */

/* Removes what belongs to the old journal: the header first, so that a crash in between leaves a
 * directory that counts as empty. */
static Status discard(const Job *job, Err *e)
{
    static const char *const markers[] = {"header.json", "done.json", "manifest.json"};
    char path[JOB_PATH_MAX], (*names)[SEGMENT_NAME_MAX] = NULL;
    int n = 0;
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++) {
        TRY(job_path(path, job->dir, markers[i], e));
        if (unlink(path) != 0 && errno != ENOENT)
            return err_errno(e, "%.300s", path);
    }
    TRY(durable_sync_dir(job->dir, e));
    TRY(journal_segments(job->dir, &names, &n, e));
    Status st = ST_OK;
    for (int i = 0; i < n && st == ST_OK; i++) {
        st = job_path(path, job->dir, names[i], e);
        if (st == ST_OK && unlink(path) != 0)
            st = err_errno(e, "%.300s", path);
    }
    free(names);
    return st;
}

/* Adds "WHAT (journal OLD, now NEW)" to text; digests are cut to what the eye compares. */
static void name_difference(StrBuf *text, const char *what, const char *old, const char *now)
{
    if (strcmp(old, now) == 0)
        return;
    strbuf_fmt(text, "%s%s (journal %.12s, now %.12s)", text->len ? ", " : "", what,
               old[0] ? old : "none", now[0] ? now : "none");
}

static Status compare(const Job *job, const JobIdentity *old, const JobIdentity *now, Err *e)
{
    StrBuf text = {.data = NULL};
    name_difference(&text, "model", old->model, now->model);
    name_difference(&text, "tokenizer", old->tokenizer, now->tokenizer);
    name_difference(&text, "input", old->input, now->input);
    name_difference(&text, "parameters", old->parameters, now->parameters);
    name_difference(&text, "isa", old->isa, now->isa);
    name_difference(&text, "backend", old->backend, now->backend);
    if (old->n_rows != now->n_rows)
        strbuf_fmt(&text, "%srows (journal %lld, now %lld)", text.len ? ", " : "",
                   (long long)old->n_rows, (long long)now->n_rows);
    Status st = ST_OK;
    if (text.failed)
        st = err_set(e, ST_MEMORY, "no memory to compare the job with its journal");
    else if (text.len)
        st = err_set(e, ST_INPUT, "%.150s belongs to another job, in: %s; --overwrite starts again",
                     job->dir, text.data);
    strbuf_free(&text);
    return st;
}

Status job_recorded(const Job *job, JobIdentity *out, Err *e)
{
    JobHeader h;
    bool there = false;
    TRY(header_read(job->dir, &h, &there, e));
    if (!there)
        return err_set(e, ST_IO, "%.300s/header.json: is gone", job->dir);
    *out = h.identity;
    return ST_OK;
}

Status job_identify(Job *job, const JobIdentity *identity, Err *e)
{
    if (job->state != JOB_FRESH) {
        JobIdentity old;
        TRY(job_recorded(job, &old, e));
        Status st = compare(job, &old, identity, e);
        if (st != ST_INPUT || !job->overwrite)
            return st;
        job->state = JOB_FRESH;
    }
    TRY(discard(job, e));
    JobHeader h = {.identity = *identity, .replaces = stamp_of(job->out)};
    return header_write(job->dir, &h, e);
}

Status job_write_manifest(const Job *job, const char *json, size_t len, Err *e)
{
    char path[JOB_PATH_MAX];
    TRY(job_path(path, job->dir, "manifest.json", e));
    return durable_replace(path, json, len, e);
}

void job_close(Job *job)
{
    lock_release(&job->lock);
}
