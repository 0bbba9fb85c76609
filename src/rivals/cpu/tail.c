/* tail.c - the keys that a part of the queries does not keep, one virtual key per part of them: attention over the
 * virtual keys alone, then a merge with what exact attention left in out and lse.
 *
 * Virtual keys and values are means in FP32 and multiply in FP32, whatever the tensors are: rounding them to BF16, as
 * public kernels do, would cost rivals accuracy and is no part of their method. */
#include "strips.h"

#include "cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

/* The virtual keys of one head. */
typedef struct virtual_keys {
    const float *key, *value; /* [K, D] */
    const float *bias;        /* [K] log weight / scale: what a score gets before it is scaled; -INFINITY: none */
    const float *slope;       /* [D, D], or NULL */
    int K;
} virtual_keys;

/* The virtual keys that a row of the map leaves out, ascending; returns how many. */
static int list_left_out(const virtual_keys *all, const uint64_t *kept, int32_t *list)
{
    int listed = 0;
    for (int k = 0; k < all->K; k++)
        if (!(kept[k / 64] >> (k % 64) & 1) && all->bias[k] > -INFINITY) list[listed++] = k;
    return listed;
}

static void begin(mcsa_tile *tile)
{
    for (int i = 0; i < tile->count; i += MCSA_STRIP) {
        mcsa_strip *strip = &tile->strips[i / MCSA_STRIP];
        for (int l = 0; l < MCSA_STRIP; l++) strip->max[l] = -INFINITY;
        memset(strip->sum, 0, sizeof strip->sum);
        memset(rival_strip_output(tile, i), 0, sizeof(float) * MCSA_STRIP * (size_t)tile->D);
    }
}

static void add_bias(float *scores, const float *bias, const int32_t *list, int count, int lanes)
{
    for (int j = 0; j < count; j++, scores += lanes)
        for (int i = 0; i < lanes; i++) scores[i] += bias[list[j]];
}

/* tile->output and tile->strips of the tile's queries over the listed virtual keys. */
static void attend(mcsa_tile *tile, const virtual_keys *all, const int32_t *list, int listed, float scale)
{
    const mcsa_kernels *kernel = tile->kernels;
    int D = tile->D;
    begin(tile);
    for (int j = 0; j < listed; j += MCSA_KEY_BLOCK) {
        int count = listed - j < MCSA_KEY_BLOCK ? listed - j : MCSA_KEY_BLOCK;
        mcsa_rows keys = rival_float_rows(all->key, list + j, count, D);
        mcsa_rows values = rival_float_rows(all->value, list + j, count, D);
        kernel->stage_keys(&keys, tile->staged, tile->keys);
        kernel->stage_values(&values, tile->values);
        for (int i = 0; i < tile->count; i += MCSA_STRIP) {
            mcsa_strip *strip = &tile->strips[i / MCSA_STRIP];
            int lanes = mcsa_strip_lanes(tile, i);
            kernel->scores(tile->keys, rival_strip_queries(tile, i), count, D, lanes, tile->scores);
            add_bias(tile->scores, all->bias, list + j, count, lanes);
            kernel->softmax(tile->scores, count, lanes, scale * RIVAL_LOG2_E, strip, tile->probabilities);
            kernel->accumulate(tile->values, tile->probabilities, count, D, lanes, strip->alpha,
                               rival_strip_output(tile, i));
        }
    }
}

