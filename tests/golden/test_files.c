/* test_files.c - files as they should not be: truncated, hostile, contradictory; each is refused with a
 * sentence that names the fault.  And files as they should be: what is written is read back, captions become
 * the rows text.h defines. */
#include "golden.h"

#include "dit/text.h"
#include "dit/wan.h"
#include "dit/wan_config.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 512 };

static char folder[PATH_BYTES]; /* of the running test, empty at its start */

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "files-XXXXXX"); /* where CTest runs tests: in the build tree */
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char path[2 * PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.') unlink(path);
    }
    if (dir) closedir(dir);
    return rmdir(folder);
}

static const char *in_folder(char path[2 * PATH_BYTES], const char *name)
{
    snprintf(path, 2 * PATH_BYTES, "%s/%s", folder, name);
    return path;
}

static void write_bytes(const char *name, const void *bytes, size_t count)
{
    char path[2 * PATH_BYTES];
    FILE *file = fopen(in_folder(path, name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void write_text(const char *name, const char *text)
{
    write_bytes(name, text, strlen(text));
}

static void says(const mcsa_error *error, const char *phrase)
{
    if (!strstr(error->text, phrase)) fail_msg("\"%s\" does not say \"%s\"", error->text, phrase);
}

static void open_fails(const char *name, mcsa_status status, const char *phrase)
{
    char path[2 * PATH_BYTES];
    mcsa_error error = { "" };
    dit_tensors *tensors = NULL;
    assert_int_equal(dit_tensors_open(&tensors, in_folder(path, name), &error), status);
    assert_null(tensors);
    says(&error, phrase);
}

/* One tensor of each dtype, a scalar and an empty one. */
static const float f32_data[] = { 1.5f, -0.0f, 3e-39f, INFINITY, 7.0f, -8.25f };
static const uint16_t bf16_data[] = { 0x3fc0, 0xc000 }, f16_data[] = { 0x3e00, 0x0001, 0xfbff };
static const dit_tensor sample[] = {
    { .name = "a", .dtype = MCSA_F32, .rank = 2, .shape = { 2, 3 }, .data = f32_data },
    { .name = "b.\"quoted\"", .dtype = MCSA_BF16, .rank = 1, .shape = { 2 }, .data = bf16_data },
    { .name = "half", .dtype = MCSA_F16, .rank = 3, .shape = { 1, 3, 1 }, .data = f16_data },
    { .name = "nothing", .dtype = MCSA_F32, .rank = 2, .shape = { 0, 4 }, .data = f32_data },
    { .name = "scalar", .dtype = MCSA_F32, .rank = 0, .data = f32_data + 4 },
};
enum { SAMPLES = sizeof sample / sizeof *sample };

static void write_tensors(const char *name, const dit_tensor *tensors, int count)
{
    char path[2 * PATH_BYTES];
    mcsa_error error = { "" };
    must(dit_tensors_write(in_folder(path, name), tensors, count, &error), &error);
}

static void test_round_trip(void **state)
{
    (void)state;
    char path[2 * PATH_BYTES];
    write_tensors("model.safetensors", sample, SAMPLES);
    dit_tensors *tensors = open_tensors(folder); /* found inside the directory */
    assert_int_equal(dit_tensors_count(tensors), SAMPLES);
    for (int i = 0; i < SAMPLES; i++) {
        const dit_tensor *found = dit_tensors_find(tensors, sample[i].name);
        assert_non_null(found);
        assert_int_equal(found->dtype, sample[i].dtype);
        assert_int_equal(found->rank, sample[i].rank);
        assert_memory_equal(found->shape, sample[i].shape, sizeof found->shape);
        size_t bytes = (size_t)dit_tensor_count(found) * (found->dtype == MCSA_F32 ? 4 : 2);
        if (bytes) assert_memory_equal(found->data, sample[i].data, bytes);
    }
    float half[3], bf16[2];
    dit_tensor_read(dit_tensors_find(tensors, "half"), half);
    assert_true(half[0] == 1.5f && half[1] == 0x1p-24f && half[2] == -65504.0f);
    dit_tensor_read(dit_tensors_find(tensors, "b.\"quoted\""), bf16);
    assert_true(bf16[0] == 1.5f && bf16[1] == -2.0f);
    assert_null(dit_tensors_find(tensors, "missing"));
    dit_tensors_free(tensors);

    mcsa_error error = { "" };
    in_folder(path, "no/such/place.safetensors");
    assert_int_equal(dit_tensors_write(path, sample, SAMPLES, &error), MCSA_EIO);
    says(&error, "no/such/place.safetensors");
}

static size_t read_sample(unsigned char *bytes, size_t room)
{
    char path[2 * PATH_BYTES];
    write_tensors("sample.safetensors", sample, SAMPLES);
    FILE *file = fopen(in_folder(path, "sample.safetensors"), "rb");
    assert_non_null(file);
    size_t count = fread(bytes, 1, room, file);
    assert_true(count < room);
    fclose(file);
    return count;
}

/* A file cut anywhere lacks either header or data. */
static void test_truncated(void **state)
{
    (void)state;
    unsigned char bytes[1024];
    size_t count = read_sample(bytes, sizeof bytes);
    for (size_t kept = 0; kept < count; kept++) {
        write_bytes("cut.safetensors", bytes, kept);
        open_fails("cut.safetensors", MCSA_EFORMAT, "cut.safetensors");
    }
}

/* A damaged file is refused, or else every tensor it claims lies inside it (the address sanitizer watches the
 * reads). */
static void test_damaged(void **state)
{
    (void)state;
    unsigned char bytes[1024], damaged[1024];
    size_t count = read_sample(bytes, sizeof bytes);
    uint32_t random = 1;
    int opened = 0;
    for (int round = 0; round < 3000; round++) {
        char path[2 * PATH_BYTES];
        mcsa_error error = { "" };
        dit_tensors *tensors = NULL;
        memcpy(damaged, bytes, count);
        for (int i = 0; i < 1 + round % 3; i++) {
            random = random * 1664525u + 1013904223u;
            damaged[(random >> 8) % count] = (unsigned char)(random >> 24);
        }
        write_bytes("damaged.safetensors", damaged, count);
        if (dit_tensors_open(&tensors, in_folder(path, "damaged.safetensors"), &error) != MCSA_OK) {
            assert_true(error.text[0]);
            continue;
        }
        opened++;
        for (int i = 0; i < dit_tensors_count(tensors); i++) {
            float numbers[64];
            assert_true(dit_tensor_count(dit_tensors_at(tensors, i)) <= 64);
            dit_tensor_read(dit_tensors_at(tensors, i), numbers);
        }
        dit_tensors_free(tensors);
    }
    assert_true(opened > 0 && opened < 3000); /* both outcomes were tried */
}

static void write_header(const char *name, uint64_t claimed, const char *header, size_t data)
{
    unsigned char bytes[1024] = { 0 };
    size_t length = strlen(header);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(claimed >> (8 * i));
    memcpy(bytes + 8, header, length);
    write_bytes(name, bytes, 8 + length + data);
}

static void test_hostile_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        mcsa_status status;
        const char *phrase;
    } cases[] = {
        { "{", MCSA_EFORMAT, "not a JSON object" },
        { "[1, 2]", MCSA_EFORMAT, "not a JSON object" },
        { "{\"w\": 3}", MCSA_EFORMAT, "tensor w lacks dtype" },
        { "{\"w\": {\"dtype\": \"F32\", \"shape\": [2]}}", MCSA_EFORMAT, "tensor w lacks dtype or two data_offsets" },
        { "{\"w\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0]}}", MCSA_EFORMAT, "two data_offsets" },
        { "{\"w\": {\"dtype\": \"F32\", \"data_offsets\": [0, 8]}}", MCSA_EFORMAT, "tensor w has no shape" },
        { "{\"w\": {\"dtype\": \"I64\", \"shape\": [1], \"data_offsets\": [0, 8]}}", MCSA_EUNSUPPORTED, "w is I64" },
        { "{\"w\": {\"dtype\": \"F32\", \"shape\": [-2], \"data_offsets\": [0, 8]}}", MCSA_EFORMAT, "dimension 0 of" },
        { "{\"w\": {\"dtype\": \"F32\", \"shape\": [1, 2.5], \"data_offsets\": [0, 8]}}", MCSA_EFORMAT,
          "dimension 1 of" },
        { "{\"w\": {\"dtype\": \"F32\", \"shape\": [1e300], \"data_offsets\": [0, 8]}}", MCSA_EFORMAT,
          "dimension 0 of" },
        { "{\"w\": {\"dtype\": \"F32\", \"shape\": [\"2\"], \"data_offsets\": [0, 8]}}", MCSA_EFORMAT,
          "dimension 0 of" },
        { "{\"w\": {\"dtype\": \"F32\", \"shape\": [1,1,1,1,1,1,1,1,1], \"data_offsets\": [0, 4]}}", MCSA_EUNSUPPORTED,
          "more than 8 dimensions" },
        /* 2^32 * 2^32 * 2 wraps to 0 in 64 bits */
        { "{\"w\": {\"dtype\": \"F32\", \"shape\": [4294967296, 4294967296, 2], \"data_offsets\": [0, 0]}}",
          MCSA_EFORMAT, "2^60 elements" },
        { "{\"w\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [8, 0]}}", MCSA_EFORMAT,
          "outside the 8 bytes" },
        { "{\"w\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [4, 12]}}", MCSA_EFORMAT,
          "outside the 8 bytes" },
        { "{\"w\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [-4, 4]}}", MCSA_EFORMAT,
          "outside the 8 bytes" },
        { "{\"w\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 9007199254740993]}}", MCSA_EFORMAT,
          "outside" },
        { "{\"w\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 8]}}", MCSA_EFORMAT,
          "8 bytes where its shape and dtype need 4" },
        { "{\"w\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]},"
          " \"w\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 8]}}",
          MCSA_EFORMAT, "w appears twice" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_header("hostile.safetensors", strlen(cases[i].header), cases[i].header, 8);
        open_fails("hostile.safetensors", cases[i].status, cases[i].phrase);
    }
    const uint64_t lengths[] = { 3, 1000, (uint64_t)1 << 40, INT64_MAX, UINT64_MAX - 7, UINT64_MAX };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        write_header("hostile.safetensors", lengths[i], "{}", 0);
        open_fails("hostile.safetensors", MCSA_EFORMAT, "its header claims");
    }
}

static void test_index(void **state)
{
    (void)state;
    char path[2 * PATH_BYTES];
    write_tensors("one.safetensors", sample, 1);
    write_tensors("two.safetensors", sample + 1, 2);
    write_text("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"one.safetensors\", \"half\": "
                                               "\"two.safetensors\", \"b.\\\"quoted\\\"\": \"two.safetensors\"}}");
    dit_tensors *tensors = open_tensors(in_folder(path, "model.safetensors.index.json"));
    assert_int_equal(dit_tensors_count(tensors), 3);
    dit_tensors_free(tensors);

    static const struct {
        const char *index;
        mcsa_status status;
        const char *phrase;
    } cases[] = {
        { "{}", MCSA_EFORMAT, "has no weight_map" },
        { "not JSON", MCSA_EFORMAT, "not valid JSON" },
        { "{\"weight_map\": {\"a\": 1}}", MCSA_EFORMAT, "weight_map of a is not a file name" },
        { "{\"weight_map\": {\"a\": \"../one.safetensors\"}}", MCSA_EFORMAT, "not a plain file name" },
        { "{\"weight_map\": {\"a\": \"three.safetensors\"}}", MCSA_EIO, "three.safetensors" },
        { "{\"weight_map\": {\"a\": \"one.safetensors\", \"c\": \"one.safetensors\"}}", MCSA_EFORMAT,
          "promises tensor c in one.safetensors" },
        { "{\"weight_map\": {\"a\": \"one.safetensors\", \"b\": \"again.safetensors\"}}", MCSA_EFORMAT,
          "a appears twice" },
    };
    write_tensors("again.safetensors", sample, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text("model.safetensors.index.json", cases[i].index);
        open_fails("model.safetensors.index.json", cases[i].status, cases[i].phrase);
    }
    open_fails("absent.safetensors", MCSA_EIO, "absent.safetensors");
}

static void test_configurations(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        mcsa_status status;
        const char *phrase;
    } cases[] = {
        { "[]", MCSA_EFORMAT, "does not hold a JSON object" },
        { "{\"num_layers\": 0}", MCSA_EFORMAT, "num_layers is 0, not a whole number from 1 to 4096" },
        { "{\"num_layers\": \"8\"}", MCSA_EFORMAT, "num_layers is not a number" },
        { "{\"ffn_dim\": 1.5}", MCSA_EFORMAT, "ffn_dim is 1.5" },
        { "{\"attention_head_dim\": 512}", MCSA_EFORMAT,
          "attention_head_dim is 512, not a whole number from 2 to 256" },
        { "{\"attention_head_dim\": 15}", MCSA_EFORMAT, "attention_head_dim 15 and freq_dim 256 must both be even" },
        { "{\"patch_size\": [1, 2]}", MCSA_EFORMAT, "patch_size is not a list of 3 numbers" },
        { "{\"patch_size\": [1, 2, 0]}", MCSA_EFORMAT, "patch_size[2]" },
        { "{\"patch_size\": [64, 64, 64], \"in_channels\": 5}", MCSA_EFORMAT, "262144 pixels and 16 channels exceeds" },
        { "{\"eps\": -1}", MCSA_EFORMAT, "eps is not a number from 0 to 1" },
        { "{\"cross_attn_norm\": 1}", MCSA_EFORMAT, "cross_attn_norm is neither true nor false" },
        { "{\"image_dim\": 1280}", MCSA_EUNSUPPORTED, "sets image_dim: image-to-video" },
        { "{\"added_kv_proj_dim\": 5120}", MCSA_EUNSUPPORTED, "sets added_kv_proj_dim" },
        { "{\"_class_name\": \"WanVACETransformer3DModel\"}", MCSA_EUNSUPPORTED, "WanVACETransformer3DModel" },
        { "{\"qk_norm\": \"layer_norm\"}", MCSA_EUNSUPPORTED, "qk_norm" },
    };
    dit_wan_config config;
    mcsa_error error;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        error.text[0] = 0;
        write_text("config.json", cases[i].text);
        assert_int_equal(dit_wan_config_read(&config, folder, &error), cases[i].status);
        says(&error, cases[i].phrase);
    }
    /* Absent keys are those of Wan2.1 T2V 14B; null counts as absent, but for out_channels means
     * in_channels. */
    write_text("config.json", "{\"image_dim\": null, \"in_channels\": 36, \"out_channels\": null}");
    must(dit_wan_config_read(&config, folder, &error), &error);
    assert_true(config.heads == 40 && config.head_dim == 128 && config.ffn_dim == 13824 && config.layers == 40);
    assert_true(config.in_channels == 36 && config.out_channels == 36 && config.patch[0] == 1 && config.patch[2] == 2);
    assert_true(config.cross_attn_norm && config.eps == 1e-6f && config.text_dim == 4096 && config.freq_dim == 256);
}

