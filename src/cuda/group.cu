/* group.cu - Fast PDDP on the GPU: the levels of the tree as launches.
 *
 * A node of more than group_leaf_groups groups takes its direction from at most GROUP_SAMPLE of its rows
 * (group_direction.cu); all its rows are projected and split at the exact rank (group_split.cu).  The subtrees below
 * are done on chip (group_leaf.cu).  At 75,600 rows and D = 128 that is eight levels and two in the leaves: 21
 * launches, none of which needs the host.
 *
 * What differs from the CPU is the direction, never the rule of the split: it comes from a sample in nodes of more than
 * 4,096 rows, and 8 products start at the coordinate of largest variance, not 7 at the first row. */
#include "group.cuh"
#include "scratch.cuh"

static int upper_levels(int G, int D)
{
    int depth = 0;
    while (group_largest(G, depth) > group_leaf_groups(D)) depth++;
    return depth;
}

/* Places scratch in `level` and an order beside it; with `scratch` NULL it only measures. */
static size_t carve(const mcsa_dims *dims, void *scratch, group_level *level, int32_t **order)
{
    size_t used = 0, rows = (size_t)dims->H * (size_t)dims->N;
    size_t nodes = (size_t)dims->H << upper_levels((dims->N + GROUP_C - 1) / GROUP_C, dims->D);
    level->direction = (float *)scratch_take(scratch, &used, nodes * (size_t)dims->D * sizeof(float));
    level->projection = (float *)scratch_take(scratch, &used, rows * sizeof(float));
    level->candidate = (uint32_t *)scratch_take(scratch, &used, rows * sizeof(uint32_t));
    *order = (int32_t *)scratch_take(scratch, &used, rows * sizeof(int32_t));
    return used;
}

size_t mcsa_cuda_group_bytes(const mcsa_dims *dims)
{
    group_level level = {};
    int32_t *order;
    return carve(dims, NULL, &level, &order);
}

cudaError_t mcsa_cuda_group(const mcsa_qkv *x, int32_t *order, void *scratch, cudaStream_t stream)
{
    const mcsa_dims *dims = &x->dims;
    group_level level = {};
    level.q = x->q->data;
    level.head_stride = x->q->stride[0];
    level.row_stride = x->q->stride[1];
    level.H = dims->H;
    level.N = dims->N;
    level.G = (dims->N + GROUP_C - 1) / GROUP_C;
    level.D = dims->D;
    int32_t *other = NULL;
    carve(dims, scratch, &level, &other);
    cudaError_t error;
    int depth = upper_levels(level.G, level.D);
    for (level.depth = 0; level.depth < depth; level.depth++) {
        level.to = level.depth % 2 ? other : order;
        if ((error = group_direction(&level, dims->dtype, stream)) != cudaSuccess) return error;
        if ((error = group_split(&level, dims->dtype, stream)) != cudaSuccess) return error;
        level.from = level.to;
    }
    level.to = order;
    return group_leaf(&level, dims->dtype, stream);
}
