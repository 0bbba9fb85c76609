/* device_cpu.c - the CPU behind device.h: oneDNN for linear layers, rowwise.h for norms and RoPE. */
#include "device.h"

#include "base/half.h"
#include "base/memory.h"
#include "random_weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct cpu {
    dit_linear_engine *linear;
    dit_row_kernels rows;
} cpu;

static void cpu_close(void *state)
{
    cpu *c = state;
    dit_linear_engine_free(c->linear);
    free(c);
}

static mcsa_status cpu_open(void **state, const dit_device_options *options, mcsa_error *error)
{
    mcsa_machine machine = { .size = sizeof machine };
    TRY(mcsa_machine_read(&machine));
    if (options->isa > machine.isa)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "this machine has no %s; its best is %s",
                         mcsa_isa_name(options->isa), mcsa_isa_name(machine.isa));
    cpu *c = calloc(1, sizeof *c);
    if (!c) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a device");
    c->rows = dit_row_kernels_for(options->isa ? options->isa : machine.isa);
    mcsa_status status = dit_linear_engine_create(&c->linear, error);
    if (status != MCSA_OK) {
        free(c);
        return status;
    }
    *state = c;
    return MCSA_OK;
}

static mcsa_status cpu_arithmetic(void *state, const dit_wan_config *config, mcsa_dtype asked, mcsa_dtype stored,
                                  mcsa_dtype *dtype, mcsa_error *error)
{
    (void)state;
    (void)config;
    if (asked == MCSA_BF16 && !dit_linear_has_bf16())
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "this machine lacks AVX-512 BF16, which BF16 linear layers need");
    if (asked)
        *dtype = asked;
    else
        *dtype = stored != MCSA_F32 && dit_linear_has_bf16() ? MCSA_BF16 : MCSA_F32;
    return MCSA_OK;
}

static mcsa_allocator cpu_memory(void *state)
{
    (void)state;
    return mcsa_memory_from(&(mcsa_allocator){ 0 }).allocator;
}

static void cpu_put(void *state, void *to, const void *host, size_t bytes)
{
    (void)state;
    memcpy(to, host, bytes);
}

static mcsa_status cpu_get(void *state, void *host, const void *from, size_t bytes, mcsa_error *error)
{
    (void)state;
    (void)error;
    memcpy(host, from, bytes);
    return MCSA_OK;
}

static mcsa_status cpu_linear_create(dit_linear **out, void *state, const dit_linear_shape *shape, const float *weight,
                                     const float *bias, mcsa_error *error)
{
    return dit_linear_create(out, ((cpu *)state)->linear, shape, weight, bias, error);
}

static mcsa_status cpu_linear_random(dit_linear **out, void *state, const dit_linear_shape *shape, uint64_t seed,
                                     mcsa_error *error)
{
    const int64_t weights = shape->in * shape->out, count = weights + shape->out;
    const float spread = dit_random_spread(shape->in);
    float *numbers = malloc((size_t)count * sizeof *numbers);
    if (!numbers) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %lld random weights", (long long)count);
    for (int64_t i = 0; i < count; i++) numbers[i] = spread * dit_random_unit(seed, (uint64_t)i);
    /* A GPU keeps the bias in the dtype of the weights. */
    for (int64_t i = weights; i < count && shape->src == MCSA_BF16; i++)
        numbers[i] = mcsa_from_bf16(mcsa_to_bf16(numbers[i]));
    mcsa_status status = cpu_linear_create(out, state, shape, numbers, numbers + weights, error);
    free(numbers);
    return status;
}

static double cpu_linear_seconds(void *state)
{
    return dit_linear_engine_seconds(((cpu *)state)->linear);
}

static void cpu_norm_rows(void *state, const dit_norm *job, int64_t N)
{
    dit_norm_rows(&((cpu *)state)->rows, job, N);
}

static void cpu_rms_rope_rows(void *state, const dit_rms_rope *job, int64_t N)
{
    dit_rms_rope_rows(&((cpu *)state)->rows, job, N);
}

static void cpu_gather(void *state, const dit_patches *p, const float *latent, float *rows)
{
    (void)state;
    dit_patches_gather(p, latent, rows);
}

static void cpu_scatter(void *state, const dit_patches *p, const float *rows, float *latent)
{
    (void)state;
    dit_patches_scatter(p, rows, latent);
}

static void cpu_silu(void *state, const float *x, float *out, int count)
{
    (void)state;
    for (int i = 0; i < count; i++) out[i] = x[i] / (1.0f + expf(-x[i]));
}

static void cpu_modulate(void *state, const dit_modulation *job)
{
    (void)state;
    for (int r = 0; r < job->rows; r++) {
        const float one = (float)(job->scales >> r & 1), *value = job->value + (size_t)r * (size_t)job->value_stride;
        const float *table = job->table + (size_t)r * (size_t)job->dim;
        float *out = job->out + (size_t)r * (size_t)job->dim;
        for (int c = 0; c < job->dim; c++) out[c] = table[c] + value[c] + one;
    }
}

const dit_device dit_device_cpu = {
    .version = MCSA_VERSION,
    .open = cpu_open,
    .close = cpu_close,
    .arithmetic = cpu_arithmetic,
    .memory = cpu_memory,
    .host_memory = cpu_memory,
    .put = cpu_put,
    .get = cpu_get,
    .linear_create = cpu_linear_create,
    .linear_random = cpu_linear_random,
    .linear_free = dit_linear_free,
    .linear_apply = dit_linear_apply,
    .linear_seconds = cpu_linear_seconds,
    .norm_rows = cpu_norm_rows,
    .rms_rope_rows = cpu_rms_rope_rows,
    .gather = cpu_gather,
    .scatter = cpu_scatter,
    .silu = cpu_silu,
    .modulate = cpu_modulate,
};
