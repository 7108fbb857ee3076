/* jobs/input.c - see input.h. One pass reads the file in pieces; only a line that crosses a piece
 * is collected, so memory is the longest line plus the table of ids. */
#include "jobs/input.h"

#include "io/arena.h"
#include "io/digest.h"
#include "io/durable.h"
#include "io/file.h"
#include "io/json.h"
#include "io/log.h"
#include "jobs/id_table.h"
#include "jobs/key_cursor.h"
#include "jobs/row_keys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 1 << 20, RECORDS_PER_WRITE = 4096, MAX_WARNED_KEYS = 16, WARNED_KEY_BYTES = 64 };

typedef struct Scan {
    const char *path;
    const char *index_path; /* of the temporary file */
    int fd, index_fd;
    uint64_t line, n_rows; /* lines and rows seen */
    IdTable ids;
    InputRecord pending[RECORDS_PER_WRITE];
    size_t n_pending;
    StrBuf carry;   /* the part of a line that came with earlier pieces */
    StrBuf earlier; /* a line read again */
    Arena arena;
    bool warned_method;
    int n_warned;
    char warned[MAX_WARNED_KEYS][WARNED_KEY_BYTES];
} Scan;

static Status pread_all(int fd, const char *path, uint64_t offset, uint64_t bytes, StrBuf *out,
                        Err *e)
{
    strbuf_clear(out);
    return file_append_at(fd, path, offset, bytes, out, e);
}

static Status flush_records(Scan *s, Err *e)
{
    TRY(durable_write(s->index_fd, s->index_path, s->pending, s->n_pending * sizeof *s->pending,
                      e));
    s->n_pending = 0;
    return ST_OK;
}

/* The id of a line by the real parser: what row_parse will see. NULL: none. The text lives in the
 * arena. */
static Status parse_id(Scan *s, const char *line, size_t len, const char **id, size_t *id_len,
                       Err *e)
{
    JsonValue *v;
    *id = NULL;
    arena_reset(&s->arena);
    Status st = json_parse(line, len, &s->arena, &v, e);
    if (st == ST_INPUT)
        return ST_OK; /* not JSON: the row says so when its turn comes */
    TRY(st);
    const JsonValue *custom_id = json_get(v, "custom_id");
    if (!custom_id || custom_id->type != JSON_STRING || json_count_key(v, "custom_id") != 1)
        return ST_OK;
    *id = custom_id->text;
    *id_len = custom_id->len;
    return ST_OK;
}

/* Keys that nobody reads are most often misspelt: each is named once in a job. */
static void warn_key(Scan *s, const KeyView *k)
{
    char name[WARNED_KEY_BYTES];
    size_t n = k->key_len < sizeof name - 1 ? k->key_len : sizeof name - 1;
    for (size_t i = 0; i < n; i++)
        name[i] = (unsigned char)k->key[i] < 0x20 ? '?' : k->key[i];
    name[n] = 0;
    for (int i = 0; i < s->n_warned; i++)
        if (strcmp(s->warned[i], name) == 0)
            return;
    if (s->n_warned == MAX_WARNED_KEYS)
        return;
    memcpy(s->warned[s->n_warned++], name, n + 1);
    log_warn_once("%s: line %llu: the key \"%s\" is not known and ignored%s", s->path,
                  (unsigned long long)s->line, name,
                  s->n_warned == MAX_WARNED_KEYS ? " (more such keys are not reported)" : "");
}

/* The id as the cursor sees it; lines with escapes in a name or in the id go to the real parser. */
static Status scan_id(Scan *s, const char *line, size_t len, const char **id, size_t *id_len,
                      Err *e)
{
    KeyCursor c;
    KeyView k;
    int n_ids = 0;
    bool escaped = false, batch = false, method = false;
    *id = NULL;
    key_cursor_start(&c, line, len);
    while (key_cursor_next(&c, &k)) {
        if (k.escaped)
            escaped = true;
        else if (!row_key_known(k.key, k.key_len, k.depth == 1))
            warn_key(s, &k);
        if (k.depth != 1)
            continue;
        method |= key_view_is(&k, "method");
        batch |= key_view_is(&k, "body") || key_view_is(&k, "url");
        if (key_view_is(&k, "custom_id")) {
            n_ids++;
            if (*k.value == '"') {
                *id = k.value + 1;
                *id_len = k.value_len - 2;
            }
        }
    }
    if (!c.broken && batch && !method && !escaped && !s->warned_method) {
        s->warned_method = true;
        log_warn_once("%s: line %llu: \"method\" is missing; POST is assumed, here and elsewhere",
                      s->path, (unsigned long long)s->line);
    }
    if (escaped || (*id && memchr(*id, '\\', *id_len)))
        return parse_id(s, line, len, id, id_len, e);
    if (c.broken || n_ids != 1)
        *id = NULL;
    return ST_OK;
}

