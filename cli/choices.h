/* choices.h - the words that options of several commands take, and what they mean to the library.
 *
 * Words that one command alone knows stay in that command's file. */
#ifndef MCSA_CLI_CHOICES_H
#define MCSA_CLI_CHOICES_H

#include "options.h"

extern const option_choice choices_residual[];  /* mcsa_residual */
extern const option_choice choices_tail[];      /* mcsa_tail */
extern const option_choice choices_branches[];  /* mcsa_sharing */
extern const option_choice choices_sampler[];   /* dit_sampler_kind */
extern const option_choice choices_isa[];       /* mcsa_isa */
extern const option_choice choices_backend[];   /* mcsa_device */
extern const option_choice choices_precision[]; /* mcsa_dtype; 0 for auto */

/* Of --tail, as of mcsa_config.tail. */
#define TAIL_DEFAULT "means"

/* The word of `value`, which is one of the choices. */
const char *choice_word(const option_choice *choices, int value);

#endif
