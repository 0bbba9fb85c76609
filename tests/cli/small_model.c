/* small_model.c - see small_model.h. */
#include "small_model.h"

#include "dit/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

void must(mcsa_status status, const mcsa_error *error)
{
    if (status != MCSA_OK) fail_msg("%s", error->text);
}

double number(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

void write_text(const char *path, const char *text)
{
    FILE *stream = fopen(path, "w");
    assert_non_null(stream);
    fputs(text, stream);
    fclose(stream);
}

/* The whole file, to be freed. */
static char *read_text(const char *path)
{
    FILE *stream = fopen(path, "r");
    assert_non_null(stream);
    char *text = calloc(1, 1 << 16);
    assert_non_null(text);
    size_t bytes = fread(text, 1, (1 << 16) - 1, stream);
    assert_in_range(bytes, 1, (1 << 16) - 2);
    fclose(stream);
    return text;
}

cJSON *read_json(const char *path)
{
    char *text = read_text(path);
    cJSON *root = cJSON_Parse(text);
    assert_non_null(root);
    free(text);
    return root;
}

void small_model_make(void)
{
    enum { WIDTH = 40, ROWS = 6, WORDS = 6, WINDOW = 1 };
    static float position[ROWS * WIDTH], window[(2 * WINDOW + 1) * WORDS * WIDTH];
    if (access("model", F_OK) == 0) return;
    assert_int_equal(mkdir("model", 0777), 0);
    assert_int_equal(mkdir("model/text_encoder", 0777), 0);
    assert_int_equal(symlink(MCSA_GOLDEN_DIR "/wan-bf16", "model/transformer"), 0);
    write_text("model/text_encoder/config.json",
               "{\"_class_name\": \"WordWindowEncoder\", \"max_words\": 6, \"window\": 1, \"width\": 40, "
               "\"vocabulary\": [\"<pad>\", \"<null>\", \"a\", \"red\", \"blue\", \"star\"]}");
    for (int i = 0; i < ROWS * WIDTH; i++) position[i] = (float)sin(0.7 * i);
    for (int i = 0; i < (2 * WINDOW + 1) * WORDS * WIDTH; i++) window[i] = (float)sin(1.3 * i);
    dit_tensor tensors[] = {
        { .name = "position.weight",
          .dtype = MCSA_F32,
          .rank = 2,
          .shape = { ROWS, WIDTH },
          .data = position },
        { .name = "window.weight",
          .dtype = MCSA_F32,
          .rank = 3,
          .shape = { 2 * WINDOW + 1, WORDS, WIDTH },
          .data = window },
    };
    mcsa_error error = { "" };
    must(dit_tensors_write("model/text_encoder/model.safetensors", tensors, 2, &error), &error);
}

int small_model_leave(void **state)
{
    unlink("model/text_encoder/model.safetensors");
    unlink("model/text_encoder/config.json");
    rmdir("model/text_encoder");
    unlink("model/transformer");
    rmdir("model");
    return scratch_leave(state);
}
