/* mcsa.h - Meta-Cached Sparse Attention (MC-Sparse) for diffusion transformers.
 *
 * A run follows one denoising trajectory.  Tell it how many steps and layers there are, then hand it q, k and v of every
 * self-attention call together with where the call sits:
 *
 *     mcsa_run *run = NULL;
 *     mcsa_config config = { .steps = 40, .layers = 30, .branches = 2, .density = 0.10f };
 *     if (mcsa_run_create(&run, &config, error, sizeof error) != MCSA_OK) ...
 *     for each step, branch, layer:
 *         mcsa_attend(run, (mcsa_site){ step, layer, branch }, &q, &k, &v, &out);
 *     mcsa_run_free(run);
 *
 * On DENSE steps the run computes dense attention.  On ANCHOR steps it returns the dense output too, groups similar
 * queries into tiles of C and similar keys into clusters, keeps for each group the clusters that hold the most exact
 * attention mass per key, and caches groups, clusters and the dense - sparse residual.  On REUSE steps it attends, with
 * the q, k and v of the day, to the kept keys and to the means of the clusters that are not kept, K rows in all, and adds
 * the residual.  METHOD.md has the equations; letters here are those of METHOD.md: H heads, N tokens, D head dimension,
 * C queries per group, G groups, K rows that a group attends to.
 *
 * With device = MCSA_DEVICE_CUDA the same run computes on an NVIDIA GPU: q, k, v, out and lse are device pointers, and
 * the calls put work on config.stream in order and return.  Only mcsa_run_stats waits for the GPU, to read stage times;
 * cudaMalloc and cudaFree, the default allocator, may wait where an anchor grows what the run holds and in
 * mcsa_run_free.  A REUSE that finds its anchor allocates nothing and may be captured in a CUDA graph on any stream but
 * NULL; replays read what the last anchor left, as long as no anchor had to grow it.  The caller's current device is
 * left as it was.
 *
 * A run belongs to one thread at a time; different runs are independent.  Results are the same bits for any number of
 * threads.  Nothing here prints, exits, reads the environment or keeps global state.
 */
#ifndef MCSA_H
#define MCSA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) && defined(MCSA_BUILD)
#define MCSA_API __attribute__((visibility("default")))
#else
#define MCSA_API
#endif

#define MCSA_VERSION "0.1.0"

MCSA_API const char *mcsa_version(void);

typedef enum mcsa_status {
    MCSA_OK = 0,
    MCSA_EINVAL,      /* the caller's mistake; the sentence says which number is wrong */
    MCSA_EUNSUPPORTED, /* a limit of this library or of this machine */
    MCSA_ENOMEM,      /* the allocator returned NULL */
    MCSA_EFORMAT,     /* a file is not what it claims to be */
    MCSA_EIO,         /* the operating system refused a read or a write */
    MCSA_ECANCELED,   /* a callback asked to stop */
    MCSA_EDEVICE      /* the GPU or its driver reported an error; the sentence holds its words */
} mcsa_status;

MCSA_API const char *mcsa_status_name(mcsa_status status);

typedef enum mcsa_dtype { MCSA_F32 = 1, MCSA_BF16 = 2, MCSA_F16 = 3 } mcsa_dtype;

/* A borrowed view of [H, N, D] numbers; the library never frees data.  Strides are in elements, so [H, N, D], [N, H, D]
 * and a slice of fused QKV are all views without a copy.  Elements of one view must not overlap each other. */
typedef struct mcsa_tensor {
    void *data;
    mcsa_dtype dtype;
    int64_t shape[3];  /* H, N, D */
    int64_t stride[3]; /* elements between neighbours along H, N, D; each >= 1 where the shape is > 1 */
} mcsa_tensor;

/* Where a call sits in the run: denoising step, transformer layer, guidance branch (0 is the leader of shared branches:
 * call it first within a step). */
typedef struct mcsa_site {
    int step, layer, branch;
} mcsa_site;

typedef enum mcsa_action { MCSA_DENSE = 0, MCSA_ANCHOR = 1, MCSA_REUSE = 2 } mcsa_action;

typedef enum mcsa_residual {
    MCSA_RESIDUAL_DEFAULT = 0, /* bf16 */
    MCSA_RESIDUAL_BF16,
    MCSA_RESIDUAL_INT8, /* one scale per row */
    MCSA_RESIDUAL_INT4, /* one scale per row */
    MCSA_RESIDUAL_OFF   /* no compensation: for ablations */
} mcsa_residual;

/* What stands for the keys that a group does not keep. */
typedef enum mcsa_tail {
    MCSA_TAIL_DEFAULT = 0, /* means */
    MCSA_TAIL_MEANS, /* keys are kept by clusters; one that is not kept is one row, the means of its keys and of its
                        values in that very call */
    MCSA_TAIL_OFF /* nothing, as in the paper: keys are kept one by one */
} mcsa_tail;

