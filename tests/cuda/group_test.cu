/* group_test.cu - Fast PDDP on the GPU against its definition and against the CPU backend.
 *
 *     group_test          every check
 *     group_test small    sizes that compute-sanitizer can afford
 *     group_test time     the two sizes of the README, D = 128 and 64, after a check of the result
 *     group_test quality  the comparison with the CPU alone
 *     group_test once     the larger one twice, for a profiler
 *
 * Exact splits are checked on rows t_i w with one w: there the principal direction of any set is +-w, so every node
 * must be cut at the exact rank of t, and of equal t the lower index must go right.  t w is exact in 16 bits, and equal
 * rows have equal projections, so nothing is within a tolerance.  Quality is the within-group variance, in double,
 * over that of the CPU backend, which computes directions from all rows. */
extern "C" {
#include "base/memory.h"
}
#include "check.h"
#include "cuda/kernels.h"

typedef enum kind { CLUSTERED, ANISOTROPIC, VIDEO, OFFSET, LINE, EQUAL, TWO, BROKEN } kind;

static const char *const kind_names[] = { "clustered", "anisotropic", "video", "offset",
                                          "line",      "equal",       "two",   "broken" };

enum { CENTRES = 300, WAVES = 12, MAX_D = 128 };

/* What the rows of one head are made of. */
typedef struct recipe {
    float centre[CENTRES][MAX_D], mean[MAX_D];
    float wave[WAVES][3], even[WAVES][MAX_D], odd[WAVES][MAX_D];
} recipe;

static void recipe_make(recipe *r, uint64_t seed)
{
    for (int c = 0; c < CENTRES; c++)
        for (int d = 0; d < MAX_D; d++) r->centre[c][d] = check_normal(&seed);
    for (int d = 0; d < MAX_D; d++) r->mean[d] = 10 * check_normal(&seed);
    for (int w = 0; w < WAVES; w++) {
        for (int i = 0; i < 3; i++) r->wave[w][i] = 3 * check_normal(&seed) / (float)(1 + w % 4);
        for (int d = 0; d < MAX_D; d++) {
            r->even[w][d] = check_normal(&seed) / (float)(1 + w);
            r->odd[w][d] = check_normal(&seed) / (float)(1 + w);
        }
    }
}

/* Axis-parallel variances 1 / (1 + d) turned by a Hadamard matrix. */
static void turn(float *x, int D)
{
    for (int half = 1; half < D; half *= 2)
        for (int d = 0; d < D; d++)
            if (!(d & half)) {
                float a = x[d], b = x[d + half];
                x[d] = a + b;
                x[d + half] = a - b;
            }
}

/* Row n of N; a video is walked as 21 frames of rows of 80. */
static void make_row(kind kind, const recipe *r, int64_t n, int64_t N, int D, uint64_t seed, float *x)
{
    uint64_t s = seed + 0x632be59bd9b4e019u * (uint64_t)(n + 1);
    int64_t frame = N / 21 + 1;
    float t = (float)(n / frame) / 21, y = (float)(n % frame / 80) * 80 / (float)frame, z = (float)(n % 80) / 80;
    float along = check_normal(&s), pick = (float)check_uniform(&s);
    const float *centre = r->centre[check_below(&s, CENTRES)];
    float even[WAVES], odd[WAVES];
    for (int w = 0; w < WAVES; w++) {
        float angle = 6.2832f * (r->wave[w][0] * t + r->wave[w][1] * y + r->wave[w][2] * z);
        even[w] = cosf(angle);
        odd[w] = sinf(angle);
    }
    for (int d = 0; d < D; d++) {
        float e = check_normal(&s);
        switch (kind) {
        case CLUSTERED: x[d] = centre[d] + 0.5f * e; break;
        case ANISOTROPIC: x[d] = e / sqrtf((float)(1 + d)); break;
        case OFFSET: x[d] = r->mean[d] + e / (float)(1 + d % 16); break;
        case VIDEO:
            x[d] = 0.3f * e;
            for (int w = 0; w < WAVES; w++) x[d] += r->even[w][d] * even[w] + r->odd[w][d] * odd[w];
            break;
        case LINE: x[d] = check_float(check_half(along, MCSA_BF16), MCSA_BF16) * (d % 3 ? 0.5f : -2.0f); break;
        case EQUAL: x[d] = r->mean[d]; break;
        case TWO: x[d] = pick < 0.3f ? r->mean[d] : r->centre[0][d]; break;
        case BROKEN: x[d] = pick < 0.01f ? NAN : pick < 0.02f ? -INFINITY : pick < 0.03f ? 3e38f * e : e; break;
        }
    }
    if (kind == ANISOTROPIC) turn(x, D);
}

