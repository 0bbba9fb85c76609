/* test_svg.c - Sparse VideoGen: the order of tokens, the band, and which heads are spatial and which temporal. */
#include "choices.h"

#include "rivals/draw.h"
#include "rivals/svg.h"

static void token_major_gathers_positions(void **state)
{
    (void)state;
    int32_t row[12];
    rival_token_major(3, 4, row);
    for (int p = 0; p < 4; p++)
        for (int f = 0; f < 3; f++) assert_int_equal(row[p * 3 + f], f * 4 + p);
}

/* A block mask of half-width b is what an element mask |i - j| <= 128 b touches. */
static void a_whole_band_is_what_its_elements_touch(void **state)
{
    (void)state;
    enum { N = 1000, B = 8 };
    for (int half = 0; half <= B; half++) {
        rival_band band = { .blocks = B, .half = half };
        int touched[B][B] = { { 0 } };
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++)
                if (abs(i - j) <= SVG_BLOCK * half) touched[i / SVG_BLOCK][j / SVG_BLOCK] = 1;
        for (int q = 0; q < B; q++) {
            int from, to;
            rival_band_row(&band, q, &from, &to);
            for (int k = 0; k < B; k++) assert_int_equal(k >= from && k < to, touched[q][k]);
        }
    }
}

/* Wider bands hold narrower ones, and a half of a step widens about half of the sides. */
static void bands_grow_side_by_side(void **state)
{
    (void)state;
    enum { B = 200 };
    int wider = 0, sides = 0;
    for (double half = 0; half < 6; half += 0.125) {
        rival_band band = { .blocks = B, .half = half }, next = { .blocks = B, .half = half + 0.125 };
        rival_band whole = { .blocks = B, .half = floor(half) };
        for (int q = 0; q < B; q++) {
            int from, to, next_from, next_to, whole_from, whole_to;
            rival_band_row(&band, q, &from, &to);
            rival_band_row(&next, q, &next_from, &next_to);
            rival_band_row(&whole, q, &whole_from, &whole_to);
            assert_true(next_from <= from && from <= whole_from && whole_to <= to && to <= next_to);
            assert_true(from <= q && q < to && whole_from - from <= 1 && to - whole_to <= 1);
            if (half - floor(half) != 0.5 || q < 8 || q > B - 8) continue;
            wider += (from < whole_from) + (to > whole_to);
            sides += 2;
        }
    }
    assert_true(abs(2 * wider - sides) <= sides / 50);
}

static double band_density(const rival_band *band, int N)
{
    double pairs = 0;
    for (int q = 0; q < band->blocks; q++) {
        int from, to, rows = N - q * SVG_BLOCK < SVG_BLOCK ? N - q * SVG_BLOCK : SVG_BLOCK;
        rival_band_row(band, q, &from, &to);
        for (int j = 0; j < N; j++) {
            int k = j / SVG_BLOCK;
            pairs += rival_tile_rows(rows) * (k < band->sink || (k >= from && k < to));
        }
    }
    return pairs / ((double)N * N);
}

/* The first frame is kept as far as it takes no more than half of the budget: cases are N, P and its blocks at 15 %. */
static void bands_execute_the_density_asked(void **state)
{
    (void)state;
    static const int cases[][3] = { { 4096, 256, 2 }, { 4096, 64, 1 }, { 13824, 576, 5 }, { 1960, 200, 1 } };
    for (size_t i = 0; i < TEST_COUNT(cases); i++)
        for (int percent = 15; percent <= 60; percent += 15) {
            int N = cases[i][0], P = cases[i][1];
            rival_band band = rival_band_find(N, P, percent / 100.0);
            double density = band_density(&band, N);
            print_message("  %5d tokens, %d %%: %.4f\n", N, percent, density);
            assert_true(fabs(density - percent / 100.0) <= 0.005);
            assert_int_equal(band.sink, percent == 15 ? cases[i][2] : (P + SVG_BLOCK - 1) / SVG_BLOCK);
        }
    rival_band all = rival_band_find(1000, 100, 1);
    for (int q = 0; q < all.blocks; q++) {
        int from, to;
        rival_band_row(&all, q, &from, &to);
        assert_int_equal(from, 0);
        assert_int_equal(to, all.blocks);
    }
}

