/* error.cu - what each key adds to the error of replacing its part by the mean, for each query.
 *
 * With a and c the scores of the key and of the mean, v and w their values and d = v - w, the square
 * |exp(a) v - exp(c) w|^2 is a polynomial in the difference of the exponentials relative to the larger one:
 *
 *     c >= a:  exp(2c) (E^2 v.v + 2 E v.d + d.d)     E = exp(a - c) - 1
 *     a >  c:  exp(2a) (F^2 w.w - 2 F w.d + d.d)     F = exp(c - a) - 1
 *
 * so that per query and key only the score is computed, nothing overflows, and a key near its mean loses no digits.
 * v.v, v.d and d.d are the key's alone; w.w = v.v - 2 v.d + d.d and w.d = v.d - d.d. */
#include "product.cuh"

/* { v.v, v.d, d.d, part as bits } of each place; a warp per place. */
template <typename T, int D> static __global__ void __launch_bounds__(128) error_places(const rival_error_job job)
{
    const int place = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32, head = job.head + blockIdx.y;
    const int32_t *first = job.keys.first + (int64_t)head * (job.keys.P + 1);
    if (place >= first[job.keys.P]) return;
    const int part = part_at(first, job.keys.P, place);
    const T *v = row_of<T>(job.v, head, job.keys.order[(int64_t)head * job.keys.N + place]);
    const float *w = job.value + ((int64_t)head * job.keys.P + part) * D;
    float vv = 0, vd = 0, dd = 0;
#pragma unroll
    for (int i = lane; i < D; i += 32) {
        const float x = row_float(v[i]), d = x - w[i];
        vv = fmaf(x, x, vv);
        vd = fmaf(x, d, vd);
        dd = fmaf(d, d, dd);
    }
    vv = warp_sum(vv);
    vd = warp_sum(vd);
    dd = warp_sum(dd);
    if (lane == 0) job.places[(int64_t)blockIdx.y * job.keys.N + place] = make_float4(vv, vd, dd, __int_as_float(part));
}

static __device__ __forceinline__ float error_log(float a, float c, float4 place)
{
    const float vv = place.x, vd = place.y, dd = place.z;
    float square;
    if (c >= a) {
        const float e = expm1f(a - c);
        square = fmaf(e, fmaf(e, vv, 2 * vd), dd);
    } else {
        const float f = expm1f(c - a);
        square = fmaf(f, fmaf(f, vv - 2 * vd + dd, -2 * (vd - dd)), dd);
    }
    return square > 0 ? logf(square) + 2 * fmaxf(a, c) : -INFINITY;
}

/* 128 queries in shared memory. */
template <int D> static __device__ __forceinline__ void error_queries(float *a, const rival_error_job &job, int first)
{
    const float *query = job.query + (int64_t)(job.head + blockIdx.z) * job.Q * D;
    product_load_floats<D, PRODUCT_M, PRODUCT_A>(a, [&](int row) {
        return first + row < job.Q ? query + (int64_t)(first + row) * D : (const float *)NULL;
    });
}

/* centre = scale query . key of the part */
template <int D> static __global__ void __launch_bounds__(PRODUCT_THREADS, 2) error_centre(const rival_error_job job)
{
    extern __shared__ float shared[];
    float *a = shared, *b = a + D * PRODUCT_A;
    const int part = blockIdx.x * PRODUCT_N, q = blockIdx.y * PRODUCT_M, P = job.keys.P;
    const float *key = job.key + (int64_t)(job.head + blockIdx.z) * P * D;
    product_sums c;
    error_queries<D>(a, job, q);
    product_load_floats<D, PRODUCT_N, PRODUCT_B>(b, [&](int column) {
        return part + column < P ? key + (int64_t)(part + column) * D : (const float *)NULL;
    });
    __syncthreads();
    product_clear(&c);
    product_add(&c, a, b, D);
    float *out = job.centre + (int64_t)blockIdx.z * job.Q * P;
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (q + product_row(i) < job.Q && part + product_column(j) < P)
                out[(int64_t)(q + product_row(i)) * P + part + product_column(j)] = job.scale * c.of[i][j];
}

template <typename T, int D>
static __global__ void __launch_bounds__(PRODUCT_THREADS, 2) error_kernel(const rival_error_job job)
{
    extern __shared__ float shared[];
    float *a = shared, *b = a + D * PRODUCT_A;
    const int first = blockIdx.x * PRODUCT_N, q = blockIdx.y * PRODUCT_M, head = job.head + blockIdx.z;
    const int P = job.keys.P, N = job.keys.N, places = job.keys.first[(int64_t)head * (P + 1) + P];
    const int32_t *order = job.keys.order + (int64_t)head * N;
    if (first >= places) return;
    product_sums c;
    error_queries<D>(a, job, q);
    product_load<T, D, PRODUCT_N, PRODUCT_B>(b, [&](int column) {
        return first + column < places ? row_of<T>(job.k, head, order[first + column]) : (const T *)NULL;
    });
    __syncthreads();
    product_clear(&c);
    product_add(&c, a, b, D);
    const float *centre = job.centre + (int64_t)blockIdx.z * job.Q * P;
    float *out = job.out + (int64_t)blockIdx.z * job.Q * N;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int place = first + product_column(j);
        if (place >= places) continue;
        const float4 of_place = job.places[(int64_t)blockIdx.z * N + place];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int64_t row = q + product_row(i);
            if (row < job.Q)
                out[row * N + place] =
                    error_log(job.scale * c.of[i][j], centre[row * P + __float_as_int(of_place.w)], of_place);
        }
    }
}

template <typename T, int D> static cudaError_t error_start(const rival_error_job *job, cudaStream_t stream)
{
    const size_t bytes = sizeof(float) * D * (PRODUCT_A + PRODUCT_B);
    const int lines = (job->Q + PRODUCT_M - 1) / PRODUCT_M;
    cudaError_t error = product_prepare(error_centre<D>, bytes);
    if (error == cudaSuccess) error = product_prepare(error_kernel<T, D>, bytes);
    if (error != cudaSuccess) return error;
    error_places<T, D><<<dim3((job->keys.N + 3) / 4, job->heads), 128, 0, stream>>>(*job);
    error_centre<D>
        <<<dim3((job->keys.P + PRODUCT_N - 1) / PRODUCT_N, lines, job->heads), PRODUCT_THREADS, bytes, stream>>>(*job);
    error_kernel<T, D>
        <<<dim3((job->keys.N + PRODUCT_N - 1) / PRODUCT_N, lines, job->heads), PRODUCT_THREADS, bytes, stream>>>(*job);
    return cudaGetLastError();
}

cudaError_t rival_launch_error(const rival_error_job *job, cudaStream_t stream)
{
    return ROWS_CHOOSE(job->k, error_start, job, stream);
}
