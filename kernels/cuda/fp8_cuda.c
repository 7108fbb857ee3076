/* kernels/cuda/fp8_cuda.c - rows of activations in E4M3 codes, banks of weights that meet them as codes,
 * and their products on the FP8 tensor cores.
 *
 * A bank is its codes row by row, parts one below the other, filled up to steps of 128 inputs with
 * zeros; then its scales, one for each row, or for each block of 128 rows and 128 inputs. */
#include "kernels/cuda/weight_rows.h"

#include <assert.h>
#include <string.h>

enum { STEP = 128, ROW_UNIT = 16, ALIGN = 256 };

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

bool cuda_takes_codes(const Backend *b, const WeightPart *parts, int n_parts, int64_t cols,
                      const RowFormat *rows)
{
    bool fp8 = rows->scheme == ROWS_FP8_STATIC || rows->scheme == ROWS_FP8_TOKEN ||
               rows->scheme == ROWS_FP8_GROUP,
         blocks = parts[0].group < cols;
    if (!fp8 || !b->api->has_sm90a() || cuda_code_row_bytes(rows->scheme, cols) > 2 * (size_t)cols)
        return false;
    for (int i = 0; i < n_parts; i++) {
        const WeightPart *p = &parts[i];
        if (p->format != FORMAT_FP8 || p->rows % ROW_UNIT || (p->group < cols) != blocks ||
            (blocks && (p->group != STEP || p->scale_rows % STEP)))
            return false;
    }
    return true;
}

/* --- banks --- */

static int blocks_of(int rows)
{
    return (rows + STEP - 1) / STEP;
}

size_t cuda_fp8_lay_out(Weight *w)
{
    CudaFp8Gemm *g = &w->fp8;
    bool blocks = w->group[0] < w->cols;
    *g = (CudaFp8Gemm){.k_padded = (int)round_up(w->cols, STEP),
                       .n_mats = w->n_mats,
                       .mat_rows = (int)w->rows,
                       .n_parts = w->n_parts};
    for (int i = 0, first = 0; i < w->n_parts; i++) {
        g->part[i] = (CudaFp8Part){w->part[i].rows, w->part[i].first_row, first};
        first += blocks_of(w->part[i].rows);
        g->blocks = blocks ? first : 0;
    }
    g->scales_mat = blocks ? (int64_t)g->blocks * (g->k_padded / STEP) : w->rows;
    w->scales_at[0] = (size_t)round_up((int64_t)w->n_mats * w->rows * g->k_padded, ALIGN);
    return w->scales_at[0] + (size_t)(w->n_mats * g->scales_mat) * sizeof(float);
}

typedef struct FillJob {
    const QuantTensor *t;
    int64_t row_bytes;
    int steps;
} FillJob;

static void fill_codes(void *ctx, int64_t row, int thread, uint8_t *out)
{
    const FillJob *job = ctx;
    const QuantTensor *t = job->t;
    const uint8_t *from = t->data + row * t->row_bytes;
    (void)thread;
    memset(out + t->cols, 0, (size_t)(job->row_bytes - t->cols));
    if (t->unit_stride == 1)
        memcpy(out, from, (size_t)t->cols);
    else
        for (int64_t i = 0; i < t->cols; i++)
            out[i] = from[i * t->unit_stride];
}

/* Of a row, or of a block of rows at all steps. */
static void fill_scales(void *ctx, int64_t row, int thread, uint8_t *out)
{
    const FillJob *job = ctx;
    (void)thread;
    for (int k = 0; k < (job->steps ? job->steps : 1); k++) {
        float s = quant_scale(job->t, job->steps ? row * STEP : row, (int64_t)k * STEP);
        memcpy(out + (size_t)k * sizeof s, &s, sizeof s);
    }
}

Status cuda_fp8_set(Backend *b, RowJob *rows, int mat, int part, Err *e)
{
    const Weight *w = rows->w;
    const QuantTensor *t = rows->t;
    const CudaFp8Gemm *g = &w->fp8;
    const CudaFp8Part *p = &g->part[part];
    FillJob job = {t, g->k_padded, g->blocks ? g->k_padded / STEP : 0};
    uint8_t *codes = w->data + ((int64_t)mat * g->mat_rows + p->first_row) * g->k_padded;
    int64_t scale = mat * g->scales_mat +
                    (g->blocks ? (int64_t)p->first_block * job.steps : (int64_t)p->first_row);
    int n_scales = g->blocks ? blocks_of(p->rows) : p->rows, each = g->blocks ? job.steps : 1;
    if (g->blocks && (t->group != STEP || t->scale_rows % STEP || t->first_row % STEP))
        return err_set(e, ST_INPUT,
                       "%s: matrix %d, part %d: scales are not of blocks of %d x %d from its first "
                       "row on",
                       w->name, mat, part, STEP, STEP);
    UploadSpan span = rows_span(rows->p, t, ROW_CODES, 0, p->rows);
    span.dst = codes;
    TRY(rows_lie_so(w, part, t) ? cuda_spans_send(b, &span, 1, b->stream, w->name, e)
                                : cuda_upload_rows(b, codes, p->rows, g->k_padded, fill_codes, &job,
                                                   b->stream, w->name, e));
    return cuda_upload_rows(b, w->data + w->scales_at[0] + (size_t)scale * sizeof(float), n_scales,
                            each * (int64_t)sizeof(float), fill_scales, &job, b->stream, w->name,
                            e);
}

