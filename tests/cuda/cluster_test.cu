/* cluster_test.cu - clusters of keys and their means on the GPU against a restatement on the host, then how long they
 * take.
 *
 *     cluster_test            all checks
 *     cluster_test small      few and small ones, for compute-sanitizer
 *     cluster_test time       milliseconds at 75,600 and 32,760 tokens, 40 heads
 *
 * The host repeats the rounds of k-means.  Everything but the nearest centre it does itself, and demands the same bits:
 * first centres, members by label, FP32 means.  The labels it takes from the kernel, after judging each: with the
 * kernel's score s'_p of centre p within e_p of s_p = k . c_p - |c_p|^2 / 2, the chosen one must have
 * s + e no less than the largest s_p - e_p.  Let u = 2^-24, A_p = sum_d |k_d c_pd|, B_p = |c_p|^2 / 2:
 *
 *     e_p = A_p 17 (D / 16) 2u + B_p (D + 1) u + (A_p + B_p) 2u
 *
 * : a step of the tensor core cuts 17 addends at 2u of the largest; a sum of D squares; the addition of both.  Where
 * keys are small integers all of this is exact, e_p is 0, and of equal scores the lowest p is the only right one. */
#include "check.h"
#include "cuda/cluster.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

enum { ROUNDS = 4 };

/* What the keys of a case are. */
typedef enum key_kind {
    SPREAD,   /* check.h's normal rows */
    GATHERED, /* rows around 32 centres: clusters of very different size */
    LARGE,    /* one row in eight up to 300 */
    REPEATED, /* integer rows, only 5 different ones: ties and empty clusters, all exact */
    CONSTANT, /* one row only: everything in cluster 0 */
    WITH_NAN  /* one row in sixteen holds a NaN */
} key_kind;

static const char *const kind_names[] = { "spread", "gathered", "large", "repeated", "constant", "with NaN" };

typedef struct test_case {
    int H, N, D, P;
    mcsa_dtype dtype;
    check_layout layout;
    key_kind kind;
} test_case;

/* A case's keys, what the kernels make of them, and the host's copies. */
typedef struct problem {
    test_case c;
    check_tensor keys;
    mcsa_qkv x;
    check_buffer members, first, scratch;
    mcsa_selection selection;            /* of the device arrays */
    int32_t *host_members, *host_first;  /* [H, N], [H, P + 1] */
    uint16_t *host_centres, *host_label; /* [H, P, D], [H, N] */
} problem;

static void fill_keys(problem *p, uint64_t seed)
{
    const test_case *c = &p->c;
    const check_fill fills[] = { CHECK_NORMAL,   CHECK_CLUSTERED, CHECK_LARGE,
                                 CHECK_INTEGERS, CHECK_INTEGERS,  CHECK_NORMAL };
    check_tensor_fill(&p->keys, fills[c->kind], seed);
    int different = c->kind == REPEATED ? 5 : c->kind == CONSTANT ? 1 : c->N;
    for (int h = 0; h < c->H; h++)
        for (int n = different; n < c->N; n++) {
            int64_t from = check_below(&seed, different);
            memcpy(check_at(&p->keys.host, h, n, 0), check_at(&p->keys.host, h, from, 0), sizeof(uint16_t) * c->D);
        }
    for (int h = 0; h < c->H && c->kind == WITH_NAN; h++)
        for (int n = 0; n < c->N; n++)
            if (check_below(&seed, 16) == 0) *check_at(&p->keys.host, h, n, check_below(&seed, c->D)) = 0x7fff;
    check_upload(&p->keys.buffer, p->keys.host.data);
}

