/* kernels/backend.h - the compute that the model asks for, a whole batch per call.
 *
 * Rows are tokens. "act" is the backend's activation type: float32 on the CPU, bf16 on CUDA;
 * act_bytes says. The residual stream, h, is float32 on both. All pointers are the backend's own
 * memory (alloc) where nothing else is said, index arrays (ids, positions, expert choices and their
 * weights, first, slots) too: so what the router chose never has to come to the host.
 *
 * A device backend queues its ops and returns; upload, download and wait alone wait for it. Between
 * capture_begin and capture_end ops are recorded, to be replayed as one graph: they then read and
 * write the same memory, of which the contents may have changed.
 *
 * Same bits: every output element is reduced in an order that depends only on its row and the
 * weight's shape - never on the number of rows, of threads, or on the chunking of a prompt. */
#ifndef MB_KERNELS_BACKEND_H
#define MB_KERNELS_BACKEND_H

#include "io/err.h"
#include "io/team.h"
#include "kernels/exchange_ops.h"
#include "kernels/sample.h"
#include "quant/row_format.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Backend Backend;
typedef struct Weight Weight;     /* a bank of matrices of one shape, repacked for this backend */
typedef struct AttnList AttnList; /* which rows of a step attend to which pages */
typedef struct Graph Graph;       /* recorded ops */

/* Ordered: a rank that has one level has all lower ones. Results may differ between levels. */
typedef enum IsaLevel { ISA_SCALAR, ISA_AVX2, ISA_AVX512, N_ISA_LEVELS } IsaLevel;

enum { BACKEND_DEVICE_NAME = 32 };
#define BACKEND_NO_DRIVER "no GPU: there is no CUDA driver (libcuda.so.1)"

typedef struct BackendConfig {
    /* borrowed; must outlive the backend; NULL: the caller alone. Ops and weight_set run on it,
     * so only the thread that made it may call them */
    Team *team;
    IsaLevel isa;   /* at most isa_best() */
    int local_rank; /* picks the device */
} BackendConfig;

enum { WEIGHT_CHECKS_CODES = 1, WEIGHT_CHECKS_SCALES = 2 };

typedef enum WeightUse {
    WEIGHT_MATMUL,
    WEIGHT_LOOKUP,
    WEIGHT_ROUTER, /* a matmul whose float32 and float16 weights are never rounded to act */
    WEIGHT_GATED,  /* a matmul whose two parts are gate and up, for ffn */
    WEIGHT_CODED   /* a matmul of rows in codes, where BackendOps.takes_codes allows it */
} WeightUse;

typedef struct WeightPart { /* parts are stacked on the output side: q, k, v; or gate, up */
    FormatId format;
    int64_t rows;
    int64_t group;      /* columns that share a scale in every matrix of the bank; >= 1 */
    ScaleType scale;    /* the stored type of block scales; SCALE_NONE where the format has none */
    int64_t scale_rows; /* rows that share one in every matrix, from the part's first on; else 1 */
} WeightPart;

static inline WeightPart weight_part(const QuantTensor *t) /* that holds t's like */
{
    bool from_first = t->scale_rows > 0 && t->first_row % t->scale_rows == 0;
    return (WeightPart){t->format->id, t->rows, t->group, t->scale_type,
                        from_first ? t->scale_rows : 1};
}

enum {
    MAX_PARTS = 4,
    ALL_PARTS = -1,
    KV_PAGE = 64 /* positions per KV page, and the unit in which attention splits KV */
};

typedef enum NormKind {
    NORM_LLAMA, /* models.md 1.2 variants A, B, C; A and B are alike in float32 */
    NORM_FP32,
    NORM_ZERO_CENTRED
} NormKind;

typedef enum ActKind {
    ACT_SWIGLU, /* g' * sigmoid(alpha * g') * (u' + beta), g' = min(g, limit), |u'| <= limit */
    /* beta * tanh(g / beta) * sigmoid(g) * u', u' = limit * tanh(u / limit), or u where limit is
     * infinite (Kimi-K3) */
    ACT_SITU,
    ACT_RELU2 /* max(g, 0)^2, of an FFN without an up projection (Nemotron-H) */
} ActKind;

