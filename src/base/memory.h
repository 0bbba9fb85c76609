/* memory.h - blocks from the caller's allocator, counted, and an arena that carves one block by name. */
#ifndef MCSA_BASE_MEMORY_H
#define MCSA_BASE_MEMORY_H

#include "mcsa.h"

typedef struct mcsa_memory {
    mcsa_allocator allocator;
    int64_t calls; /* of alloc */
} mcsa_memory;

typedef struct mcsa_block {
    void *data; /* aligned to 64 */
    size_t bytes;
} mcsa_block;

/* Uses aligned_alloc and free where `allocator` has no alloc. */
mcsa_memory mcsa_memory_from(const mcsa_allocator *allocator);

/* Makes block hold at least `bytes`, contents unspecified.  Returns 0, or -1 with the block left as it was. */
int mcsa_block_reserve(mcsa_memory *memory, mcsa_block *block, size_t bytes);
void mcsa_block_release(mcsa_memory *memory, mcsa_block *block);

/* Carving: with data NULL the arena only measures, so sizes and pointers come from the same lines. */
typedef struct mcsa_arena {
    char *data;
    size_t used;
} mcsa_arena;

/* 64-byte aligned; NULL while measuring. */
void *mcsa_arena_take(mcsa_arena *arena, size_t bytes);

#endif
