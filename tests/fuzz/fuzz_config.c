/* fuzz_config.c - config.json of a Wan transformer. */
#include "fuzz.h"

#include "dit/wan_config.h"

#include <string.h>

/* What the sizes of buffers are computed from without a further check. */
static void check_config(const dit_wan_config *c)
{
    for (int axis = 0; axis < 3; axis++) REQUIRE(c->patch[axis] >= 1 && c->patch[axis] <= 64);
    REQUIRE(c->heads >= 1 && c->heads <= 1024 && c->layers >= 1 && c->layers <= 4096);
    REQUIRE(c->head_dim >= 2 && c->head_dim <= 256 && c->head_dim % 2 == 0);
    REQUIRE(c->freq_dim >= 2 && c->freq_dim % 2 == 0);
    REQUIRE(c->in_channels >= 1 && c->out_channels >= 1 && c->text_dim >= 1 && c->ffn_dim >= 1);
    REQUIRE(c->rope_max_seq_len >= 1);
    REQUIRE(c->cross_attn_norm == 0 || c->cross_attn_norm == 1);
    REQUIRE(c->eps >= 0 && c->eps <= 1);
    int64_t most = c->in_channels > c->out_channels ? c->in_channels : c->out_channels;
    REQUIRE((int64_t)c->patch[0] * c->patch[1] * c->patch[2] * most <= 1 << 20);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mcsa_error error = { "" };
    dit_wan_config config;
    char *path = fuzz_file("config.json", data, size);
    *strrchr(path, '/') = '\0'; /* the reader wants its directory */
    mcsa_status status = dit_wan_config_read(&config, path, &error);
    if (status == MCSA_OK) {
        check_config(&config);
        fuzz_accepted();
    } else {
        fuzz_refused(status, &error);
    }
    free(path);
    return 0;
}
