/* attend_means_test.cu - attention over kept clusters of keys and the means of the others against double precision, and
 * its speed beside that of as many kept keys.
 *
 *     attend_means_test          every case: percent of the bound used, NaN never passes, the same bits twice
 *     attend_means_test few      one small case of each kind and size, for memory and race checkers
 *     attend_means_test time     milliseconds at 32,760 and 75,600 tokens, after a check of sampled rows
 *
 * Lists are checked against the clusters on the host.  Where all members of a cluster are one key and one value, the
 * mean stands for them exactly, and the rows must be those of dense attention. */
#include "attend_problem.cuh"

enum kind { SPARSE, ADD, RECORD };
static const char *const kind_names[] = { "sparse", "add", "record" };

enum shape {
    EVEN,     /* labels drawn alike */
    LOPSIDED, /* half of the keys in one cluster, every third cluster empty */
    RUNS,     /* neighbours together */
    ALIKE     /* EVEN, and all members of a cluster are the same */
};
static const char *const shape_names[] = { "even", "lopsided", "runs", "alike" };

enum keep { KEEP_FULL /* clusters in random order while they fit */, KEEP_HALF /* of the room */, KEEP_NONE };
static const char *const keep_names[] = { "full", "half", "none" };

typedef struct test_case {
    enum kind kind;
    mcsa_dtype dtype;
    int D, H, N, K, P;
    enum view view;
    enum shape shape;
    enum keep keep;
} test_case;

/* A selection on the device, and the host's copy of it. */
typedef struct choice {
    mcsa_selection on_device, host;
    check_buffer memory[4]; /* order, members, first, kept */
} choice;

/* members and first of one head */
static void cluster_head(int32_t *members, int32_t *first, const test_case *t, uint64_t seed)
{
    int32_t *label = (int32_t *)check_alloc(sizeof *label * (size_t)t->N);
    memset(first, 0, sizeof *first * ((size_t)t->P + 1));
    for (int j = 0; j < t->N; j++) {
        int p = t->shape == RUNS ? (int)((int64_t)j * t->P / t->N) : (int)check_below(&seed, t->P);
        if (t->shape == LOPSIDED && t->P > 1) p = check_below(&seed, 2) ? t->P / 2 : p - (p % 3 == 1);
        label[j] = p;
        first[p + 1]++;
    }
    for (int p = 0; p < t->P; p++) first[p + 1] += first[p];
    int32_t *next = (int32_t *)check_alloc(sizeof *next * (size_t)t->P);
    memcpy(next, first, sizeof *next * (size_t)t->P);
    for (int j = 0; j < t->N; j++) members[next[label[j]]++] = j;
    free(next);
    free(label);
}

/* Keeps clusters of a head for one group, as selection does but in random order. */
static void keep_group(uint64_t *kept, const int32_t *first, int32_t *walk, const test_case *t, uint64_t seed)
{
    int rows = 0;
    for (int p = 0; p < t->P; p++) {
        int at = (int)check_below(&seed, p + 1);
        walk[p] = walk[at];
        walk[at] = p;
        rows += first[p + 1] > first[p];
    }
    int room = t->keep == KEEP_NONE ? rows : t->keep == KEEP_HALF ? (rows + t->K) / 2 : t->K;
    memset(kept, 0, sizeof *kept * (((size_t)t->P + 63) / 64));
    for (int i = 0; i < t->P; i++) {
        int p = walk[i], size = first[p + 1] - first[p];
        if (size == 0 || rows + size - 1 > room || t->keep == KEEP_NONE) continue;
        rows += size - 1;
        kept[p / 64] |= (uint64_t)1 << p % 64;
    }
}

