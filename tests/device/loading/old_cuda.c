/* old_cuda.c - a libmcsa_cuda of another version, of which nothing but the version may be used. */
#include "core/backend.h"

__attribute__((visibility("default"))) extern const mcsa_backend mcsa_backend_cuda;
const mcsa_backend mcsa_backend_cuda = { .name = "cuda", .version = "0.0.1" };
