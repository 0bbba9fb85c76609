/* safetensors.h - named tensors in memory-mapped .safetensors files, one file or many shards; and a writer
 * for small sets.
 *
 * Reading distrusts every length: header size, JSON, offsets, shapes and their products are checked before
 * use. */
#ifndef MCSA_DIT_SAFETENSORS_H
#define MCSA_DIT_SAFETENSORS_H

#include "base/status.h"

enum { DIT_MAX_RANK = 8 };

typedef struct dit_tensor {
    const char *name;
    mcsa_dtype dtype;
    int rank;
    int64_t shape[DIT_MAX_RANK];
    const void *data; /* [shape...], row-major, in the mapping; may be unaligned */
} dit_tensor;

typedef struct dit_tensors dit_tensors;

/* path: a .safetensors file, an .index.json, or a directory that holds diffusion_pytorch_model.safetensors,
 * model.safetensors or one of their .index.json. */
mcsa_status dit_tensors_open(dit_tensors **out, const char *path, mcsa_error *error);
void dit_tensors_free(dit_tensors *tensors);

/* NULL when there is none of that name. */
const dit_tensor *dit_tensors_find(const dit_tensors *tensors, const char *name);
int dit_tensors_count(const dit_tensors *tensors);
const dit_tensor *dit_tensors_at(const dit_tensors *tensors, int i);

/* The tensor of that name and shape [rank]; MCSA_EFORMAT names the tensor, the expected shape and the found
 * one. */
mcsa_status dit_tensors_require(const dit_tensors *tensors, const char *name, const int64_t *shape, int rank,
                                const dit_tensor **out, mcsa_error *error);

/* Elements of one tensor, converted exactly to float: dst [count]. */
void dit_tensor_read(const dit_tensor *tensor, float *dst);
int64_t dit_tensor_count(const dit_tensor *tensor);

/* Writes to a temporary name beside `path` and renames: a failure leaves nothing half-written.  Names must
 * differ. */
mcsa_status dit_tensors_write(const char *path, const dit_tensor *tensors, int count, mcsa_error *error);

#endif
