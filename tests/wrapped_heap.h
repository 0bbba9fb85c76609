/* wrapped_heap.h - a heap whose n-th allocation fails, for tests that are linked with -Wl,--wrap for each function
 * below (see CMakeLists.txt).  Include it in one file of a program. */
#ifndef MCSA_TESTS_WRAPPED_HEAP_H
#define MCSA_TESTS_WRAPPED_HEAP_H

#include <stdint.h>
#include <stdlib.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *block, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void *block);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __wrap_free(void *block);

static struct {
    int64_t calls, fail_at, held; /* fail_at: counted from 1; 0: none fails */
} heap;

static int fails(void)
{
    return ++heap.calls == heap.fail_at;
}

static void *counted(void *block)
{
    heap.held += block != NULL;
    return block;
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : counted(__real_malloc(bytes));
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : counted(__real_calloc(count, bytes));
}

void *__wrap_realloc(void *block, size_t bytes)
{
    if (fails()) return NULL;
    void *moved = __real_realloc(block, bytes);
    heap.held += moved && !block;
    return moved;
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails() ? NULL : counted(__real_aligned_alloc(alignment, bytes));
}

void __wrap_free(void *block)
{
    heap.held -= block != NULL;
    __real_free(block);
}

#endif
