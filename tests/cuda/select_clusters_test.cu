/* select_clusters_test.cu - fold, rank and select by clusters of keys against plain references, then how long they
 * take.
 *
 *     select_clusters_test            all checks
 *     select_clusters_test small      few and small ones, for compute-sanitizer
 *     select_clusters_test time       milliseconds at 75,600 and 32,760 tokens, 40 heads
 *
 * Fold and rank must give the bits of the host, which goes down the ranks cluster by cluster.
 *
 * Select: the test puts the keys into the order of their clusters itself, lets the mass kernel make the masses of
 * those, and folds and ranks them on the host: the clusters kept must be the same.  These worths in turn must be those
 * of the reference, in double by the definition, from the keys as they were.  With n members, masses m within e and u =
 * 2^-24 the bound is sum e / n + (n + 1) u sum (m + e) / n, n - 1 additions and a division, and slack of 1 %. */
#include "select_problem.cuh"

/* Clusters of keys by random labels. */
typedef struct clusters {
    int H, N, P;
    int32_t *members, *first; /* [H, N], [H, P + 1] */
    check_buffer members_data, first_data;
} clusters;

/* SKEWED: sizes are log-normal.  HOLLOW: so are they, and half of the clusters are empty.  HEAVY: one cluster has most
 * of the keys.  ALIKE: keys of one of the 64 directions of a CLUSTERED problem fall into P / 64 clusters. */
enum sizes { SKEWED, HOLLOW, HEAVY, ALIKE, SIZES };

