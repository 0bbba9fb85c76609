/* pool.c - means of the rows of each part. */
#include "cpu.h"

#include <string.h>

/* FP32 sums in the order of the part, over its true size. */
static void mean_of(const mcsa_kernels *kernels, const mcsa_tensor *x, int h, const int32_t *rows, int count,
                    float *mean /* [D] */)
{
    float row[MCSA_MAX_DIM];
    int D = (int)x->shape[2];
    memset(mean, 0, sizeof *mean * (size_t)D);
    for (int i = 0; i < count; i++) {
        kernels->load_row(mcsa_tensor_row(x, h, rows[i]), x->dtype, x->stride[2], D, row);
        for (int d = 0; d < D; d++) mean[d] += row[d];
    }
    for (int d = 0; count && d < D; d++) mean[d] /= (float)count;
}

mcsa_status rival_cpu_pool(void *state, const mcsa_tensor *x, const rival_partition *parts, float *mean,
                           mcsa_error *error)
{
    (void)error;
    rival_cpu *cpu = state;
    const mcsa_kernels *kernels = rival_cpu_kernels(cpu, x->dtype);
#pragma omp parallel for schedule(dynamic, 16) num_threads(cpu->threads)
    for (int64_t task = 0; task < (int64_t)parts->H * parts->P; task++) {
        int h = (int)(task / parts->P), count;
        const int32_t *rows = rival_part(parts, h, (int)(task % parts->P), &count);
        mean_of(kernels, x, h, rows, count, mean + task * x->shape[2]);
    }
    return MCSA_OK;
}
