/* fuzz.h - what the fuzz targets share.  fuzz_TARGET.c holds one LLVMFuzzerTestOneInput, which feeds its bytes
 * to one reader of foreign input and then demands what must hold whatever they were: a refusal says why, and
 * what was accepted is in range and survives being written out and read again.
 *
 * clang links libFuzzer to a target (make fuzz); every other build links replay.c, which runs the corpus. */
#ifndef MCSA_TESTS_FUZZ_H
#define MCSA_TESTS_FUZZ_H

#include "base/status.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Not assert: it has to hold in Release too. */
#define REQUIRE(condition)                                                                \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            abort();                                                                      \
        }                                                                                 \
    } while (0)

/* To be called once for every input that the reader took. */
void fuzz_accepted(void);

/* To be called for every other input: a refusal is one of the errors that a reader may give, and says so in a
 * sentence. */
void fuzz_refused(mcsa_status status, const mcsa_error *error);

/* Inputs so far. */
typedef struct fuzz_outcomes {
    int64_t accepted, refused;
} fuzz_outcomes;

fuzz_outcomes fuzz_so_far(void);

/* The file `name` with these bytes, in a directory of this process that is removed at exit.  Returns its path,
 * which the caller frees. */
char *fuzz_file(const char *name, const void *bytes, size_t count);

/* The bytes as a text, which ends at the first 0 among them; the caller frees it. */
char *fuzz_text(const uint8_t *data, size_t size);

#endif
