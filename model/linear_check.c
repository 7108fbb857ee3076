/* model/linear_check.c - the codes and scales of a matrix: all of them numbers; see linear.h.
 *
 * Loading reads every byte anyway, and a NaN in one weight makes every row that meets it one, so
 * that looking once is cheap - on all threads, which also bring the pages of the file in. */
#include "model/linear.h"

#include "model/kept.h"
#include "quant/finite.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { TASK_BYTES = 256 << 10 };

/* Becomes the lower of the two; -1 is none. */
static void lower(_Atomic int64_t *first, int64_t at)
{
    int64_t known = atomic_load(first);
    while (at >= 0 && (known < 0 || at < known))
        if (atomic_compare_exchange_weak(first, &known, at))
            return;
}

typedef struct CodeSearch {
    const NotFinite *f;
    const uint8_t *p;
    int64_t stride, n, task; /* bytes from an element to the next; elements in all, and of a task */
    _Atomic int64_t first;
} CodeSearch;

static void search_codes(void *ctx, int task, int thread)
{
    CodeSearch *s = ctx;
    int64_t at = task * s->task, n = s->n - at < s->task ? s->n - at : s->task;
    (void)thread;
    const uint8_t *p = s->p + at * s->stride;
    if (s->stride == s->f->size) {
        int64_t found = finite_search(s->f, p, n);
        lower(&s->first, found < 0 ? -1 : at + found);
        return;
    }
    for (int64_t i = 0; i < n; i++, p += s->stride)
        if (finite_search(s->f, p, 1) == 0) {
            lower(&s->first, at + i);
            return;
        }
}

static int64_t find_code(const NotFinite *f, const uint8_t *p, int64_t stride, int64_t n,
                         Team *team)
{
    CodeSearch s = {
        .f = f, .p = p, .stride = stride, .n = n, .task = TASK_BYTES / stride, .first = -1};
    team_run(team, (int)((n + s.task - 1) / s.task), search_codes, &s);
    return atomic_load(&s.first);
}

/* "[3, 0, 17]": where element number at of a tensor stands; "" in a scalar. */
static void index_text(const TensorEntry *t, int64_t at, char *out, size_t size)
{
    int64_t index[TENSOR_MAX_DIMS];
    size_t len = 0;
    for (int d = t->n_dims - 1; d >= 0; d--) {
        index[d] = at % t->shape[d];
        at /= t->shape[d];
    }
    *out = 0;
    for (int d = 0; d < t->n_dims && len < size; d++)
        len +=
            (size_t)snprintf(out + len, size - len, "%s%lld", d ? ", " : "[", (long long)index[d]);
    if (t->n_dims > 0 && len < size)
        snprintf(out + len, size - len, "]");
}

static Status bad_code(const TensorSet *files, const TensorEntry *t, int64_t at, const char *what,
                       Err *e)
{
    char where[160];
    index_text(t, at, where, sizeof where);
    return err_set(e, ST_INPUT, "%s: tensor \"%.200s\": %s %s is not a finite number",
                   tensor_set_file(files, t), t->name, what, where);
}

/* Blocks of a codec begin with their scale, in binary16. */
static Status check_blocks(const TensorSet *files, const TensorEntry *t, const QuantFormat *f,
                           Team *team, Err *e)
{
    int64_t at =
        find_code(finite_test(f->id), t->data, f->unit_bytes, t->bytes / f->unit_bytes, team);
    return at < 0 ? ST_OK : bad_code(files, t, at * f->unit_bytes, "the scale of the block at", e);
}

static int64_t integer_at(const TensorEntry *t, int i)
{
    int64_t wide;
    int32_t narrow;
    if (t->dtype == DTYPE_I64) {
        memcpy(&wide, t->data + 8 * i, sizeof wide);
        return wide;
    }
    memcpy(&narrow, t->data + 4 * i, sizeof narrow);
    return narrow;
}

Status linear_check_shape(const TensorSet *files, const LinearTensors *t, Err *e)
{
    const TensorEntry *s = t->shape;
    if (!s)
        return ST_OK;
    TRY(kept_need(files, s, e));
    if (integer_at(s, 0) == t->q.rows && integer_at(s, 1) == t->q.cols)
        return ST_OK;
    return err_set(e, ST_INPUT, "%s: tensor \"%.200s\": says [%lld, %lld], expected [%lld, %lld]",
                   tensor_set_file(files, s), s->name, (long long)integer_at(s, 0),
                   (long long)integer_at(s, 1), (long long)t->q.rows, (long long)t->q.cols);
}

