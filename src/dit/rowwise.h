/* rowwise.h - what a Wan block does to one token at a time, between its linear layers: residual and LayerNorm
 * with modulation, RMSNorm with rotary positions, and the casts to and from the dtype of the linear layers.
 *
 * Each operation reads and writes its rows once.  Rows are shared among OpenMP's current number of threads; a
 * row's result does not depend on that number. */
#ifndef MCSA_DIT_ROWWISE_H
#define MCSA_DIT_ROWWISE_H

#include "mcsa.h"

/* x += gate * update;  out = LayerNorm(x) * gain + shift */
typedef struct dit_norm {
    float *x;                    /* [N, dim] */
    const void *update;          /* [N, dim] of `dtype`, or NULL: x stays */
    const float *gate;           /* [dim], or NULL: 1 */
    const float *gain, *shift;   /* [dim], or gain NULL: out = x */
    void *out;                   /* [N, dim] of `out_dtype` */
    mcsa_dtype dtype, out_dtype; /* MCSA_F32 or MCSA_BF16 */
    float eps;
    int dim;
} dit_norm;

/* Angles of 3-D rotary positions: token (t, h, w) rotates the pairs of a head by row t of axis 0, then row h
 * of axis 1, then row w of axis 2. */
typedef struct dit_rope {
    int extent[3];          /* of the token grid: frames, rows, columns */
    int pairs[3];           /* of a head that turn with each axis; their sum is head_dim / 2 */
    const float *cosine[3]; /* [extent[a], pairs[a]] */
    const float *sine[3];
} dit_rope;

/* x = rotate(RMSNorm(x) * gain), in place; the norm runs over all heads of a token together. */
typedef struct dit_rms_rope {
    void *x; /* rows of heads * head_dim elements of `dtype`, `stride` elements apart */
    mcsa_dtype dtype;
    int64_t stride;
    const float *gain;    /* [heads * head_dim] */
    const dit_rope *rope; /* NULL: no rotation */
    float eps;
    int heads, head_dim;
} dit_rms_rope;

typedef struct dit_row_kernels {
    void (*norm)(const dit_norm *job, int64_t row);
    void (*rms_rope)(const dit_rms_rope *job, int64_t row);
} dit_row_kernels;

/* The kernels of an instruction set; isa is what mcsa_machine_read reports, or less. */
dit_row_kernels dit_row_kernels_for(mcsa_isa isa);

void dit_norm_rows(const dit_row_kernels *kernels, const dit_norm *job, int64_t N);
void dit_rms_rope_rows(const dit_row_kernels *kernels, const dit_rms_rope *job, int64_t N);

/* The same source under the flags of three instruction sets. */
dit_row_kernels dit_row_kernels_scalar(void);
dit_row_kernels dit_row_kernels_avx2(void);
dit_row_kernels dit_row_kernels_avx512bf16(void);

#endif
