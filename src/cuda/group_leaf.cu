/* group_leaf.cu - all levels of a subtree of at most group_leaf_groups(D) groups, on chip.
 *
 * leaf_kernel, one CTA of two warpgroups per (subtree, head), two on an SM so that one computes while the other waits:
 *
 *     all    copy the rows in (cp.async)                                              | barrier
 *     level by level, node by node of two groups or more; its rows are neighbours:
 *       all    Gram matrix, centre, 8 products (group_pca.cuh)                        | barriers inside
 *       all    a warp projects 16 rows at a time (mma.sync)                           | barrier
 *       all    the wanted rank (group_kth.cuh)                                        | 3 barriers
 *       all    counts by ballot give each row its place: indices move                 | 2 barriers
 *       all    if a child is to be split again, copy the rows once more in their new order; L2 has them
 *     all    write the indices */
#include "group_kth.cuh"
#include "group_pca.cuh"

template <int D> struct leaf_shape {
    static constexpr int ROWS = group_leaf_groups(D) * GROUP_C;
    static constexpr int EACH = (ROWS + PCA_THREADS - 1) / PCA_THREADS; /* rows of a thread */
    static constexpr int RUNS = ROWS / 32;                              /* counted by one ballot each */
};

template <int D> struct leaf_shared {
    pca_shared pca;
    kth_shared kth;
    uint32_t key[leaf_shape<D>::ROWS];
    int32_t index[leaf_shape<D>::ROWS]; /* query of each row */
    int larger[leaf_shape<D>::RUNS], ties[leaf_shape<D>::RUNS];
};

/* key[i] of rows [first, first + n) of the tile, and their range to shared->kth */
template <typename T, int D>
static __device__ __forceinline__ void leaf_project(const char *tile, int first, int n, leaf_shared<D> *shared)
{
    int lane = threadIdx.x % 32;
    uint32_t split[D / 8], low = ~0u, high = 0;
    pca_split<T, D>(&shared->pca);
    pca_operand<D>(split, &shared->pca);
    for (int r = threadIdx.x / 32 * 16; r < n; r += 16 * PCA_WARPS) {
        float2 p = pca_project<T, D, leaf_shape<D>::ROWS>(tile, first + r, split);
        const uint32_t key[2] = { kth_key(p.x), kth_key(p.y) };
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = r + lane / 4 + 8 * half;
            if (lane % 4 || row >= n) continue;
            shared->key[row] = key[half];
            low = min(low, key[half]);
            high = max(high, key[half]);
        }
    }
    kth_range(low, high, &shared->kth);
}

/* Moves index[0, n): the n - left largest keys go right, of equal ones the lower index. */
template <int D>
static __device__ __forceinline__ void leaf_partition(int32_t *index, int n, int left, leaf_shared<D> *shared)
{
    kth_result kth = kth_near(shared->key, n, n - left, &shared->kth);
    constexpr int EACH = leaf_shape<D>::EACH;
    int lane = threadIdx.x % 32;
    uint32_t before = (1u << lane) - 1, larger[EACH], tie[EACH];
    int32_t query[EACH];
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int r = threadIdx.x + k * PCA_THREADS, valid = r < n;
        uint32_t key = valid ? shared->key[r] : 0;
        query[k] = valid ? index[r] : 0;
        larger[k] = __ballot_sync(~0u, valid && key > kth.threshold);
        tie[k] = __ballot_sync(~0u, valid && key == kth.threshold);
        if (lane == 0 && r < leaf_shape<D>::ROWS) {
            shared->larger[r / 32] = __popc(larger[k]);
            shared->ties[r / 32] = __popc(tie[k]);
        }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < EACH; k++) {
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

/* Rows index[0, n) of the head to shared memory, and zeros up to a multiple of PCA_ROWS. */
template <int D>
static __device__ __forceinline__ void leaf_load(uint32_t tile, const uint16_t *head, int64_t row_stride,
                                                 const int32_t *index, int n)
{
    constexpr int CHUNKS = D / 8;
    for (int e = threadIdx.x; e < (n + PCA_ROWS - 1) / PCA_ROWS * PCA_ROWS * CHUNKS; e += PCA_THREADS) {
        int r = e / CHUNKS, c = e % CHUNKS, valid = r < n;
        rows_copy_16(tile + rows_offset<leaf_shape<D>::ROWS>(r, c), head + index[valid ? r : 0] * row_stride + 8 * c,
                     valid);
    }
    rows_commit();
    rows_wait<0>();
    __syncthreads();
}

template <typename T, int D>
static __global__ void __launch_bounds__(PCA_THREADS, 2) leaf_kernel(const __grid_constant__ group_level level)
{
    extern __shared__ __align__(1024) char tile[]; /* [leaf_shape<D>::ROWS, D] */
    __shared__ leaf_shared<D> shared;
    group_node root = group_node_at(level.G, level.depth, blockIdx.x);
    if (root.groups == 0) return;
    int n = group_node_rows(level.N, root);
    int64_t at = (int64_t)blockIdx.y * level.N + root.first * GROUP_C;
    for (int r = threadIdx.x; r < n; r += PCA_THREADS)
        shared.index[r] = level.from ? level.from[at + r] : root.first * GROUP_C + r;
    pca_ones<T>(&shared.pca);
    __syncthreads();
    const uint16_t *head = (const uint16_t *)level.q + blockIdx.y * level.head_stride;
    if (root.groups > 1) leaf_load<D>(shared_address(tile), head, level.row_stride, shared.index, n);
    for (int depth = 0; group_largest(root.groups, depth) > 1; depth++) {
        for (int i = 0; i < 1 << depth; i++) {
            group_node node = group_node_at(root.groups, depth, i);
            if (node.groups < 2) continue;
            int first = node.first * GROUP_C, count = min(node.groups * GROUP_C, n - first);
            pca_block<D> block;
            pca_begin(block);
            for (int row = 0; row < count; row += PCA_ROWS) {
                pca_add<T, D, leaf_shape<D>::ROWS>(block, tile, first + row, &shared.pca);
                pca_wait(block);
            }
            pca_direction<D>(block, count, &shared.pca);
            leaf_project<T, D>(tile, first, count, &shared);
            leaf_partition<D>(shared.index + first, count, (node.groups + 1) / 2 * GROUP_C, &shared);
            if (node.groups > 2)
                leaf_load<D>(shared_address(tile) + 128 * first, head, level.row_stride, shared.index + first, count);
        }
    }
    for (int r = threadIdx.x; r < n; r += PCA_THREADS) level.to[at + r] = shared.index[r];
}

template <typename T, int D> static cudaError_t leaf(const group_level *level, cudaStream_t stream)
{
    int bytes = leaf_shape<D>::ROWS * D * 2;
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