/* wan-f32 with one tensor renamed or reshaped. */
static void open_broken_model(const char *broken, int reshape, const char *phrase)
{
    char path[2 * PATH_BYTES];
    mcsa_error error = { "" };
    dit_wan *model = NULL;
    dit_tensors *tensors = open_tensors(GOLDEN("wan-f32"));
    int count = dit_tensors_count(tensors);
    dit_tensor *copy = calloc((size_t)count, sizeof *copy);
    for (int i = 0; i < count; i++) {
        copy[i] = *dit_tensors_at(tensors, i);
        if (strcmp(copy[i].name, broken) != 0) continue;
        if (!reshape)
            copy[i].name = "unknown";
        else
            copy[i] = (dit_tensor){
                .name = broken, .dtype = copy[i].dtype, .rank = 3, .shape = { 1, 2, 4 }, .data = copy[i].data
            };
    }
    write_tensors("diffusion_pytorch_model.safetensors", copy, count);
    assert_int_equal(dit_wan_open(&model, folder, NULL, &error), MCSA_EFORMAT);
    assert_null(model);
    says(&error, phrase);
    dit_tensors_free(tensors);
    free(copy);
    unlink(in_folder(path, "diffusion_pytorch_model.safetensors"));
}

static void test_broken_models(void **state)
{
    (void)state;
    char text[1024] = "", path[2 * PATH_BYTES];
    FILE *config = fopen(GOLDEN("wan-f32/config.json"), "rb");
    assert_non_null(config);
    write_bytes("config.json", text, fread(text, 1, sizeof text, config));
    fclose(config);

    open_broken_model("blocks.1.attn2.to_k.weight", 0,
                      "tensor blocks.1.attn2.to_k.weight of shape [32, 32] is missing from the weights");
    open_broken_model("scale_shift_table", 0, "tensor scale_shift_table of shape [1, 2, 32] is missing");
    open_broken_model(
        "patch_embedding.weight", 1,
        "tensor patch_embedding.weight has shape [1, 2, 4] where the configuration needs [32, 5, 1, 2, 2]");

    mcsa_error error = { "" };
    dit_wan *model = NULL;
    assert_int_equal(dit_wan_open(&model, folder, NULL, &error), MCSA_EIO); /* no weights at all */
    says(&error, "holds neither diffusion_pytorch_model.safetensors");
    unlink(in_folder(path, "config.json"));
    assert_int_equal(dit_wan_open(&model, folder, NULL, &error), MCSA_EIO);
    says(&error, "config.json");
    assert_int_equal(dit_wan_open(&model, folder, &(dit_wan_options){ .threads = -1 }, &error), MCSA_EINVAL);
}

