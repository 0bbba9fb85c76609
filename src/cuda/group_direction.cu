/* group_direction.cu - the principal direction of every large node of a level, and all rows projected on them.
 *
 * direction_kernel, one CTA of 10 warps per (node, head), two on an SM:
 *
 *     all         copies sample rows into a ring of 3 tiles of 128 rows, two tiles ahead (cp.async)
 *     4 warps     find the rows of the tile after those, whose numbers arrive during the sums
 *     all         when a tile is there: add it to the Gram matrix (pca_add)        | barrier per tile
 *     all         centre, multiply 8 times (pca_direction), write D floats
 *
 * The sample is one row out of each of GROUP_SAMPLE equal runs of the node, at a place that a hash picks, since a fixed
 * stride would beat with the width of a frame.  Its direction explains less variance than the best one by a factor of
 * about 1 - sum_k lambda_k / (sample (lambda_1 - lambda_k)), 1 % of one split's gain; the split itself counts all rows.
 *
 * project_kernel, one CTA of 8 warps per (group, head): D/8 lanes read a row, each warp has all of its 16 rows in
 * flight; it reads every row once and is bound by device memory. */
#include "group_pca.cuh"

enum { RING = 3, LISTS = RING + 1, TILE = 128, PROJECT_WARPS = 8, PROJECT_ROWS = GROUP_C / PROJECT_WARPS };

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
        rows_copy_16(shared + rows_offset<D>(r, c), head + max(row, 0) * row_stride + 8 * c, row >= 0);
    }
}

template <typename T, int D>
static __global__ void __launch_bounds__(PCA_THREADS, 2) direction_kernel(const __grid_constant__ group_level level)
{
    extern __shared__ __align__(128) char ring[]; /* [RING, TILE, D] */
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
    __syncthreads();
    for (int tile = 0; tile < RING - 1; tile++) {
        copy_tile<D>(rows_address(ring) + tile * BYTES, head, level.row_stride, rows[tile]);
        rows_commit();
    }
    pca_block<D> block;
    pca_begin(block);
    for (int tile = 0; tile < tiles; tile++) {
        rows_wait<RING - 2>();
        __syncthreads(); /* tile is there, the place of tile - 1 is free, and the list of tile + RING - 1 is written */
        int next = tile + RING - 1, row = -1;
        if (next < tiles)
            copy_tile<D>(rows_address(ring) + next % RING * BYTES, head, level.row_stride, rows[next % LISTS]);
        rows_commit();
        if (threadIdx.x < TILE) row = sample_row((next + 1) * TILE + threadIdx.x, count, from);
        pca_add<T, D>(block, rows_address(ring) + tile % RING * BYTES, TILE / 16);
        if (threadIdx.x < TILE) rows[(next + 1) % LISTS][threadIdx.x] = row;
    }
    pca_direction<D>(block, sample, &shared);
    float *to = level.direction + ((int64_t)h * gridDim.x + blockIdx.x) * D;
    if (threadIdx.x < D) to[threadIdx.x] = shared.vector[threadIdx.x];
}

static __device__ __forceinline__ int node_of_group(const group_level *level, int group)
{
    int first = 0, groups = level->G, index = 0;
    for (int i = 0; i < level->depth; i++) {
        int left = (groups + 1) / 2, right = group >= first + left;
        first += right ? left : 0;
        groups = right ? groups - left : left;
        index = 2 * index + right;
    }
    return index;
}

template <typename T, int D>
static __global__ void __launch_bounds__(32 * PROJECT_WARPS) project_kernel(const __grid_constant__ group_level level)
{
    constexpr int LANES = D / 8, ROWS = 32 / LANES, LOADS = PROJECT_ROWS / ROWS; /* lanes of a row, rows of a load */
    int h = blockIdx.y, lane = threadIdx.x % 32, part = lane % LANES;
    int first = blockIdx.x * GROUP_C + threadIdx.x / 32 * PROJECT_ROWS;
    const uint16_t *head = (const uint16_t *)level.q + h * level.head_stride + 8 * part;
    int64_t at = (int64_t)h * level.N;
    uint4 x[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        int place = min(first + i * ROWS + lane / LANES, level.N - 1);
        int row = level.from ? level.from[at + place] : place;
        x[i] = *(const uint4 *)(head + row * level.row_stride);
    }
    int64_t index = (int64_t)h << level.depth | node_of_group(&level, blockIdx.x);
    const float4 *from = (const float4 *)(level.direction + index * D + 8 * part);
    float4 low = from[0], high = from[1];
    const float v[8] = { low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w };
    float mine = 0;
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        float2 pair = rows_dot_8<T>(x[i], v, make_float2(0, 0));
        float sum = pair.x + pair.y;
#pragma unroll
        for (int mask = LANES / 2; mask; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
        if (part == i) mine = sum;
    }
    int place = first + part * ROWS + lane / LANES;
    if (part < LOADS && place < level.N) level.projection[at + place] = mine;
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

template <typename T, int D> static cudaError_t project(const group_level *level, cudaStream_t stream)
{
    project_kernel<T, D><<<dim3(level->G, level->H), 32 * PROJECT_WARPS, 0, stream>>>(*level);
    return cudaGetLastError();
}

cudaError_t group_direction(const group_level *level, mcsa_dtype dtype, cudaStream_t stream)
{
    if (dtype == MCSA_BF16)
        return level->D == 128 ? direction<__nv_bfloat16, 128>(level, stream)
                               : direction<__nv_bfloat16, 64>(level, stream);
    return level->D == 128 ? direction<__half, 128>(level, stream) : direction<__half, 64>(level, stream);
}

cudaError_t group_project(const group_level *level, mcsa_dtype dtype, cudaStream_t stream)
{
    if (dtype == MCSA_BF16)
        return level->D == 128 ? project<__nv_bfloat16, 128>(level, stream) : project<__nv_bfloat16, 64>(level, stream);
    return level->D == 128 ? project<__half, 128>(level, stream) : project<__half, 64>(level, stream);
}