/* --- rows --- */

static int64_t scales_of(RowScheme scheme, int64_t width)
{
    return scheme == ROWS_FP8_GROUP ? (width + STEP - 1) / STEP : scheme == ROWS_FP8_TOKEN ? 1 : 0;
}

size_t cuda_code_row_bytes(RowScheme scheme, int64_t width)
{
    return (size_t)round_up(round_up(width, STEP) + 4 * scales_of(scheme, width), ROW_UNIT);
}

/* live: how many of the n rows there are, on the device; NULL: all. */
static Status code_rows(Backend *b, void *coded, const void *x, int n, const int32_t *live,
                        int width, const RowFormat *format, Err *e)
{
    return cuda_status(b,
                       b->api->fp8_rows(coded, (int64_t)cuda_code_row_bytes(format->scheme, width),
                                        x, width, n, live, width, format, b->stream),
                       "code_rows", e);
}

Status cuda_code_rows(Backend *b, void *coded, const void *x, int n, int width,
                      const RowFormat *format, Err *e)
{
    return code_rows(b, coded, x, n, NULL, width, format, e);
}

/* --- products --- */

/* The bank's half of a product, and the rows'. */
static CudaFp8Gemm product(const Weight *w, const void *coded, const RowFormat *rows)
{
    CudaFp8Gemm g = w->fp8;
    g.codes = w->data;
    g.scales = (const float *)(const void *)(w->data + w->scales_at[0]);
    g.x = coded;
    g.x_pitch = (int64_t)cuda_code_row_bytes(rows->scheme, w->cols);
    g.x_scales_at = scales_of(rows->scheme, w->cols) ? g.k_padded : 0;
    g.x_scales_step = rows->scheme == ROWS_FP8_GROUP;
    g.x_scale = rows->scheme == ROWS_FP8_STATIC ? rows->input_scale : 1.0f;
    return g;
}

Status cuda_matmul_codes(Backend *b, void *y, const void *coded, const Weight *w, const float *bias,
                         int n, const RowFormat *rows, Err *e)
{
    CudaFp8Gemm g = product(w, coded, rows);
    assert(w->use == WEIGHT_CODED);
    g.n_mats = 1;
    g.y = y;
    g.y_stride = w->rows;
    g.bias = bias;
    g.n_rows = n;
    return cuda_status(b, b->api->fp8_gemm(&g, b->stream), w->name, e);
}

size_t cuda_ffn_codes_bytes(int max_pairs, int64_t inter)
{
    return (size_t)max_pairs * cuda_code_row_bytes(ROWS_FP8_GROUP, inter);
}

static bool gives_codes(const FfnSpec *spec)
{
    return spec->w13->use == WEIGHT_CODED && spec->w2->use == WEIGHT_CODED &&
           spec->inner.scheme == ROWS_FP8_STATIC;
}

Status cuda_ffn_codes_first(Backend *b, const void *coded, const int32_t *row_of,
                            const int32_t *first, int n_experts, int max_pairs, const FfnSpec *spec,
                            const FfnScratch *s, Err *e)
{
    CudaFp8Gemm g = product(spec->w13, coded, &spec->rows);
    g.n_mats = n_experts;
    g.x_row = row_of;
    g.first = first;
    g.n_rows = max_pairs;
    g.bias = spec->b13;
    g.bias_mat = spec->w13->rows;
    g.epilogue = spec->act.kind == ACT_RELU2 ? CUDA_RELU2 : CUDA_GATED;
    g.act = spec->act;
    g.y = s->products;
    g.y_stride = spec->inter;
    if (gives_codes(spec)) {
        g.y = s->codes;
        g.y_codes = true;
        g.y_scale = 1.0f / spec->inner.input_scale;
        g.y_stride = (int64_t)cuda_code_row_bytes(ROWS_FP8_STATIC, spec->inter);
        g.y_fill = (int)g.y_stride;
    }
    return cuda_status(b, b->api->fp8_gemm(&g, b->stream), spec->w13->name, e);
}

Status cuda_ffn_codes_second(Backend *b, void *y, const int32_t *first, int n_experts,
                             int max_pairs, const FfnSpec *spec, const FfnScratch *s, Err *e)
{
    CudaFp8Gemm g = product(spec->w2, s->codes, &spec->inner);
    if (!gives_codes(spec))
        TRY(code_rows(b, s->codes, s->products, max_pairs, first ? first + n_experts : NULL,
                      (int)spec->inter, &spec->inner, e));
    g.n_mats = n_experts;
    g.first = first;
    g.n_rows = max_pairs;
    g.bias = spec->b2;
    g.bias_mat = spec->hidden;
    g.y = y;
    g.y_stride = spec->hidden;
    return cuda_status(b, b->api->fp8_gemm(&g, b->stream), spec->w2->name, e);
}
