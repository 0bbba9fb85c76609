/* cudnn_attention.h - dense attention by NVIDIA's cuDNN, the outside reference of the tables about a GPU. */
#ifndef MCSA_BENCH_CUDNN_ATTENTION_H
#define MCSA_BENCH_CUDNN_ATTENTION_H

#include "base/status.h"
#include "core/plan.h"

typedef struct bench_cudnn bench_cudnn;

/* Loads libcudnn.so.9 and plans attention for x on the default stream, without row sums.  MCSA_EUNSUPPORTED says why
 * there is none, MCSA_ENOMEM that `memory`, the GPU's, has no room for its scratch. */
mcsa_status bench_cudnn_open(bench_cudnn **out, const mcsa_qkv *x, mcsa_memory *memory, mcsa_error *error);
void bench_cudnn_close(bench_cudnn *cudnn);

/* 91900: version 9.19.0 */
int bench_cudnn_version(const bench_cudnn *cudnn);

/* Puts the work on the default stream.  Failures stay until bench_cudnn_outcome tells them. */
void bench_cudnn_attend(bench_cudnn *cudnn);
mcsa_status bench_cudnn_outcome(const bench_cudnn *cudnn, mcsa_error *error);

#endif
