/* tile_kernels.h - the kernels of kernels.h written once against a SIMD vocabulary (simd_*.h, included before).  Each
 * instruction set's file includes this and binds the functions to its table.
 *
 * `pairs` is a compile-time constant in every caller: 0 for float words, 1 for bf16 pairs. */
#ifndef MCSA_CPU_TILE_KERNELS_H
#define MCSA_CPU_TILE_KERNELS_H

#include "kernels.h"
#include "residual.h"
#include "rows.h"

/* Vectors of a row that pddp_rows keeps in registers: D = 128 with 16 lanes (8 for y, 16 for two rows of 32), D = 64
 * with 8 lanes and half as many registers, where rows spill but the loop still wins over pddp_any. */
enum { PDDP_VECS = 8 };

SIMD vf v_words(const uint32_t *p)
{
    return v_load((const float *)(const void *)p);
}

SIMD vf v_word(const uint32_t *p)
{
    float f;
    memcpy(&f, p, sizeof f);
    return v_set(f);
}

/* Where panel finds row r, step t of A: rows[r][t * step], or a[r + t * step] without rows. */
typedef struct operand {
    const uint32_t *const *rows;
    const uint32_t *a;
    ptrdiff_t step;
} operand;

/* What becomes of the products. */
typedef struct result {
    float *c;           /* [rows, lanes] = (alpha ? c * alpha : 0) + products; or [rows, MCSA_LANES] += their mass */
    const float *alpha; /* [lanes], or NULL */
    const float *minus_lse2; /* [lanes] for mass, or NULL */
    float scale2;
} result;

/* Mass of rows of scores held in registers: c [rows, MCSA_LANES] += exp2(scale2 score - lse2), METHOD.md (2).  Lanes
 * are summed up by mass_sum_of, once for all strips. */
SIMD void add_mass(int rows, int vecs, vf score[PANEL_ROWS][PANEL_VECS], const result *to)
{
    enum { PARTS = MCSA_LANES / VL };
    vf scale = v_set(to->scale2);
    for (int r = 0; r < rows; r++) {
        float *c = to->c + r * MCSA_LANES;
        vf sum[PARTS];
        for (int p = 0; p < PARTS; p++) sum[p] = v_load(c + p * VL);
        for (int v = 0; v < vecs; v++)
            sum[v % PARTS] = v_add(sum[v % PARTS], v_exp2(v_fma(score[r][v], scale, v_load(to->minus_lse2 + v * VL))));
        for (int p = 0; p < PARTS; p++) v_store(c + p * VL, sum[p]);
    }
}

/* A [rows, depth] B [depth, lanes] on vecs * VL lanes */
SIMD void panel(int pairs, int rows, int vecs, operand A, const uint32_t *b, int depth, int lanes, const result *to)
{
    vf acc[PANEL_ROWS][PANEL_VECS];
    const uint32_t *from[PANEL_ROWS];
    for (int r = 0; r < rows; r++) from[r] = A.rows ? A.rows[r] : A.a + r;
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vecs; v++)
            acc[r][v] =
                to->alpha ? v_mul(v_load(to->c + (ptrdiff_t)r * lanes + v * VL), v_load(to->alpha + v * VL)) : v_set(0);
    for (int t = 0; t < depth; t++, b += lanes) {
        vf column[PANEL_VECS];
        for (int v = 0; v < vecs; v++) column[v] = v_words(b + v * VL);
        for (int r = 0; r < rows; r++) {
            vf x = v_word(from[r] + t * A.step);
            for (int v = 0; v < vecs; v++)
                acc[r][v] = pairs ? dot_pairs(x, column[v], acc[r][v]) : v_fma(x, column[v], acc[r][v]);
        }
    }
    if (to->minus_lse2) {
        add_mass(rows, vecs, acc, to);
        return;
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vecs; v++) v_store(to->c + (ptrdiff_t)r * lanes + v * VL, acc[r][v]);
}

/* Asks for the rows of the next panel, which lie anywhere: by the time this panel is done (190 ns) they have come from
 * L3. */
SIMD void prefetch_rows(const uint32_t *const *rows, int left, int words)
{
    for (int r = 0; r < left && r < PANEL_ROWS; r++)
        for (int w = 0; w < words; w += 16) __builtin_prefetch(rows[r] + w);
}