/* In place, because x points into the struct. */
static void make_problem(problem *p, const test_case *c, uint64_t seed)
{
    memset(p, 0, sizeof *p);
    p->c = *c;
    p->keys = check_tensor_make(c->H, c->N, c->D, c->dtype, c->layout);
    fill_keys(p, seed);
    p->x.k = &p->keys.device;
    p->x.dims = { c->H, c->N, c->N, c->D, c->dtype };
    size_t keys = (size_t)c->H * c->N, clusters = (size_t)c->H * c->P, firsts = clusters + c->H;
    p->members = check_buffer_make(keys * sizeof(int32_t));
    p->first = check_buffer_make(firsts * sizeof(int32_t));
    p->scratch = check_buffer_make(mcsa_cuda_cluster_bytes(&p->x.dims, c->P));
    p->selection.H = c->H, p->selection.N = c->N, p->selection.P = c->P;
    p->selection.members = (int32_t *)p->members.data;
    p->selection.first = (int32_t *)p->first.data;
    p->host_members = (int32_t *)check_alloc(keys * sizeof(int32_t));
    p->host_first = (int32_t *)check_alloc(firsts * sizeof(int32_t));
    p->host_centres = (uint16_t *)check_alloc(clusters * c->D * sizeof(uint16_t));
    p->host_label = (uint16_t *)check_alloc(keys * sizeof(uint16_t));
}

static void free_problem(problem *p)
{
    check_tensor_free(&p->keys);
    check_buffer_free(&p->members);
    check_buffer_free(&p->first);
    check_buffer_free(&p->scratch);
    free(p->host_members);
    free(p->host_first);
    free(p->host_centres);
    free(p->host_label);
}

static void host_start(problem *p)
{
    const test_case *c = &p->c;
    for (int h = 0; h < c->H; h++)
        for (int i = 0; i < c->P; i++) {
            int64_t row = (2 * (int64_t)i + 1) * c->N / (2 * (int64_t)c->P);
            memcpy(p->host_centres + ((int64_t)h * c->P + i) * c->D, check_at(&p->keys.host, h, row, 0),
                   sizeof(uint16_t) * (size_t)c->D);
        }
}

/* host_label -> host_members and host_first */
static void host_sort(problem *p)
{
    const test_case *c = &p->c;
    for (int h = 0; h < c->H; h++) {
        const uint16_t *label = p->host_label + (int64_t)h * c->N;
        int32_t *first = p->host_first + (int64_t)h * (c->P + 1), *members = p->host_members + (int64_t)h * c->N;
        int32_t *at = (int32_t *)check_alloc(sizeof(int32_t) * (size_t)(c->P + 1));
        memset(at, 0, sizeof(int32_t) * (size_t)(c->P + 1));
        for (int n = 0; n < c->N; n++) at[label[n] + 1]++;
        for (int i = 0; i < c->P; i++) at[i + 1] += at[i];
        memcpy(first, at, sizeof(int32_t) * (size_t)(c->P + 1));
        for (int n = 0; n < c->N; n++) members[at[label[n]]++] = n;
        free(at);
    }
}

/* Rows of means where clusters have members: those of `keys`, in FP32 */
static void host_means(const problem *p, uint16_t *rows)
{
    const test_case *c = &p->c;
    for (int64_t cluster = 0; cluster < (int64_t)c->H * c->P; cluster++) {
        int h = (int)(cluster / c->P);
        const int32_t *first = p->host_first + cluster + h, *members = p->host_members + (int64_t)h * c->N;
        for (int d = 0; d < c->D && first[0] < first[1]; d++) {
            float sum = 0;
            for (int i = first[0]; i < first[1]; i++)
                sum += check_float(*check_at(&p->keys.host, h, members[i], d), c->dtype);
            rows[cluster * c->D + d] = check_half(sum / (float)(first[1] - first[0]), c->dtype);
        }
    }
}

/* Equal bits, or both NaN. */
static int64_t different_halves(const uint16_t *a, const uint16_t *b, int64_t count, mcsa_dtype dtype)
{
    int64_t different = 0;
    for (int64_t i = 0; i < count; i++)
        different += a[i] != b[i] && !(isnan(check_float(a[i], dtype)) && isnan(check_float(b[i], dtype)));
    return different;
}

/* The centres of a head in double. */
typedef struct centre_set {
    int P, D, exact; /* exact: keys and centres are small integers */
    double *rows;    /* [P, D] */
    double *halves;  /* [P] */
} centre_set;

