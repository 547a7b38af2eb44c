// The exact logits of a table by the threads of KERNEL, a path: see `on_cpu.h`.
#include "on_cpu.h"
#include KERNEL

// Takes the arguments of the kernel, and how many blocks it is launched with. The seed orders threads. Returns whether all
// threads ended.
extern "C" bool rescore(const void* const* inputs, void* out, int logits, int blocks, unsigned seed) {
  grid = {(unsigned)blocks, 1, 1};
  return launch(blocks, THREADS, SHARED, SHARED, seed, [=] {
    rescore_table_kernel((const bf16*)inputs[0], (const bf16*)inputs[1], (const float*)inputs[2], (const long long*)inputs[3],
                         (const float*)inputs[4], (bf16*)out, logits);
  });
}
