/* kernels/cuda/sample_cuda.c - tokens from rows of logits: what is asked of the rows goes to the
 * device in one copy, what was found comes back in another. */
#include "kernels/cuda/cuda.h"

#include <string.h>

static int ceil_of(int n, int each)
{
    return (n + each - 1) / each;
}

/* Where the parts of the scratch memory begin, widest values first; returns its size. */
static size_t lay_out(CudaSample *s, char *base)
{
    size_t n = (size_t)s->n;
    s->n_units = ceil_of(s->vocab, CUDA_SAMPLE_UNIT);
    s->n_blocks = ceil_of(s->vocab, CUDA_SAMPLE_BLOCK);
    size_t rows = n * sizeof *s->rows, sums = n * (size_t)s->n_blocks * sizeof *s->sums,
           units = n * (size_t)s->n_units * sizeof *s->units, out = n * sizeof *s->out,
           peaks = n * (size_t)s->n_blocks * sizeof *s->peaks,
           changed = n * (size_t)s->vocab * sizeof *s->changed;
    if (base) {
        s->rows = (SampleRow *)(void *)base;
        s->sums = (double *)(void *)(base += rows);
        s->units = (CudaUnit *)(void *)(base += sums);
        s->out = (Sampled *)(void *)(base += units);
        s->peaks = (float *)(void *)(base += out);
        s->choice_peaks = (float *)(void *)(base += peaks);
        s->changed = (float *)(void *)(base + peaks);
    }
    return rows + sums + units + out + 2 * peaks + changed;
}

size_t cuda_sample_scratch_bytes(const Backend *b, int n, int vocab)
{
    (void)b;
    CudaSample s = {.n = n, .vocab = vocab};
    return lay_out(&s, NULL);
}

/* How many edits rows will have is not known before there are rows. */
static Status take_edits(Backend *b, size_t n, Err *e)
{
    void *edits = NULL;
    if (n <= b->edits_cap)
        return ST_OK;
    cuda_release(b, b->edits);
    b->edits = NULL;
    b->edits_cap = 0;
    TRY(cuda_alloc(b, 2 * n * sizeof *b->edits, "edits of logits", &edits, e));
    b->edits = edits;
    b->edits_cap = 2 * n;
    return ST_OK;
}

/* Rows, and the edits of them all one after the other, as the device will find them. */
static Status send_rows(Backend *b, const CudaSample *s, const SampleRow *rows, size_t n_edits,
                        Err *e)
{
    void *rows_host, *edits_host;
    size_t bytes = (size_t)s->n * sizeof *rows, at = 0;
    TRY(cuda_ring_take(b, bytes, &rows_host, e));
    TRY(cuda_ring_take(b, n_edits * sizeof(LogitEdit), &edits_host, e));
    SampleRow *there = rows_host;
    LogitEdit *edits = edits_host;
    memcpy(there, rows, bytes);
    for (int i = 0; i < s->n; i++) {
        size_t n = (size_t)rows[i].n_edits;
        if (n > 0)
            memcpy(edits + at, rows[i].edits, n * sizeof *edits);
        there[i].edits = b->edits + at;
        at += n;
    }
    TRY(cuda_ring_send(b, s->rows, there, bytes, e));
    return cuda_ring_send(b, b->edits, edits, n_edits * sizeof *edits, e);
}

Status cuda_sample(Backend *b, Sampled *out, const float *logits, int n, const SampleSpec *spec,
                   const SampleRow *rows, void *scratch, Err *e)
{
    CudaSample s = {
        .logits = logits, .n = n, .vocab = spec->vocab, .n_ids = spec->n_ids, .scale = spec->scale};
    size_t n_edits = 0, out_bytes = (size_t)n * sizeof *out;
    bool weigh = false;
    void *host;
    if (n == 0)
        return ST_OK;
    if (spec->vocab > CUDA_SAMPLE_VOCAB)
        return err_set(e, ST_INPUT, "a vocabulary of %d tokens; the CUDA backend samples among %d",
                       spec->vocab, CUDA_SAMPLE_VOCAB);
    for (int i = 0; i < n; i++) {
        n_edits += (size_t)rows[i].n_edits;
        weigh |= rows[i].given < 0 && rows[i].temperature > 0;
    }
    (void)lay_out(&s, scratch);
    TRY(take_edits(b, n_edits, e));
    TRY(cuda_ring_reserve(
        b, (size_t)n * sizeof *rows + n_edits * sizeof(LogitEdit) + out_bytes + sizeof(int32_t), 4,
        e));
    TRY(send_rows(b, &s, rows, n_edits, e));
    TRY(cuda_status(b, b->api->sample(&s, weigh, b->stream), "sample", e));
    TRY(cuda_ring_take(b, out_bytes, &host, e));
    TRY(cuda_status(b, b->api->to_host(host, s.out, out_bytes, b->stream), "sample", e));
    TRY(cuda_wait(b, e));
    memcpy(out, host, out_bytes);
    return ST_OK;
}
