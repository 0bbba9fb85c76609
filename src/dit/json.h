/* json.h - the configuration files of a model: read a whole JSON file, take typed fields from its top-level
 * object.
 *
 * A getter leaves *value alone when the key is absent or null, so set the default first.  A value of the
 * wrong type or outside [low, high] is MCSA_EFORMAT with the key, the value and the limits. */
#ifndef MCSA_DIT_JSON_H
#define MCSA_DIT_JSON_H

#include "base/status.h"

#include <cjson/cJSON.h>

enum { DIT_MAX_PATH = 4096 };

typedef struct dit_json {
    cJSON *root; /* an object; freed with cJSON_Delete */
    char path[DIT_MAX_PATH];
} dit_json;

mcsa_status dit_json_open(dit_json *json, const char *path, mcsa_error *error);
mcsa_status dit_json_open_in(dit_json *json, const char *dir, const char *name, mcsa_error *error); /* dir/name */

/* The value of `key`, or NULL when it is absent or null. */
const cJSON *dit_json_get(const dit_json *json, const char *key);

mcsa_status dit_json_int(const dit_json *json, const char *key, int low, int high, int *value, mcsa_error *error);

#endif