static choice choice_make(const test_case *t, uint64_t seed)
{
    choice c = {};
    mcsa_selection *s = &c.host;
    s->H = t->H, s->N = t->N, s->C = MCSA_CUDA_C, s->G = (t->N + s->C - 1) / s->C, s->K = t->K, s->P = t->P;
    s->words = (t->P + 63) / 64;
    size_t keys = (size_t)t->H * t->N, firsts = (size_t)t->H * (t->P + 1), words = (size_t)t->H * s->G * s->words;
    s->members = (int32_t *)check_alloc(sizeof *s->members * keys);
    s->first = (int32_t *)check_alloc(sizeof *s->first * firsts);
    s->kept = (uint64_t *)check_alloc(sizeof *s->kept * words);
    int32_t *walk = (int32_t *)check_alloc(sizeof *walk * (size_t)t->P);
    for (int h = 0; h < t->H; h++) {
        int32_t *first = s->first + (int64_t)h * (t->P + 1);
        cluster_head(s->members + (int64_t)h * t->N, first, t, mix(seed + h));
        for (int g = 0; g < s->G; g++)
            keep_group(s->kept + ((int64_t)h * s->G + g) * s->words, first, walk, t, mix(seed + h) + g);
    }
    free(walk);
    c.memory[0] = order_make(t->H, t->N, seed);
    c.memory[1] = check_buffer_make(sizeof *s->members * keys);
    c.memory[2] = check_buffer_make(sizeof *s->first * firsts);
    c.memory[3] = check_buffer_make(sizeof *s->kept * words);
    check_upload(&c.memory[1], s->members);
    check_upload(&c.memory[2], s->first);
    check_upload(&c.memory[3], s->kept);
    s->order = (int32_t *)check_alloc(sizeof *s->order * keys);
    check_download(s->order, &c.memory[0]);
    c.on_device = *s;
    c.on_device.order = (int32_t *)c.memory[0].data;
    c.on_device.members = (int32_t *)c.memory[1].data;
    c.on_device.first = (int32_t *)c.memory[2].data;
    c.on_device.kept = (uint64_t *)c.memory[3].data;
    return c;
}

static void choice_free(choice *c)
{
    for (int i = 0; i < 4; i++) check_buffer_free(&c->memory[i]);
    free(c->host.order);
    free(c->host.members);
    free(c->host.first);
    free(c->host.kept);
}

/* The list that a group is due. */
static void list_of(int32_t *list, int64_t pitch, const mcsa_selection *s, int64_t group)
{
    int64_t head = group / s->G, at = 0;
    const int32_t *first = s->first + head * (s->P + 1), *members = s->members + head * s->N;
    const uint64_t *kept = s->kept + group * s->words;
    for (int p = 0; p < s->P; p++)
        if (kept[p / 64] >> p % 64 & 1)
            for (int i = first[p]; i < first[p + 1]; i++) list[at++] = members[i];
    for (int p = 0; p < s->P; p++)
        if (!(kept[p / 64] >> p % 64 & 1) && first[p + 1] > first[p]) list[at++] = s->N + p;
    while (at < pitch) list[at++] = -1;
}

/* Means by their definition: one thread a column. */
static __global__ void mean_kernel(mcsa_tensor x, mcsa_tensor mean, const int32_t *members, const int32_t *first)
{
    int64_t p = blockIdx.x, h = blockIdx.y, d = threadIdx.x, P = mean.shape[1], N = x.shape[1];
    int begin = first[h * (P + 1) + p], end = first[h * (P + 1) + p + 1];
    float sum = 0;
    for (int i = begin; i < end; i++) sum += (float)element(x, h, members[h * N + i], d);
    if (begin == end) return;
    int64_t at = (h * P + p) * x.shape[2] + d;
    if (x.dtype == MCSA_BF16)
        ((__nv_bfloat16 *)mean.data)[at] = __float2bfloat16_rn(sum / (float)(end - begin));
    else
        ((__half *)mean.data)[at] = __float2half_rn(sum / (float)(end - begin));
}