static void read_centres(centre_set *set, const problem *p, int h)
{
    const test_case *c = &p->c;
    set->exact = c->kind == REPEATED || c->kind == CONSTANT;
    for (int i = 0; i < c->P; i++) {
        set->halves[i] = 0;
        for (int d = 0; d < c->D; d++) {
            double x = check_float(p->host_centres[((int64_t)h * c->P + i) * c->D + d], c->dtype);
            set->rows[(int64_t)i * c->D + d] = x;
            set->halves[i] += x * x / 2;
            if (x != rint(x)) set->exact = 0;
        }
    }
}

static int is_nearest(const centre_set *set, const double *key, int label)
{
    const double u = 0x1p-24;
    double most = -INFINITY, chosen = NAN;
    int lowest = 0, D = set->D;
    for (int i = 0; i < set->P; i++) {
        double dot = 0, size = 0, half = set->halves[i];
        for (int d = 0; d < D; d++) {
            double product = key[d] * set->rows[(int64_t)i * D + d];
            dot += product;
            size += fabs(product);
        }
        double slack = size * 17 * (D / 16) * 2 * u + half * (D + 1) * u + (size + half) * 2 * u, score = dot - half;
        if (set->exact) slack = 0;
        if (score - slack > most) most = score - slack, lowest = i;
        if (i == label) chosen = score + slack;
    }
    if (set->exact || most == -INFINITY) return label == lowest; /* all NaN: 0 */
    return chosen >= most;
}

/* Judges labels of host_label by host_centres: all, or evenly spaced ones where those of a head would take more than
 * JUDGED products. */
static void judge_labels(const problem *p, const char *name, int round)
{
    enum { JUDGED = 200000 };
    const test_case *c = &p->c;
    int step = (int)((int64_t)c->N * c->P / JUDGED) | 1;
    int64_t wrong = 0, judged = 0;
    centre_set set = { c->P, c->D, 0, NULL, NULL };
    set.rows = (double *)check_alloc(sizeof(double) * (size_t)c->P * c->D);
    set.halves = (double *)check_alloc(sizeof(double) * (size_t)c->P);
    for (int h = 0; h < c->H; h++) {
        read_centres(&set, p, h);
        for (int n = h % step < c->N ? h % step : 0; n < c->N; n += step, judged++) {
            double key[128];
            for (int d = 0; d < c->D; d++) key[d] = check_get(&p->keys.host, h, n, d);
            wrong += !is_nearest(&set, key, p->host_label[(int64_t)h * c->N + n]);
        }
    }
    CHECK_TRUE(judged > 0 && wrong == 0, "%s, round %d: %lld of %lld keys are not with their nearest centre", name,
               round, (long long)wrong, (long long)judged);
    free(set.rows);
    free(set.halves);
}

/* The device's labels for host_centres, into host_label. */
static void device_labels(problem *p)
{
    cluster_job job = {};
    cluster_carve(&job, &p->x.dims, p->c.P, p->scratch.data);
    job.keys = p->x.k;
    check_buffer_poison(&p->scratch);
    CHECK_CUDA(cudaMemcpy(job.centres.data, p->host_centres, sizeof(uint16_t) * (size_t)p->c.H * p->c.P * p->c.D,
                          cudaMemcpyHostToDevice));
    CHECK_CUDA(cluster_offsets(&job, 0));
    CHECK_CUDA(cluster_nearest(&job, 0));
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_CUDA(
        cudaMemcpy(p->host_label, job.label, sizeof(uint16_t) * (size_t)p->c.H * p->c.N, cudaMemcpyDeviceToHost));
}

/* Runs the whole twice and compares with host_members and host_first. */
static void check_clusters(const problem *p, const char *name)
{
    int32_t *members = (int32_t *)check_alloc(p->members.bytes), *first = (int32_t *)check_alloc(p->first.bytes);
    for (int run = 0; run < 2; run++) {
        check_buffer_poison(&p->members);
        check_buffer_poison(&p->first);
        check_buffer_poison(&p->scratch);
        CHECK_CUDA(mcsa_cuda_cluster(&p->x, &p->selection, p->scratch.data, 0));
        check_download(members, &p->members);
        check_download(first, &p->first);
        CHECK_TRUE(!memcmp(members, p->host_members, p->members.bytes) && !memcmp(first, p->host_first, p->first.bytes),
                   "%s, run %d: members are not those of the rounds one by one", name, run);
    }
    free(members);
    free(first);
}

