/* group_leaf.cu - all levels of a subtree of at most GROUP_LEAF groups, its rows read once.
 *
 * leaf_kernel, one CTA of 10 warps per (subtree, head), one on an SM (rows: 160 KiB at D = 128):
 *
 *     all    copy the rows in (cp.async)                                              | barrier
 *     level by level, node by node of two groups or more; its rows are neighbours:
 *       all    Gram matrix, centre, 8 products (group_pca.cuh)                        | barriers inside
 *       all    a thread projects up to two rows; radix select (group_kth.cuh)         | barriers inside
 *       all    counts by ballot give each row its place: indices move                 | barrier
 *       all    rows move through registers, if a child is to be split again           | 2 or 4 barriers
 *     all    write the indices
 *
 * Rows are moved so that ldmatrix meets 8 neighbours of one node, which no bank holds twice. */
#include "group_kth.cuh"
#include "group_pca.cuh"

enum {
    ROWS_EACH = (GROUP_LEAF_ROWS + PCA_THREADS - 1) / PCA_THREADS,
    RUNS = (GROUP_LEAF_ROWS + 31) / 32 /* of 32 rows, counted by one ballot each */
};

typedef struct leaf_shared {
    pca_shared pca;
    kth_shared kth;
    uint32_t key[GROUP_LEAF_ROWS];
    int32_t index[GROUP_LEAF_ROWS]; /* query of each row */
    int larger[RUNS], ties[RUNS];
} leaf_shared;