/* All rows of one lane group.  Eight rows go as 4 + 4, since 16 chains hide the latency of a multiply and 2 do not. */
SIMD void panels(int pairs, int vecs, operand A, const uint32_t *b, int rows, int depth, int lanes, const result *all)
{
    for (int r = 0; r < rows;) {
        int left = rows - r, take = left >= 6 && left != 8 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        operand from = { A.rows ? A.rows + r : NULL, A.rows ? NULL : A.a + r, A.step };
        result to = *all;
        to.c += (ptrdiff_t)r * (all->minus_lse2 ? MCSA_LANES : lanes);
        if (A.rows && !all->minus_lse2) prefetch_rows(A.rows + r + take, rows - r - take, depth);
        switch (take) {
        case 6: panel(pairs, 6, vecs, from, b, depth, lanes, &to); break;
        case 4: panel(pairs, 4, vecs, from, b, depth, lanes, &to); break;
        case 2: panel(pairs, 2, vecs, from, b, depth, lanes, &to); break;
        default: panel(pairs, 1, vecs, from, b, depth, lanes, &to); break;
        }
        r += take;
    }
}

SIMD void multiply(int pairs, operand A, const uint32_t *b, int rows, int depth, int lanes, const result *all)
{
    for (int i = 0; i < lanes;) {
        result to = *all;
        if (all->alpha) to.alpha += i;
        if (all->minus_lse2)
            to.minus_lse2 += i;
        else
            to.c += i;
        int vecs = (lanes - i) / VL;
        if (vecs > PANEL_VECS) vecs = PANEL_VECS;
        switch (vecs) {
#if MCSA_PANEL_VECS >= 4
        case 4: panels(pairs, 4, A, b + i, rows, depth, lanes, &to); break;
        case 3: panels(pairs, 3, A, b + i, rows, depth, lanes, &to); break;
#endif
        case 2: panels(pairs, 2, A, b + i, rows, depth, lanes, &to); break;
        default: panels(pairs, 1, A, b + i, rows, depth, lanes, &to); break;
        }
        i += vecs * VL;
    }
}

SIMD void scores_of(int pairs, const uint32_t *const *keys, const uint32_t *queries, int count, int D, int lanes,
                    float *out)
{
    int words = pairs ? (D + 1) / 2 : D;
    multiply(pairs, (operand){ keys, NULL, 1 }, queries, count, words, lanes, &(result){ .c = out });
}

SIMD void mass_of(int pairs, const uint32_t *const *keys, const uint32_t *queries, int count, int D, int lanes,
                  float scale2, const float *minus_lse2, float *partial)
{
    int words = pairs ? (D + 1) / 2 : D;
    multiply(pairs, (operand){ keys, NULL, 1 }, queries, count, words, lanes,
             &(result){ .c = partial, .minus_lse2 = minus_lse2, .scale2 = scale2 });
}

SIMD void accumulate_of(int pairs, const uint32_t *values, const uint32_t *probabilities, int count, int D, int lanes,
                        const float *alpha, float *output)
{
    int steps = pairs ? (count + 1) / 2 : count;
    multiply(pairs, (operand){ NULL, values, D }, probabilities, D, steps, lanes,
             &(result){ .c = output, .alpha = alpha });
}

SIMD void softmax_of(int pairs, const float *score, int count, int lanes, float scale2, mcsa_strip *strip,
                     uint32_t *probabilities)
{
    vf scale = v_set(scale2);
    for (int i = 0; i < lanes; i += VL) {
        const float *s = score + i;
        vf m0 = v_load(s), m1 = m0, m2 = m0, m3 = m0; /* four chains: one would wait for each maximum */
        int j = 1;
        for (; j + 3 < count; j += 4) {
            m0 = v_max(m0, v_load(s + (ptrdiff_t)j * lanes));
            m1 = v_max(m1, v_load(s + (ptrdiff_t)(j + 1) * lanes));
            m2 = v_max(m2, v_load(s + (ptrdiff_t)(j + 2) * lanes));
            m3 = v_max(m3, v_load(s + (ptrdiff_t)(j + 3) * lanes));
        }
        for (; j < count; j++) m0 = v_max(m0, v_load(s + (ptrdiff_t)j * lanes));
        vf before = v_load(strip->max + i);
        vf now = v_max(before, v_mul(scale, v_max(v_max(m0, m1), v_max(m2, m3))));
        vf from = v_finite_max(now); /* all scores -inf: no -inf - -inf */
        vf alpha = v_exp2(v_sub(before, from)), minus = v_sub(v_set(0), from), sum = v_set(0);
        float *p = (float *)(void *)probabilities + i;
        if (pairs) {
            for (j = 0; j + 1 < count; j += 2, p += lanes) {
                vf low = v_exp2(v_fma(v_load(s + (ptrdiff_t)j * lanes), scale, minus));
                vf high = v_exp2(v_fma(v_load(s + (ptrdiff_t)(j + 1) * lanes), scale, minus));
                sum = v_add(sum, v_add(low, high));
                v_store(p, pack_pairs(low, high));
            }
            if (j < count) {
                vf low = v_exp2(v_fma(v_load(s + (ptrdiff_t)j * lanes), scale, minus));
                sum = v_add(sum, low);
                v_store(p, pack_pairs(low, v_set(0)));
            }
        } else {
            for (j = 0; j < count; j++, p += lanes) {
                vf x = v_exp2(v_fma(v_load(s + (ptrdiff_t)j * lanes), scale, minus));
                sum = v_add(sum, x);
                v_store(p, x);
            }
        }
        v_store(strip->max + i, now);
        v_store(strip->alpha + i, alpha);
        v_store(strip->sum + i, v_fma(v_load(strip->sum + i), alpha, sum));
    }
}

