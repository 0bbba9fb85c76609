/* test_cluster.c - k-means of keys against the same rounds in double: members and first of every head.
 *
 * Means are restated bit for bit (FP32 sums in ascending order, one division, one rounding), and labels in double.  One
 * label that could go either way would change all that follows, so inputs are drawn until no row is as near to a second
 * centre, up to the bounds of two scores, unless both are the same centre or arithmetic is exact. */
#include "core/backend.h"
#include "test.h"

typedef struct clusters {
    int32_t *members, *first; /* [H, N] and [H, P + 1], between canaries */
    int64_t N, P, H;
} clusters;

static clusters cluster(const mcsa_tensor *k, int P, mcsa_isa isa, int threads)
{
    mcsa_memory memory = mcsa_memory_from(&(mcsa_allocator){ 0 });
    mcsa_error error = { "" };
    const mcsa_backend_options options = {
        .memory = &memory, .threads = threads, .C = 48, .isa = isa, .error = &error
    };
    const mcsa_dims dims = { (int)k->shape[0], (int)k->shape[1], (int)k->shape[1], (int)k->shape[2], k->dtype };
    const mcsa_qkv x = { .k = k, .dims = dims, .scale = 1 };
    clusters c = { .N = dims.N, .P = P, .H = dims.H };
    void *state = NULL;
    c.members = test_words((size_t)(c.H * c.N));
    c.first = test_words((size_t)(c.H * (c.P + 1)));
    assert_int_equal(mcsa_backend_cpu.open(&state, &options), MCSA_OK);
    assert_int_equal(mcsa_backend_cpu.reserve(state, &dims, dims.N, P), MCSA_OK);
    mcsa_selection s = { .H = dims.H, .N = dims.N, .C = 48, .G = (dims.N + 47) / 48, .K = dims.N, .P = P };
    s.members = c.members;
    s.first = c.first;
    mcsa_backend_cpu.cluster(state, &x, &s);
    mcsa_backend_cpu.close(state);
    return c;
}

static void release(const clusters *c)
{
    test_words_free(c->members, (size_t)(c->H * c->N));
    test_words_free(c->first, (size_t)(c->H * (c->P + 1)));
}

/* One head restated. */
typedef struct rounds {
    int N, P, D, exact; /* exact: dot products need no rounding, so scores are floats to the bit */
    mcsa_dtype dtype;
    const double *row; /* [N, D] */
    double *centre;    /* [P, D] */
    int32_t *label;    /* [N] */
    int ties;          /* decided by the lower label */
    int open;          /* labels that FP32 may decide otherwise */
} rounds;

static double stored(float x, mcsa_dtype dtype)
{
    if (dtype == MCSA_F32) return (double)x;
    return (double)(dtype == MCSA_BF16 ? mcsa_from_bf16(mcsa_to_bf16(x)) : mcsa_from_f16(mcsa_to_f16(x)));
}

/* x . c - |c|^2 / 2, and how far FP32 may be from it: (D + 1) u of the absolute products, u of the half square, and u
 * of each in the difference. */
static double score_of(const rounds *r, const double *x, const double *c, double *off)
{
    double dot = 0, size = 0, squares = 0;
    for (int d = 0; d < r->D; d++) {
        dot += x[d] * c[d];
        size += fabs(x[d] * c[d]);
        squares += c[d] * c[d];
    }
    *off = r->exact ? 0 : (r->D + 2) * U_F32 * size + 2 * U_F32 * squares / 2;
    return r->exact ? (double)((float)dot - (float)(squares / 2)) : dot - squares / 2;
}

static int same_centre(const rounds *r, int a, int b)
{
    return memcmp(r->centre + a * r->D, r->centre + b * r->D, sizeof *r->centre * (size_t)r->D) == 0;
}

static void label_row(rounds *r, int j)
{
    const double *x = r->row + (int64_t)j * r->D;
    double best = -INFINITY, best_off = 0, off;
    int label = 0;
    for (int p = 0; p < r->P; p++) {
        double score = score_of(r, x, r->centre + p * r->D, &off);
        r->ties += score == best;
        if (!(score > best)) continue;
        best = score;
        best_off = off;
        label = p;
    }
    for (int p = 0; p < r->P && !r->exact; p++) {
        if (p == label || same_centre(r, p, label)) continue;
        double score = score_of(r, x, r->centre + p * r->D, &off);
        r->open += score + off >= best - best_off;
    }
    r->label[j] = label;
}

