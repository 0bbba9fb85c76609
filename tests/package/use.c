/* use.c - the smallest user of the installed library: the header is found, the library links, both are one version.  It
 * also prints why there is no GPU, which run.sh reads. */
#include <mcsa.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    mcsa_gpu gpu = { .size = sizeof gpu };
    if (mcsa_gpu_read(&gpu, 0) != MCSA_OK) printf("%s\n", gpu.missing);
    printf("mcsa %s\n", mcsa_version());
    return strcmp(mcsa_version(), MCSA_VERSION) != 0;
}