/* Means of the keys by host_members; rows of empty clusters stay poisoned. */
static void check_means(const problem *p, const char *name)
{
    int64_t count = (int64_t)p->c.H * p->c.P * p->c.D;
    check_buffer rows = check_buffer_make(sizeof(uint16_t) * (size_t)count);
    uint16_t *got = (uint16_t *)check_alloc(rows.bytes), *expected = (uint16_t *)check_alloc(rows.bytes);
    check_upload(&p->members, p->host_members);
    check_upload(&p->first, p->host_first);
    memset(expected, CHECK_POISON, rows.bytes);
    host_means(p, expected);
    CHECK_CUDA(mcsa_cuda_means(p->x.k, &p->selection, rows.data, 0));
    check_download(got, &rows);
    int64_t wrong = different_halves(got, expected, count, p->c.dtype);
    CHECK_TRUE(wrong == 0, "%s: %lld of %lld elements of means are not their FP32 sums' in order", name,
               (long long)wrong, (long long)count);
    check_buffer_free(&rows);
    free(got);
    free(expected);
}

static void check_case(test_case c)
{
    static uint64_t seed = 20;
    problem p;
    char name[120];
    snprintf(name, sizeof name, "H %d N %d D %d P %d %s %s layout %d", c.H, c.N, c.D, c.P,
             c.dtype == MCSA_BF16 ? "bf16" : "fp16", kind_names[c.kind], (int)c.layout);
    make_problem(&p, &c, seed += 100);
    host_start(&p);
    for (int round = 0; round < ROUNDS; round++) {
        if (round > 0) host_means(&p, p.host_centres);
        device_labels(&p);
        judge_labels(&p, name, round);
        for (int64_t i = 0; i < (int64_t)c.H * c.N; i++)
            if (p.host_label[i] >= c.P) p.host_label[i] = 0; /* reported; the sort must not leave its arrays */
        host_sort(&p);
    }
    check_clusters(&p, name);
    check_means(&p, name);
    free_problem(&p);
}

/* Members and means for labels at random, many clusters empty and one with most keys. */
static void check_members(test_case c)
{
    problem p;
    uint64_t seed = 5 + (uint64_t)c.N;
    make_problem(&p, &c, seed);
    for (int64_t i = 0; i < (int64_t)c.H * c.N; i++)
        p.host_label[i] = (uint16_t)(check_below(&seed, 4) ? c.P / 3 : check_below(&seed, c.P));
    host_sort(&p);
    cluster_job job = {};
    cluster_carve(&job, &p.x.dims, c.P, p.scratch.data);
    job.members = p.selection.members;
    job.first = p.selection.first;
    check_buffer_poison(&p.scratch);
    CHECK_CUDA(cudaMemcpy(job.label, p.host_label, sizeof(uint16_t) * (size_t)c.H * c.N, cudaMemcpyHostToDevice));
    CHECK_CUDA(cluster_members(&job, 0));
    int32_t *members = (int32_t *)check_alloc(p.members.bytes), *first = (int32_t *)check_alloc(p.first.bytes);
    check_download(members, &p.members);
    check_download(first, &p.first);
    CHECK_TRUE(!memcmp(members, p.host_members, p.members.bytes) && !memcmp(first, p.host_first, p.first.bytes),
               "members of %d random labels of %d clusters are not in stable order", c.N, c.P);
    check_means(&p, "random labels");
    free(members);
    free(first);
    free_problem(&p);
}

/* Keys made on the device: `parts` directions a head, runs of 24 tokens share one, plus noise. */
__global__ void fill_large(uint16_t *data, int64_t each, int D, int parts)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= each) return;
    int64_t head = blockIdx.y, token = i / D;
    uint64_t part = (uint64_t)(token / 24 * 2654435761 + head) % (uint64_t)parts;
    float sum = 0;
    for (int draw = 0; draw < 2; draw++) {
        uint64_t z = draw ? (uint64_t)(head * each + i) : part * 128 + (uint64_t)(i % D) + ((uint64_t)(head + 1) << 40);
        z = (z + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        int wide = (int)(z & 0xffff) + (int)(z >> 16 & 0xffff) + (int)(z >> 32 & 0xffff) + (int)(z >> 48) - 2 * 65535;
        sum += (draw ? 0.7f : 1.0f) * (float)wide * 2.6429e-5f;
    }
    data[head * each + i] = __bfloat16_as_ushort(__float2bfloat16(sum));
}

