/* kernels/cpu/cpu.h - what the files of the CPU backend share: packed weights, per-thread scratch,
 * and the table of kernels of one instruction set. */
#ifndef MB_CPU_CPU_H
#define MB_CPU_CPU_H

#include "kernels/check.h"

enum {
    PANEL = 16,      /* outputs that lie side by side in a packed weight */
    CHAIN = 128,     /* inputs that are summed in one chain; gemm.inc says why */
    TILE_COLS = 256, /* inputs per decoded tile: 16 KiB, half of a first-level cache */
    X_STRIDE =
        TILE_COLS +
        16, /* of a thread's copy of its rows; not a power of two, so that rows spread in cache */
    MAX_BLOCK_ROWS =
        112, /* per task: with MAX_BLOCK_PANELS it keeps a task's data within 400 KiB */
    MAX_BLOCK_PANELS = 16,
    MAX_MICRO_PANELS = 2,
    MX_BLOCK = 32,
    MX_LEAST = 2, /* scale bytes with which every value is a normal number */
    MX_MOST = 252,
    IQ2_BLOCK = 256,
    PANEL_ALIGN = 64,
    ATTN_ROWS = 48, /* query rows x heads that share one pass over keys and values */
    MAX_HEAD_DIM = 1024,
    HEAD_STRIDE = MAX_HEAD_DIM + 16,
    MAX_GROUPS = 65535, /* experts of a bank, or sequences in one pass */
    MAX_EXPERTS = ROUTER_MAX_EXPERTS,
    MAX_TOP_K = ROUTER_MAX_TOP_K
};

/* The IQ2 codebooks: an entry's eight levels (0, 1, 2) and an index's eight signs (bit 3) in
 * nibbles, in the order that the instruction set likes. */
typedef struct Iq2Levels {
    uint32_t xs[512], xxs[256], signs[128];
} Iq2Levels;

/* A block of a panel with its entries looked up: eight inputs a word, 16 a scale nibble. */
typedef struct Iq2Words {
    uint32_t word[IQ2_BLOCK / 8][PANEL];
    uint8_t scale[IQ2_BLOCK / 32][PANEL];
} Iq2Words;

/* PANEL outputs of a matrix. Plain formats: [cols][PANEL] values. Formats with scales: for each
 * group of columns PANEL scales as they are stored, then its codes; a group of codes is filled up
 * to whole units, so that each begins where its number says.
 *   FP8, MXFP8, Q8_0   units of 4 inputs: [PANEL][4] bytes; Q8_0's d is the scale
 *   NVFP4, MXFP4, INT4 units of 8 inputs, 64 bytes, in the order of nibble_place
 *   IQ2                blocks of 256, [PANEL] of each member of ggml's block after the other */
typedef struct Panel {
    const uint8_t *data;
    FormatId format;
    ScaleType scale; /* as it lies in the panel: Q8_0 has SCALE_F16 */
    bool steep;      /* a scale is so large or small that only the slower way decodes exactly */
    bool divides;    /* QuantTensor.global_divides */
    float global;
    int64_t group;
    size_t group_bytes, bytes; /* of a whole group, of the panel */
    const Iq2Levels *levels;
} Panel;

/* One thread's memory, taken once. */
typedef struct Scratch {
    float x[MAX_BLOCK_ROWS * X_STRIDE];
    float tile[MAX_MICRO_PANELS * TILE_COLS * PANEL];
    float c[MAX_BLOCK_ROWS * MAX_BLOCK_PANELS * PANEL];
    float q[ATTN_ROWS * HEAD_STRIDE];
    float o[ATTN_ROWS * HEAD_STRIDE];
    float p[ATTN_ROWS * KV_PAGE];
    float max[ATTN_ROWS], sum[ATTN_ROWS];
    int query[ATTN_ROWS];
    float keys[MAX_HEAD_DIM * KV_PAGE], values[MAX_HEAD_DIM * KV_PAGE]; /* of a decoded page */
} Scratch;

/* What one attention task works on: rows first .. first+n_rows-1 of one sequence's queries x the
 * heads of one KV head, query-major. */
typedef struct AttnTile {
    float *out;     /* of the sequence's first row */
    const float *q; /* likewise */
    int64_t out_stride, q_stride;
    const char *pool;
    size_t page_bytes;
    const AttnSeq *seq;
    const AttnSpec *spec;
    int kv_head, group; /* group: query heads per KV head */
    int first, n_rows;
} AttnTile;