typedef struct ActSpec {
    ActKind kind;
    float alpha, beta, limit; /* silu: 1, 0, INFINITY */
} ActSpec;

typedef enum KvDtype { KV_F32, KV_BF16, KV_FP8, KV_NVFP4 } KvDtype;

/* How keys and values rest in the cache. Every one is read through the rounding, those of the
 * step's own rows too, so results are those of float32 attention over rounded keys and values.
 * Scales are multipliers, > 0; 1 where the checkpoint has none. With f(.) a rounding to float32
 * and s the scale, x is read back as
 *   KV_BF16   bf16(x)
 *   KV_FP8    f(Q(f(x / s)) * s), Q the nearest E4M3, saturating
 *   KV_NVFP4  what ROWS_NVFP4_STATIC makes of the head's lanes with input_scale s: for each 16,
 *             f(A(f(x * o)) * f(b * s)), g = f(1 / s), b = Q(f(g * f(bmax * f(1 / 6)))),
 *             o = f(1 / f(b * f(1 / g))) or 0 where b is 0 */
typedef struct KvFormat {
    KvDtype dtype;
    float k_scale, v_scale; /* FP8 and NVFP4; latents use k_scale */
} KvFormat;

typedef enum RouterKind {
    ROUTER_SOFTMAX_TOPK, /* models.md 3, R1: softmax over all experts, then the top_k */
    ROUTER_TOPK_SOFTMAX, /* R2: the top_k logits, then softmax over them */
    /* R3: softmax; the topk_group groups with the largest member stay, other scores become 0 */
    ROUTER_GROUP_MAX,
    ROUTER_SIGMOID /* R4, R5: sigmoid; chosen by score + correction within the topk_group groups whose two best sum
                            highest (other scores -inf); the weights are the scores without correction */
} RouterKind;

typedef struct RouterSpec {
    RouterKind kind;
    int n_experts, top_k;
    int n_group, topk_group; /* contiguous groups of equal size, R3 and R4; 1 and 1: no groups */
    bool renormalize;        /* weights / (their sum + renorm_eps); inherent in R2 */
    float renorm_eps;        /* 1e-20 in R4, else 0 */
    float scale;             /* multiplies the weights, once, last */
} RouterSpec;

typedef enum RopeLayout { ROPE_HALF, ROPE_INTERLEAVED } RopeLayout;

typedef struct RopeSpec {
    /* [n_positions, rotary_dim]: rotary_dim/2 cosines, then rotary_dim/2 sines */
    const float *table;
    int rotary_dim; /* the first lanes of each head; the rest passes through */
    RopeLayout layout;
} RopeSpec;

/* One sequence's rows in this step: rows row .. row+n_rows-1 hold positions pos .. pos+n_rows-1.
 * On the host, with its pages. */
typedef struct AttnSeq {
    int row, n_rows, pos;
    /* [ceil((pos+n_rows)/KV_PAGE)] page numbers in the pool; -1: out of every window */
    const int32_t *pages;
} AttnSeq;

typedef struct AttnSpec {
    int n_heads, n_kv_heads, head_dim;
    float scale;
    int window;         /* key j is visible to query i iff 0 <= i-j < window; 0: all j <= i */
    const float *sinks; /* [n_heads] backend memory, or NULL */
    KvFormat kv;        /* ST_INPUT unless head_dim % 16 == 0 for KV_NVFP4 */
} AttnSpec;

/* Multi-head latent attention (models.md 6.7). A cached row is the latent (latent_dim values,
 * normed), then the rotated key lanes that all heads share (rope_dim). A query head is nope_dim
 * lanes, then rope_dim rotated ones. */
typedef struct LatentSpec {
    int n_heads, nope_dim, rope_dim, v_dim, latent_dim;
    float scale;
    /* KV_FP8: the latent in E4M3 with k_scale, the rope lanes bf16; KV_NVFP4 is ST_INPUT */
    KvFormat kv;
} LatentSpec;

