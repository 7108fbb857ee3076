/* kernels/cuda/attention_list_cuda.c - see attention_list.h. */
#include "kernels/cuda/attention_list.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static int64_t pages_of(int64_t n_positions)
{
    return (n_positions + KV_PAGE - 1) / KV_PAGE;
}

static int64_t tiles_of(int64_t n_rows, int kind)
{
    int64_t each = cuda_tile_rows(kind);
    return (n_rows + each - 1) / each;
}

size_t cuda_list_bytes(int n_rows, int n_seqs, int64_t n_pages)
{
    size_t rows = (size_t)n_rows, seqs = (size_t)n_seqs, pages = (size_t)n_pages, tiles = 0;
    for (int i = 0; i < CUDA_TILE_KINDS; i++)
        tiles += (size_t)tiles_of(n_rows, i) + seqs;
    size_t splits = rows + seqs + pages / (CUDA_SPLIT / KV_PAGE);
    return sizeof(CudaListHead) + rows * (sizeof(CudaRow) + sizeof(int32_t)) +
           splits * sizeof(CudaSplit) + tiles * sizeof(CudaQueries) + pages * sizeof(int32_t) +
           16 * (CUDA_TILE_KINDS + 5);
}

static int longer_row(const void *a, const void *b)
{
    const CudaSplit *x = a, *y = b;
    return x->pos != y->pos ? (x->pos < y->pos) - (x->pos > y->pos)
                            : (x->number > y->number) - (x->number < y->number);
}

static int positions_of(const CudaSplit *s)
{
    int rest = s->pos + 1 - s->split * CUDA_SPLIT;
    return rest < CUDA_SPLIT ? rest : CUDA_SPLIT;
}

static int longer_split(const void *a, const void *b)
{
    const CudaSplit *x = a, *y = b;
    int i = positions_of(x), j = positions_of(y);
    if (i != j)
        return (i < j) - (i > j);
    return x->number != y->number ? (x->number > y->number) - (x->number < y->number)
                                  : (x->split > y->split) - (x->split < y->split);
}

static int longer_tile(const void *a, const void *b)
{
    const CudaQueries *x = a, *y = b;
    int i = x->pos + x->n, j = y->pos + y->n;
    if (i != j)
        return (i < j) - (i > j);
    return (x->row > y->row) - (x->row < y->row);
}

typedef struct Writer {
    char *host;
    size_t at;
} Writer;

/* n units of so many bytes at the next multiple of 16; *offset: where. */
static void *take(Writer *w, size_t n, size_t unit, int32_t *offset)
{
    w->at = (w->at + 15) / 16 * 16;
    void *p = w->host + w->at;
    *offset = (int32_t)w->at;
    w->at += n * unit;
    return p;
}

/* Returns where the numbers of rows alone begin. */
static int32_t fill_rows(Writer *w, CudaListHead *h, const AttnSeq *seqs, int n_seqs, int n_rows)
{
    int32_t at;
    CudaRow *row = take(w, (size_t)n_rows, sizeof *row, &h->rows_at), *end = row + n_rows;
    int32_t *row_of = take(w, (size_t)n_rows, sizeof *row_of, &at);
    for (int single = 0; single < 2; single++) {
        int64_t page = 0;
        for (int i = 0; i < n_seqs; i++) {
            const AttnSeq *s = &seqs[i];
            if ((s->n_rows == 1) == (single == 1))
                for (int r = 0; r < s->n_rows; r++)
                    *row++ = (CudaRow){s->row + r, s->pos + r, (int32_t)page};
            page += pages_of(s->pos + s->n_rows);
        }
    }
    for (; row < end; row++) /* of its own, so that nobody else's is touched */
        *row = (CudaRow){n_rows - (int)(end - row), -1, 0};
    for (int i = 0; i < n_rows; i++)
        row_of[i] = (row - n_rows + i)->row;
    return at;
}