/* Up to PANEL query rows, side by side, against some keys of one page of latent attention. */
typedef struct LatentTile {
    const float *q;           /* [key_dims + rope_dims][PANEL]; lanes past n_rows are 0 */
    const float *keys, *rope; /* a key is key_dims values of the one, then rope_dims of the other */
    int64_t key_stride, rope_stride;
    int key_dims, rope_dims;
    const float *values; /* value_groups * PANEL values per key */
    int64_t value_stride;
    int value_groups;
    float scale;
    int n_rows;
    const char *next; /* what to ask memory for meanwhile, or NULL */
    int64_t next_bytes;
    const int *seen; /* [n_rows] how many keys each row sees: 0 .. KV_PAGE, not all 0 */
    float *o;        /* [n_rows][o_stride] sums over the pages so far, to be divided by sum */
    int64_t o_stride;
    float *max, *sum; /* [PANEL], of the pages so far: at first -INFINITY and 0, and o 0 */
} LatentTile;

/* The kernels of one instruction set. All levels give the same bits. */
typedef struct CpuKernels {
    IsaLevel isa;
    int block_rows; /* of one task, a multiple of the microkernel's rows; at most MAX_BLOCK_ROWS */
    /* c[i, 16 p + lane] = chain over k of rows[i][k] * panel p; m <= block_rows, n <=
     * MAX_BLOCK_PANELS. */
    void (*gemm)(float *c, int64_t c_stride, const float *const *rows, int m, const Panel *panels,
                 int n, int64_t cols, Scratch *scratch);
    /* y[i, j] = c[i, j] + bias[j], j < n */
    void (*store_rows)(float *y, int64_t y_stride, const float *c, int64_t c_stride,
                       const float *bias, int m, int64_t n);
    /* y[i, j] = act(c[i, j] + gate_bias[j], c[i, up + j] + up_bias[j]), j < n */
    void (*store_gated)(float *y, int64_t y_stride, const float *c, int64_t c_stride, int64_t up,
                        const float *gate_bias, const float *up_bias, int m, int64_t n,
                        const ActSpec *act);
    /* y[i, j] = max(c[i, j] + bias[j], 0)^2, j < n */
    void (*store_relu2)(float *y, int64_t y_stride, const float *c, int64_t c_stride,
                        const float *bias, int m, int64_t n);
    void (*norm_row)(float *y, const float *x, const float *weight, int width, float eps,
                     NormKind kind);
    void (*rope_row)(float *x, int n_heads, int head_dim, const float *table, const RopeSpec *rope);
    void (*combine_row)(float *y, const float *rows, const int32_t *slot, const float *weight,
                        int top_k, int64_t width);
    void (*add)(float *h, const float *y, float scale, int64_t n);
    void (*gate_row)(float *y, float gate, int64_t n); /* y[i] *= sigmoid(gate) */
    void (*clamp_row)(float *x, float limit, int64_t n);
    /* y[i] = e^(x[i] - offset) */
    void (*exp_row)(float *y, const float *x, float offset, int n);
    void (*attention)(const AttnTile *tile, Scratch *scratch);
    void (*latent_tile)(const LatentTile *tile);
    /* n values, a multiple of 16, from BF16 or from E4M3 with this scale. */
    void (*kv_decode)(float *y, const uint8_t *from, int64_t n, KvDtype dtype, float scale);
} CpuKernels;

extern const CpuKernels cpu_kernels_scalar, cpu_kernels_avx2, cpu_kernels_avx512;
extern const BackendOps cpu_backend;

struct Backend {
    Team *team;
    int n_threads;
    IsaLevel isa;
    const CpuKernels *kernels;
    Scratch *scratch; /* [n_threads] */
    int *task_first;  /* [MAX_GROUPS + 1] of the op that is running */
    Iq2Levels levels;
};

typedef struct CpuPart {
    FormatId format;
    int64_t group;           /* as WeightPart says, at most cols */
    ScaleType scale;         /* Panel.scale; lookup: WeightPart.scale */
    int64_t rows, first_row; /* its outputs, and where they stand among the matrix's outputs */
    int64_t n_panels;
    size_t group_bytes, panel_bytes; /* lookup: panel_bytes is a row's */
    size_t offset;                   /* of its PartNote within a matrix; panels or rows follow */
    const Iq2Levels *levels;
} CpuPart;

/* What all panels or rows of one part of one matrix share; PANEL_ALIGN bytes in front of them. */
typedef struct PartNote {
    float global;
    uint8_t divides, steep;
} PartNote;

struct Weight {
    char name[128];
    WeightUse use;
    int n_mats, n_parts;
    int64_t rows, cols; /* rows: of all parts */
    CpuPart part[MAX_PARTS];
    size_t mat_bytes;
    uint8_t *data;
};

struct AttnList {
    AttnSeq *seqs; /* [most_seqs] */
    int n_seqs, most_seqs;
};