/* kv_b_proj, twice: both banks have n_heads matrices. */
typedef struct LatentWeights {
    const Weight *up;     /* [k_nope: nope_dim | v: v_dim, latent_dim], two parts */
    const Weight *absorb; /* [latent_dim, nope_dim]: the k_nope part, transposed */
} LatentWeights;

typedef enum LatentForm {
    /* keys and values of each head are made from the latents: what a prompt's positions use */
    LATENT_EXPANDED,
    LATENT_ABSORBED /* queries and outputs pass through kv_b_proj instead: what generated positions use */
} LatentForm;

typedef struct FfnSpec { /* y = W2 * act(W13 x + b13) + b2, for each expert of a bank */
    const Weight
        *w13;         /* n_experts x [gate: inter | up: inter, hidden], two parts; ACT_RELU2: one */
    const Weight *w2; /* n_experts x [hidden, inter] */
    const float *b13; /* [n_experts, 2*inter], gate first, or NULL; ACT_RELU2: [n_experts, inter] */
    const float *b2;  /* [n_experts, hidden] or NULL */
    int64_t hidden, inter;
    ActSpec act;
    RowFormat inner; /* what act(...) is rounded to before W2; inter a multiple of its columns */
    RowFormat rows;  /* where W13 is WEIGHT_CODED: what x is coded in; else as they are */
} FfnSpec;

/* Where the matrices of a bank stand in a file. */
typedef struct BankFile {
    int fd;
    const char *path;       /* for messages */
    const uint64_t *offset; /* [n_mats] */
} BankFile;

/* What this device does at best, measured in the run that quotes it. 0: it has none. */
typedef struct BackendCeilings {
    double memory_bytes_s; /* of a copy, read plus written; of reading alone on the CPU */
    double upload_bytes_s; /* from pinned memory */
    /* multiply-adds count twice; products of bf16 (float32 on the CPU), and of FP8 */
    double flops, fp8_flops;
    const char *gemm; /* what computed them: "cuBLASLt 8192^3", "FMA in registers"; NULL: nothing */
} BackendCeilings;

