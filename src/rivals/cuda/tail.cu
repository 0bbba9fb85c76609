/* tail.cu - one virtual key for each part that a query's part does not keep, merged into what attend left.
 *
 * A block has up to 128 queries of one part and passes the virtual keys by, 64 at a time, as FlashAttention does:
 * scores, running maximum, weights to shared memory, weights times values.  All of it is FP32: a virtual key stands for
 * a whole part, so an error of its score is an error of all its tokens. */
#include "product.cuh"

enum { TAIL_LATER_B = 4 /* floats that keep rows of values off each other's banks */ };

template <int D> struct tail_shared {
    float q[D * PRODUCT_A];
    float p[PRODUCT_N * PRODUCT_A];
    float k[D * PRODUCT_B]; /* keys, then slopes */
    float v[PRODUCT_N * (D + TAIL_LATER_B)];
    float bias[PRODUCT_N]; /* log weight, or -infinity */
};

/* Sums of one thread: 8 rows, and of each 64 columns 4. */
template <int D> struct tail_sums {
    product_sums o[D / 64];
    float most[8], sum[8];
};

/* 1 when one of the 64 parts from `first` is in the tail; the same in all threads, after a barrier. */
template <int D>
static __device__ __forceinline__ int tail_load(tail_shared<D> *sm, const rival_tail_job &job, const rival_tile &tile,
                                                int first)
{
    const uint64_t kept = job.kept[((int64_t)tile.head * job.Q + tile.part) * job.words + first / 64];
    const int64_t base = (int64_t)tile.head * job.K + first;
    const int last = job.K - first; /* parts from here on do not exist */
    int there = 0;
    if (threadIdx.x < PRODUCT_N) {
        const int k = threadIdx.x;
        const float weight = k < last && !(kept >> k & 1) ? job.weight[base + k] : 0.0f;
        sm->bias[k] = weight > 0 ? logf(weight) : -INFINITY;
        there = weight > 0;
    }
    if (!__syncthreads_or(there)) return 0;
    product_load_floats<D, PRODUCT_N, PRODUCT_B>(sm->k, [&](int k) {
        return k < last ? job.key + (base + k) * D : (const float *)NULL;
    });
    for (int at = threadIdx.x; at < PRODUCT_N * (D / 4); at += PRODUCT_THREADS) {
        const int k = at / (D / 4), d = at % (D / 4) * 4;
        const float *from = job.value + (base + k) * D + d;
        *(float4 *)&sm->v[k * (D + TAIL_LATER_B) + d] =
            k < last ? __ldg((const float4 *)from) : make_float4(0, 0, 0, 0);
    }
    __syncthreads();
    return 1;
}

/* Scores to weights: the running maximum moves on, sums and outputs so far shrink, weights go to shared memory. */
template <int D>
static __device__ __forceinline__ void tail_weights(tail_shared<D> *sm, tail_sums<D> *sums, product_sums *s,
                                                    float scale)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float most = sums->most[i], sum = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            s->of[i][j] = fmaf(scale, s->of[i][j], sm->bias[product_column(j)]);
            most = fmaxf(most, s->of[i][j]);
        }
        most = product_row_max(most);
        const float origin = most == -INFINITY ? 0.0f : most, shrink = expf(sums->most[i] - origin);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float weight = expf(s->of[i][j] - origin);
            sm->p[product_column(j) * PRODUCT_A + product_row(i)] = weight;
            sum += weight;
        }
        sums->most[i] = most;
        sums->sum[i] = fmaf(sums->sum[i], shrink, product_row_sum(sum));
#pragma unroll
        for (int c = 0; c < D / 64; c++)
#pragma unroll
            for (int j = 0; j < 4; j++) sums->o[c].of[i][j] *= shrink;
    }
}

