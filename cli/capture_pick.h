/* capture_pick.h - which of some numbers are meant: the word of options like --at-steps.
 *
 *   all        every one
 *   spread:N   N of them, evenly spaced, with the first and the last
 *   growing    the first, and on with gaps of 1, 2, 3, ...: near steps and far ones in few captures
 *   A,B-C,...  these, all of which must be there */
#ifndef MCSA_CLI_CAPTURE_PICK_H
#define MCSA_CLI_CAPTURE_PICK_H

#include "base/status.h"

/* keep [count]: 1 for each of values [count], ascending, that `text` picks.  MCSA_EINVAL says what `option` takes. */
mcsa_status capture_pick(char *keep, const int *values, int count, const char *option, const char *text,
                         mcsa_error *error);

#endif
