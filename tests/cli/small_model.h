/* small_model.h - a small random model in the scratch directory, and what the tests of commands on it share.
 *
 * The model is the golden one of the transformer with a text encoder made here, so nothing is skipped where
 * the trained model is not. */
#ifndef TESTS_CLI_SMALL_MODEL_H
#define TESTS_CLI_SMALL_MODEL_H

#include "base/status.h"
#include "scratch.h"

#include <cjson/cJSON.h>

/* DIR "model": the golden transformer, and a text encoder of its width that knows "a", "red", "blue" and
 * "star". */
void small_model_make(void);

/* scratch_leave, with the model. */
int small_model_leave(void **state);

/* Options of both commands: the model, a clip of 2 x 16 x 16 and one thread. */
#define SMALL \
    "--model", "model", "--quiet", "--frames", "2", "--height", "16", "--width", "16", "--threads", "1"

/* argc and argv of a command. */
#define ARGUMENTS(...)                                                    \
    (int)(sizeof((char *[]){ __VA_ARGS__ }) / sizeof(char *)), (char *[]) \
    {                                                                     \
        __VA_ARGS__                                                       \
    }

void write_text(const char *path, const char *text);
cJSON *read_json(const char *path);

/* The number `key` of an object; fails when it is none. */
double number(const cJSON *object, const char *key);

/* Fails with the sentence unless the status is MCSA_OK. */
void must(mcsa_status status, const mcsa_error *error);

#endif
