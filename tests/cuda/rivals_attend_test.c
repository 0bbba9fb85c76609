/* rivals_attend_test.c - attention over kept parts, and the tail of the others, on a GPU (rivals/kernels.h) against
 * double precision: every row of every part, rows of no part untouched, parts that keep nothing, and the same bits
 * twice.
 *
 * The bounds of attention are those of check.h; those of the tail, which is FP32, are derived here with U = 2^-24, half
 * an ulp of a float, and 2^-22 for expf of CUDA. */
#include "rivals_check.h"

static const double U = 0x1p-24, EXP = 0x1p-22;

typedef struct attend_result {
    check_buffer lse;
    float *host; /* [H, N] of lse */
} attend_result;

static attend_result attend_run(const tables *t, test_round *r, const rival_map *map)
{
    const size_t bytes = sizeof(float) * (size_t)r->of.H * (size_t)r->of.N;
    attend_result a = { check_buffer_make(bytes), check_alloc(bytes) };
    check_buffer_poison(&r->c.out.buffer);
    CHECK_OK(t->gpu->attend(t->on_gpu, &r->c.x, &r->queries, &r->keys, map, a.lse.data, CHECK_SAID));
    check_download(r->c.out.host.data, &r->c.out.buffer);
    check_download(a.host, &a.lse);
    return a;
}

/* Rows of the kept parts in order; returns how many. */
static int kept_rows(const test_round *r, const rival_map *map, int h, int q, int32_t *list)
{
    int listed = 0;
    for (int k = 0; k < map->K; k++) {
        int count;
        const int32_t *rows = rival_part(&r->keys, h, k, &count);
        for (int i = 0; rival_map_has(map, h, q, k) && i < count; i++) list[listed++] = rows[i];
    }
    return listed;
}

static void judge_attended(const test_round *r, const rival_map *map, const attend_result *a)
{
    const int H = r->of.H, N = r->of.N;
    int32_t *list = check_alloc(sizeof *list * (size_t)N);
    unsigned char *seen = calloc((size_t)H * (size_t)N, 1);
    check_worst out = { 0 }, lse = { 0 };
    int64_t touched = 0;
    for (int h = 0; h < H; h++)
        for (int q = 0; q < map->Q; q++) {
            int count, listed = kept_rows(r, map, h, q, list);
            const int32_t *rows = rival_part(&r->queries, h, q, &count);
            for (int i = 0; i < count; i++) {
                const double got = (double)a->host[(int64_t)h * N + rows[i]];
                check_row row = { .lse = -INFINITY };
                if (listed) check_attend(&row, &r->c, h, rows[i], list, listed, 0);
                check_judge_row(&out, &r->c, &row, h, rows[i]);
                check_judge(&lse, got, row.lse, row.lse_bound, h, rows[i], listed);
                seen[(int64_t)h * N + rows[i]] = 1;
            }
        }
    for (int h = 0; h < H; h++)
        for (int n = 0; n < N; n++)
            for (int d = 0; d < r->of.D && !seen[(int64_t)h * N + n]; d++)
                touched += *check_at(&r->c.out.host, h, n, d) != 0xffff;
    CHECK_TRUE(touched == 0, "%s: attend wrote %lld numbers of rows of no part", r->name, (long long)touched);
    check_report(&out, "attend, %s", r->name);
    check_report(&lse, "lse of attend, %s", r->name);
    free(list);
    free(seen);
}

static void test_attend(const tables *t, test_round *r, double chance, int hungry)
{
    rival_map map = check_random_map(r->of.H, r->queries.P, r->keys.P, chance, hungry, r->seed + 20);
    const size_t bytes = check_extent(&r->c.out.host);
    void *before = check_alloc(bytes);
    attend_result a = attend_run(t, r, &map);
    judge_attended(r, &map, &a);
    memcpy(before, r->c.out.host.data, bytes);
    attend_result again = attend_run(t, r, &map);
    check_same_bits(before, r->c.out.host.data, bytes, "attend");
    check_same_bits(a.host, again.host, a.lse.bytes, "lse of attend");
    check_buffer_free(&a.lse);
    check_buffer_free(&again.lse);
    free(a.host);
    free(again.host);
    free(before);
    rival_map_free(&map);
}

typedef struct tail_case {
    rival_map map;
    rival_tail tail;
} tail_case;