static void fill(check_tensor *q, kind kind, uint64_t seed)
{
    int64_t H = q->host.shape[0], N = q->host.shape[1];
    int D = (int)q->host.shape[2];
    recipe *r = (recipe *)check_alloc(sizeof *r);
    for (int64_t h = 0; h < H; h++) {
        recipe_make(r, seed + (uint64_t)h);
#pragma omp parallel for
        for (int64_t n = 0; n < N; n++) {
            float x[MAX_D];
            make_row(kind, r, n, N, D, seed * 31 + (uint64_t)h, x);
            for (int d = 0; d < D; d++) check_at(&q->host, h, n, 0)[d] = check_half(x[d], q->host.dtype);
        }
    }
    free(r);
    check_upload(&q->buffer, q->host.data);
}

/* One call and what it gave. */
typedef struct grouping {
    int H, N, D;
    mcsa_qkv x;
    check_tensor q;
    int32_t *order; /* [H, N] on the host */
} grouping;

static grouping *grouping_make(const int shape[3] /* H, N, D */, mcsa_dtype dtype, check_layout layout, kind kind,
                               uint64_t seed)
{
    grouping *g = (grouping *)check_alloc(sizeof *g);
    memset(g, 0, sizeof *g);
    g->H = shape[0];
    g->N = shape[1];
    g->D = shape[2];
    g->q = check_tensor_make(g->H, g->N, g->D, dtype, layout);
    fill(&g->q, kind, seed);
    g->x.q = g->x.k = g->x.v = g->x.out = &g->q.device;
    g->x.dims.H = g->H;
    g->x.dims.N = g->x.dims.M = g->N;
    g->x.dims.D = g->D;
    g->x.dims.dtype = dtype;
    g->order = (int32_t *)check_alloc(sizeof(int32_t) * (size_t)g->H * (size_t)g->N);
    return g;
}

static void grouping_free(grouping *g)
{
    check_tensor_free(&g->q);
    free(g->order);
    free(g);
}

/* Twice, each time into poison; the second run must give the same bits. */
static void grouping_run(grouping *g)
{
    size_t bytes = sizeof(int32_t) * (size_t)g->H * (size_t)g->N;
    check_buffer order = check_buffer_make(bytes), scratch = check_buffer_make(mcsa_cuda_group_bytes(&g->x.dims));
    int32_t *again = (int32_t *)check_alloc(bytes);
    CHECK_CUDA(mcsa_cuda_group(&g->x, (int32_t *)order.data, scratch.data, 0));
    check_download(g->order, &order);
    check_buffer_poison(&order);
    check_buffer_poison(&scratch);
    CHECK_CUDA(mcsa_cuda_group(&g->x, (int32_t *)order.data, scratch.data, 0));
    check_download(again, &order);
    check_same_bits(g->order, again, bytes, "group");
    free(again);
    check_buffer_free(&order);
    check_buffer_free(&scratch);
}

