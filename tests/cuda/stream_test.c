/* stream_test.c - how a run on the GPU behaves, whatever it computes: the same bits twice, on another stream, in
 * another layout and from a CUDA graph; memory from the caller and none at a reuse step; refusals that leave the run as
 * it was. */
#include "check.h"

enum { H = 2, N = 700, D = 128, STEPS = 6 };

static const mcsa_config base = {
    .steps = STEPS, .layers = 1, .schedule = "list:1", .density = 0.2f, .device = MCSA_DEVICE_CUDA
};

static mcsa_run *open_run(const mcsa_config *config)
{
    char error[512] = "";
    mcsa_run *run = NULL;
    CHECK_TRUE(mcsa_run_create(&run, config, error, sizeof error) == MCSA_OK, "%s", error);
    if (!run) exit(1);
    return run;
}

static mcsa_status attend(mcsa_run *run, int step, const check_call *c)
{
    return mcsa_attend(run, (mcsa_site){ step, 0, 0 }, c->x.q, c->x.k, c->x.v, c->x.out);
}

static void must_attend(mcsa_run *run, int step, const check_call *c)
{
    CHECK_TRUE(attend(run, step, c) == MCSA_OK, "step %d: %s", step, mcsa_run_error(run));
}

/* The elements of out, [H, N, D]; what lies between them must still be poisoned. */
static uint16_t *result(check_call *c)
{
    uint16_t *x = check_alloc(sizeof(uint16_t) * H * N * D), *to = x;
    check_download(c->out.host.data, &c->out.buffer);
    for (int h = 0; h < H; h++)
        for (int n = 0; n < N; n++, to += D) {
            uint16_t *row = check_at(&c->out.host, h, n, 0);
            memcpy(to, row, sizeof(uint16_t) * D);
            memset(row, CHECK_POISON, sizeof(uint16_t) * D);
        }
    const unsigned char *bytes = c->out.host.data;
    int64_t damaged = 0;
    for (size_t i = 0; i < c->out.buffer.bytes; i++) damaged += bytes[i] != CHECK_POISON;
    CHECK_TRUE(damaged == 0, "%lld bytes between the rows of out were written", (long long)damaged);
    check_buffer_poison(&c->out.buffer);
    return x;
}

static void same(uint16_t *a, uint16_t *b, const char *what)
{
    int64_t different = 0, numbers = 0;
    for (int64_t i = 0; i < (int64_t)H * N * D; i++) {
        different += a[i] != b[i];
        numbers += isfinite((double)mcsa_from_bf16(a[i])) && (a[i] & 0x7fff);
    }
    printf("%-4s %s\n", different || !numbers ? "FAIL" : "ok", what);
    CHECK_TRUE(different == 0 && numbers > 0, "%lld elements differ, %lld are numbers other than 0",
               (long long)different, (long long)numbers);
    free(b);
}

static void make(check_call *c, check_layout layout)
{
    int shape[4] = { H, N, N, D };
    check_call_make(c, shape, MCSA_BF16, layout, CHECK_CLUSTERED, 3);
    check_buffer_poison(&c->out.buffer);
}

/* What the run gives for `c` at step 2, reuse, after a dense step and an anchor on the same data. */
static uint16_t *reuse_result(mcsa_run *run, check_call *c)
{
    for (int step = 0; step < 2; step++) must_attend(run, step, c);
    free(result(c));
    must_attend(run, 2, c);
    return result(c);
}

