/* kernels.h - the inner loops of the CPU backend as one table per instruction set, filled once.
 *
 * Every attention kernel works on a strip: up to 64 queries of one head that lie side by side as SIMD lanes, against a
 * block of keys.  With queries as lanes, scores are S^T [keys, lanes], so softmax runs down columns without a
 * horizontal step, keys are read row by row as they lie in memory (a gathered key row needs no transposition), and the
 * output is O^T [D, lanes].  Both products are the same one: rows of A (32-bit words, broadcast) times B [depth, lanes]
 * (words).
 *
 *     scores      S^T[j, i]  = sum_t  K[j, t]  Q^T[t, i]         depth: words of D
 *     accumulate  O^T[d, i] += sum_t  V^T[d, t] P^T[t, i]        depth: words of keys
 *
 * A word holds one float, or two bf16 that are neighbours along the depth (what vdpbf16ps multiplies):
 *
 *                   float              bf16
 *     queries       [D, lanes]         [D/2, lanes, 2]
 *     keys          [keys, D]          [keys, D/2, 2]
 *     values        [keys, D]          [keys/2, D, 2]
 *     probabilities [keys, lanes]      [keys/2, lanes, 2]
 *
 * D and keys are rounded up to whole words with zeros.  Scores, softmax and accumulation are float everywhere. */
#ifndef MCSA_CPU_KERNELS_H
#define MCSA_CPU_KERNELS_H

#include "mcsa.h"

enum {
    MCSA_LANES = 16,      /* strips are padded to this many queries, for every instruction set */
    MCSA_STRIP = 64,      /* queries of a full strip */
    MCSA_KEY_BLOCK = 192, /* keys between two looks at the running maximum; a multiple of the 6-row panel */
    MCSA_MAX_DIM = 256
};

/* Rows of one head: row r is row index[r] (or first + r without an index) of a [N, D] view. */
typedef struct mcsa_rows {
    const void *data; /* the head's row 0 */
    mcsa_dtype dtype;
    int64_t row_stride;    /* in elements */
    int64_t column_stride; /* in elements */
    const int32_t *index;  /* [count], or NULL */
    int64_t first;
    int count, D;
} mcsa_rows;

/* Online softmax of one strip, in units of log2. */
typedef struct mcsa_strip {
    float max[MCSA_STRIP];   /* of scale * log2(e) * score so far */
    float sum[MCSA_STRIP];   /* of exp2(score - max) */
    float alpha[MCSA_STRIP]; /* what the last block's new maximum scales the output by */
} mcsa_strip;

typedef struct mcsa_kernels {
    int word_elements; /* 1: float words, 2: bf16 pairs */

    /* rows -> queries [words, lanes] of one strip; rows->count <= lanes, missing lanes are zero.
     * scratch: [lanes, words] words. */
    void (*pack_queries)(const mcsa_rows *rows, int lanes, uint32_t *queries, uint32_t *scratch);
    /* rows -> where each key's words are: keys[r] [words].  Rows that already are words stay where they lie; others are
     * converted into `staged` [count, words]. */
    void (*stage_keys)(const mcsa_rows *rows, uint32_t *staged, const uint32_t **keys);
    /* rows -> values [ceil(count / word_elements), D] */
    void (*stage_values)(const mcsa_rows *rows, uint32_t *values);

    /* scores [keys, lanes] of `count` keys. */
    void (*scores)(const uint32_t *const *keys, const uint32_t *queries, int count, int D, int lanes, float *scores);
    /* scores -> probabilities [steps, lanes]; moves strip->max, ->sum, ->alpha.  scale2: scale * log2(e) > 0 */
    void (*softmax)(const float *scores, int count, int lanes, float scale2, mcsa_strip *strip,
                    uint32_t *probabilities);
    /* output [D, lanes] = output * alpha + values^T probabilities */
    void (*accumulate)(const uint32_t *values, const uint32_t *probabilities, int count, int D, int lanes,
                       const float *alpha, float *output);
    /* partial [count, LANES] += exp2(scores * scale2 - lse2) of lanes i, i + LANES, ...; the scores are not stored.
     * minus_lse2: [lanes]; a lane with -inf adds nothing. */
    void (*mass)(const uint32_t *const *keys, const uint32_t *queries, int count, int D, int lanes, float scale2,
                 const float *minus_lse2, float *partial);
    /* The same from softmax's probabilities, as rounded there, and the maximum [lanes] that they were relative to. */
    void (*weigh)(const uint32_t *probabilities, int count, int lanes, const float *max, const float *minus_lse2,
                  float *partial);
    /* mass [count] = sums of the rows of partial [count, LANES].  Both hold a multiple of 16 rows, which may be read
     * and written past count. */
    void (*mass_sum)(const float *partial, int count, float *mass);
    /* output [D, lanes] / sum -> rows [count, D]; scratch unused lanes are dropped */
    void (*finish)(const float *output, int D, int lanes, const float *sum, int count, float *rows);

    /* One row of the cached residual, see residual.h. */
    void (*residual_encode)(mcsa_residual form, const float *row, int D, void *code);
    void (*residual_add)(mcsa_residual form, const void *code, int D, float *row);
    /* row [D] <-> element 0, column_stride, ... of a tensor row */
    void (*load_row)(const void *src, mcsa_dtype dtype, int64_t column_stride, int D, float *row);
    void (*store_row)(const float *row, int D, mcsa_dtype dtype, int64_t column_stride, void *dst);

    /* One power-iteration pass of Fast PDDP over all rows x: t = x.direction, y += (t - shift) x.
     * projection: [count] gets t unless NULL.  y: [D], added to unless NULL.  Returns the sum of (t - shift).  Partial
     * sums run over fixed lanes, so the result does not depend on the number of threads. */
    double (*pddp_pass)(const mcsa_rows *rows, const float *direction, float shift, float *y, float *projection);

    /* sum [D] += the rows, one after the other */
    void (*sum_rows)(const mcsa_rows *rows, float *sum);

    /* Multiplies in registers for `rounds` rounds; returns the floating-point operations done.  See peak.h. */
    int64_t (*peak)(int64_t rounds);
} mcsa_kernels;

/* The tables of one level: f32 serves F32 and F16 tensors (and BF16 where there is no BF16 arithmetic, exactly). */
typedef struct mcsa_kernel_set {
    mcsa_isa isa;
    mcsa_kernels f32, bf16;
} mcsa_kernel_set;

/* Fills the set of `isa` by falling through the levels.  isa: what features.h says the machine has, or less. */
void mcsa_kernels_fill(mcsa_kernel_set *set, mcsa_isa isa);

void mcsa_kernels_scalar(mcsa_kernels *f32);
void mcsa_kernels_avx2(mcsa_kernels *f32);
void mcsa_kernels_avx512bf16(mcsa_kernels *f32, mcsa_kernels *bf16);

#endif