static int compare_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

typedef enum verb { CLUSTER, NEAREST, MEMBERS, MEANS, OFFSETS } verb;

static float time_of(verb verb, const mcsa_qkv *x, const mcsa_selection *s, void *scratch)
{
    enum { RUNS = 7 };
    float ms[RUNS];
    cluster_job job = {};
    cudaEvent_t start, stop;
    CHECK_CUDA(cudaEventCreate(&start));
    CHECK_CUDA(cudaEventCreate(&stop));
    cluster_carve(&job, &x->dims, s->P, scratch);
    job.keys = x->k, job.members = s->members, job.first = s->first;
    for (int run = -1; run < RUNS; run++) {
        CHECK_CUDA(cudaEventRecord(start, 0));
        if (verb == CLUSTER) CHECK_CUDA(mcsa_cuda_cluster(x, s, scratch, 0));
        if (verb == NEAREST) CHECK_CUDA(cluster_nearest(&job, 0));
        if (verb == MEMBERS) CHECK_CUDA(cluster_members(&job, 0));
        if (verb == MEANS) CHECK_CUDA(mcsa_cuda_means(x->k, s, job.centres.data, 0));
        if (verb == OFFSETS) CHECK_CUDA(cluster_offsets(&job, 0));
        CHECK_CUDA(cudaEventRecord(stop, 0));
        CHECK_CUDA(cudaEventSynchronize(stop));
        if (run >= 0) CHECK_CUDA(cudaEventElapsedTime(&ms[run], start, stop));
    }
    CHECK_CUDA(cudaEventDestroy(start));
    CHECK_CUDA(cudaEventDestroy(stop));
    qsort(ms, RUNS, sizeof ms[0], compare_float);
    return ms[RUNS / 2];
}

static void print_sizes(const mcsa_selection *s)
{
    int32_t *first = (int32_t *)check_alloc(sizeof(int32_t) * (size_t)s->H * (s->P + 1));
    int empty = 0, most = 0;
    CHECK_CUDA(cudaMemcpy(first, s->first, sizeof(int32_t) * (size_t)s->H * (s->P + 1), cudaMemcpyDeviceToHost));
    for (int h = 0; h < s->H; h++)
        for (int i = 0; i < s->P; i++) {
            const int32_t *at = first + (int64_t)h * (s->P + 1) + i;
            if (at[1] == at[0]) empty++;
            if (at[1] - at[0] > most) most = at[1] - at[0];
        }
    printf("    clusters: %d of %d empty, the largest has %d keys\n", empty, s->H * s->P, most);
    free(first);
}

/* Every key into the first cluster of its head. */
__global__ void gather_all(mcsa_selection s)
{
    int64_t h = blockIdx.x;
    for (int n = threadIdx.x; n < s.N; n += blockDim.x) s.members[h * s.N + n] = n;
    for (int i = threadIdx.x; i <= s.P; i += blockDim.x) s.first[h * (s.P + 1) + i] = i ? s.N : 0;
}

