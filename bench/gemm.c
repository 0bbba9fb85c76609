/* gemm.c - the linear layers of one transformer block, as src/dit runs them through oneDNN, in BF16 and in F32.
 *
 * Rows are tokens; the layers of one or of context rows are left out, they take no time.  oneDNN chooses its own
 * instruction set, so the peak is that of the machine.  Gate: sampled outputs against sums in double. */
#include "suites.h"

#include "base/half.h"
#include "cpu/peak.h"
#include "dit/linear.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

enum { LAYERS = 4, DTYPES = 2, SAMPLES = 64 };

typedef struct layer_case {
    dit_linear *layer;
    dit_linear_shape shape;
    int64_t rows;
    float *weight, *bias; /* [out, in], [out] */
    void *x, *y;          /* [rows, in], [rows, out] */
    mcsa_status status;
    mcsa_error *error;
} layer_case;

static void run_layer(void *context)
{
    layer_case *c = context;
    mcsa_status status = dit_linear_apply(c->layer, c->x, c->y, c->rows, c->error);
    if (status != MCSA_OK) c->status = status;
}

static double at(const void *data, mcsa_dtype dtype, int64_t i)
{
    return (double)(dtype == MCSA_BF16 ? mcsa_from_bf16(((const uint16_t *)data)[i]) : ((const float *)data)[i]);
}

/* Products of bf16 numbers are exact and their float sum is off by at most `in` units of its absolute terms; of F32
 * products each is rounded too.  GELU has a slope of at most 1.13, and oneDNN computes its tanh to a few 2^-22; y is
 * rounded to its dtype. */
static int right(const layer_case *c)
{
    const dit_linear_shape *s = &c->shape;
    for (int64_t i = 0; i < SAMPLES; i++) {
        int64_t row = i * (c->rows - 1) / (SAMPLES - 1), column = i * 7919 % s->out;
        double sum = (double)c->bias[column], absolute = fabs(sum);
        for (int64_t k = 0; k < s->in; k++) {
            float w = c->weight[column * s->in + k];
            if (s->src == MCSA_BF16) w = mcsa_from_bf16(mcsa_to_bf16(w));
            double product = at(c->x, s->src, row * s->in + k) * (double)w;
            sum += product;
            absolute += fabs(product);
        }
        double bound = (double)(s->in + 2) * 0x1p-24 * absolute;
        if (s->gelu) {
            sum = sum / 2 * (1 + tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
            bound = 1.13 * bound + 0x1p-19 * (1 + fabs(sum));
        }
        bound += (s->dst == MCSA_BF16 ? 0x1p-8 : 0x1p-24) * (fabs(sum) + bound);
        if (!(fabs(at(c->y, s->dst, row * s->out + column) - sum) <= bound)) return 0;
    }
    return 1;
}

static void fill(void *data, mcsa_dtype dtype, int64_t count, float size, uint64_t *seed)
{
    for (int64_t i = 0; i < count; i++) {
        float value = size * bench_bell(seed);
        if (dtype == MCSA_BF16)
            ((uint16_t *)data)[i] = mcsa_to_bf16(value);
        else
            ((float *)data)[i] = value;
    }
}

static mcsa_status open_layer(layer_case *c, dit_linear_engine *engine, mcsa_error *error)
{
    const dit_linear_shape *s = &c->shape;
    size_t element = s->src == MCSA_BF16 ? 2 : 4, rows = (size_t)c->rows;
    uint64_t seed = 3;
    c->error = error;
    c->weight = malloc(sizeof *c->weight * (size_t)(s->in * s->out));
    c->bias = malloc(sizeof *c->bias * (size_t)s->out);
    c->x = malloc(element * rows * (size_t)s->in);
    c->y = malloc(element * rows * (size_t)s->out);
    if (!c->weight || !c->bias || !c->x || !c->y)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for a linear layer of %lld to %lld channels over %lld rows",
                         (long long)s->in, (long long)s->out, (long long)c->rows);
    fill(c->weight, MCSA_F32, s->in * s->out, 1 / sqrtf((float)s->in), &seed); /* outputs of about unit size */
    fill(c->bias, MCSA_F32, s->out, 1, &seed);
    fill(c->x, s->src, c->rows * s->in, 1, &seed);
    return dit_linear_create(&c->layer, engine, s, c->weight, c->bias, error);
}

static void close_layer(layer_case *c)
{
    dit_linear_free(c->layer);
    free(c->weight);
    free(c->bias);
    free(c->x);
    free(c->y);
}

static mcsa_status add_layer(layer_case *c, const char *name, bench_table *table)
{
    char label[48];
    snprintf(label, sizeof label, "%s, %s", name, c->shape.src == MCSA_BF16 ? "bf16" : "f32");
    run_layer(c);
    TRY(c->status);
    bench_case *one = bench_add(table, label);
    one->run = run_layer;
    one->context = c;
    one->operations = 2.0 * (double)c->rows * (double)c->shape.in * (double)c->shape.out;
    one->wrong = !right(c);
    return MCSA_OK;
}

static mcsa_status time_layers(layer_case *cases, const bench_plan *plan, dit_linear_engine *engine, bench_table *table,
                               mcsa_error *error)
{
    static const char *const names[LAYERS] = { "q, k, v", "out, cross q", "feed-forward in, GELU", "feed-forward out" };
    const mcsa_dtype dtypes[DTYPES] = { MCSA_BF16, MCSA_F32 };
    const int dim = plan->shape.heads * plan->shape.dim;
    const int in[LAYERS] = { dim, dim, dim, plan->ffn }, out[LAYERS] = { 3 * dim, dim, plan->ffn, dim };
    int count = 0;
    for (int t = dit_linear_has_bf16() ? 0 : 1; t < DTYPES; t++) {
        table->peak = mcsa_cpu_peak(MCSA_ISA_AUTO, dtypes[t], plan->shape.threads);
        for (int i = 0; i < LAYERS; i++) {
            layer_case *c = &cases[count++];
            c->rows = plan->shape.tokens;
            c->shape = (dit_linear_shape){ in[i], out[i], dtypes[t], dtypes[t], i == 2 };
            TRY(open_layer(c, engine, error));
            TRY(add_layer(c, names[i], table));
            table->cases[table->count - 1].base = table->count - 1 - i; /* the first layer of this dtype */
        }
    }
    TRY(bench_run(table, plan->repeats, error));
    for (int i = 0; i < count; i++) TRY(cases[i].status);
    return MCSA_OK;
}

mcsa_status bench_gemm(const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    dit_linear_engine *engine = NULL;
    layer_case cases[LAYERS * DTYPES] = { 0 };
    const int threads = omp_get_max_threads();
    table->share = "of q, k, v";
    TRY(dit_linear_engine_create(&engine, error));
    omp_set_num_threads(plan->shape.threads); /* oneDNN takes what the calling thread says */
    mcsa_status status = time_layers(cases, plan, engine, table, error);
    omp_set_num_threads(threads);
    for (int i = 0; i < LAYERS * DTYPES; i++) close_layer(&cases[i]);
    dit_linear_engine_free(engine);
    return status;
}
