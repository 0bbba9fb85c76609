/* fuzz_index.c - an .index.json beside two shards, one.safetensors with the tensors a and b, and
 * two.safetensors with c. */
#include "fuzz.h"

#include "dit/safetensors.h"

#include <string.h>

static void write_shards(void)
{
    static const float numbers[] = { 1, 2, 3 };
    static const dit_tensor one[] = { { .name = "a", .dtype = MCSA_F32, .rank = 1, .shape = { 3 }, .data = numbers },
                                      { .name = "b", .dtype = MCSA_F32, .data = numbers + 1 } };
    static const dit_tensor two = { .name = "c", .dtype = MCSA_F32, .data = numbers + 2 };
    static int written;
    if (written) return;
    char *path_one = fuzz_file("one.safetensors", "", 0), *path_two = fuzz_file("two.safetensors", "", 0);
    REQUIRE(dit_tensors_write(path_one, one, 2, NULL) == MCSA_OK);
    REQUIRE(dit_tensors_write(path_two, &two, 1, NULL) == MCSA_OK);
    free(path_one);
    free(path_two);
    written = 1;
}

/* Nothing but the shards' tensors can come of any index. */
static void check_tensors(const dit_tensors *tensors)
{
    REQUIRE(dit_tensors_count(tensors) <= 3);
    for (int i = 0; i < dit_tensors_count(tensors); i++) {
        const dit_tensor *tensor = dit_tensors_at(tensors, i);
        float numbers[3] = { 0 };
        REQUIRE(strlen(tensor->name) == 1 && tensor->name[0] >= 'a' && tensor->name[0] <= 'c');
        REQUIRE(dit_tensor_count(tensor) <= 3);
        dit_tensor_read(tensor, numbers);
        REQUIRE(numbers[0] == (float)(tensor->name[0] - 'a' + 1));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mcsa_error error = { "" };
    dit_tensors *tensors;
    write_shards();
    char *path = fuzz_file("model.safetensors.index.json", data, size);
    mcsa_status status = dit_tensors_open(&tensors, path, &error);
    if (status == MCSA_OK) {
        check_tensors(tensors);
        fuzz_accepted();
        dit_tensors_free(tensors);
    } else {
        fuzz_refused(status, &error);
        REQUIRE(!tensors);
    }
    free(path);
    return 0;
}