enum { ROWS = 4, REACH = 1, WIDTH = 2, WORDS = 5 };
static const char words_json[] = "{\"max_words\": 4, \"window\": 1, \"width\": 2, "
                                 "\"vocabulary\": [\"<pad>\", \"<null>\", \"red\", \"star\", \"a\"]}";

/* window[o][word] = (10^o word, 1), position[i] = (0, 1000 i): a row spells its words, the last one first. */
static void write_text_encoder(const char *config, int words)
{
    float window[(2 * REACH + 1) * WORDS * WIDTH], position[ROWS * WIDTH];
    for (int o = 0, unit = 1; o <= 2 * REACH; o++, unit *= 10)
        for (int word = 0; word < words; word++) {
            window[(o * words + word) * WIDTH] = (float)(unit * word);
            window[(o * words + word) * WIDTH + 1] = 1;
        }
    for (int i = 0; i < ROWS; i++) {
        position[i * WIDTH] = 0;
        position[i * WIDTH + 1] = 1000.0f * (float)i;
    }
    const dit_tensor tensors[] = {
        { .name = "window.weight",
          .dtype = MCSA_F32,
          .rank = 3,
          .shape = { 2 * REACH + 1, words, WIDTH },
          .data = window },
        { .name = "position.weight", .dtype = MCSA_F32, .rank = 2, .shape = { ROWS, WIDTH }, .data = position },
    };
    write_text("config.json", config);
    write_tensors("model.safetensors", tensors, 2);
}

