/* scores.c - what needs all scores: masses of pairs of parts, errors of means, antidiagonals.
 *
 * Numbers per token lie in scratch for as many heads at a time as fit in 256 MiB, at least one. */
#include "state.h"
#include "tiles.h"

#include "cuda/kernels.h"

#include <stdlib.h>

enum { SCORES_BYTES = 256 << 20 };

static int heads_at_once(int H, size_t bytes_each)
{
    const size_t fit = SCORES_BYTES / bytes_each;
    return fit < 1 ? 1 : fit < (size_t)H ? (int)fit : H;
}

/* Tiles of 128 queries of the same part: rows in tiles, -1 where a tile has none, and the tiles of each part. */
typedef struct mass_tiles {
    int32_t *order; /* [H, tiles 128] */
    int32_t *line;  /* [H, Q + 1] */
    int tiles;      /* of the head that has most, at least 1 */
} mass_tiles;

static void mass_lines(mass_tiles *m, const rival_partition *queries)
{
    for (int h = 0; h < queries->H; h++) {
        int32_t *line = m->line + (int64_t)h * (queries->P + 1);
        line[0] = 0;
        for (int q = 0; q < queries->P; q++) line[q + 1] = line[q] + rival_tiles_of(rival_part_size(queries, h, q));
        m->tiles = line[queries->P] > m->tiles ? line[queries->P] : m->tiles;
    }
}

static void mass_order(mass_tiles *m, const rival_partition *queries)
{
    const int64_t padded = (int64_t)m->tiles * RIVAL_CUDA_TILE;
    for (int64_t i = 0; i < queries->H * padded; i++) m->order[i] = -1;
    for (int h = 0; h < queries->H; h++)
        for (int q = 0; q < queries->P; q++) {
            int count;
            const int32_t *rows = rival_part(queries, h, q, &count);
            int64_t first = (int64_t)m->line[(int64_t)h * (queries->P + 1) + q] * RIVAL_CUDA_TILE;
            for (int i = 0; i < count; i++) m->order[h * padded + first + i] = rows[i];
        }
}

static mcsa_status mass_tiles_make(mass_tiles *m, const rival_partition *queries, mcsa_error *error)
{
    m->line = malloc(sizeof *m->line * (size_t)queries->H * (size_t)(queries->P + 1));
    if (!m->line) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the tiles of %d parts", queries->P);
    mass_lines(m, queries);
    m->order = malloc(sizeof *m->order * (size_t)queries->H * (size_t)m->tiles * RIVAL_CUDA_TILE + 1);
    if (!m->order) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d tiles of queries", m->tiles);
    mass_order(m, queries);
    return MCSA_OK;
}

/* Arrays of a mass call by place. */
enum { KEY_ORDER, KEY_FIRST, ROWS, LINES, PACKED, PACKED_LSE, PACKED_ORDER, TOKENS, PARTS, MASS_ARRAYS };

/* Masses of heads [head, head + heads) of packed queries, by token and then by part. */
static cudaError_t mass_launch(const mcsa_qkv *packed, const rival_array *a, const rival_fold_job *fold,
                               cudaStream_t stream)
{
    const mcsa_cuda_mass_job job = { .x = packed,
                                     .lse = a[PACKED_LSE].device,
                                     .order = a[PACKED_ORDER].device,
                                     .head = fold->head,
                                     .heads = fold->heads,
                                     .mass = a[TOKENS].device,
                                     .pitch = fold->pitch };
    cudaError_t launched = mcsa_cuda_mass(&job, stream);
    return launched == cudaSuccess ? rival_launch_fold(fold, RIVAL_FOLD_SUM, stream) : launched;
}

