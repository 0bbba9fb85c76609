/* clock.h - monotonic seconds. */
#ifndef MCSA_BASE_CLOCK_H
#define MCSA_BASE_CLOCK_H

#include <time.h>

static inline double mcsa_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