static tail_case tail_make(const test_round *r, double chance, int sloped)
{
    const int H = r->of.H, K = r->keys.P, D = r->of.D;
    uint64_t seed = r->seed + 30;
    tail_case c = { check_random_map(H, r->queries.P, K, chance, 5, seed), { 0 } };
    c.tail.key = check_normals((int64_t)H * K * D, 1, seed + 1);
    c.tail.value = check_normals((int64_t)H * K * D, 1, seed + 2);
    c.tail.weight = check_floats((int64_t)H * K);
    for (int64_t i = 0; i < (int64_t)H * K; i++) c.tail.weight[i] = (float)check_below(&seed, 4) * 21; /* some are 0 */
    if (sloped) c.tail.slope = check_normals((int64_t)H * D * D, 0.01, seed + 3);
    return c;
}

static void tail_free(tail_case *c)
{
    rival_map_free(&c->map);
    free(c->tail.key);
    free(c->tail.value);
    free(c->tail.weight);
    free(c->tail.slope);
}

/* How far the tail of one query may be from double: reach is the largest scale sum_d |q_d key_d|, spread sum_d |q_d|,
 * score the largest |score|.
 *
 * Keys, values and slopes are sums of two 16-bit numbers, which leave unit^2 of an element, in f16 also half its
 * smallest number; each is multiplied by a tensor core in two passes.  A score is off by that, by the roundings of
 * scale, log weight, their sum and the maximum, and by one exp2 and one for each rescaling by 64 keys.  Weights are
 * rounded to 16 bits before they meet values. */
typedef struct tail_reach {
    double reach, spread, score, most_v, slope;
} tail_reach;

static void tail_bounds(check_row *row, const test_round *r, const tail_reach *t, double scale)
{
    const int K = r->keys.P, D = r->of.D;
    const double unit = check_unit(r->of.dtype), least = r->of.dtype == MCSA_F16 ? 0x1p-25 : 0;
    const double dot = 2 * 17.0 / 16 * D * CHECK_MMA + unit * unit;
    const double ds =
        t->reach * (dot + 4 * U) + scale * t->spread * least + (6 * t->score + 16) * U + (K / 64 + 3) * CHECK_EXP2;
    const double moved =
        expm1(2 * ds) + unit * (1 + 2 * ds) + K * least + unit * unit + (K + 16) * (2 * 17.0 / 16 * CHECK_MMA + U);
    row->lse_bound = ds + (K + 16) * U + 4 * U * (t->score + 8);
    row->out_bound = moved * t->most_v + least + t->slope * dot + t->spread * least + 4 * U * (t->slope + t->most_v);
}

/* The tail of one query in double, as a softmax of its own; returns its parts. */
static int tail_row(check_row *row, const test_round *r, const tail_case *c, int h, int q, int n)
{
    const int K = r->keys.P, D = r->of.D;
    const double scale = (double)r->c.x.scale;
    double most = -INFINITY, sum = 0, x[128];
    double *score = check_alloc(sizeof *score * (size_t)K);
    tail_reach t = { 0 };
    int parts = 0;
    memset(row, 0, sizeof *row);
    for (int d = 0; d < D; d++) {
        x[d] = check_get(&r->c.q.host, h, n, d);
        t.spread += fabs(x[d]);
    }
    for (int k = 0; k < K; k++) {
        const int64_t at = (int64_t)h * K + k;
        double dot = 0, size = 0;
        score[k] = -INFINITY;
        if (rival_map_has(&c->map, h, q, k) || !(c->tail.weight[at] > 0)) continue;
        for (int d = 0; d < D; d++) {
            dot += x[d] * (double)c->tail.key[at * D + d];
            size += fabs(x[d] * (double)c->tail.key[at * D + d]);
            t.most_v = fmax(t.most_v, fabs((double)c->tail.value[at * D + d]));
        }
        score[k] = scale * dot + log((double)c->tail.weight[at]);
        most = fmax(most, score[k]);
        t.reach = fmax(t.reach, scale * size);
        t.score = fmax(t.score, fabs(score[k]));
        parts++;
    }
    for (int k = 0; parts && k < K; k++) {
        const double p = exp(score[k] - most);
        sum += p;
        for (int d = 0; d < D; d++) row->out[d] += p * (double)c->tail.value[((int64_t)h * K + k) * D + d];
    }
    for (int d = 0; parts && d < D; d++) {
        double sloped = 0, size = 0;
        for (int e = 0; c->tail.slope && e < D; e++) {
            sloped += x[e] * (double)c->tail.slope[((int64_t)h * D + e) * D + d];
            size += fabs(x[e] * (double)c->tail.slope[((int64_t)h * D + e) * D + d]);
        }
        row->out[d] = row->out[d] / sum + sloped;
        t.slope = fmax(t.slope, size);
    }
    row->lse = parts ? most + log(sum) : -INFINITY;
    tail_bounds(row, r, &t, scale);
    free(score);
    return parts;
}

/* Merging weighs what is there and the tail by exp of differences of LSE: each is off by the bound of the tail's LSE,
 * its own roundings and exp. */