static void fill_singles(Writer *w, CudaListHead *h, const AttnSeq *seqs, int n_seqs)
{
    CudaSplit *single = take(w, (size_t)h->n_singles, sizeof *single, &h->singles_at);
    int n = 0;
    int64_t page = 0;
    for (int i = 0; i < n_seqs; i++) {
        const AttnSeq *s = &seqs[i];
        if (s->n_rows == 1) {
            single[n] =
                (CudaSplit){.row = s->row, .pos = s->pos, .pages = (int32_t)page, .number = n};
            n++;
        }
        page += pages_of(s->pos + s->n_rows);
    }
    qsort(single, (size_t)n, sizeof *single, longer_row);
    CudaSplit *split = take(w, 0, sizeof *split, &h->splits_at);
    for (int i = 0; i < n; i++) {
        CudaSplit s = single[i];
        s.n_slots = s.pos / CUDA_SPLIT + 1;
        s.slot = h->n_slots;
        if (s.n_slots > 1)
            h->n_slots += s.n_slots;
        for (s.split = 0; s.split < s.n_slots; s.split++)
            split[h->n_splits++] = s;
    }
    w->at += (size_t)h->n_splits * sizeof *split;
    qsort(split, (size_t)h->n_splits, sizeof *split, longer_split);
}

static int fill_tiles(Writer *w, CudaListHead *h, const AttnSeq *seqs, int n_seqs, int kind)
{
    CudaQueries *tile = take(w, 0, sizeof *tile, &h->tiles_at[kind]);
    int n = 0, each = cuda_tile_rows(kind);
    int64_t page = 0;
    for (int i = 0; i < n_seqs; i++) {
        const AttnSeq *s = &seqs[i];
        for (int r = 0; (s->n_rows > 1 || kind == CUDA_TILE_ALL) && r < s->n_rows; r += each)
            tile[n++] = (CudaQueries){s->row + r, s->n_rows - r < each ? s->n_rows - r : each,
                                      s->pos + r, (int32_t)page};
        page += pages_of(s->pos + s->n_rows);
    }
    w->at += (size_t)n * sizeof *tile;
    qsort(tile, (size_t)n, sizeof *tile, longer_tile);
    return n;
}

size_t cuda_list_fill(void *host, const void *dev, CudaList *out, const AttnSeq *seqs, int n_seqs,
                      int n_padded)
{
    CudaListHead *h = host;
    Writer w = {host, sizeof *h};
    int64_t n_pages = 0;
    int n_rows = 0;
    *h = (CudaListHead){.n_singles = 0};
    for (int i = 0; i < n_seqs; i++) {
        assert(n_padded == 0 || seqs[i].n_rows == 1);
        n_rows += seqs[i].n_rows;
        n_pages += pages_of(seqs[i].pos + seqs[i].n_rows);
        h->n_singles += seqs[i].n_rows == 1;
    }
    assert(n_padded == 0 || n_rows <= n_padded);
    h->n_multiple = n_rows - h->n_singles;
    out->n_rows = n_padded > 0 ? n_padded : n_rows;
    out->most_singles = n_padded > 0 ? n_padded : h->n_singles;
    out->head = dev;
    out->row_of = (const int32_t *)(const void *)((const char *)dev +
                                                  fill_rows(&w, h, seqs, n_seqs, out->n_rows));
    fill_singles(&w, h, seqs, n_seqs);
    for (int i = 0; i < CUDA_TILE_KINDS; i++)
        out->n_tiles[i] = n_padded > 0 ? 0 : fill_tiles(&w, h, seqs, n_seqs, i);
    int32_t *page = take(&w, (size_t)n_pages, sizeof *page, &h->pages_at);
    for (int i = 0; i < n_seqs; i++) {
        int64_t n = pages_of(seqs[i].pos + seqs[i].n_rows);
        if (n > 0)
            memcpy(page, seqs[i].pages, (size_t)n * sizeof *page);
        page += n;
    }
    return w.at;
}