/* Every query once, ascending within a group. */
static int is_grouping(const grouping *g)
{
    char *seen = (char *)check_alloc((size_t)g->N);
    int good = 1;
    for (int h = 0; h < g->H; h++) {
        const int32_t *order = g->order + (int64_t)h * g->N;
        memset(seen, 0, (size_t)g->N);
        for (int i = 0; i < g->N; i++) {
            if (order[i] < 0 || order[i] >= g->N || seen[order[i]]++) good = 0;
            if (i % MCSA_CUDA_C && order[i] <= order[i - 1]) good = 0;
        }
    }
    free(seen);
    return good;
}

/* Rows of [a, b) of `order` that a LINE node may not have where they are.  `sign` of the direction is free. */
static int64_t misplaced(const float *t, const int32_t *order, int a, int cut, int b, float sign)
{
    float most = -INFINITY, least = INFINITY;
    int32_t first_tie = INT32_MAX; /* of the left child's rows that have the value at the cut */
    int64_t wrong = 0;
    for (int i = a; i < cut; i++) most = fmaxf(most, sign * t[order[i]]);
    for (int i = cut; i < b; i++) least = fminf(least, sign * t[order[i]]);
    for (int i = a; i < cut; i++) wrong += sign * t[order[i]] > least;
    for (int i = a; i < cut; i++)
        if (sign * t[order[i]] == least && order[i] < first_tie) first_tie = order[i];
    for (int i = cut; i < b; i++) wrong += sign * t[order[i]] == most && order[i] > first_tie;
    return wrong;
}

static int64_t misplaced_below(const float *t, const int32_t *order, int a, int b, int N)
{
    if (b - a < 2) return 0;
    int middle = a + (b - a + 1) / 2, C = MCSA_CUDA_C, end = b * C < N ? b * C : N;
    int64_t up = misplaced(t, order, a * C, middle * C, end, 1), down = misplaced(t, order, a * C, middle * C, end, -1);
    return (up < down ? up : down) + misplaced_below(t, order, a, middle, N) + misplaced_below(t, order, middle, b, N);
}

static int64_t grouping_misplaced(const grouping *g)
{
    float *t = (float *)check_alloc(sizeof *t * (size_t)g->N);
    int64_t wrong = 0;
    for (int h = 0; h < g->H; h++) {
        for (int n = 0; n < g->N; n++) t[n] = (float)check_get(&g->q.host, h, n, 0);
        wrong += misplaced_below(t, g->order + (int64_t)h * g->N, 0, (g->N + MCSA_CUDA_C - 1) / MCSA_CUDA_C, g->N);
    }
    free(t);
    return wrong;
}

/* Sum over groups of the squared distance to the group's mean. */
static double within(const grouping *g, const int32_t *order)
{
    int C = MCSA_CUDA_C, G = (g->N + C - 1) / C;
    double *part = (double *)check_alloc(sizeof *part * (size_t)g->H * (size_t)G), total = 0;
#pragma omp parallel for
    for (int at = 0; at < g->H * G; at++) {
        int h = at / G, first = at % G * C, end = first + C < g->N ? first + C : g->N;
        double sum[MAX_D] = { 0 }, square = 0;
        for (int i = first; i < end; i++)
            for (int d = 0; d < g->D; d++) {
                double x = check_get(&g->q.host, h, order[(int64_t)h * g->N + i], d);
                sum[d] += x;
                square += x * x;
            }
        for (int d = 0; d < g->D; d++) square -= sum[d] * sum[d] / (end - first);
        part[at] = square;
    }
    for (int at = 0; at < g->H * G; at++) total += part[at];
    free(part);
    return total;
}

