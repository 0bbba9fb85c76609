/* wan.h - a Wan transformer (Diffusers' WanTransformer3DModel) on a CPU or a GPU.  Self-attention goes through
 * mcsa_attend, cross-attention through mcsa_attend_dense, linear layers through oneDNN or cuBLASLt.
 *
 * F32 weights compute in F32.  BF16 and F16 weights compute the blocks' linear layers and attention in BF16
 * with F32 accumulation, where the machine has AVX-512 BF16, else in F32; the residual stream, norms,
 * modulation, RoPE angles, embedders and head stay F32.  A GPU computes the blocks' linear layers and attention
 * in BF16 whatever the weights are.
 *
 * A model belongs to one thread at a time; a forward of sizes seen before allocates nothing.  Another number of threads
 * may change the last bits where oneDNN splits sums among threads (seen with AVX2, not with AVX-512). */
#ifndef MCSA_DIT_WAN_H
#define MCSA_DIT_WAN_H

#include "base/status.h"

typedef struct dit_wan_config {
    int patch[3];        /* frames, rows, columns */
    int heads, head_dim; /* dim = heads * head_dim */
    int in_channels, out_channels;
    int text_dim, freq_dim, ffn_dim, layers;
    int rope_max_seq_len;
    int cross_attn_norm; /* whether blocks.i.norm2 has weights */
    float eps;
} dit_wan_config;

typedef struct dit_wan dit_wan;

/* Zero means default, and so does NULL for the whole struct. */
typedef struct dit_wan_options {
    int threads;          /* default: what OpenMP would use */
    mcsa_dtype precision; /* MCSA_BF16 or MCSA_F32 to force the arithmetic; default: follow the weights */
    mcsa_isa isa;         /* highest instruction set of norms and RoPE (oneDNN chooses its own); default: the best */
    mcsa_device device;   /* default: the CPU.  CUDA loads libmcsa_dit_cuda.so; `isa` then means nothing */
    int device_index;     /* CUDA: which of the visible GPUs */
    void *stream;         /* CUDA: a cudaStream_t of that GPU, the one of the run; default the legacy default stream */
} dit_wan_options;

/* dir holds config.json and the weights.  Errors: MCSA_EIO, MCSA_EFORMAT, MCSA_EUNSUPPORTED (another kind of
 * model; BF16, an ISA or a GPU that this machine lacks), MCSA_ENOMEM, MCSA_EDEVICE. */
mcsa_status dit_wan_open(dit_wan **out, const char *dir, const dit_wan_options *options, mcsa_error *error);

/* The same from a configuration alone, with the weights of random_weights.h, made where they are used. */
mcsa_status dit_wan_open_random(dit_wan **out, const dit_wan_config *config, uint64_t seed,
                                const dit_wan_options *options, mcsa_error *error);
void dit_wan_free(dit_wan *model);
const dit_wan_config *dit_wan_describe(const dit_wan *model);
mcsa_dtype dit_wan_precision(const dit_wan *model);
mcsa_device dit_wan_device(const dit_wan *model);
int dit_wan_threads(const dit_wan *model);

/* Bytes of weights, vectors and work memory that the model holds on its device. */
int64_t dit_wan_bytes(const dit_wan *model);

/* Tokens of a latent of frames x height x width, or -1 when the patch does not divide it or there are more
 * than 2^31 - 1. */
int64_t dit_wan_tokens(const dit_wan *model, int frames, int height, int width);

/* Whether the model can run a latent of that size: MCSA_OK, or MCSA_EINVAL with the sentence that says why not. */
mcsa_status dit_wan_check_size(const dit_wan *model, int frames, int height, int width, mcsa_error *error);

/* Memory of the host for latents and velocities: page-locked with a GPU, which copies it 4 times as fast. */
mcsa_allocator dit_wan_host_memory(const dit_wan *model);

/* Who computes self-attention instead of the run: another method, or one that looks at q, k and v on their way to it.
 * Tensors are on the model's device; `error` gives the last failure in one sentence. */
typedef struct dit_attention {
    void *state;
    mcsa_status (*attend)(void *state, mcsa_site at, const mcsa_tensor *q, const mcsa_tensor *k, const mcsa_tensor *v,
                          const mcsa_tensor *out);
    const char *(*error)(const void *state);
} dit_attention;

/* One transformer evaluation.  All pointers are the host's, also with a GPU: they are megabytes where a step takes
 * seconds.  The run computes on the model's device and stream. */
typedef struct dit_wan_call {
    int frames, height, width; /* of the latent */
    const float *latent;       /* [in_channels, frames, height, width] */
    float timestep;            /* 1000 sigma */
    const float *context;      /* [context_rows, text_dim] */
    int context_rows;
    float *velocity;  /* out: [out_channels, frames, height, width] */
    mcsa_run *run;    /* attention */
    const dit_attention *self_attention; /* NULL: that of the run */
    int step, branch; /* for the run */
} dit_wan_call;

mcsa_status dit_wan_forward(dit_wan *model, const dit_wan_call *call, mcsa_error *error);

/* Seconds since the model was opened: all of forward, and its linear layers (on a GPU, between events around them). */
typedef struct dit_wan_times {
    double forward_s, linear_s;
} dit_wan_times;

dit_wan_times dit_wan_spent(const dit_wan *model);

#endif
