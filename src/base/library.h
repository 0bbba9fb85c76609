/* library.h - shared libraries that are looked for at run time, so that nothing has to be there at link time. */
#ifndef MCSA_BASE_LIBRARY_H
#define MCSA_BASE_LIBRARY_H

#include "status.h"

/* What `library` exports as `symbol`, or NULL with the loader's words in `error`.  A name without a slash is looked for
 * beside libmcsa (its run path is $ORIGIN) and then where the loader looks anyway.  The library stays loaded. */
void *mcsa_library_symbol(const char *library, const char *symbol, mcsa_error *error);

#endif
