/* test_bench_gpu.c - the gates of the tables about a GPU, with the CPU in its place, right and with faults planted. */
#include "clusters.h"
#include "cudnn_attention.h"
#include "gpu.h"
#include "scratch.h"

#include <stdlib.h>
#include <string.h>

enum { HEADS = 5, TOKENS = 300, DIM = 64 };

static enum fault {
    NONE,
    OTHER_HEAD,  /* one bit of the last head is another */
    NO_OUTPUT,   /* dense attention writes nothing */
    NO_RESIDUAL, /* a reuse step does not add it */
    TWICE,       /* a query stands in two places of its head's order */
    LIGHT_KEY,   /* a kept key or cluster and a dropped one are exchanged */
    LOST_KEY,    /* a key is in two clusters and another in none */
    LOOSE        /* clusters hold keys that are not near each other */
} fault;

static mcsa_status open_cpu(void **state, const mcsa_backend_options *options)
{
    mcsa_backend_options here = *options;
    here.threads = 2;
    *here.memory = mcsa_memory_from(&(mcsa_allocator){ 0 });
    return mcsa_backend_cpu.open(state, &here);
}

static void attend_dense(void *state, const mcsa_qkv *x, float *lse)
{
    if (fault == NO_OUTPUT) return;
    mcsa_backend_cpu.attend_dense(state, x, lse);
    if (fault == OTHER_HEAD) ((uint16_t *)x->out->data)[(HEADS - 1) * x->out->stride[0]] ^= 1;
}

static int64_t attend_tokens(void *state, const mcsa_qkv *x, const mcsa_selection *s, const mcsa_residual_rows *rows)
{
    const mcsa_residual_rows none = { MCSA_RESIDUAL_OFF, NULL, 0 };
    return mcsa_backend_cpu.attend_tokens(state, x, s, fault == NO_RESIDUAL && !rows->record ? &none : rows);
}

static void group(void *state, const mcsa_qkv *x, mcsa_selection *s)
{
    mcsa_backend_cpu.group(state, x, s);
    for (int h = 0; h < s->H && fault == TWICE; h++) s->order[h * s->N + 9] = s->order[h * s->N + 10];
}

static void select_keys(void *state, const mcsa_qkv *x, const float *lse, mcsa_selection *s)
{
    mcsa_backend_cpu.select(state, x, lse, s);
    for (int h = 0; h < s->H && fault == LIGHT_KEY; h++) {
        uint64_t *bits = s->kept + (int64_t)h * s->G * s->words;
        int kept = 0, dropped = 0;
        while (!(*bits >> kept & 1)) kept++;
        while (*bits >> dropped & 1) dropped++;
        *bits ^= UINT64_C(1) << kept | UINT64_C(1) << dropped;
    }
}

static void cluster(void *state, const mcsa_qkv *x, mcsa_selection *s)
{
    mcsa_backend_cpu.cluster(state, x, s);
    for (int h = 0; h < s->H; h++) {
        int32_t *member = s->members + (int64_t)h * s->N;
        if (fault == LOST_KEY) member[0] = member[s->N - 1];
        for (int i = 0; i < s->N && fault == LOOSE; i++) member[i] = i * 7 % s->N;
    }
}

static mcsa_status open_copies(void **state, const dit_device_options *options, mcsa_error *error)
{
    static char any;
    (void)options;
    (void)error;
    *state = &any;
    return MCSA_OK;
}

static void close_copies(void *state)
{
    (void)state;
}

static void put(void *state, void *to, const void *host, size_t bytes)
{
    (void)state;
    memcpy(to, host, bytes);
}

static mcsa_status get(void *state, void *host, const void *from, size_t bytes, mcsa_error *error)
{
    (void)state;
    (void)error;
    memcpy(host, from, bytes);
    return MCSA_OK;
}

static mcsa_backend backend;
static const dit_device device = { .open = open_copies, .close = close_copies, .put = put, .get = get };

typedef struct layer {
    bench_gpu gpu;
    bench_gpu_selection s, means;
    mcsa_block rows;
    mcsa_residual_rows residual;
} layer;

