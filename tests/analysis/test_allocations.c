/* test_allocations.c - the n-th allocation fails, for every n: an analysis says so in words and holds nothing.
 *
 * The linker's --wrap puts the functions of wrapped_heap.h in front of every malloc, calloc, realloc, aligned_alloc and
 * free of the library, the methods and the analysis.  Memory that OpenMP and libc take for themselves is not counted.
 */
#include "analysis/rivals.h"
#include "test.h"
#include "wrapped_heap.h"

enum { H = 1, N = 70, D = 8, CALLS = 3 };

static const mcsa_site sites[CALLS] = { { 0, 0, 0 }, { 2, 0, 0 }, { 1, 3, 0 } };

typedef struct source_data {
    test_tensor tensor[CALLS][3]; /* q, k, v */
} source_data;

static mcsa_status load(void *user, int i, analysis_call *call, mcsa_error *error)
{
    const source_data *data = user;
    (void)error;
    *call =
        (analysis_call){ sites[i], data->tensor[i][0].view, data->tensor[i][1].view, data->tensor[i][2].view, 0.4f };
    return MCSA_OK;
}

static mcsa_status measure(const analysis_source *source, const analysis_options *options, mcsa_error *error)
{
    analysis found;
    mcsa_status status = analysis_measure(&found, options, source, error);
    if (status == MCSA_OK) assert_int_equal(found.pairs, 1);
    analysis_free(&found);
    return status;
}

static mcsa_status measure_rivals(const analysis_source *source, const analysis_options *options, mcsa_error *error)
{
    const rival_method *const methods[] = { rival_method_find("bsa"), rival_method_find("pisa") };
    const int grid[3] = { 0 };
    analysis_rival found[2];
    return analysis_measure_rivals(found, methods, 2, options, grid, source, error);
}

static void fail_all(mcsa_status (*work)(const analysis_source *, const analysis_options *, mcsa_error *),
                     const analysis_source *source)
{
    const analysis_options options = { .attention = { .threads = 1 }, .densities = 1, .density = { 0.2 }, .sample = 5 };
    int64_t n = 0;
    mcsa_status status;
    do {
        mcsa_error error = { "" };
        const int64_t before = heap.held;
        heap.calls = 0;
        heap.fail_at = ++n;
        status = work(source, &options, &error);
        heap.fail_at = 0;
        if (status != MCSA_OK && (status != MCSA_ENOMEM || !strstr(error.text, "no memory")))
            fail_msg("allocation %lld fails with %s: %s", (long long)n, mcsa_status_name(status), error.text);
        if (heap.held != before)
            fail_msg("%lld blocks are held after allocation %lld failed", (long long)(heap.held - before),
                     (long long)n);
    } while (status != MCSA_OK);
    assert_true(n > 50);
    print_message("  %lld allocations\n", (long long)n - 1);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    source_data data;
    for (int i = 0; i < CALLS; i++)
        for (int t = 0; t < 3; t++) {
            data.tensor[i][t] = test_tensor_make(H, N, D, MCSA_F32, TEST_HND);
            test_fill_normal(&data.tensor[i][t].view, (uint64_t)(3 * i + t), 1);
        }
    const analysis_source source = { .count = CALLS, .at = sites, .user = &data, .load = load };
    fail_all(measure, &source);
    fail_all(measure_rivals, &source);
    for (int i = 0; i < CALLS; i++)
        for (int t = 0; t < 3; t++) test_tensor_free(&data.tensor[i][t]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
