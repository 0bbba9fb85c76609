/* fuzz_caption.c - a caption, to an encoder of six words and four rows whose table holds powers of two: the
 * context then says which word it took at each place, and is compared with words counted here. */
#include "fuzz.h"

#include "dit/safetensors.h"
#include "dit/text.h"

#include <ctype.h>
#include <string.h>

enum { WORDS = 6, ROWS = 4 };

static const char *const words[WORDS] = { "<pad>", "<null>", "a", "red", "star", "re" };
static const char config[] = "{\"max_words\": 4, \"window\": 0, \"width\": 1,"
                             " \"vocabulary\": [\"<pad>\", \"<null>\", \"a\", \"red\", \"star\", \"re\"]}";

/* Stays open: opening it again for every caption would be most of the work. */
static const dit_text *encoder(void)
{
    static const float weight[WORDS] = { 1, 2, 4, 8, 16, 32 }, position[ROWS] = { 0 };
    static const dit_tensor tables[] = {
        { .name = "position.weight", .dtype = MCSA_F32, .rank = 2, .shape = { ROWS, 1 }, .data = position },
        { .name = "window.weight", .dtype = MCSA_F32, .rank = 3, .shape = { 1, WORDS, 1 }, .data = weight }
    };
    static dit_text *text;
    if (text) return text;
    free(fuzz_file("config.json", config, sizeof config - 1));
    char *path = fuzz_file("model.safetensors", "", 0);
    REQUIRE(dit_tensors_write(path, tables, 2, NULL) == MCSA_OK);
    *strrchr(path, '/') = '\0';
    REQUIRE(dit_text_open(&text, path, NULL) == MCSA_OK);
    free(path);
    return text;
}

/* The context by one reading of the definition in text.h, or 0 for a caption that must be refused. */
static int expect(const char *caption, float context[ROWS])
{
    char word[8] = "";
    int length = 0, count = 0;
    for (int i = 0; i < ROWS; i++) context[i] = 1;
    for (;; caption++) {
        int blank = !*caption || strchr(" \t\r\n,.", *caption);
        if (!blank) {
            if (length == (int)sizeof word - 1) return 0;
            word[length++] = (char)tolower((unsigned char)*caption);
            continue;
        }
        word[length] = '\0';
        int id = 0;
        while (length && id < WORDS && strcmp(word, words[id]) != 0) id++;
        if (id == WORDS || (length && count == ROWS)) return 0;
        if (length) context[count++] = (float)(1 << id);
        length = 0;
        if (!*caption) return 1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mcsa_error error = { "" };
    float context[ROWS], expected[ROWS];
    char *caption = fuzz_text(data, size);
    mcsa_status status = dit_text_encode(encoder(), caption, context, &error);
    if (expect(caption, expected)) {
        REQUIRE(status == MCSA_OK);
        REQUIRE(!memcmp(context, expected, sizeof context));
        fuzz_accepted();
    } else {
        REQUIRE(status == MCSA_EINVAL);
        fuzz_refused(status, &error);
    }
    free(caption);
    return 0;
}
