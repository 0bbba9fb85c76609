/* group_project.cuh - rows of q, read through the order, times a direction. */
#ifndef MCSA_CUDA_GROUP_PROJECT_CUH
#define MCSA_CUDA_GROUP_PROJECT_CUH

#include "group_rows.cuh"

enum { PROJECT_WARPS = 8, PROJECT_ROWS = GROUP_C / PROJECT_WARPS /* of a warp, all in flight at once */ };

/* D / 8 lanes read a row of 16-byte chunks. */
template <int D> struct project_shape {
    static constexpr int LANES = D / 8, ROWS = 32 / LANES, LOADS = PROJECT_ROWS / ROWS;
};

/* The 8 elements of direction [D] that this lane needs. */
template <int D> static __device__ __forceinline__ void project_direction(float (&v)[8], const float *direction)
{
    const float4 *from = (const float4 *)(direction + threadIdx.x % project_shape<D>::LANES * 8);
    float4 low = from[0], high = from[1];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

/* Which of a warp's PROJECT_ROWS rows this lane gets the projection of; past them for lanes that get none. */
template <int D> static __device__ __forceinline__ int project_row(void)
{
    constexpr int LANES = project_shape<D>::LANES, ROWS = project_shape<D>::ROWS;
    int lane = threadIdx.x % 32;
    return lane % LANES < project_shape<D>::LOADS ? lane % LANES * ROWS + lane / LANES : PROJECT_ROWS;
}

/* The projection of row project_row of those at [first, end) of the order of head h; rows past end repeat the last. */
template <typename T, int D>
static __device__ __forceinline__ float project_rows(const group_level &level, int h, int first, int end,
                                                     const float (&v)[8])
{
    constexpr int LANES = project_shape<D>::LANES, ROWS = project_shape<D>::ROWS, LOADS = project_shape<D>::LOADS;
    int lane = threadIdx.x % 32;
    const uint16_t *head = (const uint16_t *)level.q + h * level.head_stride + lane % LANES * 8;
    const int32_t *from = level.from + (int64_t)h * level.N;
    uint4 x[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        int place = min(first + i * ROWS + lane / LANES, end - 1), row = level.from ? from[place] : place;
        x[i] = *(const uint4 *)(head + row * level.row_stride);
    }
    float mine = 0;
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        float row[8], sum = 0;
        rows_unpack<T>(row, x[i]);
#pragma unroll
        for (int d = 0; d < 8; d++) sum = fmaf(row[d], v[d], sum);
#pragma unroll
        for (int mask = LANES / 2; mask; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
        if (lane % LANES == i) mine = sum;
    }
    return mine;
}

#endif
