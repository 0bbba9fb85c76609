/* group.cuh - what the kernels of Fast PDDP share: the tree of METHOD.md section 2 and the arguments of one level.
 *
 * A node at depth l has index i in [0, 2^l): bit by bit from the top, 0 goes left and 1 right.  A node of one group has
 * itself as left child and an empty right one. */
#ifndef MCSA_CUDA_GROUP_CUH
#define MCSA_CUDA_GROUP_CUH

#include "kernels.h"

enum {
    GROUP_C = MCSA_CUDA_C,
    GROUP_SAMPLE = 4096 /* rows that choose the direction of a larger node */
};

/* Groups of a node whose rows fit shared memory twice: 2 x 384 x 256 B = 192 KiB. */
static constexpr __host__ __device__ int group_leaf_groups(int D)
{
    return 3 * 128 / D;
}

/* One level of the upper tree, or all levels below it. */
typedef struct group_level {
    const void *q; /* [H, N, D] of 16-bit floats */
    int64_t head_stride, row_stride;
    int H, N, G, D;
    int depth;
    const int32_t *from; /* [H, N] order of this level; NULL: ascending */
    int32_t *to;         /* [H, N] order of the next */
    float *direction;    /* [H, 2^depth, D] */
    float *projection;   /* [H, N] by place in `from` */
    uint32_t *candidate; /* [H, N] */
} group_level;

cudaError_t group_direction(const group_level *level, mcsa_dtype dtype, cudaStream_t stream);
cudaError_t group_split(const group_level *level, mcsa_dtype dtype, cudaStream_t stream);
cudaError_t group_leaf(const group_level *level, mcsa_dtype dtype, cudaStream_t stream);

typedef struct group_node {
    int first, groups;
} group_node;

static __host__ __device__ inline group_node group_node_at(int G, int depth, int index)
{
    group_node node = { 0, G };
    for (int bit = depth - 1; bit >= 0; bit--) {
        int left = (node.groups + 1) / 2;
        if (index >> bit & 1) {
            node.first += left;
            node.groups -= left;
        } else {
            node.groups = left;
        }
    }
    return node;
}

static __host__ __device__ inline int group_node_rows(int N, group_node node)
{
    int end = (node.first + node.groups) * GROUP_C;
    return (end < N ? end : N) - node.first * GROUP_C;
}

/* Groups of the largest node at a depth. */
static __host__ __device__ inline int group_largest(int G, int depth)
{
    for (int i = 0; i < depth; i++) G = (G + 1) / 2;
    return G;
}

/* Floats to unsigned integers of the same order. */
static __device__ __forceinline__ uint32_t group_ordered(float x)
{
    uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

#endif
