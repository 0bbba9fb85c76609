/* layers.h - layers as a user names them: "N", the first N, or "list:A,B,C", ascending, the first is 0. */
#ifndef MCSA_CLI_LAYERS_H
#define MCSA_CLI_LAYERS_H

#include "base/status.h"

/* Sets named[l] to 1 for each layer of text that there is, and to 0 for the others.  named: [layers], or NULL to only
 * check the text.  MCSA_EINVAL for another text and for layers that there are not. */
mcsa_status layers_read(const char *text, int layers, unsigned char *named, mcsa_error *error);

#endif
