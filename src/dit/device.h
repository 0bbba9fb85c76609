/* device.h - what a Wan transformer asks of the hardware it runs on.
 *
 * wan.c has the architecture and wan_load.c the places of the weights; both speak to this table only.  A CPU fills it
 * in device_cpu.c, an NVIDIA GPU in cuda/device_cuda.c, which is a library of its own, loaded when it is asked for.
 *
 * Pointers are the device's unless they say host.  Work is done in the order of the calls, but need not be done when a
 * call returns; `get` waits for it.  Calls without a status cannot fail on a CPU; on a GPU the next `get` reports a
 * launch that failed. */
#ifndef MCSA_DIT_DEVICE_H
#define MCSA_DIT_DEVICE_H

#include "linear.h"
#include "patches.h"
#include "rowwise.h"
#include "wan.h"

typedef struct dit_device_options {
    int threads;  /* of a CPU */
    mcsa_isa isa; /* of a CPU's row kernels; MCSA_ISA_AUTO: the best */
    int index;    /* which GPU */
    void *stream; /* of a GPU */
} dit_device_options;

/* out[r, c] = table[r, c] + value[r * value_stride + c], and 1 more in the rows whose bit in `scales` is set: those
 * multiply by 1 + scale. */
typedef struct dit_modulation {
    float *out;         /* [rows, dim] */
    const float *table; /* [rows, dim] */
    const float *value;
    int rows, dim, value_stride;
    unsigned scales;
} dit_modulation;

typedef struct dit_device {
    const char *version; /* MCSA_VERSION, equal on both sides, since they share these structs */
    mcsa_status (*open)(void **state, const dit_device_options *options, mcsa_error *error);
    void (*close)(void *state);

    /* The dtype of the blocks' linear layers and attention, from what the caller asked (0: nothing) and how the weights
     * are stored; or why this device cannot run such a model. */
    mcsa_status (*arithmetic)(void *state, const dit_wan_config *config, mcsa_dtype asked, mcsa_dtype stored,
                              mcsa_dtype *dtype, mcsa_error *error);

    mcsa_allocator (*memory)(void *state);
    mcsa_allocator (*host_memory)(void *state);                         /* of the host, that put and get copy fastest */
    void (*put)(void *state, void *to, const void *host, size_t bytes); /* host may be reused at once */
    mcsa_status (*get)(void *state, void *host, const void *from, size_t bytes, mcsa_error *error);

    /* weight: host [out, in]; bias: host [out]; both are copied */
    mcsa_status (*linear_create)(dit_linear **out, void *state, const dit_linear_shape *shape, const float *weight,
                                 const float *bias, mcsa_error *error);
    /* the weights and biases of random_weights.h */
    mcsa_status (*linear_random)(dit_linear **out, void *state, const dit_linear_shape *shape, uint64_t seed,
                                 mcsa_error *error);
    void (*linear_free)(dit_linear *layer);
    mcsa_status (*linear_apply)(dit_linear *layer, const void *x, void *y, int64_t rows, mcsa_error *error);
    double (*linear_seconds)(void *state); /* spent in linear_apply up to the last `get` */

    void (*norm_rows)(void *state, const dit_norm *job, int64_t N);
    void (*rms_rope_rows)(void *state, const dit_rms_rope *job, int64_t N);
    void (*gather)(void *state, const dit_patches *p, const float *latent, float *rows);
    void (*scatter)(void *state, const dit_patches *p, const float *rows, float *latent);
    void (*silu)(void *state, const float *x, float *out, int count); /* out = x / (1 + exp(-x)) */
    void (*modulate)(void *state, const dit_modulation *job);
} dit_device;

extern const dit_device dit_device_cpu;

/* That of the CPU, or the one in libmcsa_dit_cuda, loaded when first asked for.  MCSA_EUNSUPPORTED says why it cannot
 * be. */
mcsa_status dit_device_find(const dit_device **out, mcsa_device kind, mcsa_error *error);

#endif
