/* rows.c - single rows of tensors, the backend's memory, and the residual row by row. */
#include "cpu.h"

#include <string.h>

mcsa_status rival_cpu_read_rows(void *state, const mcsa_tensor *x, const int32_t *index, int count, float *rows,
                                mcsa_error *error)
{
    (void)error;
    const mcsa_kernels *kernels = rival_cpu_kernels(state, x->dtype);
    int D = (int)x->shape[2];
    for (int h = 0; h < x->shape[0]; h++)
        for (int i = 0; i < count; i++, rows += D)
            kernels->load_row(mcsa_tensor_row(x, h, index[i]), x->dtype, x->stride[2], D, rows);
    return MCSA_OK;
}

mcsa_status rival_cpu_read(void *state, const void *from, size_t bytes, void *to, mcsa_error *error)
{
    (void)state;
    (void)error;
    memcpy(to, from, bytes);
    return MCSA_OK;
}

mcsa_status rival_cpu_write(void *state, const void *from, size_t bytes, void *to, mcsa_error *error)
{
    return rival_cpu_read(state, from, bytes, to, error);
}

mcsa_status rival_cpu_subtract(void *state, const mcsa_tensor *dense, const mcsa_tensor *sparse, void *residual,
                               mcsa_error *error)
{
    (void)error;
    rival_cpu *cpu = state;
    const mcsa_kernels *kernels = rival_cpu_kernels(cpu, dense->dtype);
    int64_t N = dense->shape[1];
    int D = (int)dense->shape[2];
#pragma omp parallel for schedule(static) num_threads(cpu->threads)
    for (int64_t row = 0; row < dense->shape[0] * N; row++) {
        float missed[MCSA_MAX_DIM], had[MCSA_MAX_DIM];
        kernels->load_row(mcsa_tensor_row(dense, row / N, row % N), dense->dtype, dense->stride[2], D, missed);
        kernels->load_row(mcsa_tensor_row(sparse, row / N, row % N), sparse->dtype, sparse->stride[2], D, had);
        for (int d = 0; d < D; d++) missed[d] -= had[d];
        kernels->residual_encode(MCSA_RESIDUAL_BF16, missed, D, (uint16_t *)residual + row * D);
    }
    return MCSA_OK;
}

mcsa_status rival_cpu_add(void *state, const mcsa_tensor *out, const void *residual, mcsa_error *error)
{
    (void)error;
    rival_cpu *cpu = state;
    const mcsa_kernels *kernels = rival_cpu_kernels(cpu, out->dtype);
    int64_t N = out->shape[1];
    int D = (int)out->shape[2];
#pragma omp parallel for schedule(static) num_threads(cpu->threads)
    for (int64_t row = 0; row < out->shape[0] * N; row++) {
        float sum[MCSA_MAX_DIM];
        void *at = mcsa_tensor_row(out, row / N, row % N);
        kernels->load_row(at, out->dtype, out->stride[2], D, sum);
        kernels->residual_add(MCSA_RESIDUAL_BF16, (const uint16_t *)residual + row * D, D, sum);
        kernels->store_row(sum, D, out->dtype, out->stride[2], at);
    }
    return MCSA_OK;
}