static Status read_record(Scan *s, uint64_t row, InputRecord *out, Err *e)
{
    uint64_t written = s->n_rows - s->n_pending;
    if (row >= written) {
        *out = s->pending[row - written];
        return ST_OK;
    }
    StrBuf b = {0};
    Status st = pread_all(s->index_fd, s->index_path, row * sizeof *out, sizeof *out, &b, e);
    if (st == ST_OK)
        memcpy(out, b.data, sizeof *out);
    strbuf_free(&b);
    return st;
}

/* Finds the first row with that id. A row of the same hash may turn out to have another id, or
 * none, since the cursor believes more than the parser; then it must not make this row a duplicate,
 * and its slot becomes this row's. */
static Status find_duplicate(Scan *s, const char *id, size_t len, uint64_t *duplicate_of, Err *e)
{
    uint64_t hash = id_hash(id, len);
    IdSlot *stale = NULL;
    *duplicate_of = 0;
    for (IdSlot *slot = id_table_find(&s->ids, hash, NULL); slot;
         slot = id_table_find(&s->ids, hash, slot)) {
        InputRecord r;
        const char *other;
        size_t other_len = 0;
        TRY(read_record(s, slot->row_plus_1 - 1, &r, e));
        TRY(pread_all(s->fd, s->path, r.offset, r.bytes, &s->earlier, e));
        TRY(parse_id(s, s->earlier.data, s->earlier.len, &other, &other_len, e));
        if (!other)
            stale = slot;
        else if (other_len == len && memcmp(other, id, len) == 0) {
            *duplicate_of = r.line;
            return ST_OK;
        }
    }
    if (!stale)
        return id_table_add(&s->ids, hash, s->n_rows, e);
    stale->row_plus_1 = s->n_rows + 1;
    return ST_OK;
}

static bool is_blank(const char *line, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

/* One physical line without its LF, at offset in the file. */
static Status scan_line(Scan *s, const char *line, size_t len, uint64_t offset, Err *e)
{
    s->line++;
    if (s->line == 1 && len >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) {
        line += 3;
        len -= 3;
        offset += 3;
    }
    if (len && line[len - 1] == '\r')
        len--;
    if (is_blank(line, len))
        return ST_OK;
    InputRecord r = {.offset = offset, .bytes = len, .line = s->line};
    const char *id;
    size_t id_len = 0;
    TRY(scan_id(s, line, len, &id, &id_len, e));
    if (id) {
        char *copy =
            malloc(id_len + 1); /* the arena, where it may lie, is used for the comparison */
        if (!copy)
            return err_set(e, ST_MEMORY, "not enough memory for a custom_id of %zu bytes", id_len);
        memcpy(copy, id, id_len);
        Status st = find_duplicate(s, copy, id_len, &r.duplicate_of, e);
        free(copy);
        TRY(st);
    }
    s->pending[s->n_pending++] = r;
    s->n_rows++;
    return s->n_pending == RECORDS_PER_WRITE ? flush_records(s, e) : ST_OK;
}

/* Splits a piece at LF; base is the offset of piece[0]. */
static Status scan_piece(Scan *s, const char *piece, size_t len, uint64_t base, Err *e)
{
    const char *at = piece, *end = piece + len;
    while (at < end) {
        const char *lf = memchr(at, '\n', (size_t)(end - at));
        size_t part = (size_t)((lf ? lf : end) - at);
        if (!lf || s->carry.len) {
            strbuf_add(&s->carry, at, part);
            if (s->carry.failed)
                return err_set(e, ST_MEMORY, "line %llu: not enough memory for %zu bytes",
                               (unsigned long long)s->line + 1, s->carry.len + part);
        }
        if (!lf)
            return ST_OK;
        uint64_t line_end = base + (uint64_t)(lf - piece);
        if (s->carry.len) {
            TRY(scan_line(s, s->carry.data, s->carry.len, line_end - s->carry.len, e));
            strbuf_clear(&s->carry);
        } else {
            TRY(scan_line(s, at, part, line_end - part, e));
        }
        at = lf + 1;
    }
    return ST_OK;
}

static Status scan_file(Scan *s, char *piece, Sha256 *sha, Err *e)
{
    uint64_t base = 0;
    for (;;) {
        ssize_t got = read(s->fd, piece, PIECE);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(e, "cannot read at byte %llu", (unsigned long long)base);
        if (got == 0)
            break;
        TRY(sha256_add(sha, piece, (size_t)got, e));
        TRY(scan_piece(s, piece, (size_t)got, base, e));
        base += (uint64_t)got;
    }
    if (s->carry.len)
        TRY(scan_line(s, s->carry.data, s->carry.len, base - s->carry.len, e));
    return flush_records(s, e);
}

static Status open_input(const char *path, int *fd, Err *e)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0)
        return err_errno(e, "%s: cannot open it", path);
    if (fstat(*fd, &st) != 0)
        return err_errno(e, "%s: cannot examine it", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ST_INPUT,
                       "%s: is not a regular file, which rows are read from in any order", path);
    return ST_OK;
}