typedef enum mcsa_sharing {
    MCSA_BRANCHES_DEFAULT = 0, /* shared when there are two branches, apart otherwise */
    MCSA_BRANCHES_SHARED,      /* branch 0's groups and kept keys serve all branches; each keeps its own residual */
    MCSA_BRANCHES_APART
} mcsa_sharing;

typedef enum mcsa_isa { MCSA_ISA_AUTO = 0, MCSA_ISA_SCALAR, MCSA_ISA_AVX2, MCSA_ISA_AVX512BF16 } mcsa_isa;

/* Where a run computes.  CUDA needs libmcsa_cuda beside this library, a driver and a GPU of compute capability 9.0
 * (H100, H200); mcsa_gpu_read says whether they are there. */
typedef enum mcsa_device { MCSA_DEVICE_CPU = 0, MCSA_DEVICE_CUDA } mcsa_device;

/* alloc returns at least `bytes` bytes aligned to 64, or NULL; free gets the same size back.  With CUDA it is device
 * memory aligned to 256, and free is called when work on the run's stream may still use the block: hand it out again in
 * the order of that stream. */
typedef struct mcsa_allocator {
    void *(*alloc)(void *user, size_t bytes);
    void (*free)(void *user, void *block, size_t bytes);
    void *user;
} mcsa_allocator;

/* Zero means default: start from { 0 } and name what you change.  `size` lets the struct grow: set it to
 * sizeof(mcsa_config), or leave it 0 when caller and library were built from the same header. */
typedef struct mcsa_config {
    size_t size;
    int steps;            /* S, denoising steps; required */
    int layers;           /* L, self-attention layers; required */
    int branches;         /* guidance branches; default 1 */
    float density;        /* K / N, in (0, 1], means included; default 0.10 */
    int group;            /* C, queries per group; default 128 */
    const char *schedule; /* "ramp" (default), "fast", "paper", "every:N[,W]", "list:a,b,c"; see mcsa_schedule_fill */
    const mcsa_action *actions; /* [layers, steps]; replaces `schedule` when not NULL; copied */
    int dense_layers;     /* the first layers that always run dense; default 0; for others write `actions` */
    mcsa_sharing sharing;
    mcsa_residual residual;
    float scale;          /* of the scores; default 1 / sqrt(D) */
    int threads;          /* default: what OpenMP would use */
    mcsa_isa isa;         /* highest instruction set to use; default: the best of this machine */
    int check_finite;     /* 1: refuse NaN and infinity in q, k, v with MCSA_EINVAL.  0: they spread as IEEE says into
                             the rows that read them, and into a cached selection whose members are then unspecified */
    mcsa_allocator allocator; /* default: aligned_alloc and free, or cudaMalloc and cudaFree */
    mcsa_device device;   /* default: the CPU.  `threads` and `isa` are the CPU's alone */
    int device_index;     /* CUDA: which of the visible GPUs; default the first */
    void *stream;         /* CUDA: a cudaStream_t of that GPU; default the legacy default stream */
    mcsa_tail tail;
} mcsa_config;

typedef struct mcsa_run mcsa_run;

/* Errors: MCSA_EINVAL (a field out of range; the sentence goes to `error` when it is not NULL), MCSA_EUNSUPPORTED (an
 * ISA or a GPU this machine lacks; with CUDA also a group other than 128, a residual other than bf16 or off, or
 * check_finite), MCSA_ENOMEM, MCSA_EDEVICE.  *out is NULL after a failure. */
MCSA_API mcsa_status mcsa_run_create(mcsa_run **out, const mcsa_config *config, char *error, size_t error_bytes);
MCSA_API void mcsa_run_free(mcsa_run *run); /* NULL is fine */

/* Self-attention of H heads over N tokens at `at`: out = softmax(q k^T * scale) v by the action that the schedule gives.
 * q, k, v, out: [H, N, D] of one dtype, N >= 1, 1 <= D <= 256.  out must not share memory with q, k or v.
 * A REUSE whose anchor is missing (steps were skipped, the shape changed, the leader moved on) becomes an anchor and is
 * counted in mcsa_stats.fallback.  A REUSE that finds its anchor allocates nothing.  After any error the run is usable
 * and out is unspecified.
 * CUDA takes BF16 and FP16, D of 64 or 128, a stride of 1 along D, and addresses and other strides that are multiples of
 * 16 bytes, of out too.
 * Errors: MCSA_EINVAL (shape, stride, dtype, NULL, site out of range, non-finite input when checked), MCSA_EUNSUPPORTED,
 * MCSA_ENOMEM, MCSA_EDEVICE. */
