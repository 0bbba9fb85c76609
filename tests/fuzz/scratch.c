/* scratch.c - the files that a target hands to a reader which takes a path, and the count of outcomes.  The
 * files lie in one directory below the working directory; `make fuzz` runs where that is memory. */
#include "fuzz.h"

#include <dirent.h>
#include <string.h>
#include <unistd.h>

static char directory[] = "fuzz-XXXXXX";
static int made; /* the directory exists */
static fuzz_outcomes outcomes;

static char *path_of(const char *name)
{
    size_t bytes = sizeof directory + strlen(name) + 1;
    char *path = malloc(bytes);
    REQUIRE(path);
    snprintf(path, bytes, "%s/%s", directory, name);
    return path;
}

static void remove_all(void)
{
    DIR *dir = opendir(directory);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        char *path = path_of(entry->d_name);
        unlink(path);
        free(path);
    }
    if (dir) closedir(dir);
    rmdir(directory);
}

char *fuzz_file(const char *name, const void *bytes, size_t count)
{
    if (!made) {
        REQUIRE(mkdtemp(directory));
        made = 1;
        atexit(remove_all);
    }
    char *path = path_of(name);
    unlink(path); /* a new file: ext4 flushes one that was cut to nothing and written again */
    FILE *file = fopen(path, "wb");
    REQUIRE(file);
    REQUIRE(fwrite(bytes, 1, count, file) == count);
    REQUIRE(fclose(file) == 0);
    return path;
}

char *fuzz_text(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    REQUIRE(text);
    if (size) memcpy(text, data, size);
    text[size] = '\0';
    return text;
}

void fuzz_accepted(void)
{
    outcomes.accepted++;
}

fuzz_outcomes fuzz_so_far(void)
{
    return outcomes;
}

void fuzz_refused(mcsa_status status, const mcsa_error *error)
{
    REQUIRE(status == MCSA_EFORMAT || status == MCSA_EINVAL || status == MCSA_EUNSUPPORTED || status == MCSA_EIO);
    REQUIRE(error->text[0]);
    REQUIRE(memchr(error->text, '\0', sizeof error->text));
    outcomes.refused++;
}
