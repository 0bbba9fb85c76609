/* status.c - names of the status codes and the one writer of error sentences. */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>

mcsa_status mcsa_fail(mcsa_error *error, mcsa_status status, const char *format, ...)
{
    if (error) {
        va_list args;
        va_start(args, format);
        vsnprintf(error->text, sizeof error->text, format, args);
        va_end(args);
    }
    return status;
}

const char *mcsa_status_name(mcsa_status status)
{
    switch (status) {
    case MCSA_OK: return "ok";
    case MCSA_EINVAL: return "invalid argument";
    case MCSA_EUNSUPPORTED: return "unsupported";
    case MCSA_ENOMEM: return "out of memory";
    case MCSA_EFORMAT: return "bad format";
    case MCSA_EIO: return "input/output error";
    case MCSA_ECANCELED: return "canceled";
    case MCSA_EDEVICE: return "device error";
    }
    return "unknown status";
}

const char *mcsa_version(void)
{
    return MCSA_VERSION;
}