typedef struct BackendOps {
    const char *name; /* "cpu", "cuda": what --backend takes */
    int act_bytes;
    bool host_memory; /* its memory is the host's, so others may read and write it */

    /* Whether create can work on this machine: ST_DEVICE with the reason, which is BACKEND_NO_DRIVER
     * where nothing of a device is installed. device, if not NULL, gets the name of what create
     * takes, which two ranks of a node have in common where they take the same. May take half a
     * second. */
    Status (*can_run)(int local_rank, char device[BACKEND_DEVICE_NAME], Err *e);
    Status (*create)(const BackendConfig *config, Backend **out, Err *e);
    void (*destroy)(Backend *b); /* NULL is fine */
    /* Takes 2 GiB of the device (384 MiB on the CPU) for as long as it runs, which is a second. */
    Status (*ceilings)(Backend *b, BackendCeilings *out, Err *e);
    /* Bytes that alloc could still give; NULL where host_memory. */
    size_t (*free_memory)(const Backend *b);

    /* what: names the memory in "out of memory" messages. 64-byte aligned; not zeroed. */
    Status (*alloc)(Backend *b, size_t bytes, const char *what, void **out, Err *e);
    void (*release)(Backend *b, void *p);
    /* src_host is not needed afterwards. */
    Status (*upload)(Backend *b, void *dst, const void *src_host, size_t bytes, Err *e);
    Status (*download)(Backend *b, void *dst_host, const void *src, size_t bytes, Err *e);
    /* A small upload that does not wait: src_host is read before it returns, dst is written in its
     * turn. Not while capturing. */
    Status (*stage)(Backend *b, void *dst, const void *src_host, size_t bytes, Err *e);

    /* Graphs, of ops that were called between begin and end on this backend, by the same thread.
     * NULL where ops run as they are called. graph_launch queues all of them. */
    Status (*capture_begin)(Backend *b, Err *e);
    Status (*capture_end)(Backend *b, Graph **out, Err *e);
    Status (*graph_launch)(Backend *b, Graph *g, Err *e);
    void (*graph_destroy)(Backend *b, Graph *g); /* NULL is fine */

    /* n_mats matrices of n_parts parts each over cols inputs. Memory is taken here, values come
     * with weight_set, one part of one matrix at a time, so that loading needs no second copy of
     * a bank. */
    Status (*weight_create)(Backend *b, const char *name, WeightUse use, int n_mats,
                            const WeightPart *parts, int n_parts, int64_t cols, Weight **out,
                            Err *e);
    Status (*weight_set)(Backend *b, Weight *w, int mat, int part, const QuantTensor *t, Err *e);
    /* What weight_set looks at itself while it reads t, WEIGHT_CHECKS_...: it returns ST_INPUT where
     * one of these is no finite number, without saying which. NULL: it looks at nothing. */
    int (*weight_checks)(const Weight *w, int part, const QuantTensor *t);
    /* weight_set will be called with this part and tensor, in this order, of some matrix of w, so that it
     * may read ahead. Only a hint, void when a bank is created. NULL: nobody listens. */
    void (*weight_ahead)(Backend *b, const Weight *w, int part, const QuantTensor *t);
    void (*weight_destroy)(Backend *b, Weight *w); /* NULL is fine */
    size_t (*weight_bytes)(const Weight *w);
    /* Banks as files keep them. The layout is a name for the order in which matrices lie, of
     * weight_mat_bytes each; NULL, and none of the rest, where a backend's banks are not fit to be
     * kept. weight_save writes every matrix and gives its CRC-32, weight_restore reads them into a
     * bank of the same shape and layout; ST_INPUT, naming the matrix, where a CRC-32 differs. */
    const char *(*weight_layout)(const Backend *b);
    size_t (*weight_mat_bytes)(const Weight *w);
    Status (*weight_save)(Backend *b, const Weight *w, const BankFile *f, uint32_t *crc, Err *e);
    Status (*weight_restore)(Backend *b, Weight *w, const BankFile *f, const uint32_t *crc, Err *e);

    /* h[r, :] = table[ids[r], :] * scale; h float32 [n, cols]; 0 <= ids < rows is the caller's
     * promise. */
    Status (*embed)(Backend *b, float *h, const Weight *table, const int32_t *ids, int n,
                    float scale, Err *e);
    /* h[r, :] += scale * delta[r, :], then y[r, :] = rms_norm(h[r, :]) * weight; h float32, delta
     * and y act, all [n, width]; weight float32 [width]. delta NULL: h stays as it is. */
    Status (*add_norm)(Backend *b, void *y, float *h, const void *delta, float scale,
                       const float *weight, int n, int width, float eps, NormKind kind, Err *e);
    /* y[r, g, :] = rms_norm(x[r, g, :]) * weight, for n_rows rows of n_groups groups of width
     * values; rows are stride values apart in both (stride >= n_groups * width); y may be x.
     * weight float32 [width]. */
    Status (*norm)(Backend *b, void *y, const void *x, const float *weight, int n_rows,
                   int n_groups, int width, int64_t stride, float eps, NormKind kind, Err *e);
    /* y[r, :] = W[0] x[r, :] + bias; y act [n, outputs], x act [n, cols], bias float32 [outputs] or
     * NULL; y is not x. part: only that part's outputs are written, where ALL_PARTS would; for
     * parts that read differently rounded rows. */
    Status (*matmul)(Backend *b, void *y, const void *x, const Weight *w, int part,
                     const float *bias, int n, Err *e);
    /* All parts, y float32 [n, outputs]: logits of routers and of the head. */
    Status (*matmul_float)(Backend *b, float *y, const void *x, const Weight *w, const float *bias,
                           int n, Err *e);
    /* y[r, :] = x[r, :] rounded to format, for rows of width values that lie x_stride and y_stride
     * values apart; y may be x. */
    Status (*round_rows)(Backend *b, void *y, int64_t y_stride, const void *x, int64_t x_stride,
                         int n, int width, const RowFormat *format, Err *e);
    /* The same in two halves, for rows that travel: dense rows act [n, width] to and from
     * row_encoded_bytes each. */
    Status (*encode_rows)(Backend *b, void *coded, const void *x, int n, int width,
                          const RowFormat *format, Err *e);
    Status (*decode_rows)(Backend *b, void *x, const void *coded, int n, int width,
                          const RowFormat *format, Err *e);
    /* Rows and weights multiplied as codes, by tensor cores that take both; all four NULL where a
     * backend has none. takes_codes: whether a WEIGHT_CODED bank of these parts, all over the same
     * rows, can be made for rows in that format; then code_row_bytes is at most cols * act_bytes.
     * code_rows: coded [n, code_row_bytes] from dense rows act [n, width], 16-byte aligned; the
     * values that encode_rows codes. matmul_codes: matmul with all parts. */
    bool (*takes_codes)(const Backend *b, const WeightPart *parts, int n_parts, int64_t cols,
                        const RowFormat *rows);
    size_t (*code_row_bytes)(RowScheme scheme, int64_t width);
    Status (*code_rows)(Backend *b, void *coded, const void *x, int n, int width,
                        const RowFormat *format, Err *e);
    Status (*matmul_codes)(Backend *b, void *y, const void *coded, const Weight *w,
                           const float *bias, int n, const RowFormat *rows, Err *e);
    /* Rotates n_heads heads of head_dim lanes that start at x[r * stride]; position[r] indexes
     * the table. */
    Status (*rope)(Backend *b, void *x, int n_rows, int64_t stride, int n_heads, int head_dim,
                   const int32_t *position, const RopeSpec *rope, Err *e);
    /* Bytes of one page of one layer: keys and values of KV_PAGE positions. */
    size_t (*kv_page_bytes)(const Backend *b, int n_kv_heads, int head_dim, KvDtype dtype);
    /* A list that can hold this many rows and sequences, with this many page numbers of each. */
    Status (*list_create)(Backend *b, int max_rows, int max_seqs, int max_pages, AttnList **out,
                          Err *e);
    /* The list becomes that of these sequences. Like stage: not while capturing, and without waiting;
     * seqs is read before it returns, the pages until the list is set again. n_padded 0, or with one
     * row in every sequence: at least n_seqs; then what is launched depends on n_padded alone, and
     * rows n_seqs .. n_padded-1 read and write nothing. */
    Status (*list_set)(Backend *b, AttnList *l, const AttnSeq *seqs, int n_seqs, int n_padded,
                       Err *e);
    void (*list_destroy)(Backend *b, AttnList *l); /* NULL is fine */
    /* Writes k and v (act [*, n_kv_heads * head_dim], rows stride values apart) into the
     * sequences' pages. */
    Status (*kv_write)(Backend *b, void *pool, const void *k, const void *v, int64_t stride,
                       const AttnList *list, const AttnSpec *spec, Err *e);
    /* out act [*, n_heads * head_dim] dense; q rows stride values apart. The step's own keys
     * must have been written. KV is split at fixed multiples of KV_PAGE positions; masked
     * keys contribute nothing. */
    Status (*attention)(Backend *b, void *out, const void *q, int64_t stride, const void *pool,
                        const AttnList *list, const AttnSpec *spec, Err *e);
    /* The same for latents: bytes of one page of one layer, for width = latent_dim + rope_dim;
     * rows [*, width], stride values apart, into the pages; attention, out act [*, n_heads *
     * v_dim] dense, q [*, n_heads * (nope_dim + rope_dim)] dense. The form changes the last
     * bits, never which positions are seen. scratch: latent_scratch_bytes of as many rows, and of as
     * many positions of a sequence, as the list can hold. */
    size_t (*latent_page_bytes)(const Backend *b, int latent_dim, int rope_dim, KvDtype dtype);
    Status (*latent_write)(Backend *b, void *pool, const void *rows, int64_t stride,
                           const AttnList *list, const LatentSpec *spec, Err *e);
    size_t (*latent_scratch_bytes)(const Backend *b, int n_rows, int n_positions,
                                   const LatentSpec *spec);
    Status (*latent_attention)(Backend *b, void *out, const void *q, const void *pool,
                               const AttnList *list, const LatentSpec *spec, const LatentWeights *w,
                               LatentForm form, void *scratch, Err *e);
    /* expert int32 [n, top_k] and weight float32 [n, top_k], from logits float32 [n, n_experts];
     * correction float32 [n_experts] is added for the choice only (ROUTER_SIGMOID), or NULL. Best
     * first; ties go to the lower index. load [n_experts] grows by the choices of each expert. live
     * NULL, or rows from *live on are padding: expert -1 and weight 0. A row with NaN logits is
     * ST_INPUT, from here or, on a device, from the next wait. */
    Status (*route)(Backend *b, int32_t *expert, float *weight, uint64_t *load, const float *logits,
                    const float *correction, int n, const int32_t *live, const RouterSpec *spec,
                    Err *e);
    /* Grouped experts: pair p of expert i (first[i] <= p < first[i+1], first[0] = 0) reads
     * x[row_of[p], :] (row_of NULL: p) and writes y[p, :]. first NULL: one expert, n_experts 1, has
     * pairs 0 .. max_pairs-1; else max_pairs is at least first[n_experts], and the most that is
     * launched for. x_up: what the up projection reads in place of x, where the two were rounded
     * differently; NULL: x. scratch: ffn_scratch_bytes(max_pairs, inter); it then begins with what
     * W2 read, act [pairs, inter]. A W13 of WEIGHT_CODED reads rows that code_rows made in
     * spec->rows; a W2 of WEIGHT_CODED is given inner products in codes of spec->inner, and
     * scratch begins with nothing of use. */
    size_t (*ffn_scratch_bytes)(const Backend *b, int max_pairs, int64_t inter);
    Status (*ffn)(Backend *b, void *y, const void *x, const void *x_up, const int32_t *row_of,
                  const int32_t *first, int n_experts, int max_pairs, const FfnSpec *spec,
                  void *scratch, Err *e);
    /* y[t, :] = sum over s = 0 .. top_k-1, in that order, of weight[t, s] * rows[slot[t, s], :],
     * then + plus[t, :]; slot -1 adds nothing, plus may be NULL. Accumulates in float32. */
    Status (*combine)(Backend *b, void *y, const void *rows, const int32_t *slot,
                      const float *weight, const void *plus, int n, int top_k, int width, Err *e);
    /* y[r, :] *= sigmoid(gate[r]); y act [n, width], gate act [n] */
    Status (*gate_rows)(Backend *b, void *y, const void *gate, int n, int width, Err *e);
    /* x[r, i] = min(max(x[r, i], -limit), limit) for i < width; rows stride values apart. */
    Status (*clamp)(Backend *b, void *x, int n_rows, int64_t stride, int width, float limit,
                    Err *e);
    /* Row i of y is row row[i] of x; row_bytes each, an even number. */
    Status (*gather)(Backend *b, void *y, const void *x, const int32_t *row, int n,
                     size_t row_bytes, Err *e);
    /* Where the backend's memory is not the host's, else NULL: out[i] (host) is what rows[i] (host)
     * asks of logits[i, :], float32 [n, vocab]. Ids are chosen as contract.md section 3 says, as
     * jobs/sampling.h chooses them from the same logits; log-probabilities are within 1e-5 of exact
     * ones. A row's results depend on nothing but its logits and its SampleRow. scratch:
     * sample_scratch_bytes of the backend's memory. Waits for the results. */
    size_t (*sample_scratch_bytes)(const Backend *b, int n, int vocab);
    Status (*sample)(Backend *b, Sampled *out, const float *logits, int n, const SampleSpec *spec,
                     const SampleRow *rows, void *scratch, Err *e);
    /* Until all that was queued is done. ST_INPUT where a router met a row of NaNs meanwhile. */
    Status (*wait)(Backend *b, Err *e);
    const ExchangeOps *exchange; /* NULL where host_memory */
} BackendOps;

/* NULL: not in this build. */
const BackendOps *backend_find(const char *name);
IsaLevel isa_best(void); /* of this processor, by CPUID (and the operating system's XCR0) */
const char *isa_name(IsaLevel isa);
/* "scalar", "avx2", "avx512", or "auto" for isa_best(); ST_USAGE otherwise. */
Status isa_parse(const char *name, IsaLevel *out, Err *e);

#endif
