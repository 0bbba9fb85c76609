/* dit_rows_test.c - the transformer's row kernels on a GPU against the same rows in double.
 *
 * e below is 2^-24, half an ulp of a float; a sum of n floats by a thread of 16 and trees of 5 + 5 additions is off by
 * at most 26 e times the sum of magnitudes.  What moves numbers only must be exact. */
#include "check.h"

#include "dit/cuda/kernels.h"
#include "dit/random_weights.h"

static const double E = 0x1p-24, SUM = 26 * 0x1p-24;

static float *normals(int64_t count, double size, uint64_t seed)
{
    float *x = check_alloc((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++) x[i] = (float)size * check_normal(&seed);
    return x;
}

static uint16_t *halves(int64_t count, uint64_t seed)
{
    uint16_t *x = check_alloc((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++) x[i] = mcsa_to_bf16(check_normal(&seed));
    return x;
}

static check_buffer on_device(const void *host, size_t bytes)
{
    check_buffer b = check_buffer_make(bytes);
    check_upload(&b, host);
    return b;
}

/* What one call of norm_rows reads, and where it writes. */
typedef struct norm_case {
    int dim, updates, gates, gains;
    mcsa_dtype out_dtype;
    int64_t N;
    float *x, *gate, *gain, *shift, *after; /* after: x when the kernel is done */
    uint16_t *update;
    void *out;
} norm_case;

static void judge_norm_row(check_worst *moved, check_worst *written, const norm_case *c, int64_t n, float eps)
{
    const int dim = c->dim;
    const float *x = c->after + n * dim;
    double mean = 0, magnitude = 0, variance = 0;
    for (int i = 0; i < dim; i++) {
        const double update = c->updates ? (double)mcsa_from_bf16(c->update[n * dim + i]) : 0;
        const double gate = c->gates ? (double)c->gate[i] : 1, sum = (double)c->x[n * dim + i] + gate * update;
        check_judge(moved, (double)x[i], sum, c->updates ? E * (fabs(gate * update) + 1.001 * fabs(sum)) + 0x1p-140 : 0, n,
                    i, 0);
        mean += (double)x[i] / dim;
        magnitude += fabs((double)x[i]) / dim;
    }
    for (int i = 0; i < dim; i++) variance += ((double)x[i] - mean) * ((double)x[i] - mean) / dim;
    /* The deviation of an element is off by the mean's error and one rounding.  By Cauchy and Schwarz the sum of their
     * squares then moves by 2 mean_error / sigma, and the rate by half of that, its sum and its roundings. */
    const double rate = 1 / sqrt(variance + (double)eps), mean_error = (SUM + 2 * E) * magnitude;
    const double rate_error = mean_error * rate * (1 + mean_error * rate) + SUM / 2 + 5 * E;
    for (int i = 0; i < dim; i++) {
        const double gain = c->gains ? (double)c->gain[i] : 0, far = (double)x[i] - mean;
        const double scaled = far * rate * gain, right = c->gains ? scaled + (double)c->shift[i] : (double)x[i];
        double bound = c->gains ? fabs(rate * gain) * (mean_error + E * fabs(far)) +
                                      fabs(scaled) * (rate_error + 3 * E) + E * fabs(right)
                                : 0;
        double got = (double)((float *)c->out)[n * dim + i];
        if (c->out_dtype == MCSA_BF16) {
            got = (double)mcsa_from_bf16(((uint16_t *)c->out)[n * dim + i]);
            bound += check_unit(MCSA_BF16) * (fabs(right) + bound);
        }
        check_judge(written, got, right, bound * (1 + 1e-6), n, i, 1);
    }
}

static void run_norm(const dit_norm *job, const norm_case *c, check_buffer *x, check_buffer *out)
{
    check_upload(x, c->x);
    check_buffer_poison(out);
    CHECK_CUDA(dit_cuda_norm_rows(job, c->N, 0));
    check_download(c->after, x);
    check_download(c->out, out);
}

static void test_norm(const norm_case *shape, double size)
{
    norm_case c = *shape;
    const int64_t count = c.N * c.dim;
    const size_t out_bytes = (size_t)count * (c.out_dtype == MCSA_BF16 ? 2 : 4), vector = (size_t)c.dim * sizeof(float);
    c.x = normals(count, size, 1);
    c.update = halves(count, 2);
    c.gate = normals(c.dim, 1, 3);
    c.gain = normals(c.dim, 1, 4);
    c.shift = normals(c.dim, 1, 5);
    c.after = check_alloc((size_t)count * sizeof(float));
    c.out = check_alloc(out_bytes);
    void *again = check_alloc(out_bytes);
    check_buffer x = check_buffer_make((size_t)count * sizeof(float)), out = check_buffer_make(out_bytes);
    check_buffer update = on_device(c.update, (size_t)count * 2), gate = on_device(c.gate, vector);
    check_buffer gain = on_device(c.gain, vector), shift = on_device(c.shift, vector);
    const dit_norm job = { .x = x.data,
                           .update = c.updates ? update.data : NULL,
                           .gate = c.gates ? gate.data : NULL,
                           .gain = c.gains ? gain.data : NULL,
                           .shift = shift.data,
                           .out = out.data,
                           .dtype = c.updates ? MCSA_BF16 : MCSA_F32,
                           .out_dtype = c.out_dtype,
                           .eps = 1e-6f,
                           .dim = c.dim };
    run_norm(&job, &c, &x, &out);
    memcpy(again, c.out, out_bytes);
    run_norm(&job, &c, &x, &out);
    check_same_bits(again, c.out, out_bytes, "norm_rows");

    check_worst moved = { 0 }, written = { 0 };
    for (int64_t n = 0; n < c.N; n++) judge_norm_row(&moved, &written, &c, n, job.eps);
    const char *format = c.out_dtype == MCSA_BF16 ? "bf16" : "f32";
    check_report(&moved, "x + gate update, [%lld, %d], size %g", (long long)c.N, c.dim, size);
    check_report(&written, "norm to %s,%s%s%s", format, c.updates ? " update" : "", c.gates ? " gate" : "",
                 c.gains ? " gain" : " cast");
    check_buffer *all[] = { &x, &out, &update, &gate, &gain, &shift };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) check_buffer_free(all[i]);
    void *host[] = { c.x, c.update, c.gate, c.gain, c.shift, c.after, c.out, again };
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
}

/* Rotary tables as wan.c lays them out; grid 0: no rotation. */
typedef struct rope_case {
    int heads, head_dim, grid[3];
    int64_t N, stride;
} rope_case;

static float *rope_tables(const rope_case *c, dit_rope *rope, const float *base)
{
    const int pairs = c->head_dim / 2, side = c->head_dim / 6, split[3] = { pairs - 2 * side, side, side };
    int64_t count = 0, at = 0;
    for (int a = 0; a < 3; a++) count += (int64_t)c->grid[a] * split[a];
    float *table = check_alloc((size_t)count * 2 * sizeof *table);
    for (int a = 0; a < 3; a++) {
        rope->extent[a] = c->grid[a];
        rope->pairs[a] = split[a];
        rope->cosine[a] = base ? base + at : NULL;
        rope->sine[a] = base ? base + count + at : NULL;
        for (int64_t i = 0; i < (int64_t)c->grid[a] * split[a]; i++, at++) {
            const double angle = (double)(i / split[a]) / pow(10000.0, (double)(i % split[a]) / split[a]);
            table[at] = (float)cos(angle);
            table[count + at] = (float)sin(angle);
        }
    }
    return table;
}

static void judge_rope_row(check_worst *w, const rope_case *c, const dit_rope *host_rope, const uint16_t *before,
                           const uint16_t *after, const float *gain, int64_t n)
{
    const int dim = c->heads * c->head_dim;
    const int64_t place[3] = { n / c->grid[2] / c->grid[1], n / c->grid[2] % c->grid[1], n % c->grid[2] };
    double square = 0;
    for (int i = 0; i < dim; i++) {
        const double x = (double)mcsa_from_bf16(before[n * c->stride + i]);
        square += x * x / dim;
    }
    const double rate = 1 / sqrt(square + (double)1e-6f), relative = SUM / 2 + 6 * E;
    for (int i = 0; i < dim; i += 2) {
        const double even = (double)mcsa_from_bf16(before[n * c->stride + i]) * rate * (double)gain[i];
        const double odd = (double)mcsa_from_bf16(before[n * c->stride + i + 1]) * rate * (double)gain[i + 1];
        double cosine = 1, sine = 0;
        int pair = i % c->head_dim / 2, axis = 0;
        if (host_rope) {
            while (pair >= host_rope->pairs[axis]) pair -= host_rope->pairs[axis++];
            cosine = (double)host_rope->cosine[axis][place[axis] * host_rope->pairs[axis] + pair];
            sine = (double)host_rope->sine[axis][place[axis] * host_rope->pairs[axis] + pair];
        }
        const double right[2] = { even * cosine - odd * sine, even * sine + odd * cosine };
        const double sizes[2] = { fabs(even * cosine) + fabs(odd * sine), fabs(even * sine) + fabs(odd * cosine) };
        for (int k = 0; k < 2; k++) {
            const double bound = sizes[k] * (relative + 2 * E);
            check_judge(w, (double)mcsa_from_bf16(after[n * c->stride + i + k]), right[k],
                        bound + check_unit(MCSA_BF16) * (fabs(right[k]) + bound), n, i + k, 0);
        }
    }
}

static void test_rope(const rope_case *shape)
{
    const rope_case c = *shape;
    const int dim = c.heads * c.head_dim;
    const int64_t count = (c.N - 1) * c.stride + dim;
    const size_t bytes = (size_t)count * 2;
    dit_rope rope = { 0 }, host_rope = { 0 };
    float *gain = normals(dim, 1, 7), *table = rope_tables(&c, &rope, NULL);
    size_t angles = 0;
    for (int a = 0; a < 3; a++) angles += (size_t)c.grid[a] * (size_t)rope.pairs[a] * 2 * sizeof(float);
    check_buffer tables = on_device(table, angles ? angles : 1), gains = on_device(gain, (size_t)dim * sizeof *gain);
    free(rope_tables(&c, &rope, tables.data));
    free(rope_tables(&c, &host_rope, table));
    uint16_t *before = halves(count, 6), *after = check_alloc(bytes), *again = check_alloc(bytes);
    check_buffer x = check_buffer_make(bytes);
    const dit_rms_rope job = { .x = x.data,
                               .dtype = MCSA_BF16,
                               .stride = c.stride,
                               .gain = gains.data,
                               .rope = c.grid[0] ? &rope : NULL,
                               .eps = 1e-6f,
                               .heads = c.heads,
                               .head_dim = c.head_dim };
    for (int round = 0; round < 2; round++) {
        check_upload(&x, before);
        CHECK_CUDA(dit_cuda_rms_rope_rows(&job, c.N, 0));
        check_download(round ? again : after, &x);
    }
    check_same_bits(after, again, bytes, "rms_rope_rows");
    check_worst w = { 0 };
    int64_t touched = 0;
    for (int64_t n = 0; n < c.N; n++) {
        rope_case grid = c;
        for (int a = 0; a < 3 && !c.grid[0]; a++) grid.grid[a] = 1;
        judge_rope_row(&w, &grid, c.grid[0] ? &host_rope : NULL, before, after, gain, n);
        for (int64_t i = n * c.stride + dim; n + 1 < c.N && i < (n + 1) * c.stride; i++)
            touched += before[i] != after[i];
    }
    CHECK_TRUE(touched == 0, "%lld numbers between the rows changed", (long long)touched);
    check_report(&w, "rms%s of %d x %d, %lld rows %lld apart", c.grid[0] ? " and rope" : "", c.heads, c.head_dim,
                 (long long)c.N, (long long)c.stride);
    check_buffer_free(&tables);
    check_buffer_free(&gains);
    check_buffer_free(&x);
    void *host[] = { gain, table, before, after, again };
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
}

/* Both ways, and there and back where input and output have one channel. */
static void test_patches(dit_patches p)
{
    const int64_t count =
        (int64_t)p.patch[0] * p.patch[1] * p.patch[2] * p.grid[0] * p.grid[1] * p.grid[2] * p.channels;
    const size_t bytes = (size_t)count * sizeof(float);
    float *from = normals(count, 1, 8), *right = check_alloc(bytes), *got = check_alloc(bytes);
    check_buffer a = on_device(from, bytes), b = check_buffer_make(bytes);
    CHECK_CUDA(dit_cuda_gather(&p, a.data, b.data, 0));
    check_download(got, &b);
    dit_patches_gather(&p, from, right);
    CHECK_TRUE(memcmp(got, right, bytes) == 0, "gather of %d channels", p.channels);
    check_buffer_poison(&b);
    CHECK_CUDA(dit_cuda_scatter(&p, a.data, b.data, 0));
    check_download(got, &b);
    dit_patches_scatter(&p, from, right);
    CHECK_TRUE(memcmp(got, right, bytes) == 0, "scatter of %d channels", p.channels);
    printf("ok   patches of %d x %d x %d, %d channels: exact\n", p.patch[0], p.patch[1], p.patch[2], p.channels);
    check_buffer_free(&a);
    check_buffer_free(&b);
    free(from);
    free(right);
    free(got);
}

/* expf is within 2 ulp; the sum and the quotient round once each. */
static void test_vectors(void)
{
    enum { DIM = 1536, ROWS = 6, COUNT = ROWS * DIM };
    const size_t bytes = COUNT * sizeof(float);
    float *x = normals(COUNT, 8, 9), *table = normals(COUNT, 1, 10), *got = check_alloc(bytes);
    check_buffer from = on_device(x, bytes), tables = on_device(table, bytes), out = check_buffer_make(bytes);
    check_worst silu = { 0 }, modulated[2] = { { 0 } };
    CHECK_CUDA(dit_cuda_silu(from.data, out.data, COUNT, 0));
    check_download(got, &out);
    for (int i = 0; i < COUNT; i++) {
        const double right = (double)x[i] / (1 + exp(-(double)x[i]));
        check_judge(&silu, (double)got[i], right, 8 * E * fabs(right), i, 0, 0);
    }
    check_report(&silu, "silu");
    for (int shared = 0; shared < 2; shared++) { /* each row has its own values, or all have row 0's */
        const int stride = shared ? 0 : DIM;
        const dit_modulation job = { .out = out.data,
                                     .table = tables.data,
                                     .value = from.data,
                                     .rows = ROWS,
                                     .dim = DIM,
                                     .value_stride = stride,
                                     .scales = 0x12 };
        check_buffer_poison(&out);
        CHECK_CUDA(dit_cuda_modulate(&job, 0));
        check_download(got, &out);
        for (int i = 0; i < COUNT; i++) {
            const double sum = (double)table[i] + (double)x[i / DIM * stride + i % DIM],
                         one = i / DIM == 1 || i / DIM == 4;
            check_judge(&modulated[shared], (double)got[i], sum + one, E * (fabs(sum) + 1.001 * fabs(sum + one)), i, 0,
                        0);
        }
        check_report(&modulated[shared], "modulation, %s", shared ? "one row of values" : "rows of values");
    }
    check_buffer_free(&from);
    check_buffer_free(&tables);
    check_buffer_free(&out);
    free(x);
    free(table);
    free(got);
}

/* Weights: the CPU's numbers, bit for bit. */
static void test_weights(void)
{
    enum { COUNT = 1 << 21 }; /* more than one number a thread */
    const float spread = dit_random_spread(5120);
    uint16_t *got = check_alloc(COUNT * 2);
    float *x = normals(COUNT, 1, 11), *floats = check_alloc(COUNT * sizeof *floats);
    check_buffer from = on_device(x, COUNT * sizeof *x), out = check_buffer_make(COUNT * sizeof *floats);
    int64_t wrong[3] = { 0 };
    CHECK_CUDA(dit_cuda_cast(from.data, out.data, MCSA_BF16, COUNT, 0));
    check_download(floats, &out);
    memcpy(got, floats, COUNT * 2);
    for (int i = 0; i < COUNT; i++) wrong[0] += got[i] != mcsa_to_bf16(x[i]);
    for (int wide = 0; wide < 2; wide++) {
        const dit_cuda_random_job job = { .out = out.data,
                                          .dtype = wide ? MCSA_F32 : MCSA_BF16,
                                          .first = 1000003,
                                          .count = COUNT,
                                          .seed = 42,
                                          .spread = spread };
        check_buffer_poison(&out);
        CHECK_CUDA(dit_cuda_random(&job, 0));
        check_download(floats, &out);
        memcpy(got, floats, COUNT * 2);
        for (int i = 0; i < COUNT; i++) {
            const float right = spread * dit_random_unit(42, (uint64_t)(1000003 + i));
            wrong[1 + wide] += wide ? floats[i] != right : got[i] != mcsa_to_bf16(right);
        }
    }
    CHECK_TRUE(wrong[0] + wrong[1] + wrong[2] == 0, "%lld casts, %lld bf16 and %lld f32 random weights differ",
               (long long)wrong[0], (long long)wrong[1], (long long)wrong[2]);
    printf("ok   %d weights cast and made: exact\n", COUNT);
    check_buffer_free(&from);
    check_buffer_free(&out);
    free(x);
    free(floats);
    free(got);
}

int main(void)
{
    static const norm_case norms[] = {
        { .dim = 384, .updates = 1, .gates = 1, .gains = 1, .out_dtype = MCSA_BF16, .N = 257 },
        { .dim = 5120, .updates = 1, .gates = 1, .gains = 1, .out_dtype = MCSA_BF16, .N = 133 },
        { .dim = 5120, .updates = 1, .gains = 1, .out_dtype = MCSA_BF16, .N = 5 },
        { .dim = 1536, .updates = 1, .gates = 1, .gains = 1, .out_dtype = MCSA_F32, .N = 64 },
        { .dim = 1536, .gains = 1, .out_dtype = MCSA_BF16, .N = 3 },
        { .dim = 1536, .updates = 1, .out_dtype = MCSA_BF16, .N = 9 },
        { .dim = 4104, .out_dtype = MCSA_BF16, .N = 7 },
        { .dim = 64, .updates = 1, .gates = 1, .gains = 1, .out_dtype = MCSA_F32, .N = 1 },
        { .dim = 16384, .updates = 1, .gates = 1, .gains = 1, .out_dtype = MCSA_BF16, .N = 2 },
    };
    static const rope_case ropes[] = {
        { .heads = 3, .head_dim = 128, .grid = { 5, 6, 7 }, .N = 210, .stride = 1152 },
        { .heads = 40, .head_dim = 128, .grid = { 3, 9, 5 }, .N = 135, .stride = 15360 },
        { .heads = 5, .head_dim = 64, .grid = { 1, 1, 11 }, .N = 11, .stride = 328 },
        { .heads = 40, .head_dim = 128, .N = 77, .stride = 10240 },
        { .heads = 12, .head_dim = 128, .N = 1, .stride = 1536 },
        { .heads = 64, .head_dim = 256, .grid = { 2, 2, 2 }, .N = 8, .stride = 16384 },
    };
    check_gpu();
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) test_norm(&norms[i], i % 2 ? 30 : 1);
    for (size_t i = 0; i < sizeof ropes / sizeof *ropes; i++) test_rope(&ropes[i]);
    test_patches((dit_patches){ .patch = { 1, 2, 2 }, .grid = { 5, 7, 9 }, .channels = 16 });
    test_patches((dit_patches){ .patch = { 2, 4, 3 }, .grid = { 2, 3, 5 }, .channels = 3 });
    test_vectors();
    test_weights();
    return check_done("dit_rows_test");
}