static int open_layer(void **state)
{
    const bench_shape shape = { HEADS, TOKENS, DIM, 128, 2, MCSA_BF16, MCSA_ISA_SCALAR };
    mcsa_error error = { "" };
    layer *l = calloc(1, sizeof *l);
    if (!l) return -1;
    fault = NONE;
    backend = mcsa_backend_cpu;
    backend.open = open_cpu;
    backend.attend_dense = attend_dense;
    backend.attend_tokens = attend_tokens;
    backend.group = group;
    backend.cluster = cluster;
    backend.select = select_keys;
    l->gpu.backend = &backend;
    l->gpu.device = &device;
    if (bench_gpu_open_on(&l->gpu, &shape, 0, 0.2f, &error) != MCSA_OK ||
        bench_gpu_selection_open(&l->s, &l->gpu, (bench_budget){ 0.2f, MCSA_TAIL_OFF }, &error) != MCSA_OK ||
        bench_gpu_selection_open(&l->means, &l->gpu, (bench_budget){ 0.2f, MCSA_TAIL_MEANS }, &error) != MCSA_OK)
        fail_msg("%s", error.text);
    const size_t bytes = (size_t)backend.residual_bytes(MCSA_RESIDUAL_BF16, &l->gpu.x.dims);
    if (mcsa_block_reserve(&l->gpu.memory, &l->rows, bytes)) return -1;
    l->residual = (mcsa_residual_rows){ MCSA_RESIDUAL_BF16, l->rows.data, 0 };
    *state = l;
    return 0;
}

static int close_layer(void **state)
{
    layer *l = *state;
    mcsa_block_release(&l->gpu.memory, &l->rows);
    bench_gpu_selection_close(&l->s, &l->gpu);
    bench_gpu_selection_close(&l->means, &l->gpu);
    bench_gpu_close(&l->gpu);
    free(l);
    return 0;
}

/* Dense attention, groups and what they keep. */
static void anchor_of(layer *l, bench_gpu_selection *s)
{
    double seconds;
    bench_gpu_poison(&l->gpu);
    bench_gpu_start(&l->gpu);
    bench_gpu_dense(&l->gpu, &seconds);
    bench_gpu_group(&l->gpu, s, &seconds);
    if (s->there.P) bench_gpu_cluster(&l->gpu, s, &seconds);
    bench_gpu_select(&l->gpu, s, &seconds);
    bench_gpu_wait(&l->gpu);
}

static void anchor(layer *l)
{
    anchor_of(l, &l->s);
}

static int keeps_the_heaviest_of(const layer *l, const bench_gpu_selection *s)
{
    return bench_keeps_the_heaviest(&l->gpu.sample, &s->host, bench_gpu_mass_slack(&l->gpu));
}

static int keeps_the_heaviest(const layer *l)
{
    return keeps_the_heaviest_of(l, &l->s);
}

static void a_right_layer_passes(void **state)
{
    layer *l = *state;
    mcsa_error error = { "" };
    anchor(l);
    assert_true(bench_gpu_is_right(&l->gpu, NULL));
    assert_true(bench_gpu_selection_fetch(&l->s, &l->gpu));
    assert_true(bench_is_permutation(&l->s.host) && keeps_the_heaviest(l));
    assert_true(bench_gpu_gives_dense_back(&l->gpu, &l->s, &l->residual));
    assert_int_equal(bench_gpu_outcome(&l->gpu, &error), MCSA_OK);
}

static void a_right_layer_with_means_passes(void **state)
{
    layer *l = *state;
    double seconds;
    const mcsa_residual_rows none = { MCSA_RESIDUAL_OFF, NULL, 0 };
    mcsa_error error = { "" };
    anchor_of(l, &l->means);
    assert_true(bench_gpu_is_right(&l->gpu, NULL));
    assert_true(bench_gpu_selection_fetch(&l->means, &l->gpu));
    assert_true(bench_is_permutation(&l->means.host) && bench_is_partition(&l->means.host));
    assert_true(bench_clusters_are_tight(&l->gpu.sample, &l->means.host));
    assert_true(keeps_the_heaviest_of(l, &l->means));
    assert_true(bench_gpu_gives_dense_back(&l->gpu, &l->means, &l->residual));
    bench_gpu_poison(&l->gpu);
    bench_gpu_tokens(&l->gpu, &l->means, &none, &seconds);
    assert_true(bench_gpu_is_right(&l->gpu, &l->means));
    assert_false(bench_gpu_is_right(&l->gpu, NULL));
    assert_int_equal(bench_gpu_outcome(&l->gpu, &error), MCSA_OK);
}

