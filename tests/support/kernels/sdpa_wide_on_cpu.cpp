// Attention of wide heads by the threads of KERNEL, a path: see `on_cpu.h`.
#include "on_cpu.h"
#include KERNEL

// Takes the arguments of the kernel, and the grid that it is launched with. The seed orders threads. Returns whether all threads
// ended.
extern "C" bool attend(const void* const* inputs, void* partial, void* stats, int items, int of_text, int of_cache, int tiles,
                       int parts, int texts, unsigned seed) {
  auto bf = [&](int i) { return (const bf16*)inputs[i]; };
  auto integers = [&](int i) { return (const long long*)inputs[i]; };
  grid = {(unsigned)tiles, (unsigned)parts, (unsigned)texts};
  return launch(tiles * parts * texts, THREADS, SHARED, SHARED, seed, [=] {
    const int block = blockIdx.x;
    blockIdx = {(unsigned)(block % tiles), (unsigned)(block / tiles % parts), (unsigned)(block / tiles / parts)};
    sdpa_wide_kernel(bf(0), bf(1), bf(2), integers(3), integers(4), integers(5), (__half*)partial, (float*)stats, items, of_text,
                     of_cache);
  });
}