/* o = o / sum + slope^T q */
template <int D>
static __device__ __forceinline__ void tail_finish(tail_shared<D> *sm, tail_sums<D> *sums, const rival_tail_job &job,
                                                   int head)
{
#pragma unroll
    for (int c = 0; c < D / 64; c++) {
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sums->o[c].of[i][j] *= 1 / sums->sum[i];
        if (!job.slope) continue;
        __syncthreads();
        for (int at = threadIdx.x; at < D * PRODUCT_N; at += PRODUCT_THREADS)
            sm->k[at / PRODUCT_N * PRODUCT_B + at % PRODUCT_N] =
                job.slope[((int64_t)head * D + at / PRODUCT_N) * D + c * PRODUCT_N + at % PRODUCT_N];
        __syncthreads();
        product_add(&sums->o[c], sm->q, sm->k, D, PRODUCT_B);
    }
}

template <typename T, int D>
static __device__ __forceinline__ void tail_merge(const tail_sums<D> *sums, const rival_tail_job &job,
                                                  const rival_tile &tile)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (product_row(i) >= tile.rows) continue;
        const int32_t row = job.order[(int64_t)tile.head * job.q.N + tile.place + product_row(i)];
        float *lse = job.lse + (int64_t)tile.head * job.q.N + row;
        T *out = (T *)row_of<T>(job.out, tile.head, row);
        const float before = *lse, here = sums->most[i] + logf(sums->sum[i]), top = fmaxf(before, here);
        const float old_weight = expf(before - top), new_weight = expf(here - top), all = old_weight + new_weight;
#pragma unroll
        for (int c = 0; c < D / 64; c++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                T *to = out + c * 64 + product_column(j);
                row_round(to, (old_weight * row_float(*to) + new_weight * sums->o[c].of[i][j]) / all);
            }
        __syncwarp(0xffffu << (threadIdx.x & 16)); /* all 16 threads of the row have read its LSE */
        if (threadIdx.x % 16 == 0) *lse = top + logf(all);
    }
}

template <typename T, int D>
static __global__ void __launch_bounds__(PRODUCT_THREADS, 1) tail_kernel(const rival_tail_job job)
{
    extern __shared__ __align__(16) char raw[];
    tail_shared<D> *sm = (tail_shared<D> *)raw;
    const rival_tile tile = job.tiles[blockIdx.x];
    const int32_t *order = job.order + (int64_t)tile.head * job.q.N + tile.place;
    tail_sums<D> sums;
    int any = 0;
#pragma unroll
    for (int c = 0; c < D / 64; c++) product_clear(&sums.o[c]);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sums.most[i] = -INFINITY;
        sums.sum[i] = 0;
    }
    product_load<T, D, PRODUCT_M, PRODUCT_A>(sm->q, [&](int row) {
        return row < tile.rows ? row_of<T>(job.q, tile.head, order[row]) : (const T *)NULL;
    });
    for (int first = 0; first < job.K; first += PRODUCT_N) {
        product_sums s;
        if (!tail_load(sm, job, tile, first)) continue;
        any = 1;
        product_clear(&s);
        product_add(&s, sm->q, sm->k, D, PRODUCT_B);
        tail_weights(sm, &sums, &s, job.scale);
        __syncthreads();
#pragma unroll
        for (int c = 0; c < D / 64; c++) product_add(&sums.o[c], sm->p, sm->v + c * 64, PRODUCT_N, D + TAIL_LATER_B);
        __syncthreads();
    }
    if (!any) return;
    tail_finish(sm, &sums, job, tile.head);
    tail_merge<T, D>(&sums, job, tile);
}

template <typename T, int D> static cudaError_t tail_start(const rival_tail_job *job, cudaStream_t stream)
{
    cudaError_t error = product_prepare(tail_kernel<T, D>, sizeof(tail_shared<D>));
    if (error != cudaSuccess) return error;
    tail_kernel<T, D><<<job->count, PRODUCT_THREADS, sizeof(tail_shared<D>), stream>>>(*job);
    return cudaGetLastError();
}

cudaError_t rival_launch_tail(const rival_tail_job *job, cudaStream_t stream)
{
    return ROWS_CHOOSE(job->q, tail_start, job, stream);
}
