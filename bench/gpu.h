/* gpu.h - attention problems on a GPU, timed there, and their gates on the host.
 *
 * The first heads are made on the host as for a CPU, and head h of the GPU holds the data of head h % S of those S.
 * All results come back: heads of equal data must have equal bits, and rows of the first S are compared with answers in
 * double.  Nothing here is linked to CUDA: kernels are libmcsa_cuda's, copies libmcsa_dit_cuda's. */
#ifndef MCSA_BENCH_GPU_H
#define MCSA_BENCH_GPU_H

#include "bench.h"
#include "dit/device.h"
#include "problem.h"

enum { BENCH_SAMPLED_HEADS = 2 };

/* Dense BF16 and FP16 of the H100 and H200 by their data sheets. */
#define BENCH_GPU_PEAK 989.4e12

typedef struct bench_gpu {
    const mcsa_backend *backend;
    const dit_device *device; /* copies */
    void *state, *copies;     /* of these two */
    mcsa_memory memory;       /* the GPU's */
    mcsa_block block;         /* of the tensors and lse */
    mcsa_tensor q, k, v, out; /* [H, N, D] */
    float *lse;               /* [H, N] */
    mcsa_qkv x;
    bench_problem sample; /* [S, N, D]; out is what bench_gpu_fetch brought */
    mcsa_status status;   /* the first failure, with its sentence */
    mcsa_error error;
} bench_gpu;

/* Groups, clusters and what is kept on both sides. */
typedef struct bench_gpu_selection {
    mcsa_selection host; /* of S heads */
    mcsa_selection there;
} bench_gpu_selection;

/* density: of the selections that will be used, with means or without; 0: of none.  clusters: see bench_problem_open.
 */
mcsa_status bench_gpu_open(bench_gpu *gpu, const bench_shape *shape, int clusters, float density, mcsa_error *error);
/* The same by the tables that gpu->backend and gpu->device name, all else being zero. */
mcsa_status bench_gpu_open_on(bench_gpu *gpu, const bench_shape *shape, int clusters, float density, mcsa_error *error);
void bench_gpu_close(bench_gpu *gpu);

/* What went wrong since it was opened. */
mcsa_status bench_gpu_outcome(bench_gpu *gpu, mcsa_error *error);

/* The verbs of a backend, of which `stage` gets the seconds that the GPU took, once bench_gpu_wait was called. */
void bench_gpu_start(bench_gpu *gpu);
void bench_gpu_dense(bench_gpu *gpu, double *stage);
void bench_gpu_group(bench_gpu *gpu, bench_gpu_selection *s, double *stage);
void bench_gpu_cluster(bench_gpu *gpu, bench_gpu_selection *s, double *stage);
void bench_gpu_select(bench_gpu *gpu, bench_gpu_selection *s, double *stage);
void bench_gpu_tokens(bench_gpu *gpu, const bench_gpu_selection *s, const mcsa_residual_rows *rows, double *stage);
void bench_gpu_lap(bench_gpu *gpu, double *stage);
void bench_gpu_wait(bench_gpu *gpu);

/* NaN into out on the GPU. */
void bench_gpu_poison(bench_gpu *gpu);

/* Brings out to sample.out.  Returns whether heads of equal data are equal. */
int bench_gpu_fetch(bench_gpu *gpu);

/* bench_gpu_fetch and bench_check_rows over the kept keys of s, or all when s is NULL. */
int bench_gpu_is_right(bench_gpu *gpu, const bench_gpu_selection *s);

/* Opened, it is on both sides one that no gate passes. */
mcsa_status bench_gpu_selection_open(bench_gpu_selection *s, bench_gpu *gpu, bench_budget budget, mcsa_error *error);
void bench_gpu_selection_close(bench_gpu_selection *s, bench_gpu *gpu);
void bench_gpu_selection_put(bench_gpu_selection *s, bench_gpu *gpu);

/* Brings all of it.  Returns whether heads of equal data are equal. */
int bench_gpu_selection_fetch(bench_gpu_selection *s, bench_gpu *gpu);

/* Dense attention's answer to sample.out of an anchor and its reuse on the same tensors, by way of `residual`: within
 * the roundings of the residual, of the sparse output and of their sum. */
int bench_gpu_gives_dense_back(bench_gpu *gpu, const bench_gpu_selection *s, const mcsa_residual_rows *residual);

/* The slack of bench_keeps_the_heaviest beside a CPU's: a tensor core cuts where a CPU rounds. */
double bench_gpu_mass_slack(const bench_gpu *gpu);

/* What the driver says: figures of clock, power and temperature while dense attention runs; nothing without NVML. */
void bench_gpu_add_clocks(bench_gpu *gpu, bench_table *table);

/* "580.95.05", or "". */
void bench_gpu_driver(char *version, size_t bytes);

#endif