/* Every member becomes the first of its cluster. */
static __global__ void alike_kernel(mcsa_tensor x, int P, const int32_t *members, const int32_t *first)
{
    int64_t p = blockIdx.x, h = blockIdx.y, d = threadIdx.x, N = x.shape[1];
    int begin = first[h * (P + 1) + p], end = first[h * (P + 1) + p + 1];
    uint16_t *row = (uint16_t *)x.data + h * x.stride[0] + d;
    for (int i = begin + 1; i < end; i++)
        row[members[h * N + i] * x.stride[1]] = row[members[h * N + begin] * x.stride[1]];
}

typedef struct problem {
    mcsa_tensor q, k, v, out, residual;
    check_buffer memory[5], scratch, means[2];
    choice chosen;
    truth_means mean;
    mcsa_residual_rows rows;
    mcsa_qkv x;
} problem;

static void problem_make(problem *p, const test_case *t, uint64_t seed)
{
    memset(p, 0, sizeof *p);
    mcsa_tensor *tensors[] = { &p->q, &p->k, &p->v, &p->out };
    for (int i = 0; i < 4; i++) {
        *tensors[i] = tensor_make(t->dtype, t->H, t->N, t->D, t->view, &p->memory[i]);
        fill(tensors[i], i < 3 || t->kind == RECORD ? FILL_NORMAL : FILL_NAN, seed + i);
    }
    p->residual = tensor_make(MCSA_BF16, t->H, t->N, t->D, VIEW_HND, &p->memory[4]);
    fill(&p->residual, t->kind == ADD ? FILL_NORMAL : FILL_NAN, seed + 4);
    p->rows = { t->kind == SPARSE ? MCSA_RESIDUAL_OFF : MCSA_RESIDUAL_BF16, p->residual.data, t->kind == RECORD };
    p->x = { &p->q, &p->k, &p->v, &p->out, { t->H, t->N, t->N, t->D, t->dtype }, 1 / sqrtf((float)t->D) };
    p->scratch = check_buffer_make(mcsa_cuda_attend_tokens_bytes(&p->x.dims, t->K, t->P));
    p->chosen = choice_make(t, seed + 5);
    const mcsa_selection *s = &p->chosen.on_device;
    p->mean.k = tensor_make(t->dtype, t->H, t->P, t->D, VIEW_HND, &p->means[0]);
    p->mean.v = tensor_make(t->dtype, t->H, t->P, t->D, VIEW_HND, &p->means[1]);
    p->mean.first = s->first;
    p->mean.N = t->N;
    const mcsa_tensor *of[] = { &p->k, &p->v }, *means[] = { &p->mean.k, &p->mean.v };
    for (int i = 0; i < 2; i++) {
        if (t->shape == ALIKE) alike_kernel<<<dim3(t->P, t->H), t->D>>>(*of[i], t->P, s->members, s->first);
        mean_kernel<<<dim3(t->P, t->H), t->D>>>(*of[i], *means[i], s->members, s->first);
        CHECK_CUDA(cudaGetLastError());
    }
}

static void problem_free(problem *p)
{
    for (int i = 0; i < 5; i++) check_buffer_free(&p->memory[i]);
    for (int i = 0; i < 2; i++) check_buffer_free(&p->means[i]);
    check_buffer_free(&p->scratch);
    choice_free(&p->chosen);
}

static void problem_run(problem *p)
{
    CHECK_CUDA(mcsa_cuda_attend_tokens(&p->x, &p->chosen.on_device, &p->rows, p->scratch.data, 0));
}

static int64_t list_pitch(int K)
{
    return ((int64_t)K + MCSA_CUDA_KEY_BLOCK - 1) / MCSA_CUDA_KEY_BLOCK * MCSA_CUDA_KEY_BLOCK;
}

/* Every row, or `limit` of them, the first and the last among them, with the lists that the kernel used.  Returns the
 * samples; *wrong counts the numbers in their lists that are not due. */
