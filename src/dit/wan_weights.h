/* wan_weights.h - every tensor of a Wan transformer: one table of names and shapes, and the pointers it
 * fills. */
#ifndef MCSA_DIT_WAN_WEIGHTS_H
#define MCSA_DIT_WAN_WEIGHTS_H

#include "safetensors.h"
#include "wan.h"

/* A linear layer as stored: weight [out, in], bias [out]. */
typedef struct dit_wan_affine {
    const dit_tensor *weight, *bias;
} dit_wan_affine;

typedef struct dit_wan_attention_weights {
    dit_wan_affine q, k, v, out;       /* [dim, dim] */
    const dit_tensor *norm_q, *norm_k; /* [dim] */
} dit_wan_attention_weights;

typedef struct dit_wan_block_weights {
    const dit_tensor *scale_shift; /* [1, 6, dim] */
    dit_wan_attention_weights self, cross;
    dit_wan_affine norm2;           /* [dim], NULL without cross_attn_norm */
    dit_wan_affine ffn_in, ffn_out; /* [ffn, dim], [dim, ffn] */
} dit_wan_block_weights;

typedef struct dit_wan_outer_weights {
    dit_wan_affine patch;          /* [dim, in, pt, ph, pw] */
    dit_wan_affine time_1, time_2; /* [dim, freq], [dim, dim] */
    dit_wan_affine time_proj;      /* [6 dim, dim] */
    dit_wan_affine text_1, text_2; /* [dim, text], [dim, dim] */
    const dit_tensor *scale_shift; /* [1, 2, dim] */
    dit_wan_affine head;           /* [pt ph pw out, dim] */
} dit_wan_outer_weights;

/* The tensors that `config` needs, in the order of the table: 0 <= i < count. */
enum { DIT_WAN_NAME_BYTES = 96 };
typedef struct dit_wan_expected {
    char name[DIT_WAN_NAME_BYTES];
    int rank;
    int64_t shape[5];
} dit_wan_expected;

int dit_wan_expected_count(const dit_wan_config *config);
void dit_wan_expect(const dit_wan_config *config, int i, dit_wan_expected *expected);

/* The first missing or mis-shaped tensor is MCSA_EFORMAT by name, with expected and found shape.  Tensors
 * that the table does not know are ignored, as Diffusers does.  block: 0 <= block < layers. */
mcsa_status dit_wan_bind_outer(dit_wan_outer_weights *weights, const dit_tensors *tensors, const dit_wan_config *config,
                               mcsa_error *error);
mcsa_status dit_wan_bind_block(dit_wan_block_weights *weights, const dit_tensors *tensors, const dit_wan_config *config,
                               int block, mcsa_error *error);

/* The same pointers without a file: to `shapes` [dit_wan_expected_count], which become F32 tensors without name and
 * data.  blocks: [layers] */
void dit_wan_bind_shapes(dit_wan_outer_weights *outer, dit_wan_block_weights *blocks, dit_tensor *shapes,
                         const dit_wan_config *config);

#endif
