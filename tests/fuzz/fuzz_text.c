/* fuzz_text.c - config.json of the text encoder, above all its vocabulary, beside tables for a window of 1,
 * 5 words, 3 rows and a width of 2.  Every word of a vocabulary that is accepted is then used as a caption. */
#include "fuzz.h"

#include "dit/safetensors.h"
#include "dit/text.h"

#include <string.h>

enum { WINDOW = 3, WORDS = 5, ROWS = 3, WIDTH = 2 };

static void write_tables(void)
{
    static float numbers[WINDOW * WORDS * WIDTH];
    static const dit_tensor tables[] = {
        { .name = "position.weight", .dtype = MCSA_F32, .rank = 2, .shape = { ROWS, WIDTH }, .data = numbers },
        { .name = "window.weight", .dtype = MCSA_F32, .rank = 3, .shape = { WINDOW, WORDS, WIDTH }, .data = numbers }
    };
    static int written;
    if (written) return;
    for (int i = 0; i < WINDOW * WORDS * WIDTH; i++) numbers[i] = (float)i;
    char *path = fuzz_file("model.safetensors", "", 0);
    REQUIRE(dit_tensors_write(path, tables, 2, NULL) == MCSA_OK);
    free(path);
    written = 1;
}

/* Of the largest weight 29 there are WINDOW, and one position of at most 5. */
static void check_caption(const dit_text *text, const char *caption)
{
    mcsa_error error = { "" };
    float context[ROWS * WIDTH];
    mcsa_status status = dit_text_encode(text, caption, context, &error);
    if (status != MCSA_OK) {
        REQUIRE(status == MCSA_EINVAL && error.text[0]);
        return;
    }
    for (int i = 0; i < ROWS * WIDTH; i++) REQUIRE(context[i] >= 0 && context[i] <= 29 * WINDOW + 5);
}

static void check_encoder(const dit_text *text)
{
    REQUIRE(dit_text_rows(text) == ROWS && dit_text_width(text) == WIDTH);
    check_caption(text, dit_text_words(text));
    char *words = fuzz_text((const uint8_t *)dit_text_words(text), strlen(dit_text_words(text)));
    for (char *at = words, *end; *at; at = end) {
        at += strspn(at, " ");
        end = at + strcspn(at, " ");
        int last = !*end;
        *end = '\0';
        check_caption(text, at);
        if (!last) end++;
    }
    free(words);
    check_caption(text, "<null>");
    check_caption(text, "");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mcsa_error error = { "" };
    dit_text *text;
    write_tables();
    char *path = fuzz_file("config.json", data, size);
    *strrchr(path, '/') = '\0'; /* the reader wants its directory */
    mcsa_status status = dit_text_open(&text, path, &error);
    if (status == MCSA_OK) {
        check_encoder(text);
        fuzz_accepted();
        dit_text_free(text);
    } else {
        fuzz_refused(status, &error);
        REQUIRE(!text);
    }
    free(path);
    return 0;
}
