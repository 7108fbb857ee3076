/* kernels/cuda/attention.cu - queries against the keys and values of their sequences.
 * Tile    rows of a prompt: 128 pairs of a row and a query head of one KV head per block of 4 warps
 *         (8 for heads above 128 lanes). Rows that come one to a sequence: all heads of a KV head, 16
 *         at most, per block of one warp. Either passes over pages of 64 positions, which the copy
 *         engine brings to shared memory as they lie, keys and values each a piece, 3 or 4 pieces
 *         ahead; a grid fills the device and takes its tiles round by round.
 * Budget  a single row reads its keys and values once: bandwidth, 18 bytes a clock and multiprocessor,
 *         of which the matrix units need a tenth. A prompt's tile makes 4 * 128 * 64 * head_dim flops
 *         of a page from L2: matrix units, and a power of two for each 2 * head_dim of their products.
 * Why     both kernels run the same code for a warp, so a row has the same bits in both. A score is
 *         a chain over lanes; weights, 2 to the score less the largest one rounded up, are rounded
 *         to bf16, and their sum is one more output, of values that are all 1, so that errors of
 *         few keys cancel; outputs are chains over keys. Powers of two make every rescaling exact,
 *         so what is masked or far below changes no bit. Each CUDA_SPLIT positions begin a new
 *         chain, merged in ascending order into the row's state: splits may run side by side. */
#include "kernels/cuda/arch.cuh"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_sm90.h"

int cuda_attention_launch(const CudaAttention *attention, void *stream)
{
    CudaAttention a = *attention;
    int per_kv = a.n_heads / a.cache.n_kv_heads, lanes = a.cache.lanes;
    cudaStream_t s = (cudaStream_t)stream;
    if (a.list.most_singles > 0) {
        Params p = params_of(a, 16);
        int ahead =
            a.cache.kv.dtype == KV_BF16 ? 3 : 2; /* pieces; more blocks where they are small */
        cudaError_t code = lanes == 64    ? launch_attention<Rows<1, 64, true>, 1, 12>(p, 3, s)
                           : lanes == 128 ? launch_attention<Rows<1, 128, true>, 1, 8>(p, ahead, s)
                           : lanes == 256 ? launch_attention<Rows<1, 256, true>, 1, 1>(p, 2, s)
                                          : launch_attention<Rows<1, 256, false>, 1, 1>(p, 3, s);
        if (code != cudaSuccess)
            return code;
    }
    /* Rows of a tile times heads make 128: 16 and 8, or more rows where a KV head has fewer. */
    while (a.tile < CUDA_TILE_SIZES - 1 && per_kv << a.tile < 8)
        a.tile++;
    int per_block = 8 >> a.tile;
    if (a.list.n_tiles[a.tile] == 0)
        return cudaSuccess;
    if (!a.portable && cuda_has_sm90a() && (lanes == 64 || lanes == 128 || lanes == 256))
        return cuda_attention_sm90(&a, per_block, s);
    Params p = params_of(a, per_block);
    return lanes == 64    ? launch_attention<Rows<2, 64, true>, 4, 2>(p, 4, s)
           : lanes == 128 ? launch_attention<Rows<2, 128, true>, 4, 2>(p, 4, s)
           : lanes == 256 ? launch_attention<Rows<1, 256, true>, 8, 1>(p, 3, s)
                          : launch_attention<Rows<1, 256, false>, 8, 1>(p, 3, s);
}
