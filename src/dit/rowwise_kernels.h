/* rowwise_kernels.h - the row kernels of rowwise.h as plain loops that compilers vectorise; each
 * rowwise_ISA.c includes it once and is compiled with that instruction set's flags.
 *
 * `omp simd reduction` lets a sum run over as many lanes as the instruction set has, which -fno-fast-math
 * forbids otherwise; so the last bits of a norm differ between instruction sets, never between runs or thread
 * counts. */
#include "base/half.h"
#include "rowwise.h"

#include <math.h>
#include <string.h>

#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* debug and sanitized builds run these loops one by one */
#endif

enum { MAX_PAIRS = 128 }; /* head_dim <= 256 */

/* `dtype` is a constant at every call, so these are one load or store and the conversion. */
static inline float load(const void *data, int64_t i, mcsa_dtype dtype)
{
    return dtype == MCSA_BF16 ? mcsa_from_bf16(((const uint16_t *)data)[i]) : ((const float *)data)[i];
}

static inline void store(void *data, int64_t i, float value, mcsa_dtype dtype)
{
    if (dtype == MCSA_BF16)
        ((uint16_t *)data)[i] = mcsa_to_bf16(value);
    else
        ((float *)data)[i] = value;
}

static inline void add_update(const dit_norm *job, int64_t begin, mcsa_dtype dtype)
{
    float *x = job->x + begin;
    const int dim = job->dim;
    if (job->gate) {
#pragma omp simd
        for (int c = 0; c < dim; c++) x[c] += job->gate[c] * load(job->update, begin + c, dtype);
    } else {
#pragma omp simd
        for (int c = 0; c < dim; c++) x[c] += load(job->update, begin + c, dtype);
    }
}

static inline void write_norm(const dit_norm *job, int64_t begin, mcsa_dtype dtype)
{
    const float *x = job->x + begin;
    const int dim = job->dim;
    if (!job->gain) {
#pragma omp simd
        for (int c = 0; c < dim; c++) store(job->out, begin + c, x[c], dtype);
        return;
    }
    float sum = 0, square = 0;
#pragma omp simd reduction(+ : sum)
    for (int c = 0; c < dim; c++) sum += x[c];
    const float mean = sum / (float)dim;
#pragma omp simd reduction(+ : square)
    for (int c = 0; c < dim; c++) square += (x[c] - mean) * (x[c] - mean);
    const float rate = 1.0f / sqrtf(square / (float)dim + job->eps);
#pragma omp simd
    for (int c = 0; c < dim; c++)
        store(job->out, begin + c, (x[c] - mean) * rate * job->gain[c] + job->shift[c], dtype);
}

static void norm(const dit_norm *job, int64_t row)
{
    const int64_t begin = row * job->dim;
    if (job->update && job->dtype == MCSA_BF16)
        add_update(job, begin, MCSA_BF16);
    else if (job->update)
        add_update(job, begin, MCSA_F32);
    if (job->out_dtype == MCSA_BF16)
        write_norm(job, begin, MCSA_BF16);
    else
        write_norm(job, begin, MCSA_F32);
}

/* cosine, sine: [head_dim / 2] of token `row`. */
static inline void gather_angles(const dit_rope *rope, int64_t row, float *cosine, float *sine)
{
    const int64_t columns = rope->extent[2], lines = rope->extent[1];
    const int64_t place[3] = { row / columns / lines, row / columns % lines, row % columns };
    for (int a = 0; a < 3; a++) {
        const size_t bytes = (size_t)rope->pairs[a] * sizeof *cosine;
        memcpy(cosine, rope->cosine[a] + place[a] * rope->pairs[a], bytes);
        memcpy(sine, rope->sine[a] + place[a] * rope->pairs[a], bytes);
        cosine += rope->pairs[a];
        sine += rope->pairs[a];
    }
}

static inline void rms_rope_typed(const dit_rms_rope *job, int64_t row, mcsa_dtype dtype)
{
    const int64_t begin = row * job->stride;
    const int dim = job->heads * job->head_dim, pairs = job->head_dim / 2;
    void *x = job->x;
    float square = 0;
#pragma omp simd reduction(+ : square)
    for (int c = 0; c < dim; c++) square += load(x, begin + c, dtype) * load(x, begin + c, dtype);
    const float rate = 1.0f / sqrtf(square / (float)dim + job->eps);
    if (!job->rope) {
#pragma omp simd
        for (int c = 0; c < dim; c++) store(x, begin + c, load(x, begin + c, dtype) * rate * job->gain[c], dtype);
        return;
    }
    float cosine[MAX_PAIRS], sine[MAX_PAIRS];
    gather_angles(job->rope, row, cosine, sine);
    for (int h = 0; h < job->heads; h++) {
        const int64_t head = begin + (int64_t)h * job->head_dim;
        const float *gain = job->gain + h * job->head_dim;
#pragma omp simd
        for (int i = 0; i < pairs; i++) {
            float even = load(x, head + 2 * i, dtype) * rate * gain[2 * i];
            float odd = load(x, head + 2 * i + 1, dtype) * rate * gain[2 * i + 1];
            store(x, head + 2 * i, even * cosine[i] - odd * sine[i], dtype);
            store(x, head + 2 * i + 1, even * sine[i] + odd * cosine[i], dtype);
        }
    }
}

static void rms_rope(const dit_rms_rope *job, int64_t row)
{
    if (job->dtype == MCSA_BF16)
        rms_rope_typed(job, row, MCSA_BF16);
    else
        rms_rope_typed(job, row, MCSA_F32);
}