static int label_by(const double *until, int P, double x)
{
    int low = 0, high = P - 1; /* the first p with x < until[p] */
    while (low < high) {
        int middle = (low + high) / 2;
        if (x < until[middle])
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void label_head(int32_t *label, int h, int N, int P, enum sizes sizes, uint64_t seed)
{
    double *until = (double *)check_alloc(sizeof(double) * P), all = 0;
    uint64_t draw = seed * 31 + h;
    int heavy = (int)check_below(&draw, P), few = P >= 64 ? P / 64 : 1;
    for (int p = 0; p < P; p++) {
        double weight = exp(0.7 * check_normal(&draw));
        int none = sizes == HOLLOW && check_below(&draw, 2) && !(p == P - 1 && all == 0);
        until[p] = all += none ? 0 : weight;
    }
    for (int j = 0; j < N; j++) {
        int direction = cluster_of(seed + 1000, h, j); /* keys are made with seed + 1000 */
        label[j] = label_by(until, P, check_uniform(&draw) * all);
        if (sizes == HEAVY && check_below(&draw, 10)) label[j] = heavy;
        if (sizes == ALIKE) label[j] = (int)((direction * few + check_below(&draw, few)) % P);
    }
    free(until);
}

static clusters make_clusters(int H, int N, int P, enum sizes sizes, uint64_t seed)
{
    clusters c = { H, N, P };
    c.members = (int32_t *)check_alloc(sizeof(int32_t) * H * N);
    c.first = (int32_t *)check_alloc(sizeof(int32_t) * H * (P + 1));
    int32_t *label = (int32_t *)check_alloc(sizeof(int32_t) * N), *at = (int32_t *)check_alloc(sizeof(int32_t) * P);
    for (int h = 0; h < H; h++) {
        int32_t *first = c.first + (int64_t)h * (P + 1);
        label_head(label, h, N, P, sizes, seed);
        memset(first, 0, sizeof(int32_t) * (P + 1));
        for (int j = 0; j < N; j++) first[label[j] + 1]++;
        for (int p = 0; p < P; p++) at[p] = first[p + 1] += first[p];
        for (int j = N - 1; j >= 0; j--) c.members[(int64_t)h * N + --at[label[j]]] = j;
    }
    free(label), free(at);
    c.members_data = check_buffer_make(sizeof(int32_t) * H * N);
    c.first_data = check_buffer_make(sizeof(int32_t) * H * (P + 1));
    check_upload(&c.members_data, c.members);
    check_upload(&c.first_data, c.first);
    return c;
}

static void free_clusters(clusters *c)
{
    check_buffer_free(&c->members_data);
    check_buffer_free(&c->first_data);
    free(c->members), free(c->first);
}

static void host_fold(const float *mass, const int32_t *first, int P, float *worth)
{
    for (int p = 0; p < P; p++) {
        float sum = 0;
        for (int j = first[p]; j < first[p + 1]; j++) sum += mass[j];
        worth[p] = first[p + 1] > first[p] ? sum / (float)(first[p + 1] - first[p]) : 0;
    }
}

struct candidate {
    float worth;
    int cluster;
};

static int compare_candidate(const void *a, const void *b)
{
    const candidate *x = (const candidate *)a, *y = (const candidate *)b;
    if (x->worth != y->worth) return x->worth > y->worth ? -1 : 1;
    return x->cluster - y->cluster;
}

static void host_rank(const float *worth, const int32_t *first, int P, int K, uint64_t *bits)
{
    candidate *ranked = (candidate *)check_alloc(sizeof(candidate) * P);
    int count = 0;
    for (int p = 0; p < P; p++)
        if (first[p + 1] > first[p]) ranked[count++] = { worth[p], p };
    qsort(ranked, count, sizeof(candidate), compare_candidate);
    memset(bits, 0, (size_t)(P + 63) / 64 * 8);
    int64_t rows = count;
    for (int r = 0; r < count; r++) {
        int p = ranked[r].cluster, more = first[p + 1] - first[p] - 1;
        if (rows + more > K) continue;
        rows += more;
        bits[p / 64] |= (uint64_t)1 << p % 64;
    }
    free(ranked);
}

/* What must hold of any row, whatever the worths: no bit of an empty cluster or past P, at most K rows unless the means
 * alone are more, and nothing left out that still fits. */
static int admissible(const uint64_t *bits, const int32_t *first, int P, int K)
{
    int64_t rows = 0, smallest = INT64_MAX;
    int good = 1, kept = 0;
    for (int p = 0; p < (P + 63) / 64 * 64; p++) {
        int size = p < P ? first[p + 1] - first[p] : 0, set = bits[p / 64] >> p % 64 & 1;
        good &= size || !set;
        kept += set;
        rows += set ? size : size > 0;
        if (size && !set && size < smallest) smallest = size;
    }
    return good && (rows <= K || !kept) && (smallest == INT64_MAX || rows + smallest - 1 > K);
}

/* Rows made to be difficult, the memory behind each full of NaN. */
static void check_fold(int H, int N, int P, enum sizes sizes)
{
    enum { G = SHAPES - 1 };
    int64_t rows = H * G, pitch = (N + 3) / 4 * 4 + 4 * (N % 3);
    clusters c = make_clusters(H, N, P, sizes, 3 * N + P);
    check_buffer mass = check_buffer_make(rows * pitch * 4), worth = check_buffer_make(rows * P * 4);
    float *host = (float *)check_alloc(rows * pitch * 4), *expected = (float *)check_alloc((size_t)P * 4);
    float *got[2];
    memset(host, CHECK_POISON, rows * pitch * 4);
    for (int64_t r = 0; r < rows; r++)
        for (int j = 0; j < N; j++)
            host[r * pitch + j] = made_up(r % G, word_of(7000 + r, (uint64_t)N << 32 | j), j, N);
    check_upload(&mass, host);
    mcsa_cuda_fold_job job = { (const float *)mass.data, pitch, (const int32_t *)c.first_data.data, rows, G, P,
                               (float *)worth.data };
    for (int run = 0; run < 2; run++) {
        got[run] = (float *)check_alloc(rows * P * 4);
        check_buffer_poison(&worth);
        CHECK_CUDA(mcsa_cuda_fold(&job, 0));
        check_download(got[run], &worth);
    }
    check_same_bits(got[0], got[1], rows * P * 4, "fold");
    int64_t wrong = 0;
    for (int64_t r = 0; r < rows; r++) {
        host_fold(host + r * pitch, c.first + r / G * (P + 1), P, expected);
        wrong += memcmp(expected, got[0] + r * P, (size_t)P * 4) != 0;
    }
    CHECK_TRUE(wrong == 0, "fold, N %d P %d sizes %d: %lld of %lld rows are not the host's", N, P, sizes,
               (long long)wrong, (long long)rows);
    check_buffer_free(&mass);
    check_buffer_free(&worth);
    free(host), free(expected), free(got[0]), free(got[1]);
    free_clusters(&c);
}

/* Runs rank twice and compares every row with the host's. */
static void check_rank_job(const mcsa_cuda_rank_job *rows, const clusters *c, const float *worth)
{
    int P = rows->P, K = rows->K;
    int64_t words = (P + 63) / 64, bytes = rows->rows * words * 8, wrong = 0, bad = 0;
    check_buffer kept = check_buffer_make(bytes);
    uint64_t *bits[2], *expected = (uint64_t *)check_alloc(words * 8);
    mcsa_cuda_rank_job job = *rows;
    job.kept = (uint64_t *)kept.data;
    for (int run = 0; run < 2; run++) {
        bits[run] = (uint64_t *)check_alloc(bytes);
        check_buffer_poison(&kept);
        CHECK_CUDA(mcsa_cuda_rank(&job, 0));
        check_download(bits[run], &kept);
    }
    check_same_bits(bits[0], bits[1], bytes, "rank");
    for (int64_t r = 0; r < job.rows; r++) {
        const int32_t *first = c->first + r / job.G * (P + 1);
        host_rank(worth + r * P, first, P, K, expected);
        wrong += memcmp(expected, bits[0] + r * words, words * 8) != 0;
        bad += !admissible(bits[0] + r * words, first, P, K);
    }
    CHECK_TRUE(wrong == 0, "rank, N %d P %d K %d: %lld of %lld rows are not the host's", c->N, P, K, (long long)wrong,
               (long long)job.rows);
    CHECK_TRUE(bad == 0, "rank, N %d P %d K %d: %lld rows cannot be", c->N, P, K, (long long)bad);
    check_buffer_free(&kept);
    free(bits[0]), free(bits[1]), free(expected);
}

static void check_rank(int H, int N, int P, enum sizes sizes)
{
    enum { G = SHAPES - 1 };
    int64_t rows = H * G;
    clusters c = make_clusters(H, N, P, sizes, 5 * N + P);
    check_buffer worth = check_buffer_make(rows * P * 4);
    float *host = (float *)check_alloc(rows * P * 4);
    for (int64_t r = 0; r < rows; r++)
        for (int p = 0; p < P; p++) host[r * P + p] = made_up(r % G, word_of(9000 + r, (uint64_t)P << 32 | p), p, P);
    check_upload(&worth, host);
    const int keeps[] = { 1, P - 1, P, P + 1, 3 * P, (int)(0.1 * N), (int)(0.25 * N), (int)(0.6 * N), N - 1, N };
    for (int i = 0; i < 10; i++) {
        mcsa_cuda_rank_job job = {
            (const float *)worth.data, (const int32_t *)c.first_data.data, rows, G, P, keeps[i], NULL
        };
        if (keeps[i] >= 1 && keeps[i] <= N) check_rank_job(&job, &c, host);
    }
    check_buffer_free(&worth);
    free(host);
    free_clusters(&c);
}

/* By hand: five clusters of 4, 0, 3, 1 and 2 keys, so 4 means.  Ranks: 2, then 0 and 4 which are equal, then 3. */
static void check_example(void)
{
    const float worth[] = { 2, 0, 5, 1, 2 };
    int32_t first[] = { 0, 4, 4, 7, 8, 10 };
    const struct {
        int K;
        uint64_t kept;
    } cases[] = {
        { 4, 1 << 3 },                             /* a cluster of one key costs nothing */
        { 5, 1 << 4 | 1 << 3 },                    /* 1 of room: 2 and 0 are passed over */
        { 6, 1 << 2 | 1 << 3 },                    /* 2 of room */
        { 7, 1 << 2 | 1 << 4 | 1 << 3 },           /* 3: 0 is passed over, the equal 4 fits */
        { 9, 1 << 2 | 1 << 0 | 1 << 3 },           /* 5: the lower of equals comes first */
        { 10, 1 << 2 | 1 << 0 | 1 << 4 | 1 << 3 }, /* all, but not the empty one */
    };
    clusters c = { 1, 10, 5 };
    c.first = first;
    check_buffer worth_data = check_buffer_make(sizeof worth), kept = check_buffer_make(8);
    c.first_data = check_buffer_make(sizeof first);
    check_upload(&worth_data, worth);
    check_upload(&c.first_data, first);
    for (int i = 0; i < 6; i++) {
        mcsa_cuda_rank_job job = {
            (const float *)worth_data.data, (const int32_t *)c.first_data.data, 1, 1, 5, cases[i].K, NULL
        };
        uint64_t got, host;
        check_rank_job(&job, &c, worth);
        job.kept = (uint64_t *)kept.data;
        CHECK_CUDA(mcsa_cuda_rank(&job, 0));
        check_download(&got, &kept);
        host_rank(worth, first, 5, cases[i].K, &host);
        CHECK_TRUE(got == cases[i].kept && host == got, "K %d: kept %llx, the host %llx, by hand %llx", cases[i].K,
                   (unsigned long long)got, (unsigned long long)host, (unsigned long long)cases[i].kept);
    }
    check_buffer_free(&worth_data);
    check_buffer_free(&kept);
    check_buffer_free(&c.first_data);
}

/* The keys of p in the order of the clusters, [H, N, D], and the bits of the copy that collect makes. */
static check_buffer collected(const problem *p, const clusters *c)
{
    int64_t rows = (int64_t)p->H * p->N, bytes = rows * p->D * 2;
    uint16_t *from = (uint16_t *)check_alloc(p->k_data.bytes), *to = (uint16_t *)check_alloc(bytes);
    uint16_t *got = (uint16_t *)check_alloc(bytes);
    check_download(from, &p->k_data);
    for (int64_t row = 0; row < rows; row++) {
        int64_t head = row / p->N;
        memcpy(to + row * p->D, from + head * p->k.stride[0] + c->members[row] * p->k.stride[1], p->D * 2);
    }
    check_buffer copy = check_buffer_make(bytes);
    for (int head = 0; head < p->H; head++) { /* head by head */
        mcsa_cuda_collect_job job = { &p->k, (const int32_t *)c->members_data.data, head, 1,
                                      (uint16_t *)copy.data + (int64_t)head * p->N * p->D };
        CHECK_CUDA(mcsa_cuda_collect(&job, 0));
    }
    check_download(got, &copy);
    CHECK_TRUE(memcmp(got, to, bytes) == 0, "collect, N %d D %d: rows are not those of the members", p->N, p->D);
    check_upload(&copy, to);
    free(from), free(to), free(got);
    return copy;
}

/* The masses of all heads by keys in the order of their clusters: [H, G, G 128] */
static check_buffer cluster_masses(const problem *p, const clusters *c)
{
    int64_t N = p->N, D = p->D, pitch = (int64_t)p->G * 128;
    check_buffer keys = collected(p, c), mass = check_buffer_make(p->H * p->G * pitch * 4);
    mcsa_tensor k = { keys.data, p->k.dtype, { p->H, N, D }, { N * D, D, 1 } };
    mcsa_qkv x = p->x;
    x.k = &k;
    mcsa_cuda_mass_job job = {
        &x, (const float *)p->lse.data, (const int32_t *)p->order.data, 0, p->H, (float *)mass.data, pitch
    };
    CHECK_CUDA(mcsa_cuda_mass(&job, 0));
    CHECK_CUDA(cudaDeviceSynchronize());
    check_buffer_free(&keys);
    return mass;
}

/* Worths of one row against the reference's. */
static void judge_worth(check_worst *worst, const problem *p, const clusters *c, int64_t row, const float *worth)
{
    int N = p->N, h = (int)(row / p->G);
    check_buffer mass = check_buffer_make((size_t)N * 8), bound = check_buffer_make((size_t)N * 8);
    double *m = (double *)check_alloc((size_t)N * 8), *e = (double *)check_alloc((size_t)N * 8);
    reference_mass<<<(N + 63) / 64, 64>>>(p->x, p->q, p->k, (const float *)p->lse.data, (const int32_t *)p->order.data,
                                          h, (int)(row % p->G), (double *)mass.data, (double *)bound.data);
    CHECK_CUDA(cudaGetLastError());
    check_download(m, &mass);
    check_download(e, &bound);
    const int32_t *first = c->first + (int64_t)h * (c->P + 1), *members = c->members + (int64_t)h * N;
    for (int q = 0; q < c->P; q++) {
        int n = first[q + 1] - first[q];
        double sum = 0, error = 0;
        for (int j = first[q]; j < first[q + 1]; j++) {
            sum += m[members[j]];
            error += e[members[j]];
        }
        if (n) check_judge(worst, worth[q], sum / n, (error + 1.01 * (n + 1) * 0x1p-24 * (sum + error)) / n, row, q, n);
    }
    check_buffer_free(&mass);
    check_buffer_free(&bound);
    free(m), free(e);
}

static mcsa_selection selection_by(const problem *p, const clusters *c, const check_buffer *kept)
{
    mcsa_selection s = selection_of(p, kept);
    s.P = c->P;
    s.words = (c->P + 63) / 64;
    s.members = (int32_t *)c->members_data.data;
    s.first = (int32_t *)c->first_data.data;
    return s;
}

/* Select of all heads twice; `samples` rows against the host, as many of their worths against the reference. */
static void check_select(problem p, int P, enum sizes sizes, int spread, int lse_stride, int samples)
{
    uint64_t seed = 11 * p.N + p.D + p.bf16;
    make_problem(&p, lse_stride, spread, seed);
    clusters c = make_clusters(p.H, p.N, P, sizes, seed);
    int64_t rows = (int64_t)p.H * p.G, pitch = (int64_t)p.G * 128, words = (P + 63) / 64, bytes = rows * words * 8;
    check_buffer mass = cluster_masses(&p, &c), kept = check_buffer_make(bytes);
    check_buffer scratch = check_buffer_make(mcsa_cuda_select_bytes(&p.x.dims, P));
    mcsa_selection selection = selection_by(&p, &c, &kept);
    float *row_mass = (float *)check_alloc((size_t)p.N * 4), *worth = (float *)check_alloc((size_t)P * 4);
    uint64_t *bits[2] = { (uint64_t *)check_alloc(bytes), (uint64_t *)check_alloc(bytes) };
    uint64_t *expected = (uint64_t *)check_alloc(words * 8);
    const int keeps[] = { P, 3 * P, (int)(0.1 * p.N), p.N };
    check_worst worst = {};
    int64_t wrong = 0;
    for (int i = 0; i < 4; i++) {
        if (keeps[i] < 1 || keeps[i] > p.N) continue;
        selection.K = keeps[i];
        for (int run = 0; run < 2; run++) {
            check_buffer_poison(&kept);
            check_buffer_poison(&scratch);
            CHECK_CUDA(mcsa_cuda_select(&p.x, (const float *)p.lse.data, &selection, scratch.data, 0));
            check_download(bits[run], &kept);
        }
        check_same_bits(bits[0], bits[1], bytes, "select by clusters");
        for (int t = 0; t < samples && t < rows; t++) {
            int64_t row = rows <= samples ? t : t == 0 ? rows - 1 : (int64_t)(word_of(p.N + i, t) % rows);
            const int32_t *first = c.first + row / p.G * (P + 1);
            CHECK_CUDA(cudaMemcpy(row_mass, (float *)mass.data + row * pitch, (size_t)p.N * 4, cudaMemcpyDeviceToHost));
            host_fold(row_mass, first, P, worth);
            host_rank(worth, first, P, keeps[i], expected);
            wrong += memcmp(expected, bits[0] + row * words, words * 8) != 0;
            if (i == 3 && t < 8) judge_worth(&worst, &p, &c, row, worth);
        }
    }
    CHECK_TRUE(wrong == 0, "select, N %d P %d sizes %d: %lld rows are not the host's", p.N, P, sizes, (long long)wrong);
    check_report(&worst, "H %d N %d D %d %s P %d sizes %d, worths", p.H, p.N, p.D, p.bf16 ? "bf16" : "fp16", P, sizes);
    check_buffer_free(&mass);
    check_buffer_free(&kept);
    check_buffer_free(&scratch);
    free(row_mass), free(worth), free(bits[0]), free(bits[1]), free(expected);
    free_clusters(&c);
    free_problem(&p);
}

/* Milliseconds of the parts of select, each over all heads in chunks as large as select's. */
static void time_select(problem p, double density)
{
    make_problem(&p, 32, 0, 7);
    int64_t pitch = (int64_t)p.G * 128, head_masses = p.G * pitch;
    int K = (int)(density * p.N + 0.5), P = K / 3,
        chunk = (int)(mcsa_cuda_select_bytes(&p.x.dims, 0) / 4 / head_masses);
    clusters c = make_clusters(p.H, p.N, P, ALIKE, 7);
    check_buffer kept = check_buffer_make((size_t)p.H * p.G * ((P + 63) / 64) * 8);
    check_buffer scratch = check_buffer_make(mcsa_cuda_select_bytes(&p.x.dims, P));
    check_buffer mass = check_buffer_make(chunk * head_masses * 4), keys = check_buffer_make(p.k_data.bytes);
    check_buffer worth = check_buffer_make((size_t)chunk * p.G * P * 4);
    const float *lse = (const float *)p.lse.data;
    mcsa_selection s = selection_by(&p, &c, &kept);
    s.K = K;
    mcsa_cuda_collect_job collect = { &p.k, s.members, 0, chunk, keys.data };
    mcsa_tensor collected = { keys.data, p.k.dtype, { p.H, p.N, p.D }, { (int64_t)p.N * p.D, p.D, 1 } };
    mcsa_qkv x = p.x;
    x.k = &collected;
    mcsa_cuda_mass_job masses = { &x, lse, s.order, 0, chunk, (float *)mass.data, pitch };
    mcsa_cuda_fold_job fold = { masses.mass, pitch, s.first, (int64_t)chunk * p.G, p.G, P, (float *)worth.data };
    mcsa_cuda_rank_job rank = { fold.worth, s.first, fold.rows, p.G, P, K, s.kept };
    int chunks = (p.H + chunk - 1) / chunk;
    auto all = [=](auto launch) {
        return median_ms([=] {
            for (int i = 0; i < chunks; i++) CHECK_CUDA(launch());
        });
    };
    float collect_ms = all([&] { return mcsa_cuda_collect(&collect, 0); });
    float mass_ms = all([&] { return mcsa_cuda_mass(&masses, 0); });
    float fold_ms = all([&] { return mcsa_cuda_fold(&fold, 0); });
    float rank_ms = all([&] { return mcsa_cuda_rank(&rank, 0); });
    float ms = median_ms([&] { CHECK_CUDA(mcsa_cuda_select(&p.x, lse, &s, scratch.data, 0)); });
    printf("%-9s H %d N %d K %d P %d, %d chunks of %d heads: collect %5.2f, mass %6.2f, fold %5.2f, rank %5.2f, select "
           "%6.2f ms\n",
           p.kind == RANDOM ? "random" : "clustered", p.H, p.N, K, P, chunks, chunk, collect_ms, mass_ms, fold_ms,
           rank_ms, ms);
    check_buffer_free(&kept);
    check_buffer_free(&scratch);
    check_buffer_free(&mass);
    check_buffer_free(&keys);
    check_buffer_free(&worth);
    free_clusters(&c);
    free_problem(&p);
}

static void check_small(void)
{
    check_example();
    for (int sizes = 0; sizes < SIZES; sizes++) {
        check_fold(2, 3000, 70, (enum sizes)sizes);
        check_rank(2, 3000, 700, (enum sizes)sizes);
    }
    check_select(shape(2, 129, 128, 1, RANDOM), 14, SKEWED, 0, 1, 8);
    check_select(shape(2, 1000, 64, 0, CLUSTERED), 70, HOLLOW, 1, 1, 8);
}

static void check_all(void)
{
    const int counts[] = { 1, 2, 31, 32, 33, 64, 65, 127, 128, 129, 511, 512, 513, 1170, 2700, 4097, 8191, 8192 };
    const int sizes[] = { 1, 2, 63, 128, 129, 1000, 4097 };
    check_example();
    for (int i = 0; i < 18; i++)
        for (int kind = 0; kind < SIZES; kind++) {
            int P = counts[i];
            check_fold(2, 20 * P + 3 * i, P, (enum sizes)kind);
            check_fold(1, P, P, (enum sizes)kind);
            check_rank(2, 20 * P + 3 * i, P, (enum sizes)kind);
            check_rank(1, P, P, (enum sizes)kind);
        }
    check_fold(1, 300000, 3, HEAVY);
    check_fold(1, 300001, 8192, HEAVY);
    check_rank(1, 300000, 8192, SKEWED);
    for (int i = 0; i < 7; i++)
        for (int D = 64; D <= 128; D += 64)
            for (int bf16 = 0; bf16 < 2; bf16++)
                for (int kind = 0; kind < SIZES; kind++) {
                    int P = sizes[i] < 30 ? 1 : sizes[i] / (kind == HEAVY ? 2 : 30);
                    check_select(shape(3, sizes[i], D, bf16, kind == ALIKE ? CLUSTERED : RANDOM), P, (enum sizes)kind,
                                 bf16 ^ (kind & 1), 1, 40);
                }
    check_select(shape(2, 32760, 128, 1, CLUSTERED), 1170, ALIKE, 0, 16, 40);
    check_select(shape(9, 75600, 128, 1, RANDOM), 2700, SKEWED, 1, 64, 40); /* more than one chunk */
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    check_gpu();
    if (!strcmp(mode, "small")) {
        check_small();
    } else if (!strcmp(mode, "time")) {
        check_small();
        const double densities[] = { 0.05, 0.1, 0.15, 0.25 };
        for (int i = 0; i < 4 && !check_failures; i++) {
            time_select(shape(40, 75600, 128, 1, CLUSTERED), densities[i]);
            time_select(shape(40, 32760, 128, 1, CLUSTERED), densities[i]);
        }
    } else
        check_all();
    return check_done("select_clusters_test");
}
