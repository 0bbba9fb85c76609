/* scratch.c - see scratch.h. */
#include "scratch.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char directory[] = "mcsa-test-XXXXXX";

int scratch_enter(void **state)
{
    (void)state;
    return mkdtemp(directory) && chdir(directory) == 0 ? 0 : -1;
}

static int each_file(int remove)
{
    int count = 0;
    DIR *dir = opendir(".");
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        count++;
        if (remove) unlink(entry->d_name);
    }
    closedir(dir);
    return count;
}

int scratch_files(void)
{
    return each_file(0);
}

int scratch_leave(void **state)
{
    (void)state;
    each_file(1);
    return chdir("..") == 0 && rmdir(directory) == 0 ? 0 : -1;
}

void scratch_clip(clip *out, int frames, int height, int width)
{
    *out = (clip){ frames, height, width, malloc(3 * (size_t)frames * (size_t)height * (size_t)width) };
    assert_non_null(out->rgb);
    uint8_t *pixel = out->rgb;
    for (int t = 0; t < frames; t++)
        for (int y = 0; y < height; y++)
            for (int x = 0; x < width; x++, pixel += 3) {
                pixel[0] = (uint8_t)(127.5 + 100.0 * sin(0.10 * x + 0.3 * t));
                pixel[1] = (uint8_t)(127.5 + 100.0 * sin(0.08 * y));
                pixel[2] = (uint8_t)(127.5 + 100.0 * sin(0.06 * (x + y) - 0.2 * t));
            }
}