static void a_new_selection_passes_no_gate(void **state)
{
    layer *l = *state;
    assert_true(bench_gpu_selection_fetch(&l->s, &l->gpu) && bench_gpu_selection_fetch(&l->means, &l->gpu));
    assert_false(bench_is_permutation(&l->s.host));
    assert_false(bench_is_partition(&l->means.host));
}

static void equal_heads_must_have_equal_bits(void **state)
{
    layer *l = *state;
    fault = OTHER_HEAD;
    anchor(l);
    assert_false(bench_gpu_is_right(&l->gpu, NULL));
}

static void an_output_that_is_not_written_is_refused(void **state)
{
    layer *l = *state;
    fault = NO_OUTPUT;
    bench_gpu_poison(&l->gpu);
    double seconds;
    bench_gpu_dense(&l->gpu, &seconds);
    assert_false(bench_gpu_is_right(&l->gpu, NULL));
}

static void a_lost_residual_is_refused(void **state)
{
    layer *l = *state;
    anchor(l);
    fault = NO_RESIDUAL;
    assert_false(bench_gpu_gives_dense_back(&l->gpu, &l->s, &l->residual));
}

static void wrong_groups_and_keys_are_refused(void **state)
{
    layer *l = *state;
    fault = LIGHT_KEY;
    anchor(l);
    assert_true(bench_gpu_selection_fetch(&l->s, &l->gpu));
    assert_true(bench_is_permutation(&l->s.host));
    assert_false(keeps_the_heaviest(l));
    fault = TWICE;
    anchor(l);
    assert_true(bench_gpu_selection_fetch(&l->s, &l->gpu));
    assert_false(bench_is_permutation(&l->s.host));
}

static void wrong_clusters_are_refused(void **state)
{
    layer *l = *state;
    fault = LIGHT_KEY;
    anchor_of(l, &l->means);
    assert_true(bench_gpu_selection_fetch(&l->means, &l->gpu) && bench_is_partition(&l->means.host));
    assert_false(keeps_the_heaviest_of(l, &l->means));
    fault = LOOSE;
    anchor_of(l, &l->means);
    assert_true(bench_gpu_selection_fetch(&l->means, &l->gpu));
    assert_false(bench_clusters_are_tight(&l->gpu.sample, &l->means.host));
    fault = LOST_KEY;
    anchor_of(l, &l->means);
    assert_true(bench_gpu_selection_fetch(&l->means, &l->gpu));
    assert_false(bench_is_partition(&l->means.host));
}

/* Where libcudnn is installed without a GPU it says so itself; with one, tensors in host memory are planned all the
 * same, and the plan is given back. */
static void cudnn_is_there_or_says_why(void **state)
{
    layer *l = *state;
    mcsa_error error = { "" };
    bench_cudnn *cudnn;
    mcsa_status status = bench_cudnn_open(&cudnn, &l->gpu.x, &l->gpu.memory, &error);
    assert_true((status == MCSA_OK) == (cudnn != NULL));
    if (status != MCSA_OK) assert_true(strstr(error.text, "not found") || strstr(error.text, "cuDNN"));
    bench_cudnn_close(cudnn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_right_layer_passes, open_layer, close_layer),
        cmocka_unit_test_setup_teardown(a_right_layer_with_means_passes, open_layer, close_layer),
        cmocka_unit_test_setup_teardown(a_new_selection_passes_no_gate, open_layer, close_layer),
        cmocka_unit_test_setup_teardown(equal_heads_must_have_equal_bits, open_layer, close_layer),
        cmocka_unit_test_setup_teardown(an_output_that_is_not_written_is_refused, open_layer, close_layer),
        cmocka_unit_test_setup_teardown(a_lost_residual_is_refused, open_layer, close_layer),
        cmocka_unit_test_setup_teardown(wrong_groups_and_keys_are_refused, open_layer, close_layer),
        cmocka_unit_test_setup_teardown(wrong_clusters_are_refused, open_layer, close_layer),
        cmocka_unit_test_setup_teardown(cudnn_is_there_or_says_why, open_layer, close_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