MCSA_API mcsa_status mcsa_attend(mcsa_run *run, mcsa_site at, const mcsa_tensor *q, const mcsa_tensor *k,
                                 const mcsa_tensor *v, const mcsa_tensor *out);

/* Dense attention outside the schedule, such as cross-attention: q, out [H, N, D]; k, v [H, M, D], any M >= 1.
 * lse: [H, N] natural log of the softmax denominators (of scaled scores), or NULL.  Same errors as mcsa_attend. */
MCSA_API mcsa_status mcsa_attend_dense(mcsa_run *run, const mcsa_tensor *q, const mcsa_tensor *k, const mcsa_tensor *v,
                                       const mcsa_tensor *out, float *lse);

/* Forgets all anchors, keeps configuration, memory and statistics: for the next video with the same run. */
MCSA_API void mcsa_run_reset(mcsa_run *run);

/* The action that the schedule gives; a missing anchor may still turn REUSE into an anchor. -1 when out of range. */
MCSA_API int mcsa_run_action(const mcsa_run *run, mcsa_site at);

/* The last failure of this run in one sentence; "" before the first. */
MCSA_API const char *mcsa_run_error(const mcsa_run *run);

/* Expands a schedule to actions[steps].
 *   ramp         the first 10 % of the steps dense, an anchor at the last of them, then gaps of 2, 3, 4, ... steps
 *                between anchors, times the square root of steps / 40; dense where an anchor would serve no step
 *   fast         the first 10 % dense, anchors at the last of them, a quarter and half of the way through; less
 *                attention than ramp, and farther from dense
 *   every:N[,W]  W dense warm-up steps (default 1), an anchor at the last of them and every N steps from there
 *   paper        the first 20 % dense, anchors at the last of them and a third of the way through the rest
 *   list:a,b,c   anchors at these steps, ascending; dense before the first
 * Errors: MCSA_EINVAL with a sentence in `error` (may be NULL). */
MCSA_API mcsa_status mcsa_schedule_fill(const char *text, int steps, mcsa_action *actions, char *error,
                                        size_t error_bytes);

typedef struct mcsa_stats {
    size_t size;             /* in: sizeof(mcsa_stats), or 0 for this header's */
    int64_t dense, anchor, reuse; /* self-attention calls by the action that the schedule gave and that was run */
    int64_t fallback;        /* calls that should have reused and became anchors; the sum of the reasons below */
    int64_t fallback_no_anchor, fallback_stale, fallback_shape, fallback_leader;
    double density_requested;
    double density_executed; /* query-key pairs computed by REUSE calls, tile padding included, over H N N */
    double density_run;      /* the same over all self-attention calls; an anchor counts 1 + s, and 0.5 more where its scores are computed twice */
    double attention_s;      /* wall time inside mcsa_attend and mcsa_attend_dense; the stages below are parts of it.
                                CUDA: the GPU's time, the sum of the stages; what was captured in graphs is not timed */
    double dense_s, grouping_s, selection_s, sparse_s; /* sparse_s: token-sparse attention and residual.  On the CPU an
                                anchor selects within dense attention, in dense_s, and selection_s stays 0 */
    int64_t selection_bytes, residual_bytes, scratch_bytes; /* held now */
    int64_t allocations;     /* calls of the allocator so far */
} mcsa_stats;

/* With CUDA it waits until the GPU has done the calls whose times it reports, unless the stream is being captured. */
MCSA_API mcsa_status mcsa_run_stats(const mcsa_run *run, mcsa_stats *stats);

/* What this machine offers. */
typedef struct mcsa_machine {
    size_t size;
    mcsa_isa isa;        /* the best level */
    int threads;         /* OpenMP's default */
    const char *features; /* "avx2 fma f16c avx512f ..."; static storage */
} mcsa_machine;

MCSA_API mcsa_status mcsa_machine_read(mcsa_machine *machine);
MCSA_API const char *mcsa_isa_name(mcsa_isa isa); /* "auto", "scalar", "avx2", "avx512bf16" */

/* A GPU as libmcsa_cuda sees it; what could not be found out is 0 or "". */
typedef struct mcsa_gpu {
    size_t size;
    char name[128];
    int capability;       /* 90: compute capability 9.0 */
    int multiprocessors;
    int64_t memory_bytes;
    int driver, runtime;  /* CUDA versions, 13000 is 13.0: the newest that the driver runs, and that of libmcsa_cuda */
    char missing[512];    /* why a run cannot compute there, and what to do; "" when it can */
} mcsa_gpu;

/* Loads libmcsa_cuda and asks about the GPU of this index; mcsa_machine_read does neither.  MCSA_OK when a run can
 * compute there, else MCSA_EUNSUPPORTED with the reason in `missing`. */
MCSA_API mcsa_status mcsa_gpu_read(mcsa_gpu *gpu, int index);

#ifdef __cplusplus
}
#endif
#endif