/* backend_cpu.c */
Status cpu_ceilings(Backend *b, BackendCeilings *out, Err *e);
Status cpu_alloc(Backend *b, size_t bytes, const char *what, void **out, Err *e);
void cpu_release(Backend *b, void *p);

/* weight_cpu.c */
Status cpu_weight_create(Backend *b, const char *name, WeightUse use, int n_mats,
                         const WeightPart *parts, int n_parts, int64_t cols, Weight **out, Err *e);
Status cpu_weight_set(Backend *b, Weight *w, int mat, int part, const QuantTensor *t, Err *e);
void cpu_weight_destroy(Backend *b, Weight *w);
size_t cpu_weight_bytes(const Weight *w);
/* Panels first .. first+n-1 of a part. */
void cpu_weight_panels(const Weight *w, int mat, int part, int64_t first, int n, Panel *out);
/* Row of a lookup bank's only matrix as a tensor of one row. */
QuantTensor cpu_weight_row(const Weight *w, int64_t row);

/* ST_INPUT or ST_MEMORY where a bank cannot be so. */
Status cpu_check_shape(const char *name, int n_mats, const WeightPart *parts, int n_parts,
                       int64_t cols, Err *e);
/* The parts of a bank and the bytes of one of its matrices. */
size_t cpu_bank_shape(WeightUse use, const WeightPart *parts, int n_parts, int64_t cols,
                      CpuPart out[MAX_PARTS]);
extern const char *const cpu_layouts[N_ISA_LEVELS];
const char *cpu_weight_layout(const Backend *b);
size_t cpu_weight_mat_bytes(const Weight *w);

/* transfer_cpu.c */
Status cpu_weight_save(Backend *b, const Weight *w, const BankFile *f, uint32_t *crc, Err *e);
Status cpu_weight_restore(Backend *b, Weight *w, const BankFile *f, const uint32_t *crc, Err *e);

/* pack_cpu.c */
/* ggml's blocks, member by member: where each lies in a block, bytes of an item, items. */
typedef struct BlockMember {
    int at, size, n;
} BlockMember;
const BlockMember *cpu_block_members(FormatId format, int *n);
/* The geometry of a part's panels over cols inputs: scale, group_bytes, panel_bytes. */
void cpu_panel_shape(CpuPart *p, int64_t cols, ScaleType stored);
/* Fills dst with t's panels. ST_INPUT for codes and scales that mean no number, saying in which
 * row; where is put in front of that. */
Status cpu_pack(Backend *b, const CpuPart *p, const QuantTensor *t, uint8_t *dst, bool lookup,
                const char *where, Err *e);

/* Where input k of a unit's 8 and an output lie among a unit's 64 bytes, and how far the nibble is
 * shifted there: whatever order the level decodes fastest. */
static inline int nibble_place(IsaLevel isa, int lane, int k, int *shift)
{
    if (isa == ISA_SCALAR) {
        *shift = 4 * (k % 2);
        return k / 2 * PANEL + lane;
    }
    if (isa == ISA_AVX2) {
        *shift = 4 * (k % 4 / 2);
        return k / 4 * 32 + lane % 8 / 4 * 16 + lane / 8 * 8 + lane % 4 * 2 + k % 2;
    }
    *shift = 4 * (k % 2);
    return 4 * lane + k / 2;
}

/* iq2_cpu.c */
void cpu_iq2_levels(IsaLevel isa, Iq2Levels *levels);
void cpu_iq2_look_up(FormatId format, const Iq2Levels *levels, const uint8_t *block, Iq2Words *w);

/* matmul_cpu.c */
Status cpu_matmul(Backend *b, void *y, const void *x, const Weight *w, int part, const float *bias,
                  int n, Err *e);
Status cpu_matmul_float(Backend *b, float *y, const void *x, const Weight *w, const float *bias,
                        int n, Err *e);
/* How many panels a task takes, of n_panels for each of n_row_blocks: few enough that every thread
 * gets several. */
int cpu_block_panels(const Backend *b, int64_t n_panels, int64_t n_row_blocks, int most);

/* ffn_cpu.c */
size_t cpu_ffn_scratch_bytes(const Backend *b, int max_pairs, int64_t inter);
Status cpu_ffn(Backend *b, void *y, const void *x, const void *x_up, const int32_t *row_of,
               const int32_t *first, int n_experts, int max_pairs, const FfnSpec *spec,
               void *scratch, Err *e);

/* attention_cpu.c */
Status cpu_list_create(Backend *b, int max_rows, int max_seqs, int max_pages, AttnList **out,
                       Err *e);
