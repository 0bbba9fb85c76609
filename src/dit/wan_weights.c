/* wan_weights.c - see wan_weights.h. */
#include "wan_weights.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* An axis of a shape: what to look up in the configuration.  END closes a shape of fewer than 5 axes. */
typedef enum extent { END = 0, ONE, TWO, SIX, DIM, DIM_6, FFN, TEXT, FREQ, IN, PATCH_T, PATCH_H, PATCH_W, HEAD } extent;

typedef struct row {
    const char *name;
    size_t offset; /* of a const dit_tensor * in the weights struct */
    extent shape[5];
    int cross_norm; /* 1: only with cross_attn_norm */
} row;

#define OUTER(member) offsetof(dit_wan_outer_weights, member)
#define BLOCK(member) offsetof(dit_wan_block_weights, member)

/* clang-format off */
/* The rows of one linear layer; `of` is OUTER or BLOCK. */
#define LINEAR(name, of, member, out, in) \
    { name ".weight", of(member.weight), { out, in }, 0 }, \
    { name ".bias", of(member.bias), { out }, 0 }

#define ATTENTION(name, member) \
    LINEAR(name ".to_q", BLOCK, member.q, DIM, DIM), \
    LINEAR(name ".to_k", BLOCK, member.k, DIM, DIM), \
    LINEAR(name ".to_v", BLOCK, member.v, DIM, DIM), \
    LINEAR(name ".to_out.0", BLOCK, member.out, DIM, DIM), \
    { name ".norm_q.weight", BLOCK(member.norm_q), { DIM }, 0 }, \
    { name ".norm_k.weight", BLOCK(member.norm_k), { DIM }, 0 }
/* clang-format on */

static const row outer_rows[] = {
    { "patch_embedding.weight", OUTER(patch.weight), { DIM, IN, PATCH_T, PATCH_H, PATCH_W }, 0 },
    { "patch_embedding.bias", OUTER(patch.bias), { DIM }, 0 },
    LINEAR("condition_embedder.time_embedder.linear_1", OUTER, time_1, DIM, FREQ),
    LINEAR("condition_embedder.time_embedder.linear_2", OUTER, time_2, DIM, DIM),
    LINEAR("condition_embedder.time_proj", OUTER, time_proj, DIM_6, DIM),
    LINEAR("condition_embedder.text_embedder.linear_1", OUTER, text_1, DIM, TEXT),
    LINEAR("condition_embedder.text_embedder.linear_2", OUTER, text_2, DIM, DIM),
    { "scale_shift_table", OUTER(scale_shift), { ONE, TWO, DIM }, 0 },
    LINEAR("proj_out", OUTER, head, HEAD, DIM),
};

/* Names below "blocks.I.". */
static const row block_rows[] = {
    { "scale_shift_table", BLOCK(scale_shift), { ONE, SIX, DIM }, 0 },
    ATTENTION("attn1", self),
    ATTENTION("attn2", cross),
    { "norm2.weight", BLOCK(norm2.weight), { DIM }, 1 },
    { "norm2.bias", BLOCK(norm2.bias), { DIM }, 1 },
    LINEAR("ffn.net.0.proj", BLOCK, ffn_in, FFN, DIM),
    LINEAR("ffn.net.2", BLOCK, ffn_out, DIM, FFN),
};

enum { OUTER_ROWS = sizeof outer_rows / sizeof *outer_rows, BLOCK_ROWS = sizeof block_rows / sizeof *block_rows };

static int64_t extent_of(const dit_wan_config *config, extent axis)
{
    int64_t dim = (int64_t)config->heads * config->head_dim;
    switch (axis) {
    case END: break;
    case ONE: return 1;
    case TWO: return 2;
    case SIX: return 6;
    case DIM: return dim;
    case DIM_6: return 6 * dim;
    case FFN: return config->ffn_dim;
    case TEXT: return config->text_dim;
    case FREQ: return config->freq_dim;
    case IN: return config->in_channels;
    case PATCH_T: return config->patch[0];
    case PATCH_H: return config->patch[1];
    case PATCH_W: return config->patch[2];
    case HEAD: return (int64_t)config->patch[0] * config->patch[1] * config->patch[2] * config->out_channels;
    }
    return 0;
}