static void tail_judge(check_worst *out, check_worst *lse, const test_round *r, const tail_case *c, int h, int q, int n,
                       const double *before /* [D], then the LSE */, float after)
{
    const int D = r->of.D;
    check_row tail, both;
    if (!tail_row(&tail, r, c, h, q, n)) {
        for (int d = 0; d < D; d++) check_judge(out, check_get(&r->c.out.host, h, n, d), before[d], 0, h, n, d);
        check_judge(lse, (double)after, before[D], 0, h, n, 0);
        return;
    }
    const double top = fmax(tail.lse, before[D]), x = exp(before[D] - top), y = exp(tail.lse - top);
    const double off = expm1(tail.lse_bound + 4 * U * (fabs(top) + 4)) + EXP + 4 * U;
    double spread = 0;
    for (int d = 0; d < D; d++) spread = fmax(spread, fabs(tail.out[d] - before[d]));
    both.lse = top + log(x + y);
    both.lse_bound = off + 4 * U * (fabs(top) + 1);
    both.out_bound = off * spread + tail.out_bound;
    for (int d = 0; d < D; d++) both.out[d] = (x * before[d] + y * tail.out[d]) / (x + y);
    check_judge_row(out, &r->c, &both, h, n);
    check_judge(lse, (double)after, both.lse, both.lse_bound, h, n, 1);
}

static void test_tail(const tables *t, test_round *r, double chance, int sloped)
{
    const int H = r->of.H, N = r->of.N, D = r->of.D;
    tail_case c = tail_make(r, chance, sloped);
    attend_result a = attend_run(t, r, &c.map);
    check_worst out = { 0 }, lse = { 0 };
    double *before = check_alloc(sizeof *before * (size_t)H * (size_t)N * (size_t)(D + 1));
    float *after = check_alloc(a.lse.bytes);
    for (int64_t i = 0; i < (int64_t)H * N; i++) {
        for (int d = 0; d < D; d++) before[i * (D + 1) + d] = check_get(&r->c.out.host, i / N, i % N, d);
        before[i * (D + 1) + D] = (double)a.host[i];
    }
    CHECK_OK(t->gpu->tail(t->on_gpu, &r->c.x, &r->queries, &c.map, &c.tail, a.lse.data, CHECK_SAID));
    check_download(r->c.out.host.data, &r->c.out.buffer);
    check_download(after, &a.lse);
    for (int h = 0; h < H; h++)
        for (int q = 0; q < r->queries.P; q++) {
            int count;
            const int32_t *rows = rival_part(&r->queries, h, q, &count);
            for (int i = 0; i < count; i++) {
                const int64_t at = (int64_t)h * N + rows[i];
                tail_judge(&out, &lse, r, &c, h, q, rows[i], before + at * (D + 1), after[at]);
            }
        }
    check_report(&out, "tail%s, %s", sloped ? " with a slope" : "", r->name);
    check_report(&lse, "lse of tail, %s", r->name);
    check_buffer_free(&a.lse);
    free(a.host);
    free(after);
    free(before);
    tail_free(&c);
}

static const round_case rounds[] = {
    { 2, 517, 64, 5, 40, 7, MCSA_BF16, CHECK_NHD, CHECK_NORMAL },
    { 1, 300, 128, 9, 200, 0, MCSA_F16, CHECK_PADDED, CHECK_NORMAL },
    { 2, 1000, 128, 0, 0, 0, MCSA_BF16, CHECK_HND, CHECK_CLUSTERED },
    { 2, 900, 64, 1, 3, 0, MCSA_F16, CHECK_HND, CHECK_NORMAL },
    { 1, 400, 64, 3, 6, 1, MCSA_BF16, CHECK_HND, CHECK_LARGE },
    { 2, 700, 64, 200, 300, 0, MCSA_BF16, CHECK_NHD, CHECK_CLUSTERED },
    { 2, 333, 64, 4, -1, 0, MCSA_BF16, CHECK_NHD, CHECK_NORMAL },
    { 1, 65, 64, 0, 0, 0, MCSA_F16, CHECK_HND, CHECK_NORMAL },
    { 3, 1, 64, 1, 1, 0, MCSA_BF16, CHECK_HND, CHECK_NORMAL },
};

int main(void)
{
    check_gpu();
    tables t = tables_open();
    for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++) {
        test_round r;
        round_make(&r, &rounds[i], 100 * i + 1);
        test_attend(&t, &r, 0.3, 0);
        test_attend(&t, &r, 0.05, 3);
        test_attend(&t, &r, 1, 0);
        test_tail(&t, &r, 0.3, 0);
        test_tail(&t, &r, 0.1, 1);
        round_free(&r);
    }
    tables_close(&t);
    return check_done("rivals_attend_test");
}