static sample *samples_choose(int *count, int64_t *wrong, const problem *p, const test_case *t, int limit)
{
    const mcsa_selection *s = &p->chosen.host;
    int64_t rows = (int64_t)t->H * t->N, pitch = list_pitch(t->K);
    sample *samples = (sample *)check_alloc(sizeof *samples * (size_t)(rows < limit ? rows : limit));
    int32_t *due = (int32_t *)check_alloc(sizeof *due * (size_t)pitch * 2), *got = due + pitch;
    int64_t before = -1;
    *count = (int)(rows < limit ? rows : limit);
    *wrong = 0;
    for (int i = 0; i < *count; i++) {
        int64_t place = rows == *count ? i : i == 0 ? 0 : i == 1 ? rows - 1 : (int64_t)(mix(rows + i) % rows);
        int64_t group = place / t->N * s->G + place % t->N / MCSA_CUDA_C;
        const int32_t *list = (const int32_t *)p->scratch.data + group * pitch;
        samples[i] = { (int)(place / t->N), s->order[place], t->shape == ALIKE ? NULL : list, place };
        if (group == before) continue;
        before = group;
        list_of(due, pitch, s, group);
        CHECK_CUDA(cudaMemcpy(got, list, sizeof *got * (size_t)pitch, cudaMemcpyDeviceToHost));
        for (int64_t j = 0; j < pitch; j++) *wrong += got[j] != due[j];
    }
    free(due);
    return samples;
}

/* Worst percent of the bound, or infinity. */
static double rows_worst(const problem *p, const test_case *t, const sample *samples, int count)
{
    const double u_in = t->dtype == MCSA_BF16 ? 0x1p-8 : 0x1p-11;
    const mcsa_tensor *result = t->kind == RECORD ? &p->residual : &p->out;
    double worst = 0;
    truth *truths = truth_of(&p->x, &p->mean, samples, count, t->shape == ALIKE ? t->N : t->K);
    for (int i = 0; i < count; i++) {
        const sample *s = &samples[i];
        int64_t in_group = s->residual_row % t->N;
        double got[128], other[128] = {};
        row_read(got, result, s->h, t->kind == RECORD ? in_group : s->i);
        if (t->kind == ADD) row_read(other, &p->residual, s->h, in_group);
        if (t->kind == RECORD) row_read(other, &p->out, s->h, s->i);
        /* the largest cluster may weigh N keys, and where the truth is dense it does not know */
        double reach = truths[i].reach + (t->shape == ALIKE ? log((double)t->N) / p->x.scale : 0);
        const judge j = { p->x.scale * reach * t->D * 0x1p-24, (double)t->K, u_in, t->kind == RECORD ? 0x1p-8 : u_in,
                          t->kind == RECORD ? -1 : 1 };
        worst = fmax(worst, judge_row(&j, &truths[i], got, other, t->D));
    }
    free(truths);
    return 100 * worst;
}

static void problem_check(problem *p, const test_case *t, int limit)
{
    mcsa_tensor *result = t->kind == RECORD ? &p->residual : &p->out;
    check_buffer *memory = t->kind == RECORD ? &p->memory[4] : &p->memory[3];
    check_buffer spare = check_buffer_make(memory->bytes);
    int64_t wrong;
    int count;
    problem_run(p);
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_CUDA(cudaMemcpy(spare.data, memory->data, memory->bytes, cudaMemcpyDeviceToDevice));
    mcsa_tensor first = *result;
    first.data = (char *)spare.data + ((char *)result->data - (char *)memory->data);
    fill(result, FILL_NAN, 0);
    check_buffer_poison(&p->scratch);
    problem_run(p);
    CHECK_CUDA(cudaDeviceSynchronize());
    int64_t changed = differ(&first, result);
    check_buffer_free(&spare);
    sample *samples = samples_choose(&count, &wrong, p, t, limit);
    double percent = rows_worst(p, t, samples, count);
    int good = percent <= 100 && !changed && !wrong;
    printf(
        "%-6s %s D %3d H %2d N %6d K %6d P %5d %-5s %-8s %s: %5.1f %% of bound, rows %5d, changed %lld, lists %lld %s\n",
        kind_names[t->kind], t->dtype == MCSA_BF16 ? "bf16" : "fp16", t->D, t->H, t->N, t->K, t->P, view_names[t->view],
        shape_names[t->shape], keep_names[t->keep], percent, count, (long long)changed, (long long)wrong,
        good ? "ok" : "FAIL");
    fflush(stdout);
    free(samples);
    CHECK_TRUE(good, "the line above");
}

