/* assign.cu - the centre nearest to each row.
 *
 * A block keeps 128 rows in shared memory and passes all centres by, 64 at a time.  Centres are rounded to the dtype of
 * the rows, so that each product is exact; the nearest has the largest x . c - |c|^2 / 2, of equal ones the lowest
 * number: a thread sees centres in ascending order, and the 16 threads of a row compare numbers too. */
#include "product.cuh"

typedef struct assign_job {
    rival_rows x;
    const float *centre; /* [H, P, D] */
    int P;
    int32_t *label;
} assign_job;

template <int D> static constexpr size_t assign_bytes(void)
{
    return sizeof(float) * (D * (PRODUCT_A + PRODUCT_B) + PRODUCT_N);
}

template <typename T> static __device__ __forceinline__ float assign_rounded(float x)
{
    T rounded;
    row_round(&rounded, x);
    return row_float(rounded);
}

/* 64 centres from number `first`, rounded, and half their squared lengths; +infinity past the last. */
template <typename T, int D>
static __device__ __forceinline__ void assign_centres(float *b, float *half_square, const assign_job &job, int first)
{
    const float *centre = job.centre + (int64_t)blockIdx.y * job.P * D;
    product_load_floats<D, PRODUCT_N, PRODUCT_B>(b, [&](int column) {
        return first + column < job.P ? centre + (int64_t)(first + column) * D : (const float *)NULL;
    });
    __syncthreads();
    for (int at = threadIdx.x; at < D * PRODUCT_N; at += PRODUCT_THREADS) {
        float *value = b + at / PRODUCT_N * PRODUCT_B + at % PRODUCT_N;
        *value = assign_rounded<T>(*value);
    }
    __syncthreads();
    if (threadIdx.x < PRODUCT_N) {
        float square = 0;
        for (int d = 0; d < D; d++)
            square = fmaf(b[d * PRODUCT_B + threadIdx.x], b[d * PRODUCT_B + threadIdx.x], square);
        half_square[threadIdx.x] = first + threadIdx.x < job.P ? 0.5f * square : INFINITY;
    }
}

template <typename T, int D>
static __global__ void __launch_bounds__(PRODUCT_THREADS, 2) assign_kernel(const assign_job job)
{
    extern __shared__ float shared[];
    float *a = shared, *b = a + D * PRODUCT_A, *half_square = b + D * PRODUCT_B;
    const int head = blockIdx.y, tile = blockIdx.x * PRODUCT_M;
    float best[8];
    int nearest[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        best[i] = -INFINITY;
        nearest[i] = 0;
    }
    product_load<T, D, PRODUCT_M, PRODUCT_A>(a, [&](int row) {
        return tile + row < job.x.N ? row_of<T>(job.x, head, tile + row) : (const T *)NULL;
    });
    for (int first = 0; first < job.P; first += PRODUCT_N) {
        product_sums c;
        assign_centres<T, D>(b, half_square, job, first);
        __syncthreads();
        product_clear(&c);
        product_add(&c, a, b, D);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float half = half_square[product_column(j)];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float near = c.of[i][j] - half;
                if (near > best[i]) {
                    best[i] = near;
                    nearest[i] = first + product_column(j);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
#pragma unroll
        for (int far = 8; far > 0; far /= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, best[i], far);
            const int number = __shfl_xor_sync(0xffffffffu, nearest[i], far);
            if (other > best[i] || (other == best[i] && number < nearest[i])) {
                best[i] = other;
                nearest[i] = number;
            }
        }
        const int row = tile + product_row(i);
        if (threadIdx.x % 16 == 0 && row < job.x.N) job.label[(int64_t)head * job.x.N + row] = nearest[i];
    }
}

template <typename T, int D> static cudaError_t assign_start(const assign_job *job, cudaStream_t stream)
{
    cudaError_t error = product_prepare(assign_kernel<T, D>, assign_bytes<D>());
    if (error != cudaSuccess) return error;
    const dim3 grid((job->x.N + PRODUCT_M - 1) / PRODUCT_M, job->x.H);
    assign_kernel<T, D><<<grid, PRODUCT_THREADS, assign_bytes<D>(), stream>>>(*job);
    return cudaGetLastError();
}

cudaError_t rival_launch_assign(const rival_rows *x, int P, const float *centre, int32_t *label, cudaStream_t stream)
{
    const assign_job job = { *x, centre, P, label };
    return ROWS_CHOOSE(*x, assign_start, &job, stream);
}
