/* text.h - the word-window text encoder that ships with tiny-t2v: caption -> context rows for
 * cross-attention.
 *
 * Row i = sum over o in [-window, window] of window.weight[o + window][word i + o] + position.weight[i].
 * Words are lower-cased and split on blanks, commas and full stops; places outside the caption hold <pad>.
 * The unconditional branch is the caption "<null>". */
#ifndef MCSA_DIT_TEXT_H
#define MCSA_DIT_TEXT_H

#include "base/status.h"

typedef struct dit_text dit_text;

/* dir: a text_encoder directory (config.json, model.safetensors). */
mcsa_status dit_text_open(dit_text **out, const char *dir, mcsa_error *error);
void dit_text_free(dit_text *text);
int dit_text_rows(const dit_text *text);
int dit_text_width(const dit_text *text);

/* context: [rows, width].  An unknown word is MCSA_EINVAL with a sentence that names it and lists the known
 * words, so give it an error buffer; more words than rows is MCSA_EINVAL too. */
mcsa_status dit_text_encode(const dit_text *text, const char *caption, float *context, mcsa_error *error);

/* The known words, "a red star ...", for help and error texts; owned by `text`. */
const char *dit_text_words(const dit_text *text);

#endif
