/* test_chipmunk.c - Chipmunk: its order of tokens, the keys that a group keeps and why, and the residual that is always
 * on. */
#include "clustered.h"

#include "rivals/budget.h"
#include "rivals/rival.h"
#include "rivals/voxels.h"

extern const rival_method rival_chipmunk;

enum { GROUP = 192 };

static const int box[3] = { 4, 6, 8 };

static void every_token_has_one_place(void **state)
{
    (void)state;
    static const int grids[][3] = { { 1, 1, 1 }, { 4, 6, 8 },    { 3, 5, 7 },   { 21, 30, 52 }, { 5, 6, 8 },
                                    { 4, 7, 9 }, { 16, 16, 16 }, { 1, 40, 80 }, { 9, 13, 17 } };
    for (size_t g = 0; g < TEST_COUNT(grids); g++) {
        const int *grid = grids[g];
        int N = grid[0] * grid[1] * grid[2], boxes = (grid[0] / 4) * (grid[1] / 6) * (grid[2] / 8);
        int32_t *order = test_words((size_t)N);
        char *seen = test_alloc((size_t)N);
        rival_voxel_order(grid, box, order);
        for (int i = 0; i < N; i++) {
            assert_in_range(order[i], 0, N - 1);
            assert_int_equal(seen[order[i]], 0);
            seen[order[i]] = 1;
        }
        /* whole boxes: every place within one is that many steps from its first token */
        for (int i = 0; i < boxes * GROUP; i++) {
            int corner = order[i / GROUP * GROUP], f = i % GROUP / 48, r = i % 48 / 8, c = i % 8;
            assert_int_equal(order[i], corner + (f * grid[1] + r) * grid[2] + c);
            assert_int_equal(corner % grid[2] % 8, 0);
            assert_int_equal(corner / grid[2] % grid[1] % 6, 0);
            assert_int_equal(corner / grid[2] / grid[1] % 4, 0);
        }
        free(seen);
        test_words_free(order, (size_t)N);
    }
}

/* A method with a run for its schedule: dense at step 0, an anchor at step 1. */
typedef struct chipmunk_run {
    clustered_run method;
    mcsa_run *dense;
} chipmunk_run;

static chipmunk_run open_run(const int grid[3], double density)
{
    chipmunk_run run = { 0 };
    run.dense = test_run(&(mcsa_config){ .steps = 4, .layers = 2, .branches = 2, .schedule = "list:1" });
    run.method.method = &rival_chipmunk;
    run.method.setup = (rival_setup){ .kernels = &rival_kernels_cpu,
                                      .backend = clustered_kernels(1),
                                      .dense = run.dense,
                                      .layers = 2,
                                      .branches = 2,
                                      .grid = { grid[0], grid[1], grid[2] },
                                      .density = density,
                                      .threads = 1,
                                      .seed = 77 };
    assert_done(rival_chipmunk.open(&run.method.state, &run.method.setup, &done_error));
    return run;
}

static void close_run(chipmunk_run *run)
{
    clustered_close(&run->method);
    mcsa_run_free(run->dense);
}

/* A dense call at `step`, seen by the method with its own row sums. */
static void observe(chipmunk_run *run, const test_call *c, int step)
{
    mcsa_qkv x = clustered_x(c);
    float *lse = test_alloc(sizeof *lse * (size_t)c->H * (size_t)c->N);
    if (mcsa_attend_dense(run->dense, x.q, x.k, x.v, x.out, lse) != MCSA_OK) fail_msg("%s", mcsa_run_error(run->dense));
    const rival_call call = { .at = { step, 1, 1 }, .x = &x, .lse = lse, .anchor = step == 1 };
    assert_done(rival_chipmunk.observe(run->method.state, &call, &done_error));
    free(lse);
}

/* mass [N] of a group: sum of exp(s_ij - lse_i) in double; and how far the method's may be, relatively, which is
 * test_row_bounds for either side and one exp2. */
static double group_mass(const test_call *c, const double *lse, const double *lse_bound, const int32_t *rows, int count,
                         double *mass)
{
    double off = 0;
    memset(mass, 0, sizeof *mass * (size_t)c->N);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < c->N; j++) {
            double dot = 0, size = 0, scale = 1 / sqrt(c->D);
            for (int d = 0; d < c->D; d++) {
                double product = scale * test_get(&c->q.view, 0, rows[i], d) * test_get(&c->k.view, 0, j, d);
                dot += product;
                size += fabs(product);
            }
            mass[j] += exp(dot - lse[rows[i]]);
            off = fmax(off,
                       size * (c->D + 16) * U_F32 + lse_bound[rows[i]] + 2 * U_EXP2 + 8 * U_F32 * fabs(lse[rows[i]]));
        }
    return expm1(off + count * U_F32);
}

/* One kept key in eleven was drawn at random, the others have the largest masses: so many kept ones at most may have
 * less than a dropped one, and some have. */
static void judge_group(const double *mass, double off, const rival_map *map, int g)
{
    double dropped = 0;
    int kept = 0, drawn = 0;
    for (int j = 0; j < map->K; j++) {
        kept += rival_map_has(map, 0, g, j);
        if (!rival_map_has(map, 0, g, j)) dropped = fmax(dropped, mass[j]);
    }
    for (int j = 0; j < map->K; j++) drawn += rival_map_has(map, 0, g, j) && mass[j] * (1 + off) < dropped * (1 - off);
    assert_in_range(drawn, 1, kept / 11);
}

