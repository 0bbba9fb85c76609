/* tile.c - see tile.h. */
#include "tile.h"

#include <math.h>
#include <string.h>

static const float LOG2_E = 0x1.715476p+0f, LN_2 = 0x1.62e430p-1f;

/* 8 MiB a thread: 32,768 keys of a tile of 128 queries in BF16, half as many in FP32. */
static const size_t TRAIL_WORDS = (size_t)2 << 20;

void mcsa_tile_carve(mcsa_tile *tile, mcsa_arena *arena, int queries, int D, int M)
{
    size_t strips = ((size_t)queries + MCSA_STRIP - 1) / MCSA_STRIP, plane = (size_t)MCSA_STRIP * (size_t)D;
    size_t block = (size_t)MCSA_KEY_BLOCK * (size_t)D, scores = (size_t)MCSA_KEY_BLOCK * MCSA_STRIP;
    tile->queries = mcsa_arena_take(arena, 4 * strips * plane);
    tile->output = mcsa_arena_take(arena, 4 * strips * plane);
    tile->strips = mcsa_arena_take(arena, sizeof *tile->strips * strips);
    tile->staged = mcsa_arena_take(arena, 4 * block);
    tile->values = mcsa_arena_take(arena, 4 * block);
    tile->probabilities = mcsa_arena_take(arena, 4 * scores);
    tile->scores = mcsa_arena_take(arena, 4 * scores);
    tile->partial = mcsa_arena_take(arena, 4 * (size_t)MCSA_KEY_BLOCK * MCSA_LANES);
    tile->rows = mcsa_arena_take(arena, 4 * (size_t)queries * (size_t)D);
    tile->lse = mcsa_arena_take(arena, 4 * (size_t)queries);
    tile->kept = mcsa_arena_take(arena, 4 * (size_t)M);
    tile->mass = mcsa_arena_take(arena, 4 * ((size_t)M + MCSA_LANES)); /* mass_sum writes whole blocks */
    size_t blocks = (size_t)M / MCSA_KEY_BLOCK + 1, words = (size_t)M * strips * MCSA_STRIP;
    tile->trail_words = words < TRAIL_WORDS ? words : TRAIL_WORDS;
    tile->trail = mcsa_arena_take(arena, 4 * tile->trail_words);
    tile->trail_max = mcsa_arena_take(arena, 4 * blocks * strips * MCSA_STRIP);
}

/* rows r .. r + count of a longer list */
static mcsa_rows part(const mcsa_rows *rows, int r, int count)
{
    mcsa_rows p = *rows;
    p.count = rows->count - r < count ? rows->count - r : count;
    if (p.index)
        p.index += r;
    else
        p.first += r;
    return p;
}

/* Keys per block: as few blocks as KEY_BLOCK allows, of nearly equal size, since a short last block costs the panels
 * most of a full one. */
static int block_size(int keys)
{
    int blocks = (keys + MCSA_KEY_BLOCK - 1) / MCSA_KEY_BLOCK, even = (keys + blocks - 1) / blocks;
    return (even + 5) / 6 * 6 < MCSA_KEY_BLOCK ? (even + 5) / 6 * 6 : MCSA_KEY_BLOCK;
}

void mcsa_tile_load(mcsa_tile *tile, const mcsa_kernels *kernels, const mcsa_rows *queries)
{
    tile->kernels = kernels;
    tile->count = queries->count;
    tile->D = queries->D;
    for (int i = 0; i < tile->count; i += MCSA_STRIP) {
        mcsa_rows rows = part(queries, i, MCSA_STRIP);
        /* values is at least [STRIP, D] words and idle until keys are staged */
        kernels->pack_queries(&rows, mcsa_strip_lanes(tile, i), tile->queries + (ptrdiff_t)i * tile->D, tile->values);
    }
}

/* minus_lse2 [lanes] of the strip that begins at query `at`; lanes without a query add no mass. */
static void load_lse(const mcsa_tile *tile, int at, const float *lse, float *minus_lse2)
{
    for (int l = 0; l < MCSA_STRIP; l++) minus_lse2[l] = at + l < tile->count ? -lse[at + l] * LOG2_E : -INFINITY;
}

static void begin_rows(mcsa_tile *tile)
{
    for (int i = 0; i < tile->count; i += MCSA_STRIP) {
        mcsa_strip *strip = &tile->strips[i / MCSA_STRIP];
        for (int l = 0; l < MCSA_STRIP; l++) strip->max[l] = -INFINITY;
        memset(strip->sum, 0, sizeof strip->sum);
        memset(tile->output + (ptrdiff_t)i * tile->D, 0, 4 * (size_t)MCSA_STRIP * (size_t)tile->D);
    }
}

static void finish_rows(mcsa_tile *tile)
{
    for (int i = 0; i < tile->count; i += MCSA_STRIP) {
        mcsa_strip *strip = &tile->strips[i / MCSA_STRIP];
        int lanes = mcsa_strip_lanes(tile, i), used = tile->count - i < lanes ? tile->count - i : lanes;
        tile->kernels->finish(tile->output + (ptrdiff_t)i * tile->D, tile->D, lanes, strip->sum, used,
                              tile->rows + (ptrdiff_t)i * tile->D);
        for (int l = 0; l < used; l++) tile->lse[i + l] = LN_2 * (strip->max[l] + log2f(strip->sum[l]));
    }
}

