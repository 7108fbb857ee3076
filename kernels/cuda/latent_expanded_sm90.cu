/* kernels/cuda/latent_expanded_sm90.cu - a prompt's rows against keys and values made from latents.
 * Tile    as attention_sm90.cu, with 192 rows of one head and keys of 192 lanes. Helpers copy keys and
 *         values from rows in memory, the copy engine the rope lanes of keys from the latents' pages.
 * Budget  2 * 192 * 64 * (192 + 128) flops of a page of 40 KiB from L2: matrix units. The absorbed form
 *         makes 3.4 times as many flops, and the other 512 * 256 of a position and head, which this one
 *         makes once, for each row.
 * Why     one kernel with attention over pages, so that what holds for its bits holds here. */
#include "kernels/cuda/attention_sm90.cuh"

int cuda_expanded_attention_launch(const CudaExpandedAttention *e, void *stream)
{
    const CudaLatents &c = e->cache;
    CudaAttention a = {};
    a.cache.pool = c.pool;
    a.cache.page_bytes = c.page_bytes;
    a.cache.head_bytes = (int64_t)c.latent_blocks * (c.kv.dtype == KV_FP8 ? BLOCK / 2 : BLOCK);
    a.cache.lanes = 192;
    a.cache.n_kv_heads = e->n_heads;
    a.cache.kv = {KV_BF16, 1, 1};
    a.list = c.list;
    a.q = e->q;
    a.out = e->out;
    a.q_stride = e->q_stride;
    a.out_stride = e->out_stride;
    a.n_heads = e->n_heads;
    a.scale = e->scale;
    a.tile = CUDA_TILE_ALL;
    a.partials = e->partials;
    a.most_floats = e->most_floats;
    if (c.list.n_tiles[CUDA_TILE_ALL] == 0)
        return cudaSuccess;
    Params p = params_of(a, 1);
    p.expansion = {(const bf16 *)e->kv, e->first_page, e->end_page};
    return launch_prompt<192, 128, EXPANDED>(p, (cudaStream_t)stream);
}
