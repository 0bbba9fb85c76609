/* attend_test.cu - dense and token-sparse attention against double precision, and their speed.
 *
 *     attend_test          every case: percent of the bound used, NaN never passes, the same bits twice
 *     attend_test quick    the small cases, for a memory checker
 *     attend_test few      eight cases of several blocks of keys, for a race checker
 *     attend_test time     milliseconds and TFLOP/s at 32,760 and 75,600 tokens, after a check of sampled rows
 *
 * The bound: attend_problem.cuh. */
#include "attend_problem.cuh"

enum pattern { PATTERN_RANDOM, PATTERN_RUN };

/* Exactly K of N keys for each group: drawn one by one, or one run. */
static __global__ void keep_kernel(uint64_t *kept, int64_t rows, int64_t words, int N, int K, pattern pattern,
                                   uint64_t seed)
{
    int64_t row = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (row >= rows) return;
    int64_t start = mix(seed ^ row) % (N - K + 1);
    int taken = 0;
    for (int64_t w = 0; w < words; w++) {
        uint64_t bits = 0;
        for (int64_t j = w * 64; j < w * 64 + 64 && j < N; j++) {
            int take = pattern == PATTERN_RUN
                           ? j >= start && j < start + K
                           : (mix(seed ^ mix(row * N + j)) >> 32) * (uint64_t)(N - j) >> 32 < (uint64_t)(K - taken);
            taken += take;
            bits |= (uint64_t)take << (j & 63);
        }
        kept[row * words + w] = bits;
    }
}

static mcsa_selection selection_make(int H, int N, int K, enum pattern pattern, uint64_t seed, check_buffer *memory)
{
    mcsa_selection s = {};
    s.H = H, s.N = N, s.C = MCSA_CUDA_C, s.G = (N + s.C - 1) / s.C, s.K = K, s.words = (N + 63) / 64;
    memory[0] = order_make(H, N, seed);
    memory[1] = check_buffer_make((size_t)H * s.G * s.words * 8);
    s.order = (int32_t *)memory[0].data;
    s.kept = (uint64_t *)memory[1].data;
    int64_t rows = (int64_t)H * s.G;
    keep_kernel<<<(rows + 63) / 64, 64>>>(s.kept, rows, s.words, N, K, pattern, seed);
    CHECK_CUDA(cudaGetLastError());
    return s;
}

/* Cases. */

enum kind { DENSE, SPARSE, ADD, RECORD };
static const char *const kind_names[] = { "dense", "sparse", "add", "record" };

typedef struct test_case {
    enum kind kind;
    mcsa_dtype dtype;
    int D, H, N, M; /* M: keys of DENSE, kept keys of the others */
    enum view view;
    enum fill inputs;
    enum pattern pattern;
} test_case;

typedef struct problem {
    mcsa_tensor q, k, v, out, again, residual;       /* residual: [H, N, D] BF16 */
    check_buffer memory[5], chosen[2], scratch, lse; /* memory: of q, k, v, out, residual */
    mcsa_selection selection;
    mcsa_residual_rows rows;
    mcsa_qkv x;
} problem;

static void problem_make(problem *p, const test_case *t, uint64_t seed)
{
    int keys = t->kind == DENSE ? t->M : t->N;
    memset(p, 0, sizeof *p);
    p->q = tensor_make(t->dtype, t->H, t->N, t->D, t->view, &p->memory[0]);
    p->k = tensor_make(t->dtype, t->H, keys, t->D, t->view, &p->memory[1]);
    p->v = tensor_make(t->dtype, t->H, keys, t->D, t->view, &p->memory[2]);
    p->out = tensor_make(t->dtype, t->H, t->N, t->D, t->view, &p->memory[3]);
    fill(&p->q, t->inputs, seed);
    fill(&p->k, t->inputs, seed + 1);
    fill(&p->v, FILL_NORMAL, seed + 2);
    fill(&p->out, FILL_NAN, 0);
    p->lse = check_buffer_make((size_t)t->H * t->N * 4);
    p->x = { &p->q, &p->k, &p->v, &p->out, { t->H, t->N, keys, t->D, t->dtype }, 1 / sqrtf((float)t->D) };
    if (t->kind == DENSE) return;
    p->selection = selection_make(t->H, t->N, t->M, t->pattern, seed + 3, p->chosen);
    p->scratch = check_buffer_make(mcsa_cuda_attend_tokens_bytes(&p->x.dims, t->M, 0));
    p->residual = tensor_make(MCSA_BF16, t->H, t->N, t->D, VIEW_HND, &p->memory[4]);
    fill(&p->residual, t->kind == ADD ? FILL_NORMAL : FILL_NAN, seed + 4);
    if (t->kind == RECORD) fill(&p->out, FILL_NORMAL, seed + 5);
    p->rows = { t->kind == SPARSE ? MCSA_RESIDUAL_OFF : MCSA_RESIDUAL_BF16, p->residual.data, t->kind == RECORD };
}

