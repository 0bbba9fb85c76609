/* fuzz_safetensors.c - a .safetensors file.  An input that begins with '{' is a header and its data: the target
 * puts the length of the header in front, which spares the fuzzer that arithmetic. */
#include "fuzz.h"

#include "dit/safetensors.h"

#include <string.h>

static char *write_input(const uint8_t *data, size_t size)
{
    if (!size || data[0] != '{') return fuzz_file("input.safetensors", data, size);
    size_t header = size;
    while (data[header - 1] != '}' && data[header - 1] != '{') header--;
    uint8_t *bytes = malloc(8 + size);
    REQUIRE(bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)header >> (8 * i));
    memcpy(bytes + 8, data, size);
    char *path = fuzz_file("input.safetensors", bytes, 8 + size);
    free(bytes);
    return path;
}

static int64_t bytes_of(const dit_tensor *tensor)
{
    return dit_tensor_count(tensor) * (tensor->dtype == MCSA_F32 ? 4 : 2);
}

/* Reading touches every byte that the tensor claims. */
static void check_tensor(const dit_tensors *tensors, int i, size_t size)
{
    const dit_tensor *tensor = dit_tensors_at(tensors, i), *required;
    REQUIRE(tensor->rank >= 0 && tensor->rank <= DIT_MAX_RANK);
    REQUIRE(bytes_of(tensor) >= 0 && (uint64_t)bytes_of(tensor) <= size);
    REQUIRE(dit_tensors_find(tensors, tensor->name) == tensor);
    REQUIRE(dit_tensors_require(tensors, tensor->name, tensor->shape, tensor->rank, &required, NULL) == MCSA_OK);
    REQUIRE(required == tensor);
    float *numbers = malloc((size_t)dit_tensor_count(tensor) * sizeof *numbers + 1);
    REQUIRE(numbers);
    dit_tensor_read(tensor, numbers);
    free(numbers);
}

/* What was read can be written, and read again as the same. */
static void check_copy(const dit_tensors *tensors)
{
    mcsa_error error = { "" };
    int count = dit_tensors_count(tensors);
    dit_tensors *copy;
    char *path = fuzz_file("copy.safetensors", "", 0);
    REQUIRE(dit_tensors_write(path, count ? dit_tensors_at(tensors, 0) : NULL, count, &error) == MCSA_OK);
    REQUIRE(dit_tensors_open(&copy, path, &error) == MCSA_OK);
    REQUIRE(dit_tensors_count(copy) == count);
    for (int i = 0; i < count; i++) {
        const dit_tensor *a = dit_tensors_at(tensors, i), *b = dit_tensors_at(copy, i);
        REQUIRE(!strcmp(a->name, b->name) && a->dtype == b->dtype && a->rank == b->rank);
        REQUIRE(!memcmp(a->shape, b->shape, sizeof a->shape));
        REQUIRE(!bytes_of(a) || !memcmp(a->data, b->data, (size_t)bytes_of(a)));
    }
    dit_tensors_free(copy);
    free(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mcsa_error error = { "" };
    dit_tensors *tensors;
    char *path = write_input(data, size);
    mcsa_status status = dit_tensors_open(&tensors, path, &error);
    if (status == MCSA_OK) {
        for (int i = 0; i < dit_tensors_count(tensors); i++) check_tensor(tensors, i, size);
        check_copy(tensors);
        fuzz_accepted();
        dit_tensors_free(tensors);
    } else {
        fuzz_refused(status, &error);
        REQUIRE(!tensors);
    }
    free(path);
    return 0;
}
