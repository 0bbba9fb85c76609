/* diagonal.c - XAttention's scores of blocks: `stride` keys in a row make one strided key, as many queries in reverse
 * one strided query, so that their product is the sum along an antidiagonal; then softmax over all strided keys and
 * sums over pairs of blocks.
 *
 * A strip of 64 strided queries meets the strided keys block by block.  The sum over a block is kept relative to the
 * maximum of its time and set right when the row's maximum and sum are known: no [N / stride]^2 array exists. */
#include "strips.h"

#include "cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

/* The call, cut up. */
typedef struct lattice {
    const mcsa_qkv *x;
    int stride, wide; /* rows of a strided one, and its stride D numbers */
    int strided;      /* rows in a head: ceil(N / stride) */
    int per, blocks;  /* strided rows of a block, blocks of a head */
    void *keys;       /* [strided, wide] of one head */
} lattice;

/* Of one thread: every block of keys for 64 strided queries. */
typedef struct totals {
    float *sum, *max; /* [blocks, STRIP] sum of exp2(score - max) */
} totals;

static void copy_row(const mcsa_tensor *t, int h, int n, void *to)
{
    int D = (int)t->shape[2];
    int64_t step = t->stride[2];
    const void *from = mcsa_tensor_row(t, h, n);
    if (step == 1)
        memcpy(to, from, mcsa_dtype_bytes(t->dtype) * (size_t)D);
    else if (t->dtype == MCSA_F32)
        for (int d = 0; d < D; d++) ((float *)to)[d] = ((const float *)from)[d * step];
    else
        for (int d = 0; d < D; d++) ((uint16_t *)to)[d] = ((const uint16_t *)from)[d * step];
}

/* Zeros past row N. */
static void gather_keys(const lattice *l, int h, int threads)
{
    size_t row = mcsa_dtype_bytes(l->x->dims.dtype) * (size_t)l->x->dims.D;
    int rows = l->strided * l->stride;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int n = 0; n < rows; n++) {
        char *to = (char *)l->keys + (size_t)n * row;
        if (n < l->x->dims.N)
            copy_row(l->x->k, h, n, to);
        else
            memset(to, 0, row);
    }
}

/* rows [count, wide]: strided queries first .. first + count, each with its rows in reverse. */
static void gather_queries(const lattice *l, int h, int first, int count, void *rows)
{
    size_t row = mcsa_dtype_bytes(l->x->dims.dtype) * (size_t)l->x->dims.D;
    char *to = rows;
    for (int u = first; u < first + count; u++)
        for (int r = 0; r < l->stride; r++, to += row) {
            int n = u * l->stride + l->stride - 1 - r;
            if (n < l->x->dims.N)
                copy_row(l->x->q, h, n, to);
            else
                memset(to, 0, row);
        }
}

static void add_columns(const float *restrict p, int count, int lanes, const float *restrict alpha, float *restrict sum)
{
    for (int i = 0; i < lanes; i++) sum[i] *= alpha[i];
    for (int j = 0; j < count; j++, p += lanes)
        for (int i = 0; i < lanes; i++) sum[i] += p[i];
}

/* totals and tile->strips[0] of the tile's strided queries.  softmax: the float one, for probabilities unrounded. */
static void sum_blocks(mcsa_tile *tile, const mcsa_kernels *softmax, const lattice *l, totals *to)
{
    mcsa_strip *strip = tile->strips;
    int lanes = mcsa_lanes(tile->count);
    float scale2 = l->x->scale / (float)l->stride * RIVAL_LOG2_E;
    for (int i = 0; i < MCSA_STRIP; i++) strip->max[i] = -INFINITY;
    memset(strip->sum, 0, sizeof strip->sum);
    for (int b = 0; b < l->blocks; b++) {
        float *sum = to->sum + (int64_t)b * MCSA_STRIP;
        int end = (b + 1) * l->per < l->strided ? (b + 1) * l->per : l->strided;
        memset(sum, 0, sizeof *sum * MCSA_STRIP);
        for (int j = b * l->per; j < end; j += MCSA_KEY_BLOCK) {
            int count = end - j < MCSA_KEY_BLOCK ? end - j : MCSA_KEY_BLOCK;
            mcsa_rows keys = { l->keys, l->x->dims.dtype, l->wide, 1, NULL, j, count, l->wide };
            tile->kernels->stage_keys(&keys, tile->staged, tile->keys);
            tile->kernels->scores(tile->keys, tile->queries, count, l->wide, lanes, tile->scores);
            softmax->softmax(tile->scores, count, lanes, scale2, strip, tile->probabilities);
            add_columns((const float *)(const void *)tile->probabilities, count, lanes, strip->alpha, sum);
        }
        memcpy(to->max + (int64_t)b * MCSA_STRIP, strip->max, sizeof strip->max);
    }
}