static void case_run(test_case t, int limit)
{
    static uint64_t seed = 11;
    problem p;
    problem_make(&p, &t, seed = mix(seed));
    problem_check(&p, &t, limit);
    problem_free(&p);
}

static int clusters_for(int K)
{
    return K < 6 ? 1 : K / 3;
}

static void all_cases(void)
{
    const int sizes[] = { 1, 63, 129, 1000, 4097 };
    const mcsa_dtype dtypes[] = { MCSA_BF16, MCSA_F16 };
    for (int type = 0; type < 2; type++)
        for (int D = 64; D <= 128; D += 64)
            for (int i = 0; i < 5; i++) {
                int N = sizes[i], all = 12291, K = N * 3 / 10 + 1, P = clusters_for(K), most = N < 2 ? 1 : N / 2;
                mcsa_dtype dtype = dtypes[type];
                case_run({ SPARSE, dtype, D, 2, N, K, P, VIEW_HND, EVEN, KEEP_FULL }, all);
                case_run({ ADD, dtype, D, 3, N, K, P, VIEW_NHD, LOPSIDED, KEEP_FULL }, all);
                case_run({ RECORD, dtype, D, 2, N, K, P, VIEW_FUSED, RUNS, KEEP_HALF }, all);
                case_run({ SPARSE, dtype, D, 2, N, N, most, VIEW_HND, EVEN, KEEP_NONE }, all);
                case_run({ ADD, dtype, D, 2, N, N, most, VIEW_HND, LOPSIDED, KEEP_FULL }, all);
                case_run({ RECORD, dtype, D, 2, N, K, 1, VIEW_HND, EVEN, KEEP_FULL }, all);
                case_run({ SPARSE, dtype, D, 2, N, K, P, VIEW_HND, ALIKE, KEEP_FULL }, all);
                case_run({ ADD, dtype, D, 2, N, N, P, VIEW_NHD, ALIKE, KEEP_HALF }, all);
            }
    for (int K = 175; K <= 177; K++) { /* about one block of keys, and two */
        case_run({ SPARSE, MCSA_BF16, 128, 1, 500, K, 3, VIEW_HND, RUNS, KEEP_FULL }, 500);
        case_run({ ADD, MCSA_BF16, 128, 1, 500, 176 + K, K / 2, VIEW_HND, EVEN, KEEP_FULL }, 500);
        case_run({ SPARSE, MCSA_BF16, 64, 1, K, K, K / 2, VIEW_HND, EVEN, KEEP_FULL }, 500);
    }
    case_run({ ADD, MCSA_BF16, 128, 2, 1000, 300, 100, VIEW_FAR_HEADS, EVEN, KEEP_FULL }, 2000);
    case_run({ ADD, MCSA_BF16, 128, 2, 2200, 600, 200, VIEW_FAR_ROWS, EVEN, KEEP_FULL }, 4400);
    case_run({ ADD, MCSA_BF16, 128, 3, 32760, 4914, 1638, VIEW_HND, LOPSIDED, KEEP_FULL }, 256);
    case_run({ RECORD, MCSA_BF16, 128, 2, 75600, 11340, 3780, VIEW_NHD, EVEN, KEEP_FULL }, 256);
    case_run({ ADD, MCSA_F16, 128, 2, 75600, 37800, 8192, VIEW_HND, RUNS, KEEP_FULL }, 128);
}

/* More blocks of keys than the ring of stages holds: with means, with padding alone, and with keys alone. */
static void few_cases(void)
{
    for (int D = 64; D <= 128; D += 64) {
        case_run({ SPARSE, MCSA_BF16, D, 1, 900, 700, 230, VIEW_HND, EVEN, KEEP_FULL }, 8);
        case_run({ ADD, MCSA_BF16, D, 1, 900, 900, 230, VIEW_HND, LOPSIDED, KEEP_NONE }, 8);
        case_run({ RECORD, MCSA_BF16, D, 1, 900, 900, 20, VIEW_HND, EVEN, KEEP_FULL }, 8);
    }
}