static void test_text(void **state)
{
    (void)state;
    mcsa_error error = { "" };
    dit_text *text = NULL;
    float context[ROWS * WIDTH];
    write_text_encoder(words_json, WORDS);
    must(dit_text_open(&text, folder, &error), &error);
    assert_int_equal(dit_text_rows(text), ROWS);
    assert_int_equal(dit_text_width(text), WIDTH);
    assert_string_equal(dit_text_words(text), "red star a");

    /* Words 4, 2, 3, pad */
    must(dit_text_encode(text, " A, Red.STAR ", context, &error), &error);
    const float expected[] = { 240, 3, 324, 1003, 32, 2003, 3, 3003 };
    assert_memory_equal(context, expected, sizeof expected);
    must(dit_text_encode(text, "<null>", context, &error), &error);
    assert_true(context[0] == 10);
    must(dit_text_encode(text, "", context, &error), &error);
    assert_true(context[0] == 0);

    assert_int_equal(dit_text_encode(text, "a red zebra", context, &error), MCSA_EINVAL);
    says(&error, "unknown word \"zebra\"; the model knows: red star a");
    assert_int_equal(dit_text_encode(text, "sta", context, &error), MCSA_EINVAL); /* a part of a word is no word */
    assert_int_equal(dit_text_encode(text, "a a a a a", context, &error), MCSA_EINVAL);
    says(&error, "more than 4 words");
    char endless[500];
    memset(endless, 'a', sizeof endless - 1);
    endless[sizeof endless - 1] = 0;
    assert_int_equal(dit_text_encode(text, endless, context, &error), MCSA_EINVAL);
    dit_text_free(text);
}