/* block [blocks, blocks] += what the tile's strided queries, from `first`, gave to each block of keys. */
static void add_rows(const mcsa_tile *tile, const lattice *l, const totals *from, int first, float *block)
{
    const mcsa_strip *strip = tile->strips;
    for (int i = 0; i < tile->count; i++) {
        float *row = block + (int64_t)((first + i) / l->per) * l->blocks;
        for (int b = 0; b < l->blocks; b++) {
            int64_t at = (int64_t)b * MCSA_STRIP + i;
            row[b] += from->sum[at] * exp2f(from->max[at] - strip->max[i]) / strip->sum[i];
        }
    }
}

/* Rows first .. end of strided queries: whole blocks, so that nobody else adds to theirs. */
static void block_rows(mcsa_tile *tile, const mcsa_kernels *softmax, const lattice *l, int h, int first, int end,
                       totals *room, float *block)
{
    for (int u = first; u < end; u += MCSA_STRIP) {
        int count = end - u < MCSA_STRIP ? end - u : MCSA_STRIP;
        gather_queries(l, h, u, count, tile->rows);
        mcsa_rows queries = { tile->rows, l->x->dims.dtype, l->wide, 1, NULL, 0, count, l->wide };
        mcsa_tile_load(tile, tile->kernels, &queries);
        sum_blocks(tile, softmax, l, room);
        add_rows(tile, l, room, u, block);
    }
}

mcsa_status rival_cpu_diagonal(void *state, const mcsa_qkv *x, int stride, int size, float *block, mcsa_error *error)
{
    rival_cpu *cpu = state;
    int N = x->dims.N, per = size / stride;
    int rows = per < MCSA_STRIP ? MCSA_STRIP / per * per : per; /* strided queries of a task */
    lattice l = { x, stride, stride * x->dims.D, (N + stride - 1) / stride, per, (N + size - 1) / size, NULL };
    size_t room = (size_t)l.blocks * MCSA_STRIP, squares = (size_t)l.blocks * (size_t)l.blocks;
    TRY(rival_cpu_reserve(cpu, l.wide, 1, error));
    l.keys = malloc(mcsa_dtype_bytes(x->dims.dtype) * (size_t)l.strided * (size_t)l.wide);
    float *memory = malloc(sizeof *memory * 2 * room * (size_t)cpu->threads);
    mcsa_status status = MCSA_OK;
    if (!l.keys || !memory) {
        status = mcsa_fail(error, MCSA_ENOMEM, "no memory for %d keys of %d rows", l.strided, stride);
        goto done;
    }
    memset(block, 0, sizeof *block * squares * (size_t)x->dims.H);
    for (int h = 0; h < x->dims.H; h++) {
        gather_keys(&l, h, cpu->threads);
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
        for (int first = 0; first < l.strided; first += rows) {
            mcsa_tile *tile = &cpu->tiles[omp_get_thread_num()];
            float *own = memory + 2 * room * (size_t)omp_get_thread_num();
            totals to = { own, own + room };
            tile->kernels = rival_cpu_kernels(cpu, x->dims.dtype);
            block_rows(tile, &cpu->kernels.f32, &l, h, first, first + rows < l.strided ? first + rows : l.strided, &to,
                       block + (size_t)h * squares);
        }
    }
done:
    free(l.keys);
    free(memory);
    return status;
}
