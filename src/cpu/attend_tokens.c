/* attend_tokens.c - token-sparse attention over (head, group): the group's queries against its kept keys, gathered in
 * ascending order, then the residual.  The same tile as dense attention, with a shorter list of keys. */
#include "base/tensor.h"
#include "cpu.h"
#include "residual.h"

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

int64_t mcsa_cpu_attend_tokens(void *state, const mcsa_qkv *x, const mcsa_selection *s,
                               const mcsa_residual_rows *residual)
{
    mcsa_cpu *cpu = state;
    const mcsa_kernels *kernels = mcsa_cpu_kernels(cpu, x->dims.dtype);
    int64_t row_bytes = (int64_t)residual_row_bytes(residual->form, x->dims.D), lanes = 0;
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads) reduction(+ : lanes)
    for (int64_t task = 0; task < (int64_t)s->H * s->G; task++) {
        mcsa_tile *tile = &cpu->tiles[omp_get_thread_num()];
        int h = (int)(task / s->G), g = (int)(task % s->G), count = mcsa_group_size(s, g);
        int64_t first = (int64_t)h * s->N + (int64_t)g * s->C;
        const int32_t *order = s->order + first;
        expand(s->kept + task * s->words, s->words, tile->kept);
        mcsa_rows queries = mcsa_head_rows(x->q, h, order, 0, count);
        mcsa_rows keys = mcsa_head_rows(x->k, h, tile->kept, 0, s->K),
                  values = mcsa_head_rows(x->v, h, tile->kept, 0, s->K);
        mcsa_tile_load(tile, kernels, &queries);
        mcsa_tile_attend(tile, &keys, &values, x->scale, 0);
        for (int i = 0; i < count; i++)
            epilogue(tile, i, x, mcsa_tensor_row(x->out, h, order[i]), (char *)residual->rows + (first + i) * row_bytes,
                     residual);
        lanes += mcsa_lanes(count);
    }
    int padded = (s->K + kernels->word_elements - 1) / kernels->word_elements * kernels->word_elements;
    return lanes * padded;
}