static void time_case(int H, int N, int D, int P, int parts)
{
    mcsa_tensor k = {};
    check_buffer data = check_buffer_make(sizeof(uint16_t) * (size_t)H * N * D);
    check_buffer members = check_buffer_make(sizeof(int32_t) * (size_t)H * N);
    check_buffer first = check_buffer_make(sizeof(int32_t) * (size_t)H * (P + 1));
    k.data = data.data, k.dtype = MCSA_BF16;
    k.shape[0] = H, k.shape[1] = N, k.shape[2] = D;
    k.stride[0] = (int64_t)N * D, k.stride[1] = D, k.stride[2] = 1;
    mcsa_qkv x = {};
    x.k = &k;
    x.dims = { H, N, N, D, MCSA_BF16 };
    mcsa_selection s = {};
    s.H = H, s.N = N, s.P = P;
    s.members = (int32_t *)members.data, s.first = (int32_t *)first.data;
    check_buffer scratch = check_buffer_make(mcsa_cuda_cluster_bytes(&x.dims, P));
    fill_large<<<dim3((unsigned)(((int64_t)N * D + 255) / 256), H), 256>>>((uint16_t *)k.data, (int64_t)N * D, D,
                                                                           parts);
    CHECK_CUDA(cudaGetLastError());
    float all = time_of(CLUSTER, &x, &s, scratch.data), nearest = time_of(NEAREST, &x, &s, scratch.data);
    float sort = time_of(MEMBERS, &x, &s, scratch.data), means = time_of(MEANS, &x, &s, scratch.data);
    float offsets = time_of(OFFSETS, &x, &s, scratch.data);
    printf("H %d N %d D %d P %d, %d directions: cluster %.2f ms (scratch %.1f MB); nearest %.3f ms, %.0f TFLOP/s; "
           "members %.3f ms; means %.3f ms, %.2f TB/s; offsets %.3f ms\n",
           H, N, D, P, parts, all, (double)scratch.bytes * 1e-6, nearest, 2.0 * H * N * (double)P * D / nearest * 1e-9,
           sort, means, 2.0 * H * N * D / means * 1e-9, offsets);
    print_sizes(&s);
    gather_all<<<H, 256>>>(s);
    CHECK_CUDA(cudaGetLastError());
    printf("    means where one cluster has all keys of a head: %.3f ms\n", time_of(MEANS, &x, &s, scratch.data));
    check_buffer_free(&data);
    check_buffer_free(&members);
    check_buffer_free(&first);
    check_buffer_free(&scratch);
}

static void check_small(void)
{
    check_case({ 1, 1, 128, 1, MCSA_BF16, CHECK_HND, SPREAD });
    check_case({ 2, 300, 64, 7, MCSA_F16, CHECK_PADDED, GATHERED });
    check_case({ 2, 1000, 128, 130, MCSA_BF16, CHECK_NHD, REPEATED });
    check_members({ 2, 5000, 64, 40, MCSA_BF16, CHECK_HND, SPREAD });
}

static void check_all(void)
{
    const int sizes[][2] = { { 1, 1 },     { 2, 1 },      { 63, 5 },   { 129, 64 },   { 385, 128 },
                             { 1000, 33 }, { 4097, 146 }, { 4097, 1 }, { 5000, 2500 } };
    check_small();
    for (int i = 0; i < 9; i++)
        for (int D = 64; D <= 128; D += 64)
            for (int kind = SPREAD; kind <= WITH_NAN; kind++) {
                int turn = i + kind + D / 64;
                check_case({ 2, sizes[i][0], D, sizes[i][1], turn % 2 ? MCSA_BF16 : MCSA_F16,
                             (check_layout)(turn / 2 % 3), (key_kind)kind });
            }
    check_case({ 3, 32760, 128, 1170, MCSA_BF16, CHECK_NHD, GATHERED });
    check_case({ 1, 20000, 64, 8192, MCSA_F16, CHECK_HND, SPREAD });
    const int labels[][2] = { { 1, 1 }, { 31, 1 }, { 4096, 3 }, { 4097, 1100 }, { 20000, 8192 }, { 75600, 2700 } };
    for (int i = 0; i < 6; i++)
        check_members({ 2, labels[i][0], i % 2 ? 128 : 64, labels[i][1], i % 3 ? MCSA_BF16 : MCSA_F16,
                        (check_layout)(i % 3), SPREAD });
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    check_gpu();
    if (!strcmp(mode, "small"))
        check_small();
    else if (!strcmp(mode, "time")) {
        check_small();
        if (!check_failures) {
            time_case(40, 75600, 128, 2700, 600);
            time_case(40, 75600, 128, 2520, 100000);
            time_case(40, 32760, 128, 1170, 600);
            time_case(40, 75600, 64, 2700, 600);
        }
    } else
        check_all();
    return check_done("cluster_test");
}