static void move_centre(rounds *r, int p)
{
    int count = 0;
    for (int j = 0; j < r->N; j++) count += r->label[j] == p;
    for (int d = 0; count && d < r->D; d++) {
        float sum = 0;
        for (int j = 0; j < r->N; j++)
            if (r->label[j] == p) sum += (float)r->row[(int64_t)j * r->D + d];
        r->centre[p * r->D + d] = stored(sum / (float)count, r->dtype);
    }
}

static rounds rounds_make(const mcsa_tensor *k, const double *rows, int h, int P, int exact)
{
    rounds r = { .N = (int)k->shape[1], .P = P, .D = (int)k->shape[2], .exact = exact, .dtype = k->dtype };
    r.row = rows + (int64_t)h * r.N * r.D;
    r.centre = test_alloc(sizeof *r.centre * (size_t)P * (size_t)r.D);
    r.label = test_alloc(sizeof *r.label * (size_t)r.N);
    return r;
}

static void rounds_free(rounds *r)
{
    free(r->centre);
    free(r->label);
}

static void restate(rounds *r)
{
    for (int p = 0; p < r->P; p++)
        memcpy(r->centre + p * r->D, r->row + (2 * (int64_t)p + 1) * r->N / (2 * r->P) * r->D,
               sizeof *r->row * (size_t)r->D);
    for (int round = 0; round < 4; round++) {
        for (int p = 0; round && p < r->P; p++) move_centre(r, p);
        for (int j = 0; j < r->N; j++) label_row(r, j);
    }
}

/* Members in ascending order, cluster after cluster. */
static void compare(const rounds *r, const int32_t *members, const int32_t *first, const char *what, int *empty)
{
    int at = 0;
    for (int p = 0; p < r->P; p++) {
        if (first[p] != at) fail_msg("%s: cluster %d begins at %d, not at %d", what, p, first[p], at);
        int before = at;
        for (int j = 0; j < r->N; j++) {
            if (r->label[j] != p) continue;
            if (members[at] != j)
                fail_msg("%s: place %d has key %d, not %d of cluster %d", what, at, members[at], j, p);
            at++;
        }
        *empty += at == before;
    }
    assert_int_equal(first[r->P], r->N);
}

typedef struct outcome {
    int empty, ties;
} outcome;

/* All levels and 1, 2 and 5 threads against one restatement per head. */
static outcome judge(const test_tensor *k, int P, int exact, const char *what)
{
    int H = (int)k->view.shape[0], N = (int)k->view.shape[1];
    static const int threads[] = { 1, 2, 5 };
    outcome all = { 0, 0 };
    double *rows = test_doubles(&k->view);
    for (int h = 0; h < H; h++) {
        rounds r = rounds_make(&k->view, rows, h, P, exact);
        restate(&r);
        if (r.open) fail_msg("%s is no test: FP32 may decide %d labels otherwise", what, r.open);
        all.ties += r.ties;
        for (size_t l = 0; l < TEST_COUNT(test_levels); l++)
            for (size_t t = 0; t < TEST_COUNT(threads) && test_levels[l] <= mcsa_cpu_isa(); t++) {
                int empty = 0;
                clusters c = cluster(&k->view, P, test_levels[l], threads[t]);
                compare(&r, c.members + (int64_t)h * N, c.first + (int64_t)h * (P + 1), what, &empty);
                if (!l && !t) all.empty += empty;
                release(&c);
            }
        rounds_free(&r);
    }
    free(rows);
    assert_int_equal(test_damage(k), 0);
    print_message("  %-48s P %d, %d clusters empty, %d ties\n", what, P, all.empty, all.ties);
    return all;
}

/* Normal rows, drawn anew while a label is open. */
static void fill_decided(const mcsa_tensor *k, int P, uint64_t seed)
{
    for (int draw = 0, open = 1; open; draw++) {
        if (draw == 50) fail_msg("no input of %lld rows is decided", (long long)k->shape[1]);
        test_fill_normal(k, seed + (uint64_t)draw, 1);
        double *rows = test_doubles(k);
        open = 0;
        for (int h = 0; h < k->shape[0]; h++) {
            rounds r = rounds_make(k, rows, h, P, 0);
            restate(&r);
            open += r.open;
            rounds_free(&r);
        }
        free(rows);
    }
}