Status linear_check_codes(const TensorSet *files, const LinearTensors *t, int expert, Team *team,
                          Err *e)
{
    TRY(kept_need(files, t->weight, e));
    TRY(linear_check_shape(files, t, e));
    const TensorEntry *w = t->weight;
    const NotFinite *f = finite_test(t->q.format->id);
    if (!f)
        return ST_OK;
    if (t->q.format->unit > 1)
        return check_blocks(files, w, t->q.format, team, e);
    int64_t bytes = t->expert_bytes ? t->expert_bytes : w->bytes;
    int64_t first = expert * t->expert_bytes / f->size;
    int64_t at = find_code(f, w->data + expert * t->expert_bytes, f->size, bytes / f->size, team);
    return at < 0 ? ST_OK : bad_code(files, w, first + at, "value", e);
}

/* --- scales --- */

/* Where the scale of a view's row and group stands in the stored tensor, for a message. */
static Status bad_scale(const TensorSet *files, const LinearTensors *t, int expert, int64_t row,
                        int64_t group, float value, Err *e)
{
    const TensorEntry *s = t->scale;
    char at[64] = "";
    if (s->n_dims >= 3 && t->expert_bytes > 0)
        snprintf(at, sizeof at, " [%d, %lld, %lld]", expert, (long long)row, (long long)group);
    else if (s->bytes > dtype_bytes(s->dtype))
        snprintf(at, sizeof at, " [%lld, %lld]", (long long)row, (long long)group);
    if (t->q.scale_type == SCALE_E8M0)
        return err_set(e, ST_INPUT,
                       "%s: tensor \"%.200s\": scale%s is 255 (not a number), expected 0 to 254",
                       tensor_set_file(files, s), s->name, at);
    return err_set(e, ST_INPUT, "%s: tensor \"%.200s\": scale%s is %g, expected a %s number",
                   tensor_set_file(files, s), s->name, at, value,
                   t->q.scale_col_bytes || t->q.scale_row_bytes ? "finite, not negative"
                                                                : "positive");
}

typedef struct ScaleSearch {
    const QuantTensor *view;
    int64_t first_row, n_rows; /* of scales */
    int64_t groups, task;      /* scales of a row; rows of a task */
    bool single;
    _Atomic int64_t first; /* row * groups + group */
} ScaleSearch;

/* Whether no scale of a row needs a closer look, where all lie one behind the other. */
static bool row_is_good(const ScaleSearch *s, const uint8_t *p)
{
    const QuantTensor *view = s->view;
    return !s->single && view->scale_col_bytes == scale_bytes(view->scale_type) &&
           scales_are_good(view->scale_type, p, s->groups);
}

static void search_scales(void *ctx, int task, int thread)
{
    ScaleSearch *s = ctx;
    const QuantTensor *view = s->view;
    int64_t row = task * s->task, end = row + s->task < s->n_rows ? row + s->task : s->n_rows;
    (void)thread;
    for (; row < end; row++) {
        const uint8_t *p = view->scales + (s->first_row + row) * view->scale_row_bytes;
        if (row_is_good(s, p))
            continue;
        for (int64_t g = 0; g < s->groups; g++, p += view->scale_col_bytes) {
            float v;
            if (scale_is_bad(view->scale_type, s->single, p, &v)) {
                lower(&s->first, row * s->groups + g);
                return;
            }
        }
    }
}

Status linear_check_scales(const TensorSet *files, const LinearTensors *t, int expert,
                           const QuantTensor *view, int64_t first, int64_t step, Team *team, Err *e)
{
    if (!view->scales || view->rows == 0)
        return ST_OK;
    int64_t first_row = view->first_row / view->scale_rows;
    int64_t last_row = (view->first_row + view->rows - 1) / view->scale_rows;
    ScaleSearch s = {.view = view,
                     .first_row = first_row,
                     .n_rows = view->scale_row_bytes == 0 ? 1 : last_row - first_row + 1,
                     .groups = view->scale_col_bytes == 0 ? 1 : (view->cols - 1) / view->group + 1,
                     .single = view->scale_row_bytes == 0 && view->scale_col_bytes == 0,
                     .first = -1};
    s.task = TASK_BYTES / 16 / s.groups + 1;
    team_run(team, (int)((s.n_rows + s.task - 1) / s.task), search_scales, &s);
    int64_t found = atomic_load(&s.first);
    if (found < 0)
        return ST_OK;
    int64_t row = first_row + found / s.groups, group = found % s.groups;
    float v;
    (void)scale_is_bad(view->scale_type, s.single,
                       view->scales + row * view->scale_row_bytes + group * view->scale_col_bytes,
                       &v);
    return bad_scale(files, t, expert, step > 1 ? first + step * row : row, group, v, e);
}
