/* json.h - the configuration files of a model: read a whole JSON file, take typed fields from its top-level
 * object.
 *
 * A getter leaves *value alone when the key is absent or null, so set the default first.  A value of the
 * wrong type or outside [low, high] is MCSA_EFORMAT with the key, the value and the limits. */
#ifndef MCSA_DIT_JSON_H
#define MCSA_DIT_JSON_H

#include "base/status.h"

#include <cjson/cJSON.h>

typedef struct dit_json {
    cJSON *root;      /* an object; freed with cJSON_Delete */
    const char *path; /* for sentences; borrowed */
} dit_json;

mcsa_status dit_json_open(dit_json *json, const char *path, mcsa_error *error);

/* The value of `key`, or NULL when it is absent or null. */
const cJSON *dit_json_get(const dit_json *json, const char *key);

mcsa_status dit_json_int(const dit_json *json, const char *key, int low, int high, int *value, mcsa_error *error);

#endif
