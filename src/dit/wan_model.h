/* wan_model.h - what a loaded Wan transformer holds on its device: its layers, its vectors as float, and the work
 * memory of a forward pass.  wan_load.c fills it, wan.c runs it. */
#ifndef MCSA_DIT_WAN_MODEL_H
#define MCSA_DIT_WAN_MODEL_H

#include "base/memory.h"
#include "device.h"

typedef struct wan_attention {
    dit_linear *out;        /* dim -> dim */
    float *norm_q, *norm_k; /* [dim] */
} wan_attention;

typedef struct wan_block {
    wan_attention self, cross;
    dit_linear *qkv;                 /* dim -> 3 dim: q, k, v of self-attention side by side */
    dit_linear *cross_q, *cross_kv;  /* dim -> dim; context dim -> 2 dim */
    dit_linear *ffn_in, *ffn_out;    /* dim -> ffn with GELU, ffn -> dim */
    float *norm2_gain, *norm2_shift; /* [dim], NULL without cross_attn_norm */
    float *table;                    /* [6, dim] scale_shift_table */
} wan_block;

/* Carved from one block of memory at each forward; T is the dtype of the blocks' linear layers. */
typedef struct wan_work {
    float *latent;              /* [channels, frames, height, width], in or out */
    float *captions;            /* [rows, text_dim] */
    float *patches;             /* [N, channels of a patch], in or out */
    float *x;                   /* [N, dim] residual stream */
    void *h, *y;                /* T [N, dim] input and output of a sublayer */
    void *wide;                 /* T [N, max(3 dim, ffn)] */
    float *text, *text_hidden;  /* [rows, dim] */
    void *context, *context_kv; /* T [rows, dim], T [rows, 2 dim] */
    float *angles;              /* [freq] of the timestep */
    float *time, *time_hidden;  /* [dim] */
    float *time_proj;           /* [6, dim] */
    float *modulation;          /* [layers, 6, dim] */
    float *head_modulation;     /* [2, dim] */
} wan_work;

struct dit_wan {
    dit_wan_config config;
    int dim, threads;
    int64_t weight_bytes; /* of linear layers */
    mcsa_dtype dtype;     /* of the blocks' linear layers and attention */
    mcsa_device kind;
    const dit_device *device;
    void *state;                                                              /* of the device; NULL until it is open */
    dit_linear *patch, *time_1, *time_2, *time_proj, *text_1, *text_2, *head; /* F32 */
    float *head_table;                                                        /* [2, dim] */
    wan_block *blocks;                                                        /* [layers] */

    mcsa_memory memory;
    mcsa_block vectors, scratch, rope_tables;
    dit_rope rope;      /* of the last grid */
    float *sinusoids;   /* host [freq_dim] of the timestep */
    uint64_t next_seed; /* while a model of random weights is made */
    double forward_s;
};

#endif
