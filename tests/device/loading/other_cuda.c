/* no_cuda.c - a library that is named libmcsa_cuda and is something else. */
__attribute__((visibility("default"))) extern const int mcsa_something_else;
const int mcsa_something_else = 1;