/* partial [count, MCSA_LANES] += p exp2(max - lse2): mass of keys from probabilities relative to the maximum of their
 * time. */
SIMD void weigh_of(int pairs, const uint32_t *probabilities, int count, int lanes, const float *max,
                   const float *minus_lse2, float *partial)
{
    for (int i = 0; i < lanes; i += VL) {
        float *to = partial + i % MCSA_LANES;
        const uint32_t *p = probabilities + i;
        vf factor = v_exp2(v_add(v_finite_max(v_load(max + i)), v_load(minus_lse2 + i)));
        int j = 0;
        for (; pairs && j + 1 < count; j += 2, p += lanes, to += 2 * MCSA_LANES) {
            v_store(to, v_fma(low_of_pairs(v_words(p)), factor, v_load(to)));
            v_store(to + MCSA_LANES, v_fma(high_of_pairs(v_words(p)), factor, v_load(to + MCSA_LANES)));
        }
        for (; j < count; j++, p += lanes, to += MCSA_LANES)
            v_store(to, v_fma(pairs ? low_of_pairs(v_words(p)) : v_words(p), factor, v_load(to)));
    }
}

/* mass [count] = row sums of partial [count, MCSA_LANES]; both hold whole blocks of VL rows */
SIMD void mass_sum_of(const float *partial, int count, float *mass)
{
    for (int j = 0; j < count; j += VL, partial += VL * MCSA_LANES) {
        vf row[VL];
        for (int i = 0; i < VL; i++) {
            row[i] = v_load(partial + i * MCSA_LANES);
            for (int l = VL; l < MCSA_LANES; l += VL) row[i] = v_add(row[i], v_load(partial + i * MCSA_LANES + l));
        }
        v_transpose(row);
        for (int half = VL / 2; half > 0; half /= 2)
            for (int i = 0; i < half; i++) row[i] = v_add(row[i], row[i + half]);
        v_store(mass + j, row[0]);
    }
}

/* dst [columns, rows] = src [rows, columns], words */
SIMD void transpose(const uint32_t *src, int rows, int columns, uint32_t *dst)
{
    for (int c = 0; c < columns; c += VL)
        for (int r = 0; r < rows; r += VL) {
            if (c + VL <= columns && r + VL <= rows) {
                vf block[VL];
                for (int i = 0; i < VL; i++) block[i] = v_words(src + (ptrdiff_t)(r + i) * columns + c);
                v_transpose(block);
                for (int i = 0; i < VL; i++) v_store((float *)(void *)(dst + (ptrdiff_t)(c + i) * rows + r), block[i]);
            } else {
                for (int j = c; j < columns && j < c + VL; j++)
                    for (int i = r; i < rows && i < r + VL; i++)
                        dst[(ptrdiff_t)j * rows + i] = src[(ptrdiff_t)i * columns + j];
            }
        }
}