static mcsa_status mass_on(rival_cuda *cuda, const mcsa_qkv *x, const mass_tiles *m, int Q, const rival_partition *keys,
                           const float *lse, float *mass, mcsa_error *error)
{
    const int H = x->dims.H, D = x->dims.D, padded = m->tiles * RIVAL_CUDA_TILE;
    const int64_t pitch = ((int64_t)x->dims.M + 127) / 128 * 128;
    const size_t rows = (size_t)H * (size_t)padded, each = sizeof(float) * (size_t)m->tiles * (size_t)pitch;
    const int at_once = heads_at_once(H, each);
    rival_array a[MASS_ARRAYS] = { [KEY_ORDER] = rival_order_of(keys),
                                   [KEY_FIRST] = rival_first_of(keys),
                                   [ROWS] = rival_up(m->order, sizeof *m->order * rows),
                                   [LINES] = rival_up(m->line, sizeof *m->line * (size_t)H * (size_t)(Q + 1)),
                                   [PACKED] = rival_space(sizeof(uint16_t) * rows * (size_t)D),
                                   [PACKED_LSE] = rival_space(sizeof(float) * rows),
                                   [PACKED_ORDER] = rival_space(sizeof(int32_t) * rows),
                                   [TOKENS] = rival_space(each * (size_t)at_once),
                                   [PARTS] =
                                       rival_space(sizeof *mass * (size_t)at_once * (size_t)Q * (size_t)keys->P) };
    rival_pack_job pack = { .lse = lse, .padded = padded };
    TRY(rival_cuda_rows_of(&pack.q, x->q, "q", error));
    TRY(rival_cuda_lay(cuda, ROOM_FIRST, a, MASS_ARRAYS, error));
    pack.order = a[ROWS].device;
    pack.packed = a[PACKED].device;
    pack.packed_lse = a[PACKED_LSE].device;
    pack.packed_order = a[PACKED_ORDER].device;
    TRY(rival_cuda_judge(cuda, "packing queries", rival_launch_pack(&pack, cuda->stream), error));

    const mcsa_tensor q = { pack.packed, x->dims.dtype, { H, padded, D }, { (int64_t)padded * D, D, 1 } };
    mcsa_qkv packed = *x;
    packed.q = &q;
    packed.dims.N = padded;
    rival_fold_job fold = { .x = a[TOKENS].device,
                            .pitch = pitch,
                            .L = m->tiles,
                            .line = a[LINES].device,
                            .Q = Q,
                            .keys = rival_cuda_parts(keys, &a[KEY_ORDER], &a[KEY_FIRST]),
                            .out = a[PARTS].device };
    for (fold.head = 0; fold.head < H; fold.head += at_once) {
        fold.heads = H - fold.head < at_once ? H - fold.head : at_once;
        a[PARTS].bytes = sizeof *mass * (size_t)fold.heads * (size_t)Q * (size_t)keys->P;
        TRY(rival_cuda_fetch(cuda, "the masses of parts", mass_launch(&packed, a, &fold, cuda->stream), &a[PARTS],
                             mass + (int64_t)fold.head * Q * keys->P, error));
    }
    return MCSA_OK;
}

mcsa_status rival_cuda_mass(void *state, const mcsa_qkv *x, const rival_partition *queries, const rival_partition *keys,
                            const float *lse, float *mass, mcsa_error *error)
{
    mass_tiles m = { .tiles = 1 };
    rival_rows k;
    TRY(rival_cuda_rows_of(&k, x->k, "k", error));
    mcsa_status status = mass_tiles_make(&m, queries, error);
    if (status == MCSA_OK) status = mass_on(state, x, &m, queries->P, keys, lse, mass, error);
    free(m.order);
    free(m.line);
    return status;
}

enum { E_ORDER, E_FIRST, E_QUERY, E_KEY, E_VALUE, E_PLACES, E_CENTRE, E_TOKENS, E_PARTS, ERROR_ARRAYS };

