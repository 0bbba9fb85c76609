/* memory.c - see memory.h. */
#include "memory.h"

#include <stdlib.h>

static void *default_alloc(void *user, size_t bytes)
{
    (void)user;
    size_t rounded = (bytes + 63) / 64 * 64; /* aligned_alloc wants a multiple */
    return rounded < bytes ? NULL : aligned_alloc(64, rounded);
}

static void default_free(void *user, void *block, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(block);
}

mcsa_memory mcsa_memory_from(const mcsa_allocator *allocator)
{
    mcsa_memory memory = { .allocator = { default_alloc, default_free, NULL } };
    if (allocator->alloc) memory.allocator = *allocator;
    return memory;
}

int mcsa_block_reserve(mcsa_memory *memory, mcsa_block *block, size_t bytes)
{
    if (block->bytes >= bytes) return 0;
    memory->calls++;
    mcsa_block grown = { memory->allocator.alloc(memory->allocator.user, bytes), bytes };
    if (!grown.data) return -1;
    mcsa_block_release(memory, block);
    *block = grown;
    return 0;
}

void mcsa_block_release(mcsa_memory *memory, mcsa_block *block)
{
    if (block->data) memory->allocator.free(memory->allocator.user, block->data, block->bytes);
    *block = (mcsa_block){ 0 };
}

void *mcsa_arena_take(mcsa_arena *arena, size_t bytes)
{
    size_t at = (arena->used + 63) / 64 * 64;
    arena->used = at + bytes;
    return arena->data ? arena->data + at : NULL;
}