static void problem_free(problem *p)
{
    for (int i = 0; i < 5; i++) check_buffer_free(&p->memory[i]);
    for (int i = 0; i < 2; i++) check_buffer_free(&p->chosen[i]);
    check_buffer_free(&p->scratch);
    check_buffer_free(&p->lse);
}

static void problem_run(problem *p, enum kind kind)
{
    if (kind == DENSE)
        CHECK_CUDA(mcsa_cuda_attend_dense(&p->x, (float *)p->lse.data, 0));
    else
        CHECK_CUDA(mcsa_cuda_attend_tokens(&p->x, &p->selection, &p->rows, p->scratch.data, 0));
}

/* Every row, or `limit` of them spread over all heads, the first and the last among them. */
static int samples_choose(sample *samples, const problem *p, const test_case *t, int limit)
{
    int64_t rows = (int64_t)t->H * t->N, pitch = ((int64_t)t->M + 127) / 128 * 128;
    int count = (int)(rows < limit ? rows : limit);
    int32_t *order = (int32_t *)check_alloc(rows * 4);
    if (t->kind != DENSE) CHECK_CUDA(cudaMemcpy(order, p->selection.order, rows * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < count; i++) {
        int64_t place = rows == count ? i : i == 0 ? 0 : i == 1 ? rows - 1 : (int64_t)(mix(rows + i) % rows);
        int h = (int)(place / t->N), n = (int)(place % t->N);
        samples[i] = { h, n, NULL, place };
        if (t->kind == DENSE) continue;
        samples[i].i = order[place];
        samples[i].keys = (const int32_t *)p->scratch.data + ((int64_t)h * p->selection.G + n / MCSA_CUDA_C) * pitch;
    }
    free(order);
    return count;
}

/* The lists that the kernel used: those of the bitmap, ascending, then -1. */
static int64_t lists_wrong(const problem *p, const test_case *t, int64_t limit)
{
    const mcsa_selection *s = &p->selection;
    int64_t pitch = ((int64_t)t->M + 127) / 128 * 128, wrong = 0, rows = (int64_t)s->H * s->G;
    uint64_t *kept = (uint64_t *)check_alloc(s->words * 8);
    int32_t *list = (int32_t *)check_alloc(pitch * 4);
    for (int64_t r = 0; r<rows; r += rows> limit ? rows / limit : 1) {
        CHECK_CUDA(cudaMemcpy(kept, s->kept + r * s->words, s->words * 8, cudaMemcpyDeviceToHost));
        CHECK_CUDA(cudaMemcpy(list, (int32_t *)p->scratch.data + r * pitch, pitch * 4, cudaMemcpyDeviceToHost));
        int64_t at = 0;
        for (int j = 0; j < t->N; j++)
            if (kept[j / 64] >> j % 64 & 1) wrong += at >= pitch || list[at] != j, at++;
        wrong += at != t->M;
        for (; at < pitch; at++) wrong += list[at] != -1;
    }
    free(kept);
    free(list);
    return wrong;
}

static void problem_check(problem *p, const test_case *t, int limit)
{
    const double u_in = t->dtype == MCSA_BF16 ? 0x1p-8 : 0x1p-11, n = t->M;
    const mcsa_tensor *result = t->kind == RECORD ? &p->residual : &p->out;
    sample *samples = (sample *)check_alloc((size_t)limit * sizeof(sample));
    double worst = 0, worst_lse = 0;
    int64_t bad = 0;
    int count;

    check_buffer spare;
    mcsa_tensor added = p->residual, first;
    first = tensor_make(result->dtype, t->H, t->N, t->D, VIEW_HND, &spare);
    problem_run(p, t->kind);
    CHECK_CUDA(cudaDeviceSynchronize());
    for (int h = 0; h < t->H; h++)
        CHECK_CUDA(cudaMemcpy2D((uint16_t *)first.data + h * first.stride[0], first.stride[1] * 2,
                                (uint16_t *)result->data + h * result->stride[0], result->stride[1] * 2, t->D * 2, t->N,
                                cudaMemcpyDeviceToDevice));
    fill(result, FILL_NAN, 0);
    problem_run(p, t->kind);
    CHECK_CUDA(cudaDeviceSynchronize());
    int64_t changed = differ(&first, result);
    check_buffer_free(&spare);

    count = samples_choose(samples, p, t, limit);
    int64_t lists = t->kind == DENSE ? 0 : lists_wrong(p, t, 64);
    truth *truths = truth_of(&p->x, NULL, samples, count, t->M);
    for (int i = 0; i < count; i++) {
        const truth *w = &truths[i];
        const sample *s = &samples[i];
        int64_t in_group = s->residual_row % t->N;
        double got[128], other[128] = {};
        row_read(got, result, s->h, t->kind == RECORD ? in_group : s->i);
        if (t->kind == ADD) row_read(other, &added, s->h, in_group);
        if (t->kind == RECORD) row_read(other, &p->out, s->h, s->i);
        double ds = t->inputs == FILL_INTEGERS ? 0 : p->x.scale * w->reach * t->D * 0x1p-24;
        const judge j = { ds, n, u_in, t->kind == RECORD ? 0x1p-8 : u_in, t->kind == RECORD ? -1 : 1 };
        double used = judge_row(&j, w, got, other, t->D);
        bad += !(used <= 1);
        worst = used > worst ? used : worst;
        if (t->kind == DENSE) {
            float lse;
            CHECK_CUDA(cudaMemcpy(&lse, (float *)p->lse.data + s->residual_row, 4, cudaMemcpyDeviceToHost));
            used = fabs(lse - w->lse) / (ds + n * 0x1p-24 + 0x1p-16 + 0x1p-21 * fabs(w->lse));
            bad += !(used <= 1);
            worst_lse = used > worst_lse ? used : worst_lse;
        }
    }
    printf("%-6s %s D %3d H %2d N %6d %s %6d %-5s %s %s: %5.1f %% of bound, lse %5.1f %%, rows %5d, changed %lld, "
           "lists %lld, bad %lld %s\n",
           kind_names[t->kind], t->dtype == MCSA_BF16 ? "bf16" : "fp16", t->D, t->H, t->N, t->kind == DENSE ? "M" : "K",
           t->M, view_names[t->view], t->inputs == FILL_INTEGERS ? "to300" : "normal",
           t->pattern == PATTERN_RUN ? "run" : "random", 100 * worst, 100 * worst_lse, count, (long long)changed,
           (long long)lists, (long long)bad, bad || changed || lists ? "FAIL" : "ok");
    fflush(stdout);
    free(truths);
    free(samples);
    CHECK_TRUE(!bad && !changed && !lists, "the line above");
}

static void case_run(test_case t, int limit)
{
    static uint64_t seed = 1;
    problem p;
    problem_make(&p, &t, seed = mix(seed));
    problem_check(&p, &t, limit);
    problem_free(&p);
}

static void all_cases(int quick)
{
    const int sizes[] = { 1, 63, 127, 129, 1000, 4097 };
    const mcsa_dtype dtypes[] = { MCSA_BF16, MCSA_F16 };
    for (int type = 0; type < 2; type++)
        for (int D = 64; D <= 128; D += 64)
            for (int i = 0; i < (quick ? 4 : 6); i++) {
                int N = sizes[i], all = 8194, K = N * 3 / 10 + 1;
                mcsa_dtype dtype = dtypes[type];
                case_run({ DENSE, dtype, D, 2, N, N, VIEW_HND, FILL_NORMAL }, all);
                case_run({ DENSE, dtype, D, 3, N, 77, VIEW_NHD, FILL_NORMAL }, quick ? 64 : all);
                case_run({ SPARSE, dtype, D, 2, N, K, VIEW_HND, FILL_NORMAL }, all);
                case_run({ ADD, dtype, D, 3, N, K, VIEW_NHD, FILL_NORMAL, PATTERN_RUN }, all);
                case_run({ RECORD, dtype, D, 2, N, N, VIEW_FUSED, FILL_NORMAL }, all);
                if (quick) continue;
                case_run({ DENSE, dtype, D, 2, N, 513, VIEW_FUSED, FILL_INTEGERS }, all);
                case_run({ SPARSE, dtype, D, 2, N, K, VIEW_HND, FILL_INTEGERS }, all);
            }
    if (quick) return;
    case_run({ DENSE, MCSA_BF16, 128, 2, 1000, 1000, VIEW_FAR_HEADS, FILL_NORMAL }, 2000);
    case_run({ DENSE, MCSA_BF16, 128, 2, 2200, 2200, VIEW_FAR_ROWS, FILL_NORMAL }, 4400);
    case_run({ ADD, MCSA_BF16, 128, 2, 1000, 300, VIEW_FAR_HEADS, FILL_NORMAL }, 2000);
    case_run({ ADD, MCSA_BF16, 128, 2, 2200, 600, VIEW_FAR_ROWS, FILL_NORMAL }, 4400);
    case_run({ DENSE, MCSA_BF16, 128, 3, 32760, 32760, VIEW_HND, FILL_NORMAL }, 256);
    case_run({ DENSE, MCSA_BF16, 128, 2, 75600, 75600, VIEW_NHD, FILL_NORMAL }, 256);
    case_run({ DENSE, MCSA_BF16, 128, 1, 118800, 118800, VIEW_HND, FILL_NORMAL }, 128);
    case_run({ ADD, MCSA_BF16, 128, 3, 32760, 4914, VIEW_HND, FILL_NORMAL }, 256);
    case_run({ RECORD, MCSA_BF16, 128, 2, 75600, 11340, VIEW_NHD, FILL_NORMAL }, 256);
    case_run({ ADD, MCSA_F16, 128, 2, 75600, 11340, VIEW_HND, FILL_NORMAL }, 256);
}

/* Every kernel with more blocks of keys than its ring of stages holds, and a ragged last one. */
static void few_cases(void)
{
    const enum kind kinds[] = { DENSE, SPARSE, ADD, RECORD };
    for (int D = 64; D <= 128; D += 64)
        for (int i = 0; i < 4; i++)
            case_run({ kinds[i], MCSA_BF16, D, 1, kinds[i] == DENSE ? 200 : 900, 700, VIEW_HND, FILL_NORMAL }, 8);
}

/* Speed. */

static void time_case(test_case t, int repeats)
{
    problem p;
    float ms[64];
    cudaEvent_t from, to;
    CHECK_CUDA(cudaEventCreate(&from));
    CHECK_CUDA(cudaEventCreate(&to));
    problem_make(&p, &t, mix(t.N + t.M));
    problem_check(&p, &t, 64);
    if (check_failures) exit(1); /* a wrong kernel has no speed */
    for (int i = -2; i < repeats; i++) {
        CHECK_CUDA(cudaEventRecord(from));
        problem_run(&p, t.kind);
        CHECK_CUDA(cudaEventRecord(to));
        CHECK_CUDA(cudaEventSynchronize(to));
        if (i >= 0) CHECK_CUDA(cudaEventElapsedTime(&ms[i], from, to));
    }
    std::sort(ms, ms + repeats);
    double flop = 4.0 * t.H * t.N * t.M * t.D;
    printf("TIME %-6s H %d N %6d keys %6d %-6s: median %8.3f ms  min %8.3f  max %8.3f  %6.1f TFLOP/s\n",
           kind_names[t.kind], t.H, t.N, t.M, t.pattern == PATTERN_RUN ? "run" : "random", ms[repeats / 2], ms[0],
           ms[repeats - 1], flop / ms[repeats / 2] * 1e-9);
    if (t.kind != DENSE) {
        const mcsa_cuda_lists lists = { (int32_t *)p.scratch.data, ((int64_t)t.M + 127) / 128 * 128 };
        CHECK_CUDA(cudaEventRecord(from));
        CHECK_CUDA(mcsa_cuda_expand(&p.selection, &lists, 0));
        CHECK_CUDA(cudaEventRecord(to));
        CHECK_CUDA(cudaEventSynchronize(to));
        CHECK_CUDA(cudaEventElapsedTime(&ms[0], from, to));
        printf("     of which expand %.3f ms\n", ms[0]);
    }
    fflush(stdout);
    problem_free(&p);
    CHECK_CUDA(cudaEventDestroy(from));
    CHECK_CUDA(cudaEventDestroy(to));
}

static void time_all(void)
{
    const int sizes[] = { 32760, 75600 };
    for (int i = 0; i < 2; i++) {
        int N = sizes[i];
        time_case({ DENSE, MCSA_BF16, 128, 40, N, N, VIEW_HND, FILL_NORMAL }, i ? 5 : 15);
        time_case({ ADD, MCSA_BF16, 128, 40, N, N * 10 / 100, VIEW_HND, FILL_NORMAL, PATTERN_RANDOM }, 15);
        time_case({ ADD, MCSA_BF16, 128, 40, N, N * 15 / 100, VIEW_HND, FILL_NORMAL, PATTERN_RUN }, 15);
        time_case({ ADD, MCSA_BF16, 128, 40, N, N * 15 / 100, VIEW_HND, FILL_NORMAL, PATTERN_RANDOM }, 15);
        time_case({ ADD, MCSA_BF16, 128, 40, N, N * 25 / 100, VIEW_HND, FILL_NORMAL, PATTERN_RANDOM }, 9);
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
        all_cases(!strcmp(mode, "quick"));
    return check_done("attend");
}
