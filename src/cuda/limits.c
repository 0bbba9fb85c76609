/* limits.c - see limits.h.
 *
 * The tensor memory accelerator sets most limits: it reads rows of 16-bit numbers whose address and strides are
 * multiples of 16 bytes, the strides below 2^40 bytes. */
#include "limits.h"

mcsa_status mcsa_cuda_limit_options(const mcsa_backend_options *o, mcsa_error *error)
{
    if (o->C != 128) return mcsa_fail(error, MCSA_EUNSUPPORTED, "config.group is %d; on a GPU it must be 128", o->C);
    if (o->residual != MCSA_RESIDUAL_BF16 && o->residual != MCSA_RESIDUAL_OFF)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "config.residual is %d; on a GPU it must be bf16 (%d) or off (%d)",
                         (int)o->residual, (int)MCSA_RESIDUAL_BF16, (int)MCSA_RESIDUAL_OFF);
    if (o->check_finite)
        return mcsa_fail(error, MCSA_EUNSUPPORTED,
                         "config.check_finite is %d; on a GPU it must be 0, because every call would have to wait for "
                         "the answer",
                         o->check_finite);
    return MCSA_OK;
}

static mcsa_status limit_tensor(const mcsa_tensor *t, const char *name, mcsa_error *error)
{
    static const char *axes[] = { "heads", "tokens" };
    const int64_t most = INT64_C(1) << 39; /* elements of two bytes */
    if (t->stride[2] != 1)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "%s has stride %lld along the head dimension; on a GPU it must be 1",
                         name, (long long)t->stride[2]);
    for (int i = 0; i < 2; i++)
        if (t->shape[i] > 1 && (t->stride[i] % 8 != 0 || t->stride[i] >= most))
            return mcsa_fail(error, MCSA_EUNSUPPORTED,
                             "%s has stride %lld along its %s; on a GPU it must be a multiple of 8 elements (16 bytes) "
                             "and below 2^39",
                             name, (long long)t->stride[i], axes[i]);
    if ((uintptr_t)t->data % 16 != 0)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "%s starts %d bytes past a multiple of 16; on a GPU it must not",
                         name, (int)((uintptr_t)t->data % 16));
    return MCSA_OK;
}

mcsa_status mcsa_cuda_limit_call(const mcsa_qkv *x, mcsa_error *error)
{
    if (x->dims.dtype == MCSA_F32)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "q has dtype F32; on a GPU it must be BF16 or F16");
    if (x->dims.D != 64 && x->dims.D != 128)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "head dimension %d; on a GPU it must be 64 or 128", x->dims.D);
    TRY(limit_tensor(x->q, "q", error));
    TRY(limit_tensor(x->k, "k", error));
    TRY(limit_tensor(x->v, "v", error));
    return limit_tensor(x->out, "out", error);
}
