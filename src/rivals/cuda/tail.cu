/* tail.cu - one virtual key for each part that a query's part does not keep, merged into what attend left.
 *
 * A block has up to 128 queries of one part, 16 a warp, and passes the virtual keys by, 64 at a time, as FlashAttention
 * does.  A virtual key stands for a whole part, so an error of its score is an error of all its tokens: keys, values
 * and slopes are held as sums of two 16-bit numbers, which costs a second multiply.  Weights are rounded to 16 bits
 * before they meet values, as in attend.  All in FP32 and without tensor cores the call took 1.23 ms on an H200 where
 * it takes 0.53 now (13,824 tokens, H = 3, D = 64, 200 x 1,000 clusters). */
#include "mma.cuh"

enum { TAIL_WARPS = 8, TAIL_KEYS = 64, TAIL_PAD = 8 /* numbers that keep rows off each other's banks */ };

/* 64 rows in two parts each. */
template <typename T, int D> struct tail_rows {
    T high[TAIL_KEYS][D + TAIL_PAD], low[TAIL_KEYS][D + TAIL_PAD];
};

template <typename T, int D> struct tail_shared {
    tail_rows<T, D> key, value;
    float bias[TAIL_KEYS]; /* log2 weight, or -infinity */
};

/* What a lane has of its two rows. */
template <int D> struct tail_sums {
    float o[D / 8][4];
    float most[2], sum[2]; /* base 2; sum over the quad after tail_finish */
};

static __device__ __forceinline__ float tail_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Rows [0, count) of floats, split; zeros behind. */
template <typename T, int D>
static __device__ __forceinline__ void tail_split(tail_rows<T, D> *to, const float *from, int count)
{
#pragma unroll 2
    for (int at = threadIdx.x; at < TAIL_KEYS * (D / 4); at += TAIL_WARPS * 32) {
        const int row = at / (D / 4), d = at % (D / 4) * 4;
        const float4 x = row < count ? __ldg((const float4 *)(from + row * D + d)) : make_float4(0, 0, 0, 0);
        mma_split(&to->high[row][d], &to->low[row][d], x.x);
        mma_split(&to->high[row][d + 1], &to->low[row][d + 1], x.y);
        mma_split(&to->high[row][d + 2], &to->low[row][d + 2], x.z);
        mma_split(&to->high[row][d + 3], &to->low[row][d + 3], x.w);
    }
}

/* The 64 parts from `first`: 1 when one of them is in the tail, the same in all threads, after a barrier. */
template <typename T, int D>
static __device__ __forceinline__ int tail_load(tail_shared<T, D> *sm, const rival_tail_job &job,
                                                const rival_tile &tile, int first)
{
    const uint64_t kept = job.kept[((int64_t)tile.head * job.Q + tile.part) * job.words + first / TAIL_KEYS];
    const int64_t base = (int64_t)tile.head * job.K + first;
    const int count = min(job.K - first, (int)TAIL_KEYS);
    int there = 0;
    if (threadIdx.x < TAIL_KEYS) {
        const int k = threadIdx.x;
        const float weight = k < count && !(kept >> k & 1) ? job.weight[base + k] : 0.0f;
        sm->bias[k] = weight > 0 ? log2f(weight) : -INFINITY;
        there = weight > 0;
    }
    if (!__syncthreads_or(there)) return 0;
    tail_split(&sm->key, job.key + base * D, count);
    tail_split(&sm->value, job.value + base * D, count);
    __syncthreads();
    return 1;
}

/* Queries of this warp as operands: [D / 16] A. */
template <typename T, int D>
static __device__ __forceinline__ void tail_queries(uint32_t (&q)[D / 16][4], const rival_tail_job &job,
                                                    const rival_tile &tile, const int32_t *order)
{
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    const T *rows[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        rows[i] = row + 8 * i < tile.rows ? row_of<T>(job.q, tile.head, order[row + 8 * i]) + column : NULL;
#pragma unroll
    for (int step = 0; step < D / 16; step++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            q[step][i] = rows[i % 2] ? *(const uint32_t *)(rows[i % 2] + step * 16 + i / 2 * 8) : 0;
}

/* s = q k^T over 64 keys */
template <typename T, int D>
static __device__ __forceinline__ void tail_scores(float (&s)[TAIL_KEYS / 8][4], const uint32_t (&q)[D / 16][4],
                                                   const tail_rows<T, D> *key)
{
#pragma unroll
    for (int n = 0; n < TAIL_KEYS / 8; n += 2) {
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] = s[n + 1][i] = 0;
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            uint32_t low[4], high[4];
            mma_load(low, &key->low[8 * n][16 * step], D + TAIL_PAD);
            mma_load(high, &key->high[8 * n][16 * step], D + TAIL_PAD);
            mma_add(s[n], q[step], low, T());
            mma_add(s[n + 1], q[step], low + 2, T());
            mma_add(s[n], q[step], high, T());
            mma_add(s[n + 1], q[step], high + 2, T());
        }
    }
}

/* o += a rows, `steps` times 16 rows */
template <typename T, int D, int STEPS>
static __device__ __forceinline__ void tail_add(float (&o)[D / 8][4], const uint32_t (*a)[4],
                                                const tail_rows<T, D> *rows)
{
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            uint32_t low[4], high[4];
            mma_load_transposed(low, &rows->low[16 * step][8 * n], D + TAIL_PAD);
            mma_load_transposed(high, &rows->high[16 * step][8 * n], D + TAIL_PAD);
            mma_add(o[n], a[step], low, T());
            mma_add(o[n + 1], a[step], low + 2, T());
            mma_add(o[n], a[step], high, T());
            mma_add(o[n + 1], a[step], high + 2, T());
        }
}