static int wanted(const row *r, const dit_wan_config *config)
{
    return !r->cross_norm || config->cross_attn_norm;
}

/* block < 0: a tensor outside the blocks. */
static void expect(const row *r, const dit_wan_config *config, int block, dit_wan_expected *expected)
{
    if (block < 0)
        snprintf(expected->name, sizeof expected->name, "%s", r->name);
    else
        snprintf(expected->name, sizeof expected->name, "blocks.%d.%s", block, r->name);
    expected->rank = 0;
    while (expected->rank < 5 && r->shape[expected->rank] != END) {
        expected->shape[expected->rank] = extent_of(config, r->shape[expected->rank]);
        expected->rank++;
    }
}

static int rows_per_block(const dit_wan_config *config)
{
    int count = 0;
    for (int i = 0; i < BLOCK_ROWS; i++) count += wanted(&block_rows[i], config);
    return count;
}

int dit_wan_expected_count(const dit_wan_config *config)
{
    return OUTER_ROWS + config->layers * rows_per_block(config);
}

void dit_wan_expect(const dit_wan_config *config, int i, dit_wan_expected *expected)
{
    if (i < OUTER_ROWS) {
        expect(&outer_rows[i], config, -1, expected);
        return;
    }
    int per_block = rows_per_block(config), block = (i - OUTER_ROWS) / per_block, skip = (i - OUTER_ROWS) % per_block;
    for (const row *r = block_rows;; r++)
        if (wanted(r, config) && skip-- == 0) {
            expect(r, config, block, expected);
            return;
        }
}

static mcsa_status bind(void *weights, const row *rows, int count, int block, const dit_tensors *tensors,
                        const dit_wan_config *config, mcsa_error *error)
{
    for (int i = 0; i < count; i++) {
        dit_wan_expected expected;
        const dit_tensor **slot = (const dit_tensor **)(void *)((char *)weights + rows[i].offset);
        *slot = NULL;
        if (!wanted(&rows[i], config)) continue;
        expect(&rows[i], config, block, &expected);
        TRY(dit_tensors_require(tensors, expected.name, expected.shape, expected.rank, slot, error));
    }
    return MCSA_OK;
}

mcsa_status dit_wan_bind_outer(dit_wan_outer_weights *weights, const dit_tensors *tensors, const dit_wan_config *config,
                               mcsa_error *error)
{
    return bind(weights, outer_rows, OUTER_ROWS, -1, tensors, config, error);
}

mcsa_status dit_wan_bind_block(dit_wan_block_weights *weights, const dit_tensors *tensors, const dit_wan_config *config,
                               int block, mcsa_error *error)
{
    return bind(weights, block_rows, BLOCK_ROWS, block, tensors, config, error);
}

/* Returns the tensor after the last one used. */
static dit_tensor *bind_shapes(void *weights, const row *rows, int count, const dit_wan_config *config,
                               dit_tensor *next)
{
    for (int i = 0; i < count; i++) {
        dit_wan_expected expected;
        const dit_tensor **slot = (const dit_tensor **)(void *)((char *)weights + rows[i].offset);
        *slot = NULL;
        if (!wanted(&rows[i], config)) continue;
        expect(&rows[i], config, 0, &expected);
        *next = (dit_tensor){ .dtype = MCSA_F32, .rank = expected.rank };
        memcpy(next->shape, expected.shape, sizeof expected.shape);
        *slot = next++;
    }
    return next;
}

void dit_wan_bind_shapes(dit_wan_outer_weights *outer, dit_wan_block_weights *blocks, dit_tensor *shapes,
                         const dit_wan_config *config)
{
    dit_tensor *next = bind_shapes(outer, outer_rows, OUTER_ROWS, config, shapes);
    for (int i = 0; i < config->layers; i++) next = bind_shapes(&blocks[i], block_rows, BLOCK_ROWS, config, next);
}