static void clusters_are_those_of_the_rounds_in_double(void **state)
{
    (void)state;
    static const struct {
        int H, N, D, P;
    } shapes[] = { { 2, 1, 8, 1 },  { 1, 2, 5, 1 },    { 2, 27, 17, 1 },   { 1, 300, 33, 150 },
                   { 3, 65, 1, 4 }, { 1, 129, 16, 7 }, { 2, 500, 64, 18 }, { 1, 450, 128, 200 } };
    char what[96];
    for (size_t i = 0; i < TEST_COUNT(shapes); i++)
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
            test_layout layout = (test_layout)((i + t) % 3);
            test_tensor k = test_tensor_make(shapes[i].H, shapes[i].N, shapes[i].D, test_dtypes[t], layout);
            fill_decided(&k.view, shapes[i].P, 100 * i);
            snprintf(what, sizeof what, "%s N %d D %d layout %d", test_dtype_name(test_dtypes[t]), shapes[i].N,
                     shapes[i].D, (int)layout);
            judge(&k, shapes[i].P, 0, what);
            test_tensor_free(&k);
        }
}

/* Rows of -1, 0 and 1 and centres of 8 significant bits: FP32 products are exact, so the rule about ties decides. */
static void of_equal_scores_the_lower_label_wins(void **state)
{
    (void)state;
    enum { N = 400, D = 6, P = 60 };
    test_tensor k = test_tensor_make(2, N, D, MCSA_BF16, TEST_HND);
    uint64_t seed = 5;
    for (int h = 0; h < 2; h++)
        for (int n = 0; n < N; n++)
            for (int d = 0; d < D; d++) test_set(&k.view, h, n, d, test_below(&seed, 3) - 1);
    outcome o = judge(&k, P, 1, "rows of -1, 0 and 1");
    assert_true(o.ties > N);
    test_tensor_free(&k);
}

/* Copies of five rows: a cluster for each, and all others empty.  With one kind of row only the first has any.  Small
 * integers, so that the mean of copies is the row. */
static void clusters_may_be_empty(void **state)
{
    (void)state;
    enum { N = 200, D = 24, P = 50 };
    for (int kinds = 1; kinds <= 5; kinds += 4)
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
            test_tensor k = test_tensor_make(1, N, D, test_dtypes[t], TEST_NHD);
            uint64_t seed = 3;
            for (int n = 0; n < N; n++) {
                uint64_t kind = (uint64_t)test_below(&seed, kinds);
                for (int d = 0; d < D; d++) test_set(&k.view, 0, n, d, test_below(&kind, 9) - 4);
            }
            outcome o = judge(&k, P, 1, kinds == 1 ? "one row N times" : "copies of five rows");
            assert_int_equal(o.empty, P - kinds);
            test_tensor_free(&k);
        }
}

/* A row that beats nothing is in cluster 0, whose centre it then spoils: the others leave it. */
static void a_row_with_nan_gets_cluster_0(void **state)
{
    (void)state;
    enum { N = 150, D = 16, P = 5 };
    for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
        test_tensor k = test_tensor_make(1, N, D, test_dtypes[t], TEST_HND);
        test_fill_normal(&k.view, 8, 1);
        test_set(&k.view, 0, 140, 3, (double)NAN);
        test_set(&k.view, 0, 45, 15, (double)NAN); /* where centre 1 begins */
        test_set(&k.view, 0, 71, 0, (double)INFINITY);
        judge(&k, P, 0, "two rows with NaN, one with infinity");
        clusters c = cluster(&k.view, P, MCSA_ISA_AUTO, 1);
        assert_int_equal(c.first[1], 2);
        assert_int_equal(c.members[0], 45);
        assert_int_equal(c.members[1], 140);
        release(&c);
        for (int n = 0; n < N; n++) test_set(&k.view, 0, n, n % D, (double)NAN);
        outcome o = judge(&k, P, 0, "NaN in all rows");
        assert_int_equal(o.empty, P - 1);
        test_tensor_free(&k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clusters_are_those_of_the_rounds_in_double),
        cmocka_unit_test(of_equal_scores_the_lower_label_wins),
        cmocka_unit_test(clusters_may_be_empty),
        cmocka_unit_test(a_row_with_nan_gets_cluster_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
