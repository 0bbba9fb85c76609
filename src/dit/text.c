/* text.c - see text.h.  The tables are kept as float; a caption costs (2 * window + 2) * rows * width
 * additions. */
#include "text.h"

#include "json.h"
#include "safetensors.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 4096, MAX_WINDOW = 64, MAX_WIDTH = 1 << 16, MAX_VOCABULARY = 1 << 20 };

struct dit_text {
    int rows, reach, width, vocabulary; /* reach: words to either side that a row sees */
    cJSON *config;                      /* owns the words */
    const char **words;                 /* [vocabulary] */
    char *words_text;
    float *window;   /* [2 * reach + 1, vocabulary, width] */
    float *position; /* [rows, width] */
    int pad;         /* the word at places outside the caption */
};

static int word_id(const dit_text *text, const char *word, size_t length)
{
    for (int i = 0; i < text->vocabulary; i++)
        if (!strncmp(text->words[i], word, length) && !text->words[i][length]) return i;
    return -1;
}

static mcsa_status read_vocabulary(dit_text *text, const dit_json *config, mcsa_error *error)
{
    const cJSON *list = dit_json_get(config, "vocabulary"), *item;
    int count = cJSON_GetArraySize(list), i = 0;
    if (!cJSON_IsArray(list) || count < 1 || count > MAX_VOCABULARY)
        return mcsa_fail(error, MCSA_EFORMAT, "%s: vocabulary is not a list of 1 to %d words", config->path,
                         MAX_VOCABULARY);
    size_t bytes = 1;
    text->vocabulary = count;
    text->words = calloc((size_t)count, sizeof *text->words);
    if (!text->words) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d words", count);
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsString(item))
            return mcsa_fail(error, MCSA_EFORMAT, "%s: entry %d of vocabulary is not a word", config->path, i);
        text->words[i++] = item->valuestring;
        bytes += strlen(item->valuestring) + 1;
    }
    text->words_text = calloc(1, bytes);
    if (!text->words_text) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d words", count);
    char *end = text->words_text;
    for (i = 0; i < count; i++)
        if (text->words[i][0] != '<') /* <pad> and <null> are not for captions */
            end += sprintf(end, end == text->words_text ? "%s" : " %s", text->words[i]);
    text->pad = word_id(text, "<pad>", 5);
    if (text->pad < 0) return mcsa_fail(error, MCSA_EFORMAT, "%s: vocabulary lacks <pad>", config->path);
    return MCSA_OK;
}

static mcsa_status read_table(float **out, const dit_tensors *tensors, const char *name, const int64_t *shape, int rank,
                              mcsa_error *error)
{
    const dit_tensor *tensor;
    TRY(dit_tensors_require(tensors, name, shape, rank, &tensor, error));
    *out = malloc((size_t)dit_tensor_count(tensor) * sizeof **out);
    if (!*out) return mcsa_fail(error, MCSA_ENOMEM, "no memory for tensor %s", name);
    dit_tensor_read(tensor, *out);
    return MCSA_OK;
}

static mcsa_status read_config(dit_text *text, const char *dir, mcsa_error *error)
{
    dit_json config;
    TRY(dit_json_open_in(&config, dir, "config.json", error));
    text->config = config.root;
    TRY(dit_json_int(&config, "max_words", 1, MAX_ROWS, &text->rows, error));
    TRY(dit_json_int(&config, "window", 0, MAX_WINDOW, &text->reach, error));
    TRY(dit_json_int(&config, "width", 1, MAX_WIDTH, &text->width, error));
    if (!text->rows || text->reach < 0 || !text->width)
        return mcsa_fail(error, MCSA_EFORMAT, "%s lacks max_words, window or width", config.path);
    return read_vocabulary(text, &config, error);
}

static mcsa_status read_tables(dit_text *text, const char *dir, mcsa_error *error)
{
    dit_tensors *tensors = NULL;
    int64_t window[] = { 2 * text->reach + 1, text->vocabulary, text->width }, position[] = { text->rows, text->width };
    TRY(dit_tensors_open(&tensors, dir, error));
    mcsa_status status = read_table(&text->window, tensors, "window.weight", window, 3, error);
    if (status == MCSA_OK) status = read_table(&text->position, tensors, "position.weight", position, 2, error);
    dit_tensors_free(tensors);
    return status;
}

mcsa_status dit_text_open(dit_text **out, const char *dir, mcsa_error *error)
{
    *out = NULL;
    dit_text *text = calloc(1, sizeof *text);
    if (!text) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the text encoder");
    text->reach = -1;
    mcsa_status status = read_config(text, dir, error);
    if (status == MCSA_OK) status = read_tables(text, dir, error);
    if (status != MCSA_OK) {
        dit_text_free(text);
        return status;
    }
    *out = text;
    return MCSA_OK;
}

void dit_text_free(dit_text *text)
{
    if (!text) return;
    free(text->window);
    free(text->position);
    free(text->words);
    free(text->words_text);
    cJSON_Delete(text->config);
    free(text);
}

int dit_text_rows(const dit_text *text)
{
    return text->rows;
}

int dit_text_width(const dit_text *text)
{
    return text->width;
}

const char *dit_text_words(const dit_text *text)
{
    return text->words_text;
}

/* ids: [rows], the caption's words and then <pad>. */
static mcsa_status split(const dit_text *text, const char *caption, int *ids, mcsa_error *error)
{
    int count = 0;
    for (int i = 0; i < text->rows; i++) ids[i] = text->pad;
    while (*(caption += strspn(caption, " \t\r\n,."))) {
        size_t length = strcspn(caption, " \t\r\n,.");
        char word[64];
        size_t kept = length < sizeof word ? length : sizeof word - 1;
        for (size_t i = 0; i < kept; i++) word[i] = (char)tolower((unsigned char)caption[i]);
        word[kept] = 0;
        int id = kept == length ? word_id(text, word, length) : -1;
        if (id < 0)
            return mcsa_fail(error, MCSA_EINVAL, "unknown word \"%s\"; the model knows: %s", word, text->words_text);
        if (count == text->rows) return mcsa_fail(error, MCSA_EINVAL, "the caption has more than %d words", text->rows);
        ids[count++] = id;
        caption += length;
    }
    return MCSA_OK;
}

mcsa_status dit_text_encode(const dit_text *text, const char *caption, float *context, mcsa_error *error)
{
    int ids[MAX_ROWS];
    TRY(split(text, caption, ids, error));
    for (int i = 0; i < text->rows; i++) {
        float *row = context + (size_t)i * (size_t)text->width;
        memcpy(row, text->position + (size_t)i * (size_t)text->width, (size_t)text->width * sizeof *row);
        for (int o = -text->reach; o <= text->reach; o++) {
            int place = i + o;
            size_t word = (size_t)(place >= 0 && place < text->rows ? ids[place] : text->pad);
            size_t table = (size_t)(o + text->reach) * (size_t)text->vocabulary;
            const float *weight = text->window + (table + word) * (size_t)text->width;
            for (int c = 0; c < text->width; c++) row[c] += weight[c];
        }
    }
    return MCSA_OK;
}