Status input_scan(const char *path, const char *index_path, uint8_t digest[32], int64_t *n_rows,
                  Err *e)
{
    Status st;
    char tmp[1100];
    Sha256 *sha = NULL;
    char *piece = malloc(PIECE);
    Scan *s = calloc(1, sizeof *s);
    if (!piece || !s) {
        free(piece);
        free(s);
        return err_set(e, ST_MEMORY, "not enough memory to read %s", path);
    }
    s->path = path;
    s->index_path = tmp;
    s->fd = s->index_fd = -1;
    int n = snprintf(tmp, sizeof tmp, "%s.tmp", index_path);
    if (n < 0 || (size_t)n >= sizeof tmp) {
        st = err_set(e, ST_INPUT, "%s: the name is too long", index_path);
        goto fail;
    }
    TRY_GOTO(open_input(path, &s->fd, e));
    s->index_fd = open(tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (s->index_fd < 0) {
        st = err_errno(e, "%s: cannot create it", tmp);
        goto fail;
    }
    TRY_GOTO(sha256_create(&sha, e));
    st = scan_file(s, piece, sha, e);
    if (st != ST_OK) {
        err_in(e, "%s", path);
        goto fail;
    }
    TRY_GOTO(sha256_end(sha, digest, e));
    if (fsync(s->index_fd) != 0) {
        st = err_errno(e, "%s: cannot write it", tmp);
        goto fail;
    }
    TRY_GOTO(durable_rename(tmp, index_path, e));
    *n_rows = (int64_t)s->n_rows;
fail:
    if (st != ST_OK && s->index_fd >= 0)
        unlink(tmp);
    if (s->index_fd >= 0)
        close(s->index_fd);
    if (s->fd >= 0)
        close(s->fd);
    sha256_free(sha);
    id_table_free(&s->ids);
    strbuf_free(&s->carry);
    strbuf_free(&s->earlier);
    arena_free(&s->arena);
    free(s);
    free(piece);
    return st;
}

static Status map_index(const char *index_path, Input *in, Err *e)
{
    struct stat st;
    Status result = ST_OK;
    int fd = open(index_path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, "%s: cannot open it", index_path);
    if (fstat(fd, &st) != 0) {
        result = err_errno(e, "%s: cannot examine it", index_path);
    } else if (st.st_size % (off_t)sizeof(InputRecord) != 0) {
        result = err_set(e, ST_INPUT, "%s: %lld bytes are not a whole number of records",
                         index_path, (long long)st.st_size);
    } else if (st.st_size > 0) { /* nothing to map for an empty file */
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            result = err_errno(e, "%s: cannot map it", index_path);
        } else {
            in->records = p;
            in->mapped_bytes = (size_t)st.st_size;
            in->n_rows = (int64_t)(in->mapped_bytes / sizeof(InputRecord));
        }
    }
    close(fd);
    return result;
}

Status input_open(const char *path, const char *index_path, Input *out, Err *e)
{
    *out = (Input){.fd = -1};
    if (strlen(path) >= sizeof out->path)
        return err_set(e, ST_INPUT, "%s: the name is too long", path);
    memcpy(out->path, path, strlen(path) + 1);
    Status st = open_input(path, &out->fd, e);
    if (st == ST_OK)
        st = map_index(index_path, out, e);
    if (st != ST_OK)
        input_close(out);
    return st;
}

void input_close(Input *in)
{
    if (in->fd >= 0)
        close(in->fd);
    if (in->records)
        munmap((void *)in->records, in->mapped_bytes);
    *in = (Input){.fd = -1};
}

Status input_read(const Input *in, int64_t row, StrBuf *out, Err *e)
{
    if (row < 0 || row >= in->n_rows)
        return err_set(e, ST_INPUT, "%s: there is no row %lld", in->path, (long long)row);
    const InputRecord *r = &in->records[row];
    if (r->offset > INT64_MAX || r->bytes > INT64_MAX - r->offset)
        return err_set(e, ST_INPUT, "%s: the index does not fit the file at row %lld", in->path,
                       (long long)row);
    return pread_all(in->fd, in->path, r->offset, r->bytes, out, e);
}
