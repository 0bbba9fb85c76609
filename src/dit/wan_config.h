/* wan_config.h - config.json of a Diffusers WanTransformer3DModel -> dit_wan_config. */
#ifndef MCSA_DIT_WAN_CONFIG_H
#define MCSA_DIT_WAN_CONFIG_H

#include "wan.h"

/* Reads dir/config.json.  Absent keys take Diffusers' defaults.  Image conditioning, other classes and other norms are
 * MCSA_EUNSUPPORTED. */
mcsa_status dit_wan_config_read(dit_wan_config *config, const char *dir, mcsa_error *error);

/* MCSA_EINVAL for numbers that dit_wan_config_read would refuse. */
mcsa_status dit_wan_config_check(const dit_wan_config *config, mcsa_error *error);

#endif
