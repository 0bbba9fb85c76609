/* schedule.h - (layer, step) -> DENSE, ANCHOR or REUSE. */
#ifndef MCSA_CORE_SCHEDULE_H
#define MCSA_CORE_SCHEDULE_H

#include "base/status.h"

mcsa_status mcsa_schedule_parse(const char *text, int steps, mcsa_action *actions, mcsa_error *error);

/* The last anchor at or before `step`, or -1. */
int mcsa_schedule_anchor(const mcsa_action *actions, int step);

#endif