/* Head 0 attends to its own frame, head 1 to its own position in all frames. */
static void heads_are_told_apart(void **state)
{
    (void)state;
    enum { F = 10, ROWS = 12, COLUMNS = 16, P = ROWS * COLUMNS, N = F * P, D = 64 };
    test_call c = test_call_make((const int[]){ 2, N, N, D }, MCSA_F32, TEST_HND, 3, 1);
    for (int h = 0; h < 2; h++)
        for (int n = 0; n < N; n++) {
            uint64_t own = 1000 + (uint64_t)(h ? n % P : n / P);
            for (int d = 0; d < D; d++) {
                double x = 1.5 * test_normal(&own);
                test_set(&c.q.view, h, n, d, x);
                test_set(&c.k.view, h, n, d, x);
            }
        }
    rival_config config = fixture_config("svg", N, 0.25);
    config.grid[0] = F;
    config.grid[1] = ROWS;
    config.grid[2] = COLUMNS;
    int32_t *order = test_alloc(sizeof *order * N);
    rival_token_major(F, P, order);
    for (uint64_t seed = 0; seed < 5; seed++) {
        config.seed = seed;
        chooser by = chooser_open(&config);
        const rival_choice *choice = chooser_choose(&by, &c, 2);
        for (int n = 0; n < N; n++) {
            assert_int_equal(choice->queries.order[n], n);
            assert_int_equal(choice->keys.order[n], n);
        }
        assert_memory_equal(choice->queries.order + N, order, sizeof *order * N);
        assert_memory_equal(choice->keys.order + N, order, sizeof *order * N);
        for (int q = 0; q < choice->map.Q; q++)
            assert_memory_equal(rival_map_row(&choice->map, 0, q), rival_map_row(&choice->map, 1, q),
                                sizeof(uint64_t) * (size_t)choice->map.words);
        chooser_close(&by);
    }
    free(order);
    test_call_free(&c);
}

enum { FRAMES = 6, POSITIONS = 100, TOKENS = FRAMES * POSITIONS, HEADS = 16, WIDTH = 8 };

/* out [WIDTH]: row `row` of head h over the keys whose token, in the order given, is in block `block` or the first, or
 * over all keys with order NULL. */
static void attend_row(const test_call *c, int h, int row, const int32_t *order, int block, double *out)
{
    double sum = 0;
    for (int d = 0; d < WIDTH; d++) out[d] = 0;
    for (int place = 0; place < TOKENS; place++) {
        int key = order ? order[place] : place;
        if (order && place / SVG_BLOCK != block && place / SVG_BLOCK != 0) continue;
        double dot = 0;
        for (int d = 0; d < WIDTH; d++) dot += test_get(&c->q.view, h, row, d) * test_get(&c->k.view, h, key, d);
        double p = exp(dot / sqrt(WIDTH));
        sum += p;
        for (int d = 0; d < WIDTH; d++) out[d] += p * test_get(&c->v.view, h, key, d);
    }
    for (int d = 0; d < WIDTH; d++) out[d] /= sum;
}

/* Squared error of the mask over the sampled rows.  order: [TOKENS], place: of each token in it. */
static double mask_error(const test_call *c, int h, const int *sampled, const int32_t *order, const int32_t *place)
{
    double error = 0, all[WIDTH], masked[WIDTH];
    for (int row = 0; row < TOKENS; row++) {
        if (!sampled[row]) continue;
        attend_row(c, h, row, NULL, 0, all);
        attend_row(c, h, row, order, place[row] / SVG_BLOCK, masked);
        for (int d = 0; d < WIDTH; d++) error += (all[d] - masked[d]) * (all[d] - masked[d]);
    }
    return error;
}

/* Unstructured heads, for which either mask is as good as the other: the decision is that of the errors in double.
 * Frames of 100 tokens give the profile one block on the diagonal, and one of the first frame. */
static void heads_take_the_mask_of_smaller_error(void **state)
{
    (void)state;
    test_call c = test_call_make((const int[]){ HEADS, TOKENS, TOKENS, WIDTH }, MCSA_F32, TEST_HND, 3, 1);
    rival_config config = fixture_config("svg", TOKENS, 0.25);
    config.grid[0] = FRAMES;
    config.grid[1] = 10;
    config.grid[2] = 10;
    chooser by = chooser_open(&config);
    int32_t identity[TOKENS], order[TOKENS], place[TOKENS];
    int temporal[HEADS], sampled[TOKENS] = { 0 }, both[2] = { 0 };
    rival_token_major(FRAMES, POSITIONS, order);
    for (int i = 0; i < TOKENS; i++) {
        identity[i] = i;
        place[order[i]] = i;
    }
    mcsa_error error = { "" };
    mcsa_qkv x = chooser_x(&c);
    rival_call call = { .at = { 2, 0, 0 }, .x = &x };
    assert_int_equal(rival_svg_profile(&by.setup, &call, order, temporal, &error), MCSA_OK);
    for (int i = 0; i < 64; i++) sampled[rival_draw_below(config.seed, (uint64_t)(2 * 64 + i), TOKENS)] = 1;
    for (int h = 0; h < HEADS; h++) {
        double space = mask_error(&c, h, sampled, identity, identity), time = mask_error(&c, h, sampled, order, place);
        assert_true(fabs(space - time) > 1e-4 * space); /* else FP32 might decide otherwise */
        assert_int_equal(temporal[h], time < space);
        both[temporal[h]]++;
    }
    assert_true(both[0] > 2 && both[1] > 2);
    chooser_close(&by);
    test_call_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(token_major_gathers_positions), cmocka_unit_test(a_whole_band_is_what_its_elements_touch),
        cmocka_unit_test(bands_grow_side_by_side),       cmocka_unit_test(bands_execute_the_density_asked),
        cmocka_unit_test(heads_are_told_apart),          cmocka_unit_test(heads_take_the_mask_of_smaller_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
