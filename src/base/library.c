/* library.c - see library.h. */
#include "library.h"

#include <dlfcn.h>

void *mcsa_library_symbol(const char *library, const char *symbol, mcsa_error *error)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    void *found = handle ? dlsym(handle, symbol) : NULL;
    if (found) return found;
    const char *why = dlerror();
    mcsa_fail(error, MCSA_EUNSUPPORTED, "%s", why ? why : "the loader gave no reason");
    if (handle) dlclose(handle);
    return NULL;
}