/* output / sum + slope^T q -> tile->rows, and tile->lse.  A slope [D, D] is D values whose probabilities are q. */
static void finish(mcsa_tile *tile, const float *slope)
{
    const mcsa_kernels *kernel = tile->kernels;
    int D = tile->D;
    for (int i = 0; i < tile->count; i += MCSA_STRIP) {
        mcsa_strip *strip = &tile->strips[i / MCSA_STRIP];
        float *output = rival_strip_output(tile, i);
        int lanes = mcsa_strip_lanes(tile, i), used = tile->count - i < lanes ? tile->count - i : lanes;
        for (int l = 0; l < used; l++) tile->lse[i + l] = RIVAL_LN_2 * (strip->max[l] + log2f(strip->sum[l]));
        if (slope) {
            for (int l = 0; l < lanes; l++) strip->alpha[l] = 1 / strip->sum[l];
            for (int l = 0; l < lanes; l++) strip->sum[l] = 1;
            kernel->accumulate((const uint32_t *)(const void *)slope, rival_strip_queries(tile, i), D, D, lanes,
                               strip->alpha, output);
        }
        kernel->finish(output, D, lanes, strip->sum, used, tile->rows + (int64_t)i * D);
    }
}

/* out, *lse of one row = the two softmaxes as one.  A row without an exact key takes the tail as it is. */
static void merge(const mcsa_kernels *kernels, const float *tail, float tail_lse, const mcsa_tensor *out, void *at,
                  float *lse)
{
    float row[MCSA_MAX_DIM];
    int D = (int)out->shape[2];
    float max = *lse > tail_lse ? *lse : tail_lse, exact = expf(*lse - max), rest = expf(tail_lse - max);
    float sum = exact + rest;
    kernels->load_row(at, out->dtype, out->stride[2], D, row);
    for (int d = 0; d < D; d++) row[d] = (exact * row[d] + rest * tail[d]) / sum;
    kernels->store_row(row, D, out->dtype, out->stride[2], at);
    *lse = max + logf(sum);
}

/* scores get log weight / scale before the softmax multiplies them by scale. */
static void weigh(const rival_tail *tail, int64_t count, float scale, float *bias)
{
    for (int64_t k = 0; k < count; k++) bias[k] = tail->weight[k] > 0 ? logf(tail->weight[k]) / scale : -INFINITY;
}

mcsa_status rival_cpu_tail(void *state, const mcsa_qkv *x, const rival_partition *queries, const rival_map *map,
                           const rival_tail *tail, float *lse, mcsa_error *error)
{
    rival_cpu *cpu = state;
    const mcsa_kernels *kernels = &cpu->kernels.f32;
    int D = x->dims.D, K = map->K;
    TRY(rival_cpu_reserve(cpu, D, K, error));
    float *bias = malloc(sizeof *bias * (size_t)map->H * (size_t)K);
    if (!bias) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the weights of %d parts in %d heads", K, map->H);
    weigh(tail, (int64_t)map->H * K, x->scale, bias);
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
    for (int64_t task = 0; task < (int64_t)map->H * map->Q; task++) {
        mcsa_tile *tile = &cpu->tiles[omp_get_thread_num()];
        int h = (int)(task / map->Q), q = (int)(task % map->Q), rows;
        const int32_t *part = rival_part(queries, h, q, &rows);
        int64_t all_keys = (int64_t)h * K * D;
        virtual_keys all = { tail->key + all_keys, tail->value + all_keys, bias + (int64_t)h * K,
                             tail->slope ? tail->slope + (int64_t)h * D * D : NULL, K };
        int listed = list_left_out(&all, rival_map_row(map, h, q), tile->kept);
        for (int first = 0; listed && first < rows; first += MCSA_DENSE_TILE) {
            int count = rows - first < MCSA_DENSE_TILE ? rows - first : MCSA_DENSE_TILE;
            mcsa_rows some = mcsa_head_rows(x->q, h, part + first, 0, count);
            mcsa_tile_load(tile, kernels, &some);
            attend(tile, &all, tile->kept, listed, x->scale);
            finish(tile, all.slope);
            for (int i = 0; i < count; i++) {
                int row = part[first + i];
                merge(kernels, tile->rows + (int64_t)i * D, tile->lse[i], x->out, mcsa_tensor_row(x->out, h, row),
                      lse + (int64_t)h * x->dims.N + row);
            }
        }
    }
    free(bias);
    return MCSA_OK;
}
