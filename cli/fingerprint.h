/* fingerprint.h - tells a model whose weights have changed under the same name.
 *
 * Sizes and samples of the weight files are hashed, not whole files: 28 GB would take a minute.  A retrained
 * model changes everywhere; an edit of a few bytes can pass unnoticed. */
#ifndef MCSA_CLI_FINGERPRINT_H
#define MCSA_CLI_FINGERPRINT_H

#include "base/status.h"

/* text: 16 hexadecimal digits, of all .safetensors files in DIR, DIR/transformer and DIR/text_encoder. */
mcsa_status fingerprint_model(char text[17], const char *dir, mcsa_error *error);

#endif
