/* golden.h - what the golden tests share: tensors of a golden file as floats, and the distance to them. */
#ifndef MCSA_TESTS_GOLDEN_H
#define MCSA_TESTS_GOLDEN_H

#include "dit/safetensors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
/* cmocka wants the four above before it */
#include <cmocka.h>

#define GOLDEN(name) MCSA_GOLDEN_DIR "/" name

/* Fails the test with the sentence of `error`. */
static inline void must(mcsa_status status, const mcsa_error *error)
{
    if (status != MCSA_OK) fail_msg("%s: %s", mcsa_status_name(status), error->text);
}

static inline dit_tensors *open_tensors(const char *path)
{
    mcsa_error error = { "" };
    dit_tensors *tensors = NULL;
    must(dit_tensors_open(&tensors, path, &error), &error);
    return tensors;
}

/* The caller frees the numbers. */
static inline float *floats_of(const dit_tensors *tensors, const char *name, const dit_tensor **tensor)
{
    *tensor = dit_tensors_find(tensors, name);
    if (!*tensor) fail_msg("the golden file lacks %s", name);
    float *numbers = malloc((size_t)dit_tensor_count(*tensor) * sizeof *numbers);
    assert_non_null(numbers);
    dit_tensor_read(*tensor, numbers);
    return numbers;
}

/* |a - b| / |b|; NaN in either makes it NaN. */
static inline double relative_l2(const float *a, const float *b, int64_t count)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(difference / norm);
}

/* Prints the measured distance beside its limit, then judges it. */
static inline void within(const char *what, double measured, double limit)
{
    printf("    %-44s %.2e of %.0e\n", what, measured, limit);
    if (!(measured <= limit)) fail_msg("%s: %g exceeds %g", what, measured, limit);
}

#endif
