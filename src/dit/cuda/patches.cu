/* patches.cu - between a latent and rows of patches; see dit/patches.h.  A thread moves one number: latents are
 * megabytes, beside the gigabytes of a block's activations. */
#include "kernels.h"

enum { THREADS = 256 };

/* Where pixel i of channel c of token n lies in the latent. */
static __device__ __forceinline__ int64_t latent_place(const dit_patches &p, int64_t n, int i, int c)
{
    const int64_t width = (int64_t)p.grid[2] * p.patch[2], height = (int64_t)p.grid[1] * p.patch[1];
    const int64_t frames = (int64_t)p.grid[0] * p.patch[0];
    const int64_t x = n % p.grid[2] * p.patch[2] + i % p.patch[2];
    const int64_t y = n / p.grid[2] % p.grid[1] * p.patch[1] + i / p.patch[2] % p.patch[1];
    const int64_t t = n / p.grid[2] / p.grid[1] * p.patch[0] + i / p.patch[2] / p.patch[1];
    return ((c * frames + t) * height + y) * width + x;
}

static __global__ void gather_number(const dit_patches p, const float *latent, float *rows, int pixels, int64_t count)
{
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= count) return;
    const int width = pixels * p.channels, within = (int)(at % width);
    rows[at] = latent[latent_place(p, at / width, within % pixels, within / pixels)];
}

static __global__ void scatter_number(const dit_patches p, const float *rows, float *latent, int pixels, int64_t count)
{
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= count) return;
    const int width = pixels * p.channels, within = (int)(at % width);
    latent[latent_place(p, at / width, within / p.channels, within % p.channels)] = rows[at];
}

static int pixels_of(const dit_patches *p)
{
    return p->patch[0] * p->patch[1] * p->patch[2];
}

static int64_t numbers_of(const dit_patches *p)
{
    return (int64_t)p->grid[0] * p->grid[1] * p->grid[2] * pixels_of(p) * p->channels;
}

cudaError_t dit_cuda_gather(const dit_patches *p, const float *latent, float *rows, cudaStream_t stream)
{
    const int64_t count = numbers_of(p);
    gather_number<<<(unsigned)((count + THREADS - 1) / THREADS), THREADS, 0, stream>>>(*p, latent, rows, pixels_of(p),
                                                                                       count);
    return cudaGetLastError();
}

cudaError_t dit_cuda_scatter(const dit_patches *p, const float *rows, float *latent, cudaStream_t stream)
{
    const int64_t count = numbers_of(p);
    scatter_number<<<(unsigned)((count + THREADS - 1) / THREADS), THREADS, 0, stream>>>(*p, rows, latent, pixels_of(p),
                                                                                        count);
    return cudaGetLastError();
}