static void same_bits(uint16_t *expected)
{
    static check_call c[2];
    mcsa_run *runs[2];
    cudaStream_t streams[2];
    make(&c[0], CHECK_HND);
    mcsa_run *again = open_run(&base);
    same(expected, reuse_result(again, &c[0]), "the same call in another run");
    must_attend(again, 3, &c[0]);
    same(expected, result(&c[0]), "the same call at the next step");
    mcsa_run_reset(again);
    same(expected, reuse_result(again, &c[0]), "the same run once more after a reset");
    mcsa_run_free(again);
    for (int layout = CHECK_NHD; layout <= CHECK_PADDED; layout++) {
        static check_call other;
        mcsa_run *run = open_run(&base);
        make(&other, layout);
        same(expected, reuse_result(run, &other), layout == CHECK_NHD ? "layout [N, H, D]" : "rows with gaps");
        check_call_free(&other);
        mcsa_run_free(run);
    }
    make(&c[1], CHECK_HND);
    for (int i = 0; i < 2; i++) {
        mcsa_config config = base;
        CHECK_CUDA(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        config.stream = streams[i];
        runs[i] = open_run(&config);
    }
    for (int step = 0; step < 3; step++)
        for (int i = 0; i < 2; i++) must_attend(runs[i], step, &c[i]);
    for (int i = 0; i < 2; i++) {
        same(expected, result(&c[i]), "one of two runs on two streams");
        mcsa_run_free(runs[i]);
        CHECK_CUDA(cudaStreamDestroy(streams[i]));
        check_call_free(&c[i]);
    }
}

/* A reuse may be captured, even the first of the process, whose kernels are not loaded yet; replays compute on what the
 * buffers hold then.  Returns the result. */
static uint16_t *graph(void)
{
    uint16_t *first = NULL;
    static check_call c;
    cudaStream_t stream;
    cudaGraph_t recorded;
    cudaGraphExec_t replay;
    mcsa_config config = base;
    mcsa_stats before = { .size = sizeof before }, after = { .size = sizeof after };
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    config.stream = stream;
    mcsa_run *run = open_run(&config);
    make(&c, CHECK_HND);
    for (int step = 0; step < 2; step++) must_attend(run, step, &c);
    mcsa_run_stats(run, &before);
    CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    must_attend(run, 2, &c);
    mcsa_run_stats(run, &after); /* may not end the capture */
    CHECK_CUDA(cudaStreamEndCapture(stream, &recorded));
    CHECK_CUDA(cudaGraphInstantiate(&replay, recorded, 0));
    for (int i = 0; i < 2; i++) {
        check_buffer_poison(&c.out.buffer);
        CHECK_CUDA(cudaGraphLaunch(replay, stream));
        if (i == 0)
            first = result(&c);
        else
            same(first, result(&c), "a reuse step replayed twice");
    }
    mcsa_run_stats(run, &after);
    CHECK_TRUE(after.reuse == 1 && after.sparse_s == before.sparse_s && after.allocations == before.allocations,
               "%lld reuse calls, %g s after %g, %lld allocations after %lld", (long long)after.reuse, after.sparse_s,
               before.sparse_s, (long long)after.allocations, (long long)before.allocations);
    check_call_fill(&c, CHECK_CLUSTERED, 77);
    check_buffer_poison(&c.out.buffer);
    CHECK_CUDA(cudaGraphLaunch(replay, stream));
    uint16_t *replayed = result(&c);
    must_attend(run, 3, &c);
    same(replayed, result(&c), "a replay on new data, against a call");
    free(replayed);
    check_call_free(&c);
    mcsa_run_free(run);
    CHECK_CUDA(cudaGraphExecDestroy(replay));
    CHECK_CUDA(cudaGraphDestroy(recorded));
    CHECK_CUDA(cudaStreamDestroy(stream));
    return first;
}

typedef struct counter {
    int64_t calls, blocks, bytes;
    int refuse;
} counter;

static void *counted_alloc(void *user, size_t bytes)
{
    counter *heap = user;
    void *block = NULL;
    heap->calls++;
    if (heap->refuse || cudaMalloc(&block, bytes) != cudaSuccess) return NULL;
    CHECK_CUDA(cudaMemset(block, CHECK_POISON, bytes)); /* nothing may count on zeros */
    heap->blocks++;
    heap->bytes += (int64_t)bytes;
    return block;
}

static void counted_free(void *user, void *block, size_t bytes)
{
    counter *heap = user;
    heap->blocks--;
    heap->bytes -= (int64_t)bytes;
    CHECK_CUDA(cudaFree(block));
}

static void memory(uint16_t *expected)
{
    static check_call c;
    counter heap = { 0 };
    mcsa_config config = base;
    mcsa_stats s = { .size = sizeof s };
    config.allocator = (mcsa_allocator){ counted_alloc, counted_free, &heap };
    mcsa_run *run = open_run(&config);
    make(&c, CHECK_HND);
    must_attend(run, 0, &c);
    heap.refuse = 1;
    CHECK_TRUE(attend(run, 1, &c) == MCSA_ENOMEM, "an anchor without memory: %s", mcsa_run_error(run));
    heap.refuse = 0;
    CHECK_TRUE(heap.calls > 0, "the caller's allocator was not asked");
    same(expected, reuse_result(run, &c), "memory from the caller, after it was refused once");
    int64_t calls = heap.calls;
    heap.refuse = 1;
    for (int step = 3; step < STEPS; step++) must_attend(run, step, &c);
    mcsa_run_stats(run, &s);
    CHECK_TRUE(heap.calls == calls && s.allocations == calls && s.reuse == STEPS - 2,
               "%lld allocations in %lld reuse steps; the run counts %lld, the allocator %lld",
               (long long)(heap.calls - calls), (long long)s.reuse, (long long)s.allocations, (long long)heap.calls);
    CHECK_TRUE(s.selection_bytes + s.residual_bytes + s.scratch_bytes == heap.bytes,
               "the run reports %lld + %lld + %lld bytes and holds %lld", (long long)s.selection_bytes,
               (long long)s.residual_bytes, (long long)s.scratch_bytes, (long long)heap.bytes);
    mcsa_run_free(run);
    CHECK_TRUE(heap.blocks == 0 && heap.bytes == 0, "%lld blocks were not given back", (long long)heap.blocks);
    check_call_free(&c);
}

static void expect_refusal(mcsa_run *run, const check_call *c, mcsa_status status, const char *says)
{
    mcsa_status got = attend(run, 2, c);
    int ok = got == status && strstr(mcsa_run_error(run), says) != NULL;
    printf("%-4s refused: %s\n", ok ? "ok" : "FAIL", mcsa_run_error(run));
    CHECK_TRUE(ok, "%s, \"%s\" lacks \"%s\"", mcsa_status_name(got), mcsa_run_error(run), says);
}

static void refusals(uint16_t *expected)
{
    static check_call c, spoiled;
    mcsa_run *run = open_run(&base);
    make(&c, CHECK_HND);
    free(reuse_result(run, &c));
    spoiled = c;
    spoiled.x.q = &spoiled.q.device;
    spoiled.q.device.data = c.q.host.data;
    expect_refusal(run, &spoiled, MCSA_EINVAL, "q is in host memory");
    spoiled.q.device.data = (char *)c.q.device.data + 2;
    expect_refusal(run, &spoiled, MCSA_EUNSUPPORTED, "q starts 2 bytes past a multiple of 16");
    spoiled.q.device = c.q.device;
    spoiled.x.out = &spoiled.out.device;
    spoiled.out.device.data = c.out.host.data;
    expect_refusal(run, &spoiled, MCSA_EINVAL, "out is in host memory");
    float *sums = check_alloc(sizeof(float) * H * N);
    mcsa_status got = mcsa_attend_dense(run, c.x.q, c.x.k, c.x.v, c.x.out, sums);
    CHECK_TRUE(got == MCSA_EINVAL && strstr(mcsa_run_error(run), "lse is in host memory"), "%s, \"%s\"",
               mcsa_status_name(got), mcsa_run_error(run));
    free(sums);
    must_attend(run, 2, &c);
    same(expected, result(&c), "the run after refusals");
    check_call_free(&c);
    mcsa_run_free(run);
}

/* A reuse step whose anchor was skipped becomes one. */
static void fallback(void)
{
    static check_call c;
    mcsa_stats s = { .size = sizeof s };
    mcsa_run *run = open_run(&base);
    make(&c, CHECK_HND);
    must_attend(run, 2, &c);
    uint16_t *first = result(&c);
    must_attend(run, 0, &c);
    same(first, result(&c), "an anchor returns the dense output");
    mcsa_run_stats(run, &s);
    CHECK_TRUE(s.fallback == 1 && s.fallback_no_anchor == 1, "%lld fallbacks", (long long)s.fallback);
    free(first);
    check_call_free(&c);
    mcsa_run_free(run);
}

int main(void)
{
    static check_call c;
    check_gpu();
    uint16_t *replayed = graph();
    mcsa_run *run = open_run(&base);
    make(&c, CHECK_HND);
    uint16_t *first = NULL, *expected;
    for (int step = 0; step < 2; step++) must_attend(run, step, &c);
    first = result(&c);
    must_attend(run, 2, &c);
    expected = result(&c);
    CHECK_TRUE(memcmp(first, expected, sizeof(uint16_t) * H * N * D) != 0, "reuse gave the bits of dense attention");
    same(expected, replayed, "a reuse step from a graph, against a call");
    same_bits(expected);
    memory(expected);
    refusals(expected);
    fallback();
    free(first);
    free(expected);
    check_call_free(&c);
    mcsa_run_free(run);
    return check_done("stream_test");
}