Status cpu_list_set(Backend *b, AttnList *l, const AttnSeq *seqs, int n_seqs, int n_padded, Err *e);
void cpu_list_destroy(Backend *b, AttnList *l);
size_t cpu_kv_page_bytes(const Backend *b, int n_kv_heads, int head_dim, KvDtype dtype);
Status cpu_kv_write(Backend *b, void *pool, const void *k, const void *v, int64_t stride,
                    const AttnList *list, const AttnSpec *spec, Err *e);
Status cpu_attention(Backend *b, void *out, const void *q, int64_t stride, const void *pool,
                     const AttnList *list, const AttnSpec *spec, Err *e);
/* Values from a head's value row to the next: whole panels, so that kernels need no masks. */
static inline int cpu_value_stride(int head_dim)
{
    return (head_dim + PANEL - 1) / PANEL * PANEL;
}

/* Of n values, for NVFP4 a multiple of 16 with their block scales. */
static inline size_t cpu_kv_bytes(KvDtype dtype, size_t n)
{
    return dtype == KV_F32 ? 4 * n : dtype == KV_BF16 ? 2 * n : dtype == KV_FP8 ? n : n / 16 * 9;
}

/* kv_cpu.c */
/* 16 lanes of one key, value or latent: bf16s, E4M3 codes, or 8 bytes of E2M1 codes and a scale.
 * code has room for 32 bytes. */
void cpu_kv_encode(uint8_t *code, const float *x, KvDtype dtype, float scale);
/* Puts them where kv.inc looks for lanes i0 .. i0+15 of position j, among a head's keys or
 * values of one page. */
void cpu_kv_store_key(uint8_t *keys, const uint8_t *code, const AttnSpec *spec, int j, int i0);
void cpu_kv_store_value(uint8_t *values, const uint8_t *code, const AttnSpec *spec, int j, int i0);

/* latent_cpu.c */
size_t cpu_latent_page_bytes(const Backend *b, int latent_dim, int rope_dim, KvDtype dtype);
Status cpu_latent_write(Backend *b, void *pool, const void *rows, int64_t stride,
                        const AttnList *list, const LatentSpec *spec, Err *e);
size_t cpu_latent_scratch_bytes(const Backend *b, int n_rows, int n_positions,
                                const LatentSpec *spec);
Status cpu_latent_attention(Backend *b, void *out, const void *q, const void *pool,
                            const AttnList *list, const LatentSpec *spec, const LatentWeights *w,
                            LatentForm form, void *scratch, Err *e);

/* route_cpu.c */
Status cpu_route(Backend *b, int32_t *expert, float *weight, uint64_t *load, const float *logits,
                 const float *correction, int n, const int32_t *live, const RouterSpec *spec,
                 Err *e);

/* rows_cpu.c */
Status cpu_embed(Backend *b, float *h, const Weight *table, const int32_t *ids, int n, float scale,
                 Err *e);
Status cpu_add_norm(Backend *b, void *y, float *h, const void *delta, float scale,
                    const float *weight, int n, int width, float eps, NormKind kind, Err *e);
Status cpu_norm(Backend *b, void *y, const void *x, const float *weight, int n_rows, int n_groups,
                int width, int64_t stride, float eps, NormKind kind, Err *e);
Status cpu_rope(Backend *b, void *x, int n_rows, int64_t stride, int n_heads, int head_dim,
                const int32_t *position, const RopeSpec *rope, Err *e);
Status cpu_combine(Backend *b, void *y, const void *rows, const int32_t *slot, const float *weight,
                   const void *plus, int n, int top_k, int width, Err *e);
Status cpu_gate_rows(Backend *b, void *y, const void *gate, int n, int width, Err *e);
Status cpu_clamp(Backend *b, void *x, int n_rows, int64_t stride, int width, float limit, Err *e);
Status cpu_round_rows(Backend *b, void *y, int64_t y_stride, const void *x, int64_t x_stride, int n,
                      int width, const RowFormat *format, Err *e);
Status cpu_encode_rows(Backend *b, void *coded, const void *x, int n, int width,
                       const RowFormat *format, Err *e);
Status cpu_decode_rows(Backend *b, void *x, const void *coded, int n, int width,
                       const RowFormat *format, Err *e);
Status cpu_gather(Backend *b, void *y, const void *x, const int32_t *row, int n, size_t row_bytes,
                  Err *e);

/* The group g with first[g] <= task < first[g+1], among n groups. */
int cpu_find_group(const int *first, int n, int task);
/* Runs fn over n_tasks, on the team when there are at least two and together at least 32768 values
 * to touch: waking threads takes longer than less work than that. */
void cpu_run(Backend *b, int n_tasks, int64_t values, void (*fn)(void *ctx, int task, int thread),
             void *ctx);
/* Rows per task, so that every thread gets several tasks. */
int cpu_rows_per_task(const Backend *b, int n_rows);

#endif