/* order of the CPU backend; the caller frees it. */
static int32_t *cpu_order(const grouping *g)
{
    mcsa_allocator standard;
    memset(&standard, 0, sizeof standard);
    mcsa_memory memory = mcsa_memory_from(&standard);
    mcsa_backend_options options;
    memset(&options, 0, sizeof options);
    options.memory = &memory;
    options.threads = 8;
    options.C = MCSA_CUDA_C;
    void *state = NULL;
    mcsa_qkv x = g->x;
    x.q = x.k = x.v = x.out = &g->q.host;
    mcsa_selection s;
    memset(&s, 0, sizeof s);
    s.H = g->H;
    s.N = g->N;
    s.C = MCSA_CUDA_C;
    s.G = (g->N + s.C - 1) / s.C;
    s.order = (int32_t *)check_alloc(sizeof(int32_t) * (size_t)g->H * (size_t)g->N);
    if (mcsa_backend_cpu.open(&state, &options) || mcsa_backend_cpu.reserve(state, &x.dims, 0, 0)) {
        printf("FAIL no memory for the CPU backend\n");
        exit(1);
    }
    mcsa_backend_cpu.group(state, &x, &s);
    mcsa_backend_cpu.close(state);
    return s.order;
}

static void check_order(const int shape[3], mcsa_dtype dtype, check_layout layout, kind kind, uint64_t seed)
{
    grouping *g = grouping_make(shape, dtype, layout, kind, seed);
    grouping_run(g);
    int good = is_grouping(g);
    int64_t wrong = good && kind == LINE ? grouping_misplaced(g) : 0;
    printf("%-4s %s %-11s H %d N %d D %d layout %d: order, %lld rows misplaced\n", good && !wrong ? "ok" : "FAIL",
           dtype == MCSA_BF16 ? "bf16" : "f16", kind_names[kind], g->H, g->N, g->D, (int)layout, (long long)wrong);
    check_failures += !good || wrong;
    grouping_free(g);
}