SIMD void finish_of(const float *output, int D, int lanes, const float *sum, int count, float *rows)
{
    for (int i = 0; i < lanes && i < count; i += VL) {
        float inverse[VL];
        for (int l = 0; l < VL; l++) inverse[l] = 1 / sum[i + l];
        int d = 0, used = count - i < VL ? count - i : VL;
        for (; d + VL <= D; d += VL) {
            vf block[VL];
            for (int l = 0; l < VL; l++)
                block[l] = v_mul(v_load(output + (ptrdiff_t)(d + l) * lanes + i), v_load(inverse));
            v_transpose(block);
            for (int l = 0; l < VL; l++)
                if (l < used) v_store(rows + (ptrdiff_t)(i + l) * D + d, block[l]);
        }
        for (; d < D; d++)
            for (int l = 0; l < used; l++)
                rows[(ptrdiff_t)(i + l) * D + d] = output[(ptrdiff_t)d * lanes + i + l] * inverse[l];
    }
}

/* Float rows stay where they lie when their elements are neighbours. */
SIMD void stage_keys_float(const mcsa_rows *rows, uint32_t *staged, const uint32_t **keys)
{
    for (int r = 0; r < rows->count; r++) {
        keys[r] = row_at(rows, r);
        if (rows->dtype == MCSA_F32 && rows->column_stride == 1) continue;
        keys[r] = staged + (ptrdiff_t)r * rows->D;
        load_row(row_at(rows, r), rows->dtype, rows->column_stride, rows->D,
                 (float *)(void *)staged + (ptrdiff_t)r * rows->D);
    }
}

/* staged float rows [count, D] */
SIMD void stage_float(const mcsa_rows *rows, uint32_t *staged)
{
    for (int r = 0; r < rows->count; r++)
        load_row(row_at(rows, r), rows->dtype, rows->column_stride, rows->D,
                 (float *)(void *)staged + (ptrdiff_t)r * rows->D);
}

SIMD vf v_load_row(const void *row, mcsa_dtype dtype, int d)
{
    return dtype == MCSA_F32 ? v_load((const float *)row + d) : v_load_bf16((const uint16_t *)row + d);
}

/* Rows lie anywhere in the head: asks for the ones that are eight ahead. */
SIMD void pddp_prefetch(const mcsa_rows *rows, int r, int bytes)
{
    if (r + 8 >= rows->count) return;
    const char *row = row_at(rows, r + 8);
    for (int b = 0; b < bytes; b += 64) __builtin_prefetch(row + b);
}

/* pddp_pass for D = vecs * VL, unit column stride, F32 or BF16: y stays in registers.  Two rows at a time, so that the
 * two horizontal sums overlap; a lone last row is paired with itself at weight 0. */
SIMD double pddp_rows(int vecs, mcsa_dtype dtype, const mcsa_rows *rows, const float *direction, float shift, float *y,
                      float *projection)
{
    vf sum[PDDP_VECS];
    double total = 0;
    for (int v = 0; v < vecs; v++) sum[v] = y ? v_load(y + v * VL) : v_set(0);
    for (int r = 0; r < rows->count; r += 2) {
        int both = r + 1 < rows->count, bytes = vecs * VL * (dtype == MCSA_F32 ? 4 : 2);
        const void *row0 = row_at(rows, r), *row1 = row_at(rows, r + both);
        vf x0[PDDP_VECS], x1[PDDP_VECS], t0 = v_set(0), t1 = v_set(0);
        pddp_prefetch(rows, r, bytes);
        pddp_prefetch(rows, r + 1, bytes);
        for (int v = 0; v < vecs; v++) {
            vf along = v_load(direction + v * VL);
            x0[v] = v_load_row(row0, dtype, v * VL);
            x1[v] = v_load_row(row1, dtype, v * VL);
            t0 = v_fma(x0[v], along, t0);
            t1 = v_fma(x1[v], along, t1);
        }
        float p0 = v_sum(t0), p1 = v_sum(t1), c0 = p0 - shift, c1 = both ? p1 - shift : 0;
        if (projection) {
            projection[r] = p0;
            projection[r + both] = both ? p1 : p0;
        }
        total += (double)c0 + (double)c1;
        if (y)
            for (int v = 0; v < vecs; v++) sum[v] = v_fma(v_set(c1), x1[v], v_fma(v_set(c0), x0[v], sum[v]));
    }
    for (int v = 0; y && v < vecs; v++) v_store(y + v * VL, sum[v]);
    return total;
}

