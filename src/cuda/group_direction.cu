/* group_direction.cu - the principal direction of every large node of a level.
 *
 * direction_kernel, one CTA of two warpgroups per (node, head), two on an SM:
 *
 *     all         copies sample rows into a ring of 3 tiles of 128 rows, two tiles ahead (cp.async)
 *     all         when a tile is there: add it to the Gram matrix (pca_add)        | barrier per tile
 *     4 warps     find the rows of the tile to be copied next
 *     all         centre, multiply 8 times (pca_direction), write D floats
 *
 * The sample is one row out of each of GROUP_SAMPLE equal runs of the node, at a place that a hash picks, since a fixed
 * stride would beat with the width of a frame.  4,096 rows are what clusters ask for: with 300 of them in 32,760 rows,
 * the mean of 24 draws in a prototype had 1.3 % more within-group variance at 2,048 rows than with directions from all
 * rows, 0.6 % at 4,096 and none at 8,192; all other data lost less than 0.3 % at 1,024.
 *
 * Issuing the multiplies holds a warp for as long as they take, 1,264 cycles a tile, and issuing the copies for 1,260:
 * the two overlap only between the CTAs of an SM. */
#include "group_pca.cuh"

enum { RING = 3, LISTS = RING + 1, TILE = PCA_ROWS };

/* Place of sample row j: in [j count / GROUP_SAMPLE, (j + 1) count / GROUP_SAMPLE), or j when all rows are taken. */
static __device__ __forceinline__ int sample_place(int j, int count)
{
    if (count <= GROUP_SAMPLE) return j;
    uint32_t hash = (uint32_t)j * 0x9e3779b9u;
    hash = (hash ^ hash >> 15) * 0x85ebca6bu;
    uint64_t within = (uint64_t)(hash ^ hash >> 13) * (uint64_t)count >> 32;
    return (int)(((uint64_t)j * (uint64_t)count + within) / GROUP_SAMPLE);
}

/* Row of q of sample row j, -1 past the sample.  from [count], or NULL when the node is all rows in ascending order. */
static __device__ __forceinline__ int sample_row(int j, int count, const int32_t *from)
{
    if (j >= min(count, (int)GROUP_SAMPLE)) return -1;
    int place = sample_place(j, count);
    return from ? from[place] : place;
}

template <int D>
static __device__ __forceinline__ void copy_tile(uint32_t shared, const uint16_t *head, int64_t row_stride,
                                                 const int32_t *rows /* [TILE] */)
{
    constexpr int CHUNKS = D / 8;
    for (int e = threadIdx.x; e < TILE * CHUNKS; e += PCA_THREADS) {
        int r = e / CHUNKS, c = e % CHUNKS, row = rows[r];
        rows_copy_16(shared + rows_offset<TILE>(r, c), head + max(row, 0) * row_stride + 8 * c, row >= 0);
    }
}

template <typename T, int D>
static __global__ void __launch_bounds__(PCA_THREADS, 2) direction_kernel(const __grid_constant__ group_level level)
{
    extern __shared__ __align__(1024) char ring[]; /* [RING, TILE, D] */
    __shared__ pca_shared shared;
    __shared__ int32_t rows[LISTS][TILE]; /* of q, of the next tiles */
    constexpr int BYTES = TILE * D * 2;
    int h = blockIdx.y;
    group_node node = group_node_at(level.G, level.depth, blockIdx.x);
    int count = group_node_rows(level.N, node), sample = min(count, (int)GROUP_SAMPLE);
    int tiles = (sample + TILE - 1) / TILE;
    const uint16_t *head = (const uint16_t *)level.q + h * level.head_stride;
    const int32_t *from = level.from ? level.from + (int64_t)h * level.N + node.first * GROUP_C : NULL;
    for (int i = threadIdx.x; i < RING * TILE; i += PCA_THREADS) rows[i / TILE][i % TILE] = sample_row(i, count, from);
    pca_ones<T>(&shared);
    __syncthreads();
    for (int tile = 0; tile < RING - 1; tile++) {
        copy_tile<D>(shared_address(ring) + tile * BYTES, head, level.row_stride, rows[tile]);
        rows_commit();
    }
    pca_block<D> block;
    pca_begin(block);
    for (int tile = 0; tile < tiles; tile++) {
        rows_wait<RING - 2>();
        __syncthreads(); /* tile is there, the place of tile - 1 is free, and the list of tile + RING - 1 is written */
        pca_add<T, D, TILE>(block, ring + tile % RING * BYTES, 0, &shared);
        int next = tile + RING - 1, row = -1;
        if (next < tiles)
            copy_tile<D>(shared_address(ring) + next % RING * BYTES, head, level.row_stride, rows[next % LISTS]);
        rows_commit();
        if (threadIdx.x < TILE) row = sample_row((next + 1) * TILE + threadIdx.x, count, from);
        pca_wait(block);
        if (threadIdx.x < TILE) rows[(next + 1) % LISTS][threadIdx.x] = row;
    }
    pca_direction<D>(block, sample, &shared);
    float *to = level.direction + ((int64_t)h * gridDim.x + blockIdx.x) * D;
    if (threadIdx.x < D) to[threadIdx.x] = shared.vector[0][threadIdx.x];
}

template <typename T, int D> static cudaError_t direction(const group_level *level, cudaStream_t stream)
{
    int bytes = RING * TILE * D * 2;
    cudaError_t error =
        cudaFuncSetAttribute(direction_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    direction_kernel<T, D><<<dim3(1u << level->depth, level->H), PCA_THREADS, bytes, stream>>>(*level);
    return cudaGetLastError();
}

cudaError_t group_direction(const group_level *level, mcsa_dtype dtype, cudaStream_t stream)
{
    if (dtype == MCSA_BF16)
        return level->D == 128 ? direction<__nv_bfloat16, 128>(level, stream)
                               : direction<__nv_bfloat16, 64>(level, stream);
    return level->D == 128 ? direction<__half, 128>(level, stream) : direction<__half, 64>(level, stream);
}