/* key[i] of rows [0, n) that start at `rows` */
template <typename T, int D>
static __device__ __forceinline__ void leaf_project(const char *rows, int n, leaf_shared *shared)
{
    float2 sum[ROWS_EACH];
#pragma unroll
    for (int k = 0; k < ROWS_EACH; k++) sum[k] = make_float2(0, 0);
#pragma unroll 4
    for (int c = 0; c < D / 8; c++) {
        const float4 *from = (const float4 *)&shared->pca.vector[8 * c];
        float4 low = from[0], high = from[1];
        const float v[8] = { low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w };
#pragma unroll
        for (int k = 0; k < ROWS_EACH; k++) {
            int r = threadIdx.x + k * PCA_THREADS;
            if (r < n) sum[k] = rows_dot_8<T>(*(const uint4 *)(rows + rows_offset<D>(r, c)), v, sum[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < ROWS_EACH; k++) {
        int r = threadIdx.x + k * PCA_THREADS;
        if (r < n) shared->key[r] = group_ordered(sum[k].x + sum[k].y);
    }
    __syncthreads();
}

/* Moves index[0, n): the n - left largest keys go right, of equal ones the lower index. */
static __device__ __forceinline__ void leaf_partition(int32_t *index, int n, int left, leaf_shared *shared)
{
    kth_result kth = kth_largest(shared->key, threadIdx.x, n, PCA_THREADS, n - left, &shared->kth);
    int lane = threadIdx.x % 32;
    uint32_t before = (1u << lane) - 1, larger[ROWS_EACH], tie[ROWS_EACH];
    int32_t query[ROWS_EACH];
#pragma unroll
    for (int k = 0; k < ROWS_EACH; k++) {
        int r = threadIdx.x + k * PCA_THREADS, valid = r < n;
        uint32_t key = valid ? shared->key[r] : 0;
        query[k] = valid ? index[r] : 0;
        larger[k] = __ballot_sync(~0u, valid && key > kth.threshold);
        tie[k] = __ballot_sync(~0u, valid && key == kth.threshold);
        if (lane == 0 && r < GROUP_LEAF_ROWS) {
            shared->larger[r / 32] = __popc(larger[k]);
            shared->ties[r / 32] = __popc(tie[k]);
        }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ROWS_EACH; k++) {
        int r = threadIdx.x + k * PCA_THREADS;
        if (r >= n) continue;
        int above = __popc(larger[k] & before), ties = __popc(tie[k] & before);
        for (int run = 0; run < r / 32; run++) {
            above += shared->larger[run];
            ties += shared->ties[run];
        }
        int up = larger[k] >> lane & 1 || ((tie[k] >> lane & 1) && ties < kth.ties);
        int right = above + min(ties, kth.ties), place = up ? left + right : r - right;
        index[place] = query[k];
    }
    __syncthreads();
}

/* Rows index[0, n) of the head to shared memory, and zeros up to a multiple of 16. */
template <int D>
static __device__ __forceinline__ void leaf_load(uint32_t rows, const uint16_t *head, int64_t row_stride,
                                                 const int32_t *index, int n)
{
    constexpr int CHUNKS = D / 8;
    for (int e = threadIdx.x; e < (n + 15) / 16 * 16 * CHUNKS; e += PCA_THREADS) {
        int r = e / CHUNKS, c = e % CHUNKS, valid = r < n;
        rows_copy_16(rows + rows_offset<D>(r, c), head + index[valid ? r : 0] * row_stride + 8 * c, valid);
    }
    rows_commit();
    rows_wait<0>();
    __syncthreads();
}

template <typename T, int D>
static __global__ void __launch_bounds__(PCA_THREADS, 2) leaf_kernel(const __grid_constant__ group_level level)
{
    extern __shared__ __align__(128) char rows[]; /* [GROUP_LEAF_ROWS, D] */
    __shared__ leaf_shared shared;
    group_node root = group_node_at(level.G, level.depth, blockIdx.x);
    if (root.groups == 0) return;
    int n = group_node_rows(level.N, root);
    int64_t at = (int64_t)blockIdx.y * level.N + root.first * GROUP_C;
    for (int r = threadIdx.x; r < n; r += PCA_THREADS)
        shared.index[r] = level.from ? level.from[at + r] : root.first * GROUP_C + r;
    __syncthreads();
    const uint16_t *head = (const uint16_t *)level.q + blockIdx.y * level.head_stride;
    if (root.groups > 1) leaf_load<D>(rows_address(rows), head, level.row_stride, shared.index, n);
    for (int depth = 0; group_largest(root.groups, depth) > 1; depth++) {
        for (int i = 0; i < 1 << depth; i++) {
            group_node node = group_node_at(root.groups, depth, i);
            if (node.groups < 2) continue;
            int first = node.first * GROUP_C, count = min(node.groups * GROUP_C, n - first);
            char *mine = rows + first * 2 * D;
            pca_block<D> block;
            pca_begin(block);
            pca_add<T, D>(block, rows_address(mine), (count + 15) / 16);
            pca_direction<D>(block, count, &shared.pca);
            leaf_project<T, D>(mine, count, &shared);
            leaf_partition(shared.index + first, count, (node.groups + 1) / 2 * GROUP_C, &shared);
            if (node.groups > 2) leaf_load<D>(rows_address(mine), head, level.row_stride, shared.index + first, count);
        }
    }
    for (int r = threadIdx.x; r < n; r += PCA_THREADS) level.to[at + r] = shared.index[r];
}

template <typename T, int D> static cudaError_t leaf(const group_level *level, cudaStream_t stream)
{
    int bytes = GROUP_LEAF_ROWS * D * 2;
    cudaError_t error = cudaFuncSetAttribute(leaf_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    leaf_kernel<T, D><<<dim3(1u << level->depth, level->H), PCA_THREADS, bytes, stream>>>(*level);
    return cudaGetLastError();
}

cudaError_t group_leaf(const group_level *level, mcsa_dtype dtype, cudaStream_t stream)
{
    if (dtype == MCSA_BF16)
        return level->D == 128 ? leaf<__nv_bfloat16, 128>(level, stream) : leaf<__nv_bfloat16, 64>(level, stream);
    return level->D == 128 ? leaf<__half, 128>(level, stream) : leaf<__half, 64>(level, stream);
}