/* Any D, stride and dtype. */
SIMD double pddp_any(const mcsa_rows *rows, const float *direction, float shift, float *y, float *projection)
{
    _Alignas(64) float x[MCSA_MAX_DIM] = { 0 }, v[MCSA_MAX_DIM] = { 0 }, sum[MCSA_MAX_DIM] = { 0 };
    int D = rows->D, wide = (D + VL - 1) / VL * VL;
    memcpy(v, direction, sizeof *v * (size_t)D);
    double total = 0;
    for (int r = 0; r < rows->count; r++) {
        load_row(row_at(rows, r), rows->dtype, rows->column_stride, D, x);
        vf along = v_set(0);
        for (int d = 0; d < wide; d += VL) along = v_fma(v_load(x + d), v_load(v + d), along);
        float t = v_sum(along), centred = t - shift;
        if (projection) projection[r] = t;
        total += (double)centred;
        if (y)
            for (int d = 0; d < wide; d += VL) v_store(sum + d, v_fma(v_set(centred), v_load(x + d), v_load(sum + d)));
    }
    for (int d = 0; y && d < D; d++) y[d] += sum[d];
    return total;
}

SIMD double pddp_pass_of(const mcsa_rows *rows, const float *direction, float shift, float *y, float *projection)
{
    int vecs = rows->column_stride == 1 && rows->D % VL == 0 ? rows->D / VL : 0;
    if (vecs == PDDP_VECS && rows->dtype == MCSA_BF16)
        return pddp_rows(PDDP_VECS, MCSA_BF16, rows, direction, shift, y, projection);
    if (vecs == PDDP_VECS && rows->dtype == MCSA_F32)
        return pddp_rows(PDDP_VECS, MCSA_F32, rows, direction, shift, y, projection);
    if (vecs == PDDP_VECS / 2 && rows->dtype == MCSA_BF16)
        return pddp_rows(PDDP_VECS / 2, MCSA_BF16, rows, direction, shift, y, projection);
    return pddp_any(rows, direction, shift, y, projection);
}

/* sum_rows for what pddp_rows takes: the sum stays in registers. */
SIMD void sum_wide(int vecs, mcsa_dtype dtype, const mcsa_rows *rows, float *sum)
{
    vf total[PDDP_VECS];
    for (int v = 0; v < vecs; v++) total[v] = v_load(sum + v * VL);
    for (int r = 0; r < rows->count; r++) {
        const void *row = row_at(rows, r);
        pddp_prefetch(rows, r, vecs * VL * (dtype == MCSA_F32 ? 4 : 2));
        for (int v = 0; v < vecs; v++) total[v] = v_add(total[v], v_load_row(row, dtype, v * VL));
    }
    for (int v = 0; v < vecs; v++) v_store(sum + v * VL, total[v]);
}

SIMD void sum_rows_of(const mcsa_rows *rows, float *sum)
{
    int vecs = rows->column_stride == 1 && rows->D % VL == 0 ? rows->D / VL : 0;
    if (vecs == PDDP_VECS && rows->dtype == MCSA_BF16) {
        sum_wide(PDDP_VECS, MCSA_BF16, rows, sum);
    } else if (vecs == PDDP_VECS && rows->dtype == MCSA_F32) {
        sum_wide(PDDP_VECS, MCSA_F32, rows, sum);
    } else {
        float x[MCSA_MAX_DIM];
        for (int r = 0; r < rows->count; r++) {
            load_row(row_at(rows, r), rows->dtype, rows->column_stride, rows->D, x);
            for (int d = 0; d < rows->D; d++) sum[d] += x[d];
        }
    }
}

/* 24 independent chains on 32 registers, 12 on 16; the volatile store keeps the compiler from dropping the work. */
SIMD int64_t peak_of(int pairs, int64_t rounds)
{
    vf acc[PANEL_ROWS][PANEL_VECS], x = v_set(0), y = v_set(0);
    for (int r = 0; r < PANEL_ROWS; r++)
        for (int v = 0; v < PANEL_VECS; v++) acc[r][v] = v_set((float)(r + v));
    for (int64_t i = 0; i < rounds; i++) {
        __asm__ volatile("" : "+x"(x), "+x"(y)); /* operands may have changed: no folding over rounds */
        for (int r = 0; r < PANEL_ROWS; r++)
            for (int v = 0; v < PANEL_VECS; v++)
                acc[r][v] = pairs ? dot_pairs(x, y, acc[r][v]) : v_fma(x, y, acc[r][v]);
    }
    volatile float sink;
    for (int r = 0; r < PANEL_ROWS; r++)
        for (int v = 0; v < PANEL_VECS; v++) sink = v_sum(acc[r][v]);
    (void)sink;
    return rounds * PANEL_ROWS * PANEL_VECS * VL * (pairs ? 4 : 2);
}

#endif
