/* interrupt.c - a flag, and the handler that raises it once. */
#include "interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t asked;

static void raise_flag(int signal_number)
{
    (void)signal_number;
    asked = 1;
}

void interrupt_watch(void)
{
    struct sigaction once = { .sa_handler = raise_flag, .sa_flags = (int)SA_RESETHAND | SA_RESTART };
    sigemptyset(&once.sa_mask);
    asked = 0;
    sigaction(SIGINT, &once, NULL);
    sigaction(SIGTERM, &once, NULL);
}

int interrupt_asked(void)
{
    return asked;
}
