/* use.c - the smallest user of the installed library: the header is found, the library links, both are one version. */
#include <mcsa.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    printf("mcsa %s\n", mcsa_version());
    return strcmp(mcsa_version(), MCSA_VERSION) != 0;
}
