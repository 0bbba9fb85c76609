/* status.h - how a failure travels: a status code upward, one sentence with the numbers in a caller-owned mcsa_error.
 */
#ifndef MCSA_BASE_STATUS_H
#define MCSA_BASE_STATUS_H

#include "mcsa.h"

typedef struct mcsa_error {
    char text[512];
} mcsa_error;

/* Writes the sentence and returns `status`, so that a check is one line: return mcsa_fail(...).  error may be NULL. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
mcsa_status
mcsa_fail(mcsa_error *error, mcsa_status status, const char *format, ...);

/* Hands a failure of `call` to the caller. */
#define TRY(call)                                     \
    do {                                              \
        mcsa_status try_status = (call);              \
        if (try_status != MCSA_OK) return try_status; \
    } while (0)

#endif
