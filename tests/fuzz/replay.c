/* replay.c - a target without libFuzzer: runs every file of a corpus, and every such file cut short at each
 * length.  Inputs are copied to blocks of their exact size, so that a sanitizer sees a read past the end. */
#include "fuzz.h"

#include <dirent.h>
#include <string.h>

static uint8_t *read_input(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    REQUIRE(file && fseek(file, 0, SEEK_END) == 0);
    long end = ftell(file);
    REQUIRE(end >= 0 && fseek(file, 0, SEEK_SET) == 0);
    *size = (size_t)end;
    uint8_t *bytes = malloc(*size + 1);
    REQUIRE(bytes && fread(bytes, 1, *size, file) == *size);
    fclose(file);
    return bytes;
}

static void run_cut(const uint8_t *bytes, size_t size)
{
    uint8_t *exact = malloc(size ? size : 1);
    REQUIRE(exact);
    if (size) memcpy(exact, bytes, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

int main(int argc, char **argv)
{
    int inputs = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: %s CORPUS_DIRECTORY\n", argv[0]);
        return 2;
    }
    DIR *dir = opendir(argv[1]);
    REQUIRE(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        char path[4096];
        REQUIRE((size_t)snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name) < sizeof path);
        size_t size;
        uint8_t *bytes = read_input(path, &size);
        printf("%s: %zu bytes and every cut\n", entry->d_name, size);
        fflush(stdout);
        for (size_t kept = 0; kept <= size; kept++) run_cut(bytes, kept);
        free(bytes);
        inputs++;
    }
    closedir(dir);
    fuzz_outcomes outcomes = fuzz_so_far();
    printf("%d files, %lld inputs accepted, %lld refused\n", inputs, (long long)outcomes.accepted,
           (long long)outcomes.refused);
    REQUIRE(outcomes.accepted > 0 && outcomes.refused > 0); /* else it reaches half of the reader at most */
    return 0;
}