static int words_of(const mcsa_tile *tile, int keys)
{
    return (keys + tile->kernels->word_elements - 1) / tile->kernels->word_elements;
}

int mcsa_tile_trail_fits(const mcsa_tile *tile, int keys)
{
    return (size_t)words_of(tile, keys) * (size_t)mcsa_lanes(tile->count) <= tile->trail_words;
}

/* Scores [count, lanes] in units of log2, plus what each of their rows counts for. */
static void add_sizes(float *scores, const mcsa_rows *means, int lanes, float scale2, const float *log2_size)
{
    for (int j = 0; j < means->count; j++, scores += lanes) {
        float size = log2_size[means->index[j]];
        for (int i = 0; i < lanes; i++) scores[i] = scores[i] * scale2 + size;
    }
}

/* Adds the rows to what begin_rows began.  log2_size: of each row by its index, or NULL when a row counts once. */
static void attend_rows(mcsa_tile *tile, const mcsa_rows *keys, const mcsa_rows *values, const float *log2_size,
                        float scale, int trail)
{
    const mcsa_kernels *kernel = tile->kernels;
    uint32_t *probabilities = trail ? tile->trail : tile->probabilities;
    float *max = tile->trail_max;
    int block = keys->count ? block_size(keys->count) : 1;
    for (int j = 0; j < keys->count; j += block) {
        mcsa_rows k = part(keys, j, block), v = part(values, j, block);
        kernel->stage_keys(&k, tile->staged, tile->keys);
        kernel->stage_values(&v, tile->values);
        for (int i = 0; i < tile->count; i += MCSA_STRIP) {
            int lanes = mcsa_strip_lanes(tile, i);
            mcsa_strip *strip = &tile->strips[i / MCSA_STRIP];
            kernel->scores(tile->keys, tile->queries + (ptrdiff_t)i * tile->D, k.count, tile->D, lanes, tile->scores);
            if (log2_size) add_sizes(tile->scores, &k, lanes, scale * LOG2_E, log2_size);
            kernel->softmax(tile->scores, k.count, lanes, log2_size ? 1 : scale * LOG2_E, strip, probabilities);
            kernel->accumulate(tile->values, probabilities, k.count, tile->D, lanes, strip->alpha,
                               tile->output + (ptrdiff_t)i * tile->D);
            if (!trail) continue;
            probabilities += (ptrdiff_t)words_of(tile, k.count) * lanes;
            memcpy(max, strip->max, sizeof strip->max);
            max += MCSA_STRIP;
        }
    }
}

void mcsa_tile_attend(mcsa_tile *tile, const mcsa_rows *keys, const mcsa_rows *values, float scale, int trail)
{
    begin_rows(tile);
    attend_rows(tile, keys, values, NULL, scale, trail);
    finish_rows(tile);
}

void mcsa_tile_attend_means(mcsa_tile *tile, const mcsa_rows *keys, const mcsa_rows *values, const mcsa_means *means,
                            float scale)
{
    begin_rows(tile);
    attend_rows(tile, keys, values, NULL, scale, 0);
    attend_rows(tile, &means->keys, &means->values, means->log2_size, scale, 0);
    finish_rows(tile);
}

void mcsa_tile_trail_mass(mcsa_tile *tile, int keys)
{
    const uint32_t *probabilities = tile->trail;
    const float *max = tile->trail_max;
    float minus_lse2[MCSA_STRIP];
    int block = block_size(keys);
    for (int j = 0; j < keys; j += block) {
        int count = keys - j < block ? keys - j : block;
        memset(tile->partial, 0, sizeof *tile->partial * MCSA_KEY_BLOCK * MCSA_LANES);
        for (int i = 0; i < tile->count; i += MCSA_STRIP, max += MCSA_STRIP) {
            int lanes = mcsa_strip_lanes(tile, i);
            load_lse(tile, i, tile->lse, minus_lse2);
            tile->kernels->weigh(probabilities, count, lanes, max, minus_lse2, tile->partial);
            probabilities += (ptrdiff_t)words_of(tile, count) * lanes;
        }
        tile->kernels->mass_sum(tile->partial, count, tile->mass + j);
    }
}

void mcsa_tile_mass(mcsa_tile *tile, const mcsa_rows *keys, float scale, const float *lse)
{
    const mcsa_kernels *kernel = tile->kernels;
    float minus_lse2[MCSA_STRIP];
    for (int j = 0; j < keys->count; j += MCSA_KEY_BLOCK) {
        mcsa_rows k = part(keys, j, MCSA_KEY_BLOCK);
        kernel->stage_keys(&k, tile->staged, tile->keys);
        memset(tile->partial, 0, sizeof *tile->partial * MCSA_KEY_BLOCK * MCSA_LANES);
        for (int i = 0; i < tile->count; i += MCSA_STRIP) {
            load_lse(tile, i, lse, minus_lse2);
            kernel->mass(tile->keys, tile->queries + (ptrdiff_t)i * tile->D, k.count, tile->D,
                         mcsa_strip_lanes(tile, i), scale * LOG2_E, minus_lse2, tile->partial);
        }
        kernel->mass_sum(tile->partial, k.count, tile->mass + j);
    }
}