mcsa_status rival_cuda_error(void *state, const mcsa_qkv *x, int Q, const float *query, const rival_partition *keys,
                             const float *key, const float *value, float *out, mcsa_error *error)
{
    rival_cuda *cuda = state;
    rival_error_job job = { .Q = Q, .scale = x->scale };
    TRY(rival_cuda_rows_of(&job.k, x->k, "k", error));
    TRY(rival_cuda_rows_of(&job.v, x->v, "v", error));
    const int H = job.k.H, at_once = heads_at_once(H, sizeof(float) * (size_t)Q * (size_t)job.k.N);
    const size_t D = (size_t)job.k.D, heads = (size_t)at_once, pairs = (size_t)Q * (size_t)keys->P;
    const size_t means = sizeof *key * (size_t)H * (size_t)keys->P * D;
    rival_array a[ERROR_ARRAYS] = { [E_ORDER] = rival_order_of(keys),
                                    [E_FIRST] = rival_first_of(keys),
                                    [E_QUERY] = rival_up(query, sizeof *query * (size_t)H * (size_t)Q * D),
                                    [E_KEY] = rival_up(key, means),
                                    [E_VALUE] = rival_up(value, means),
                                    [E_PLACES] = rival_space(sizeof *job.places * heads * (size_t)job.k.N),
                                    [E_CENTRE] = rival_space(sizeof *job.centre * heads * pairs),
                                    [E_TOKENS] = rival_space(sizeof *job.out * heads * (size_t)Q * (size_t)job.k.N),
                                    [E_PARTS] = rival_space(sizeof *out * heads * pairs) };
    TRY(rival_cuda_lay(cuda, ROOM_FIRST, a, ERROR_ARRAYS, error));
    job.keys = rival_cuda_parts(keys, &a[E_ORDER], &a[E_FIRST]);
    job.query = a[E_QUERY].device;
    job.key = a[E_KEY].device;
    job.value = a[E_VALUE].device;
    job.places = a[E_PLACES].device;
    job.centre = a[E_CENTRE].device;
    job.out = a[E_TOKENS].device;
    rival_fold_job fold = { .x = job.out, .pitch = job.k.N, .L = Q, .Q = Q, .keys = job.keys, .by_place = 1 };
    fold.out = a[E_PARTS].device;
    for (job.head = 0; job.head < H; job.head += at_once) {
        fold.head = job.head;
        fold.heads = job.heads = H - job.head < at_once ? H - job.head : at_once;
        a[E_PARTS].bytes = sizeof *out * (size_t)job.heads * pairs;
        cudaError_t launched = rival_launch_error(&job, cuda->stream);
        if (launched == cudaSuccess) launched = rival_launch_fold(&fold, RIVAL_FOLD_LOG_SUM, cuda->stream);
        TRY(rival_cuda_fetch(cuda, "the errors of means", launched, &a[E_PARTS],
                             out + (int64_t)job.head * (int64_t)pairs, error));
    }
    return MCSA_OK;
}

mcsa_status rival_cuda_diagonal(void *state, const mcsa_qkv *x, int stride, int size, float *block, mcsa_error *error)
{
    rival_cuda *cuda = state;
    rival_diagonal_job job = { .stride = stride, .size = size, .factor = x->scale / (float)stride };
    TRY(rival_cuda_rows_of(&job.q, x->q, "q", error));
    TRY(rival_cuda_rows_of(&job.k, x->k, "k", error));
    job.strided = (job.q.N + stride - 1) / stride;
    job.blocks = (job.q.N + size - 1) / size;
    const size_t strided = (size_t)job.strided, blocks = (size_t)job.blocks;
    rival_array a[] = { rival_space(sizeof(float) * strided * strided), rival_space(sizeof(float) * strided * blocks),
                        rival_space(sizeof(float) * (size_t)job.q.H * blocks * blocks) };
    TRY(rival_cuda_lay(cuda, ROOM_FIRST, a, 3, error));
    job.scores = a[0].device;
    job.lines = a[1].device;
    job.block = a[2].device;
    return rival_cuda_fetch(cuda, "the antidiagonal scores", rival_launch_diagonal(&job, cuda->stream), &a[2], block,
                            error);
}
