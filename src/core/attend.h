/* attend.h - Algorithm 1: what an anchor pays for once, and what a reuse step does with it. */
#ifndef MCSA_CORE_ATTEND_H
#define MCSA_CORE_ATTEND_H

#include "run.h"

mcsa_status mcsa_attend_full(mcsa_run *run, const mcsa_qkv *x, float *lse);
mcsa_status mcsa_attend_anchor(mcsa_run *run, mcsa_site at, const mcsa_qkv *x);
mcsa_status mcsa_attend_reuse(mcsa_run *run, mcsa_site at, const mcsa_qkv *x, const mcsa_selection *selection);

#endif
