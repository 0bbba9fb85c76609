/* cosine.c - how alike the rows of each part are: the mean of all cosines between them, which is the squared length of
 * the mean of the normalised rows. */
#include "cpu.h"

#include <math.h>

enum { LANES = 8 }; /* partial sums of a squared length: a fixed order that is not one chain */

static float squared_length(const float *row, int D)
{
    float lanes[LANES] = { 0 }, sum = 0;
    int d = 0;
    for (; d + LANES <= D; d += LANES)
        for (int l = 0; l < LANES; l++) lanes[l] += row[d + l] * row[d + l];
    for (; d < D; d++) lanes[d % LANES] += row[d] * row[d];
    for (int l = 0; l < LANES; l++) sum += lanes[l];
    return sum;
}

/* FP32 sums in the order of the part; a row of length 0 adds nothing and still counts. */
static float cosine_of(const mcsa_kernels *kernels, const mcsa_tensor *x, int h, const int32_t *rows, int count,
                       const float *shift /* [D], or NULL */)
{
    float sum[MCSA_MAX_DIM] = { 0 }, row[MCSA_MAX_DIM];
    int D = (int)x->shape[2];
    for (int i = 0; i < count; i++) {
        kernels->load_row(mcsa_tensor_row(x, h, rows[i]), x->dtype, x->stride[2], D, row);
        for (int d = 0; shift && d < D; d++) row[d] -= shift[d];
        float squares = squared_length(row, D), inverse = squares == 0 ? 0 : 1 / sqrtf(squares);
        for (int d = 0; d < D; d++) sum[d] += inverse * row[d];
    }
    return count ? squared_length(sum, D) / ((float)count * (float)count) : 0;
}

mcsa_status rival_cpu_cosine(void *state, const mcsa_tensor *x, const rival_partition *parts, const float *shift,
                             float *cosine, mcsa_error *error)
{
    (void)error;
    rival_cpu *cpu = state;
    const mcsa_kernels *kernels = rival_cpu_kernels(cpu, x->dtype);
#pragma omp parallel for schedule(dynamic, 16) num_threads(cpu->threads)
    for (int64_t task = 0; task < (int64_t)parts->H * parts->P; task++) {
        int h = (int)(task / parts->P), count;
        const int32_t *rows = rival_part(parts, h, (int)(task % parts->P), &count);
        cosine[task] = cosine_of(kernels, x, h, rows, count, shift ? shift + h * x->shape[2] : NULL);
    }
    return MCSA_OK;
}
