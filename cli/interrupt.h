/* interrupt.h - Ctrl-C as a question that the denoising loop asks between two steps.
 *
 * The first SIGINT or SIGTERM raises a flag; the second has its usual effect, for whoever cannot wait for
 * the step to end.  The flag is the one piece of global state of the command, because a signal handler
 * gets no argument. */
#ifndef MCSA_CLI_INTERRUPT_H
#define MCSA_CLI_INTERRUPT_H

void interrupt_watch(void);
int interrupt_asked(void);

#endif