/* Speed. */

static int float_less(const void *a, const void *b)
{
    return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
}

enum part { WHOLE, LISTS, MEANS };

static void part_run(problem *p, enum part part, const mcsa_cuda_lists *lists)
{
    if (part == WHOLE) problem_run(p);
    if (part == LISTS) CHECK_CUDA(mcsa_cuda_expand_clusters(&p->chosen.on_device, p->x.scale, lists, 0));
    if (part == MEANS) {
        CHECK_CUDA(mcsa_cuda_means(&p->k, &p->chosen.on_device, p->means[0].data, 0));
        CHECK_CUDA(mcsa_cuda_means(&p->v, &p->chosen.on_device, p->means[1].data, 0));
    }
}

/* Median milliseconds. */
static float part_time(problem *p, enum part part, const mcsa_cuda_lists *lists)
{
    enum { REPEATS = 11 };
    float ms[REPEATS];
    cudaEvent_t from, to;
    CHECK_CUDA(cudaEventCreate(&from));
    CHECK_CUDA(cudaEventCreate(&to));
    for (int i = -2; i < REPEATS; i++) {
        CHECK_CUDA(cudaEventRecord(from));
        part_run(p, part, lists);
        CHECK_CUDA(cudaEventRecord(to));
        CHECK_CUDA(cudaEventSynchronize(to));
        if (i >= 0) CHECK_CUDA(cudaEventElapsedTime(&ms[i], from, to));
    }
    CHECK_CUDA(cudaEventDestroy(from));
    CHECK_CUDA(cudaEventDestroy(to));
    qsort(ms, REPEATS, sizeof *ms, float_less);
    return ms[REPEATS / 2];
}

static void time_case(test_case t)
{
    problem p;
    problem_make(&p, &t, mix(t.N + t.K + t.shape));
    problem_check(&p, &t, 64);
    if (check_failures) exit(1); /* a wrong kernel has no speed */
    size_t groups = (size_t)t.H * p.chosen.host.G;
    check_buffer plain = check_buffer_make(groups * 4), bias = check_buffer_make(sizeof(float) * t.H * (t.P + 1));
    const mcsa_cuda_lists lists = { (int32_t *)p.scratch.data, list_pitch(t.K), (int32_t *)plain.data,
                                    (float *)bias.data };
    float whole = part_time(&p, WHOLE, NULL), lists_ms = part_time(&p, LISTS, &lists);
    float means_ms = part_time(&p, MEANS, NULL);
    printf("TIME N %6d K %6d P %5d %-5s: %8.3f ms, of which lists %6.3f, means of k and v %6.3f\n", t.N, t.K, t.P,
           shape_names[t.shape], whole, lists_ms, means_ms);
    fflush(stdout);
    check_buffer_free(&plain);
    check_buffer_free(&bias);
    problem_free(&p);
}

/* attend_test time has the same K without means. */
static void time_all(void)
{
    const int sizes[] = { 32760, 75600 }, percents[] = { 10, 15 };
    for (int i = 0; i < 2; i++)
        for (int d = 0; d < 2; d++) {
            int N = sizes[i], K = N * percents[d] / 100;
            time_case({ ADD, MCSA_BF16, 128, 40, N, K, K / 3, VIEW_HND, EVEN, KEEP_FULL });
            time_case({ ADD, MCSA_BF16, 128, 40, N, K, K / 3, VIEW_HND, RUNS, KEEP_FULL });
        }
}

int main(int count, char **words)
{
    const char *mode = count > 1 ? words[1] : "all";
    check_gpu();
    if (!strcmp(mode, "time"))
        time_all();
    else if (!strcmp(mode, "few"))
        few_cases();
    else
        all_cases();
    return check_done("attend_means");
}