static __device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

static __device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Scores to weights: the running maximum moves on, sums and outputs so far shrink. */
template <int D>
static __device__ __forceinline__ void tail_weights(float (&s)[TAIL_KEYS / 8][4], tail_sums<D> *sums, const float *bias,
                                                    float scale2)
{
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = sums->most[r], sum = 0;
#pragma unroll
        for (int n = 0; n < TAIL_KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float *score = &s[n][2 * r + i];
                *score = fmaf(*score, scale2, bias[8 * n + column + i]);
                most = fmaxf(most, *score);
            }
        most = quad_max(most);
        const float origin = most == -INFINITY ? 0.0f : most, shrink = tail_exp2(sums->most[r] - origin);
#pragma unroll
        for (int n = 0; n < TAIL_KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float *score = &s[n][2 * r + i];
                *score = tail_exp2(*score - origin);
                sum += *score;
            }
        sums->most[r] = most;
        sums->sum[r] = fmaf(sums->sum[r], shrink, sum);
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) sums->o[n][2 * r + i] *= shrink;
    }
}

/* o = o / sum + slope^T q */
template <typename T, int D>
static __device__ __forceinline__ void tail_finish(tail_shared<T, D> *sm, tail_sums<D> *sums,
                                                   const uint32_t (&q)[D / 16][4], const float *slope /* [D, D] */)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sums->sum[r] = quad_sum(sums->sum[r]);
        const float factor = 1 / sums->sum[r];
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) sums->o[n][2 * r + i] *= factor;
    }
    if (!slope) return;
#pragma unroll
    for (int first = 0; first < D; first += TAIL_KEYS) {
        __syncthreads();
        tail_split(&sm->value, slope + first * D, TAIL_KEYS);
        __syncthreads();
        tail_add<T, D, TAIL_KEYS / 16>(sums->o, q + first / 16, &sm->value);
    }
}

template <typename T, int D>
static __device__ __forceinline__ void tail_merge(const tail_sums<D> *sums, const rival_tail_job &job,
                                                  const rival_tile &tile, const int32_t *order)
{
    const int first = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int there = first + 8 * r < tile.rows;
        const int32_t row = there ? order[first + 8 * r] : 0;
        float *lse = job.lse + (int64_t)tile.head * job.q.N + row;
        T *out = (T *)row_of<T>(job.out, tile.head, row) + column;
        const float before = there ? *lse : 0, here = (sums->most[r] + log2f(sums->sum[r])) * 0.69314718f;
        const float top = fmaxf(before, here), old_weight = expf(before - top), new_weight = expf(here - top);
        const float all = old_weight + new_weight;
        __syncwarp(); /* all lanes of a row have read its LSE */
        if (!there) continue;
        if (threadIdx.x % 4 == 0) *lse = top + logf(all);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const uint32_t word = *(const uint32_t *)(out + 8 * n);
            const T *old = (const T *)&word;
            const float x = (old_weight * row_float(old[0]) + new_weight * sums->o[n][2 * r]) / all;
            const float y = (old_weight * row_float(old[1]) + new_weight * sums->o[n][2 * r + 1]) / all;
            *(uint32_t *)(out + 8 * n) = mma_pack<T>(x, y);
        }
    }
}

template <typename T, int D>
static __global__ void __launch_bounds__(TAIL_WARPS * 32, 1) tail_kernel(const rival_tail_job job)
{
    extern __shared__ __align__(16) char raw[];
    tail_shared<T, D> *sm = (tail_shared<T, D> *)raw;
    const rival_tile tile = job.tiles[blockIdx.x];
    const int32_t *order = job.order + (int64_t)tile.head * job.q.N + tile.place;
    const float scale2 = job.scale * 1.44269504f;
    uint32_t q[D / 16][4];
    tail_sums<D> sums = { {}, { -INFINITY, -INFINITY }, {} };
    int any = 0;
    tail_queries<T, D>(q, job, tile, order);
    for (int first = 0; first < job.K; first += TAIL_KEYS) {
        float s[TAIL_KEYS / 8][4];
        uint32_t p[TAIL_KEYS / 16][4];
        if (!tail_load(sm, job, tile, first)) continue;
        any = 1;
        tail_scores(s, q, &sm->key);
        tail_weights(s, &sums, sm->bias, scale2);
#pragma unroll
        for (int i = 0; i < TAIL_KEYS / 16 * 4; i++)
            p[i / 4][i % 4] = mma_pack<T>(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
        tail_add<T, D, TAIL_KEYS / 16>(sums.o, p, &sm->value);
        __syncthreads();
    }
    if (!any) return;
    tail_finish(sm, &sums, q, job.slope ? job.slope + (int64_t)tile.head * D * D : NULL);
    tail_merge<T, D>(&sums, job, tile, order);
}

template <typename T, int D> static cudaError_t tail_start(const rival_tail_job *job, cudaStream_t stream)
{
    enum { BYTES = sizeof(tail_shared<T, D>) };
    auto *kernel = tail_kernel<T, D>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    if (error != cudaSuccess) return error;
    kernel<<<job->count, TAIL_WARPS * 32, BYTES, stream>>>(*job);
    return cudaGetLastError();
}

cudaError_t rival_launch_tail(const rival_tail_job *job, cudaStream_t stream)
{
    return ROWS_CHOOSE(job->q, tail_start, job, stream);
}
