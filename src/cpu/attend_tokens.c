/* attend_tokens.c - token-sparse attention over (head, group): the group's queries against its kept keys, gathered in
 * ascending order (by clusters, where there are any, and then the means of the others), then the residual.  The same
 * tile as dense attention, with a shorter list of keys. */
#include "base/tensor.h"
#include "cpu.h"
#include "means.h"
#include "residual.h"

#include <math.h>
#include <string.h>

#include <omp.h>

/* Ascending list of the set bits. */
static void expand(const uint64_t *bits, int64_t words, int32_t *list)
{
    for (int64_t w = 0; w < words; w++)
        for (uint64_t left = bits[w]; left; left &= left - 1) *list++ = (int32_t)(w * 64 + __builtin_ctzll(left));
}

/* Row i of the tile is query n of head h: adds its residual and writes it out, or records what it missed. */
static void epilogue(const mcsa_tile *tile, int i, const mcsa_qkv *x, void *out, void *code,
                     const mcsa_residual_rows *residual)
{
    const mcsa_kernels *kernels = tile->kernels;
    float *row = tile->rows + (ptrdiff_t)i * x->dims.D, missed[MCSA_MAX_DIM];
    if (residual->record) {
        kernels->load_row(out, x->dims.dtype, x->out->stride[2], x->dims.D, missed);
        for (int d = 0; d < x->dims.D; d++) missed[d] -= row[d];
        kernels->residual_encode(residual->form, missed, x->dims.D, code);
    } else {
        kernels->residual_add(residual->form, code, x->dims.D, row);
        kernels->store_row(row, x->dims.D, x->dims.dtype, x->out->stride[2], out);
    }
}

/* Means of today's keys and values of every cluster that has some. */
static void make_means(const mcsa_cpu *cpu, const mcsa_qkv *x, const mcsa_selection *s)
{
    const mcsa_kernels *kernels = mcsa_cpu_kernels(cpu, x->dims.dtype);
#pragma omp parallel for schedule(dynamic, 16) num_threads(cpu->threads)
    for (int64_t hp = 0; hp < (int64_t)s->H * s->P; hp++) {
        int count, h = (int)(hp / s->P);
        const int32_t *members = mcsa_cluster(s, h, (int)(hp % s->P), &count);
        if (!count) continue;
        mcsa_rows keys = mcsa_head_rows(x->k, h, members, 0, count),
                  values = mcsa_head_rows(x->v, h, members, 0, count);
        mcsa_mean_row(kernels, &keys, mcsa_cluster_row(cpu->clusters.key, &x->dims, hp));
        mcsa_mean_row(kernels, &values, mcsa_cluster_row(cpu->clusters.value, &x->dims, hp));
        cpu->clusters.log2_size[hp] = log2f((float)count);
    }
}

/* What a group attends to: list[0 .. keys) are keys, list[keys .. keys + means) clusters. */
typedef struct group_rows {
    int keys, means;
} group_rows;

static group_rows list_clusters(const mcsa_selection *s, int h, const uint64_t *kept, int32_t *list)
{
    group_rows rows = { 0, 0 };
    int count;
    for (int p = 0; p < s->P; p++) {
        const int32_t *members = mcsa_cluster(s, h, p, &count);
        if (!(kept[p / 64] >> (p % 64) & 1)) continue;
        memcpy(list + rows.keys, members, sizeof *list * (size_t)count);
        rows.keys += count;
    }
    for (int p = 0; p < s->P; p++) {
        (void)mcsa_cluster(s, h, p, &count);
        if (count && !(kept[p / 64] >> (p % 64) & 1)) list[rows.keys + rows.means++] = p;
    }
    return rows;
}

static void attend_clusters(const mcsa_cpu *cpu, mcsa_tile *tile, const mcsa_qkv *x, const mcsa_selection *s, int h,
                            group_rows rows)
{
    const int32_t *listed = tile->kept + rows.keys;
    int64_t first = (int64_t)h * s->P;
    int D = x->dims.D;
    mcsa_rows keys = mcsa_head_rows(x->k, h, tile->kept, 0, rows.keys),
              values = mcsa_head_rows(x->v, h, tile->kept, 0, rows.keys);
    mcsa_means means = { .log2_size = cpu->clusters.log2_size + first };
    means.keys = (mcsa_rows){
        mcsa_cluster_row(cpu->clusters.key, &x->dims, first), x->dims.dtype, D, 1, listed, 0, rows.means, D
    };
    means.values = means.keys;
    means.values.data = mcsa_cluster_row(cpu->clusters.value, &x->dims, first);
    mcsa_tile_attend_means(tile, &keys, &values, &means, x->scale);
}

/* The loaded queries of (head, group) `task` over what the group attends to. */
static group_rows attend_group(const mcsa_cpu *cpu, mcsa_tile *tile, const mcsa_qkv *x, const mcsa_selection *s,
                               int64_t task)
{
    int h = (int)(task / s->G);
    const uint64_t *kept = s->kept + task * s->words;
    group_rows rows = { s->K, 0 };
    if (s->P) {
        rows = list_clusters(s, h, kept, tile->kept);
        attend_clusters(cpu, tile, x, s, h, rows);
    } else {
        expand(kept, s->words, tile->kept);
        mcsa_rows keys = mcsa_head_rows(x->k, h, tile->kept, 0, rows.keys),
                  values = mcsa_head_rows(x->v, h, tile->kept, 0, rows.keys);
        mcsa_tile_attend(tile, &keys, &values, x->scale, 0);
    }
    return rows;
}

static int64_t padded(const mcsa_kernels *kernels, int rows)
{
    return (rows + kernels->word_elements - 1) / kernels->word_elements * kernels->word_elements;
}

int64_t mcsa_cpu_attend_tokens(void *state, const mcsa_qkv *x, const mcsa_selection *s,
                               const mcsa_residual_rows *residual)
{
    mcsa_cpu *cpu = state;
    const mcsa_kernels *kernels = mcsa_cpu_kernels(cpu, x->dims.dtype);
    int64_t row_bytes = (int64_t)residual_row_bytes(residual->form, x->dims.D), pairs = 0;
    if (s->P) make_means(cpu, x, s);
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads) reduction(+ : pairs)
    for (int64_t task = 0; task < (int64_t)s->H * s->G; task++) {
        mcsa_tile *tile = &cpu->tiles[omp_get_thread_num()];
        int h = (int)(task / s->G), g = (int)(task % s->G), count = mcsa_group_size(s, g);
        int64_t first = (int64_t)h * s->N + (int64_t)g * s->C;
        const int32_t *order = s->order + first;
        mcsa_rows queries = mcsa_head_rows(x->q, h, order, 0, count);
        mcsa_tile_load(tile, kernels, &queries);
        group_rows rows = attend_group(cpu, tile, x, s, task);
        for (int i = 0; i < count; i++)
            epilogue(tile, i, x, mcsa_tensor_row(x->out, h, order[i]), (char *)residual->rows + (first + i) * row_bytes,
                     residual);
        pairs += mcsa_lanes(count) * (padded(kernels, rows.keys) + padded(kernels, rows.means));
    }
    return pairs;
}