/* Step 0 has other queries, some of them 8 times as large: its row sums weigh the rows of step 1 as no others do. */
static void keys_have_the_largest_mass_by_the_row_sums_before(void **state)
{
    (void)state;
    enum { N = 1152, D = 16, G = 6 }; /* a grid of 8 x 9 x 16: 4 boxes, and 3 rows of each frame */
    static const int grid[3] = { 8, 9, 16 };
    static const double densities[] = { 0.25, 0.5 };
    for (size_t s = 0; s < TEST_COUNT(densities); s++) {
        chipmunk_run run = open_run(grid, densities[s]);
        test_call c = test_call_make((const int[]){ 1, N, N, D }, MCSA_F32, TEST_NHD, 3 + s, 1);
        test_rounding rounding = test_rounding_of(MCSA_ISA_SCALAR, MCSA_F32);
        for (int n = 0; n < N; n += 5)
            for (int d = 0; d < D; d++) test_set(&c.q.view, 0, n, d, 8 * test_get(&c.q.view, 0, n, d));
        observe(&run, &c, 0);
        test_reference before = test_reference_make(&c, 1 / sqrt(D), NULL, &rounding);
        test_call_refill(&c, 103 + s, 1);
        observe(&run, &c, 1);
        mcsa_qkv x = clustered_x(&c);
        const rival_choice *choice = clustered_choose(&run.method, (mcsa_site){ 2, 1, 1 }, &x);
        double mass[N];
        assert_int_equal(choice->map.Q, G);
        for (int g = 0; g < G; g++) {
            int count, kept = 0;
            const int32_t *rows = rival_part(&choice->queries, 0, g, &count);
            for (int j = 0; j < N; j++) kept += rival_map_has(&choice->map, 0, g, j);
            assert_int_equal(count, GROUP);
            assert_int_equal(kept, (int)(N * densities[s]));
            double off = group_mass(&c, before.lse, before.lse_bound, rows, count, mass);
            judge_group(mass, off, &choice->map, g);
        }
        test_reference_free(&before);
        close_run(&run);
        test_call_free(&c);
    }
}

/* Nothing was seen before the first dense call, so its own row sums serve. */
static void the_first_step_has_its_own_row_sums(void **state)
{
    (void)state;
    enum { N = 480, D = 16 };
    static const int grid[3] = { 5, 8, 12 };
    chipmunk_run run = open_run(grid, 0.3);
    test_call c = test_call_make((const int[]){ 1, N, N, D }, MCSA_F32, TEST_NHD, 30, 1);
    test_rounding rounding = test_rounding_of(MCSA_ISA_SCALAR, MCSA_F32);
    test_reference now = test_reference_make(&c, 1 / sqrt(D), NULL, &rounding);
    observe(&run, &c, 1);
    mcsa_qkv x = clustered_x(&c);
    const rival_choice *choice = clustered_choose(&run.method, (mcsa_site){ 1, 1, 1 }, &x);
    double mass[N], executed = 0;
    for (int g = 0; g < choice->map.Q; g++) {
        int count, kept = 0;
        const int32_t *rows = rival_part(&choice->queries, 0, g, &count);
        for (int j = 0; j < N; j++) kept += rival_map_has(&choice->map, 0, g, j);
        double off = group_mass(&c, now.lse, now.lse_bound, rows, count, mass);
        judge_group(mass, off, &choice->map, g);
        executed += (double)kept * rival_tile_rows(count) / N / N;
    }
    assert_true(fabs(executed - 0.3) < 0.002); /* one key of one group of 192 is 0.0008 */
    test_reference_free(&now);
    close_run(&run);
    test_call_free(&c);
}

/* At the anchor's own inputs sparse plus residual is dense again, up to the rounding of the residual to BF16 and of
 * out: what the method adds is the residual, without being asked to. */
static void the_residual_is_always_on(void **state)
{
    (void)state;
    enum { N = 400, D = 32 };
    test_call c = test_call_make((const int[]){ 2, N, N, D }, MCSA_F32, TEST_NHD, 50, 1);
    test_tensor dense = test_tensor_make(2, N, D, MCSA_F32, TEST_NHD),
                kept = test_tensor_make(2, N, D, MCSA_F32, TEST_NHD);
    rival_config config = {
        .attention = { .steps = 2, .layers = 1, .schedule = "list:0", .density = 0.1f, .threads = 1 },
        .method = "chipmunk",
        .grid = { 5, 8, 10 }
    };
    rival_run *run = NULL;
    assert_done(rival_run_create(&run, &config, &done_error));
    for (int step = 0; step < 2; step++) {
        if (rival_attend(run, (mcsa_site){ step, 0, 0 }, &c.q.view, &c.k.view, &c.v.view, &c.out.view) != MCSA_OK)
            fail_msg("%s", rival_run_error(run));
        test_copy(step ? &kept.view : &dense.view, &c.out.view);
    }
    test_worst worst = { 0 };
    double most = test_largest(&dense.view) + test_largest(&c.v.view); /* a residual is a difference of two averages */
    for (int h = 0; h < 2; h++)
        for (int n = 0; n < N; n++)
            for (int d = 0; d < D; d++)
                test_judge(&worst, test_get(&kept.view, h, n, d), test_get(&dense.view, h, n, d),
                           most * (U_BF16 + 4 * U_F32), h, n, d);
    test_report(&worst, INFINITY, "sparse and residual against dense");
    rival_run_free(run);
    test_tensor_free(&dense);
    test_tensor_free(&kept);
    test_call_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_has_one_place),
        cmocka_unit_test(keys_have_the_largest_mass_by_the_row_sums_before),
        cmocka_unit_test(the_first_step_has_its_own_row_sums),
        cmocka_unit_test(the_residual_is_always_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
