/* driver.c - a libcuda.so.1 that has a version (DRIVER_VERSION) and answers cuInit with DRIVER_INIT, and no more:
 * enough for the CUDA runtime to say that a driver is too old or shows no GPU, on a machine without either. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { NOT_FOUND = 500 }; /* CUDA_ERROR_NOT_FOUND */

EXPORT int cuDriverGetVersion(int *version);
EXPORT int cuInit(unsigned flags);
EXPORT int cuGetProcAddress_v2(const char *symbol, uintptr_t *function, int version, uint64_t flags, int *status);
EXPORT int cuGetProcAddress(const char *symbol, uintptr_t *function, int version, uint64_t flags);

int cuDriverGetVersion(int *version)
{
    *version = DRIVER_VERSION;
    return 0;
}

int cuInit(unsigned flags)
{
    (void)flags;
    return DRIVER_INIT;
}

int cuGetProcAddress_v2(const char *symbol, uintptr_t *function, int version, uint64_t flags, int *status)
{
    (void)version;
    (void)flags;
    *function = 0;
    if (strcmp(symbol, "cuDriverGetVersion") == 0) *function = (uintptr_t)cuDriverGetVersion;
    if (strcmp(symbol, "cuInit") == 0) *function = (uintptr_t)cuInit;
    if (strcmp(symbol, "cuGetProcAddress") == 0) *function = (uintptr_t)cuGetProcAddress_v2;
    if (status) *status = *function == 0; /* found, or not */
    return *function ? 0 : NOT_FOUND;
}

int cuGetProcAddress(const char *symbol, uintptr_t *function, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