static void text_open_fails(const char *phrase)
{
    mcsa_error error = { "" };
    dit_text *text = NULL;
    assert_int_equal(dit_text_open(&text, folder, &error), MCSA_EFORMAT);
    assert_null(text);
    says(&error, phrase);
}

static void test_broken_text_encoders(void **state)
{
    (void)state;
    write_text_encoder(words_json, WORDS - 1);
    text_open_fails("tensor window.weight has shape [3, 4, 2] where the configuration needs [3, 5, 2]");
    write_text_encoder("{\"max_words\": 4, \"window\": 1, \"width\": 2, \"vocabulary\": [\"red\"]}", WORDS);
    text_open_fails("lacks <pad>");
    write_text_encoder("{\"max_words\": 4, \"window\": 1, \"width\": 2, \"vocabulary\": [\"<pad>\", 7]}", WORDS);
    text_open_fails("entry 1 of vocabulary is not a word");
    write_text_encoder("{\"max_words\": 4, \"window\": 1, \"width\": 2}", WORDS);
    text_open_fails("vocabulary is not a list");
    write_text_encoder("{\"max_words\": 4, \"width\": 2, \"vocabulary\": [\"<pad>\"]}", WORDS);
    text_open_fails("lacks max_words, window or width");
    write_text_encoder("{\"max_words\": 100000, \"window\": 1, \"width\": 2, \"vocabulary\": [\"<pad>\"]}", WORDS);
    text_open_fails("max_words is 100000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_truncated, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_damaged, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_hostile_headers, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_index, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_configurations, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_broken_models, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_text, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_broken_text_encoders, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
