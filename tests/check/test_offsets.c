/* test_offsets.c - R7: tensors whose elements lie more than 2^31 elements (and 2^32 bytes) apart.  Views
 * over a reserved mapping touch a page per row; the outputs must be those of the same numbers side by
 * side. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS and MAP_NORESERVE */
#include "test.h"

#include <sys/mman.h>

enum { H = 3, N = 40, D = 16 };

typedef struct far {
    void *base;
    size_t bytes;
    mcsa_tensor view[4]; /* q, k, v, out */
} far;

/* Four tensors with the given strides, one behind the other. */
static int reserve(far *f, mcsa_dtype dtype, int64_t head, int64_t row)
{
    int64_t elements = (H - 1) * head + (N - 1) * row + D;
    size_t each = ((size_t)elements * mcsa_dtype_bytes(dtype) + 4095) / 4096 * 4096;
    f->bytes = 4 * each;
    f->base = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->base == MAP_FAILED) return 0;
    for (int i = 0; i < 4; i++)
        f->view[i] = (mcsa_tensor){ (char *)f->base + (size_t)i * each, dtype, { H, N, D }, { head, row, 1 } };
    return 1;
}

static void compare(mcsa_dtype dtype, int64_t head, int64_t row)
{
    far f;
    if (!reserve(&f, dtype, head, row)) {
        print_message("  skip: this machine does not reserve %zu bytes of addresses\n", f.bytes);
        return;
    }
    mcsa_config config = { .steps = 2, .layers = 1, .schedule = "list:0", .group = 16, .density = 0.3f };
    mcsa_run *near_run = test_run(&config), *far_run = test_run(&config);
    test_call c = test_call_make((const int[]){ H, N, N, D }, dtype, TEST_HND, 2, 1);
    test_copy(&f.view[0], &c.q.view);
    test_copy(&f.view[1], &c.k.view);
    test_copy(&f.view[2], &c.v.view);
    for (int step = 0; step < 2; step++) {
        assert_attends(near_run, step, 0, 0, &c);
        if (mcsa_attend(far_run, (mcsa_site){ step, 0, 0 }, &f.view[0], &f.view[1], &f.view[2], &f.view[3]) != MCSA_OK)
            fail_msg("%s", mcsa_run_error(far_run));
        assert_same_bits(&c.out.view, &f.view[3]);
    }
    mcsa_run_free(near_run);
    mcsa_run_free(far_run);
    test_call_free(&c);
    munmap(f.base, f.bytes);
}

static void r7_heads_more_than_two_to_the_31_apart(void **state)
{
    (void)state;
    for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) compare(test_dtypes[t], (INT64_C(1) << 31) + 3 * 64, D);
}

static void r7_rows_that_pass_two_to_the_31(void **state)
{
    (void)state;
    for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++)
        compare(test_dtypes[t], D, (INT64_C(1) << 27) + 64); /* row 16 and after lie beyond 2^31 elements */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(r7_heads_more_than_two_to_the_31_apart),
        cmocka_unit_test(r7_rows_that_pass_two_to_the_31),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