/* At most 1 % more within-group variance than the CPU. */
static void check_quality(const int shape[3], mcsa_dtype dtype, kind kind, uint64_t seed)
{
    grouping *g = grouping_make(shape, dtype, CHECK_HND, kind, seed);
    grouping_run(g);
    int32_t *cpu = cpu_order(g), *identity = (int32_t *)check_alloc(sizeof(int32_t) * (size_t)g->H * (size_t)g->N);
    for (int64_t i = 0; i < (int64_t)g->H * g->N; i++) identity[i] = (int32_t)(i % g->N);
    double ours = is_grouping(g) ? within(g, g->order) : INFINITY, theirs = within(g, cpu), none = within(g, identity);
    int good = ours <= 1.01 * theirs && ours < none;
    printf("%-4s %s %-11s H %d N %d D %d: within-group variance %.4f of the CPU's, which is %.3f of ungrouped\n",
           good ? "ok" : "FAIL", dtype == MCSA_BF16 ? "bf16" : "f16", kind_names[kind], g->H, g->N, g->D, ours / theirs,
           theirs / none);
    check_failures += !good;
    free(cpu);
    free(identity);
    grouping_free(g);
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Milliseconds of `repeats` calls, launched or as replays of a captured graph. */
static void time_calls(const grouping *g, int32_t *order, void *scratch, int graphed)
{
    enum { WARM = 3, REPEATS = 21 };
    float ms[REPEATS];
    cudaEvent_t begin, end;
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t replay = NULL;
    CHECK_CUDA(cudaEventCreate(&begin));
    CHECK_CUDA(cudaEventCreate(&end));
    CHECK_CUDA(cudaStreamCreate(&stream));
    if (graphed) {
        CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        CHECK_CUDA(mcsa_cuda_group(&g->x, order, scratch, stream));
        CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
        CHECK_CUDA(cudaGraphInstantiate(&replay, graph, 0));
    }
    for (int i = -WARM; i < REPEATS; i++) {
        CHECK_CUDA(cudaEventRecord(begin, stream));
        if (graphed)
            CHECK_CUDA(cudaGraphLaunch(replay, stream));
        else
            CHECK_CUDA(mcsa_cuda_group(&g->x, order, scratch, stream));
        CHECK_CUDA(cudaEventRecord(end, stream));
        CHECK_CUDA(cudaStreamSynchronize(stream));
        if (i >= 0) CHECK_CUDA(cudaEventElapsedTime(&ms[i], begin, end));
    }
    qsort(ms, REPEATS, sizeof *ms, by_value);
    printf("time H %d N %d D %d %s: median %.3f ms, %.3f to %.3f\n", g->H, g->N, g->D, graphed ? "graph" : "launches",
           (double)ms[REPEATS / 2], (double)ms[0], (double)ms[REPEATS - 1]);
    if (graphed) {
        CHECK_CUDA(cudaGraphExecDestroy(replay));
        CHECK_CUDA(cudaGraphDestroy(graph));
    }
    CHECK_CUDA(cudaStreamDestroy(stream));
    CHECK_CUDA(cudaEventDestroy(begin));
    CHECK_CUDA(cudaEventDestroy(end));
}

static void time_shape(const int shape[3])
{
    grouping *g = grouping_make(shape, MCSA_BF16, CHECK_HND, VIDEO, 11);
    grouping_run(g);
    CHECK_TRUE(is_grouping(g), "no grouping at the timed size");
    check_buffer order = check_buffer_make(sizeof(int32_t) * (size_t)g->H * (size_t)g->N);
    check_buffer scratch = check_buffer_make(mcsa_cuda_group_bytes(&g->x.dims));
    int32_t *graphed = (int32_t *)check_alloc(order.bytes);
    time_calls(g, (int32_t *)order.data, scratch.data, 0);
    time_calls(g, (int32_t *)order.data, scratch.data, 1);
    check_download(graphed, &order);
    check_same_bits(g->order, graphed, order.bytes, "graph replay");
    free(graphed);
    check_buffer_free(&order);
    check_buffer_free(&scratch);
    grouping_free(g);
}

static void small_checks(void)
{
    static const int sizes[] = { 1, 63, 127, 128, 129, 257, 640, 641, 1000, 5200 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int shape[3] = { 2, sizes[i], i % 2 ? 128 : 64 };
        check_order(shape, i % 3 ? MCSA_BF16 : MCSA_F16, (check_layout)(i % 3), LINE, 100 + i);
        check_order(shape, MCSA_BF16, CHECK_HND, BROKEN, 200 + i);
    }
}

static void all_checks(void)
{
    static const int sizes[] = { 1, 63, 127, 128, 129, 257, 640, 641, 1000, 4097, 32760, 75600 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int D = 64; D <= 128; D += 64) {
            int shape[3] = { sizes[i] > 5000 ? 1 : 3, sizes[i], D };
            for (int layout = CHECK_HND; layout <= CHECK_PADDED; layout++)
                check_order(shape, (i + (size_t)layout) % 2 ? MCSA_BF16 : MCSA_F16, (check_layout)layout, LINE, i + 1);
            for (int k = EQUAL; k <= BROKEN; k++) check_order(shape, MCSA_BF16, CHECK_HND, (kind)k, 50 + i);
        }
}

static void quality_checks(void)
{
    static const int shapes[][3] = { { 8, 1000, 128 },  { 8, 4097, 128 },  { 8, 4097, 64 },
                                     { 8, 32760, 128 }, { 4, 75600, 128 }, { 4, 75600, 64 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int k = CLUSTERED; k <= OFFSET; k++)
            check_quality(shapes[i], i % 2 ? MCSA_BF16 : MCSA_F16, (kind)k, 1000 + i);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    check_gpu();
    if (!strcmp(mode, "time")) {
        static const int shapes[][3] = { { 40, 75600, 128 }, { 40, 32760, 128 }, { 40, 75600, 64 }, { 40, 32760, 64 } };
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) time_shape(shapes[i]);
    } else if (!strcmp(mode, "once")) {
        static const int shape[3] = { 40, 75600, 128 };
        check_order(shape, MCSA_BF16, CHECK_HND, VIDEO, 12);
    } else if (!strcmp(mode, "quality")) {
        quality_checks();
    } else if (!strcmp(mode, "small")) {
        small_checks();
    } else {
        all_checks();
        quality_checks();
    }
    return check_done("group_test");
}
