/* test_partition.c - partitions, maps and the counting of pairs, against plain loops over rows. */
#include "test.h"

#include "rivals/partition.h"

#define assert_made(call)                                  \
    do {                                                   \
        mcsa_error error = { "" };                         \
        if ((call) != MCSA_OK) fail_msg("%s", error.text); \
    } while (0)

static void blocks_follow_one_another(void **state)
{
    (void)state;
    static const int cases[][2] = { { 1, 64 }, { 63, 64 }, { 64, 64 }, { 65, 64 }, { 1000, 128 }, { 5, 1 } };
    rival_partition p = { 0 };
    for (size_t i = 0; i < TEST_COUNT(cases); i++) {
        int N = cases[i][0], size = cases[i][1];
        assert_made(rival_partition_blocks(&p, 3, N, size, NULL, &error));
        assert_int_equal(p.P, (N + size - 1) / size);
        for (int h = 0; h < 3; h++)
            for (int b = 0, row = 0; b < p.P; b++) {
                int count;
                const int32_t *rows = rival_part(&p, h, b, &count);
                assert_int_equal(count, N - b * size < size ? N - b * size : size);
                assert_int_equal(rival_part_size(&p, h, b), count);
                for (int r = 0; r < count; r++) assert_int_equal(rows[r], row++);
            }
    }
    rival_partition_free(&p);
}

static void blocks_of_an_order(void **state)
{
    (void)state;
    const int32_t order[] = { 4, 0, 3, 1, 2 };
    rival_partition p = { 0 };
    int count;
    assert_made(rival_partition_blocks(&p, 2, 5, 2, order, &error));
    for (int h = 0; h < 2; h++)
        for (int b = 0; b < 3; b++)
            assert_memory_equal(rival_part(&p, h, b, &count), order + 2 * b, sizeof *order * (b == 2 ? 1 : 2));
    rival_partition_free(&p);
}

static void labels_sort_stably(void **state)
{
    (void)state;
    enum { H = 2, N = 300, P = 7 };
    uint64_t seed = 1;
    int32_t label[H * N];
    rival_partition p = { 0 };
    for (int i = 0; i < H * N; i++) label[i] = test_below(&seed, P - 1) + (i % 5 == 0); /* labels may go unused */
    for (int i = 0; i < H * N; i++)
        if (label[i] == 3) label[i] = 4;
    assert_made(rival_partition_labels(&p, H, N, P, label, &error));
    for (int h = 0; h < H; h++) {
        int rows = 0;
        for (int c = 0; c < P; c++) {
            int count;
            const int32_t *part = rival_part(&p, h, c, &count);
            for (int r = 0; r < count; r++) {
                assert_int_equal(label[h * N + part[r]], c);
                assert_true(r == 0 || part[r] > part[r - 1]);
            }
            if (c == 3) assert_int_equal(count, 0);
            rows += count;
        }
        assert_int_equal(rows, N);
    }
    rival_partition_free(&p);
}

static void a_reserved_map_is_empty_again(void **state)
{
    (void)state;
    rival_map map = { 0 };
    for (int round = 0; round < 2; round++) {
        assert_made(rival_map_reserve(&map, 2, 3, 130, &error));
        assert_int_equal(map.words, 3);
        for (int h = 0; h < 2; h++)
            for (int q = 0; q < 3; q++)
                for (int k = 0; k < 130; k++) {
                    assert_false(rival_map_has(&map, h, q, k));
                    if ((k + q + h) % 3 == 0) rival_map_keep(&map, h, q, k);
                }
        for (int h = 0; h < 2; h++)
            for (int q = 0; q < 3; q++)
                for (int k = 0; k < 130; k++) assert_int_equal(rival_map_has(&map, h, q, k), (k + q + h) % 3 == 0);
    }
    rival_map_free(&map);
}

/* Nominal pairs one query and one key at a time; executed ones with every part of the queries filled up to 64. */
static void pairs_are_counted_by_rows(void **state)
{
    (void)state;
    enum { H = 2, N = 517 };
    static const int key_parts[] = { 9, 64, N, 5, 1 }; /* 5: blocks, the last of which is shorter */
    uint64_t seed = 2;
    int32_t label[H * N];
    for (size_t t = 0; t < TEST_COUNT(key_parts); t++) {
        rival_partition queries = { 0 }, keys = { 0 };
        rival_map map = { 0 };
        int Q = 6, K = key_parts[t];
        for (int i = 0; i < H * N; i++) label[i] = test_below(&seed, Q) * test_below(&seed, 2);
        assert_made(rival_partition_labels(&queries, H, N, Q, label, &error));
        for (int i = 0; i < H * N; i++) label[i] = K == N ? i % N : K == 5 ? i % N / 110 : test_below(&seed, K);
        assert_made(rival_partition_labels(&keys, H, N, K, label, &error));
        assert_made(rival_map_reserve(&map, H, Q, K, &error));
        double nominal = 0, executed = 0;
        for (int h = 0; h < H; h++)
            for (int q = 0; q < Q; q++) {
                int size, tiles = 0;
                double kept = 0;
                (void)rival_part(&queries, h, q, &size);
                while (tiles * 64 < size) tiles++;
                for (int k = 0; k < K; k++) {
                    if (test_below(&seed, 3)) continue;
                    rival_map_keep(&map, h, q, k);
                    kept += rival_part_size(&keys, h, k);
                }
                nominal += size * kept;
                executed += tiles * 64 * kept;
            }
        rival_pairs pairs = rival_map_pairs(&map, &queries, &keys);
        assert_true(pairs.nominal == nominal);
        assert_true(pairs.executed == executed);
        rival_map_free(&map);
        rival_partition_free(&queries);
        rival_partition_free(&keys);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_follow_one_another), cmocka_unit_test(blocks_of_an_order),
        cmocka_unit_test(labels_sort_stably),        cmocka_unit_test(a_reserved_map_is_empty_again),
        cmocka_unit_test(pairs_are_counted_by_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
