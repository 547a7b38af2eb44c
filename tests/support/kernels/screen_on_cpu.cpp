// The screening of a table by the threads of KERNEL, a path: see `on_cpu.h`.
#include "on_cpu.h"
#include KERNEL

// Takes the arguments of the kernel, and how many blocks it is launched with. The seed orders threads. Returns whether all
// threads ended.
extern "C" bool screen(const void* const* inputs, void* norms, void* uppers, void* out, int logits, int blocks, unsigned seed) {
  auto bytes = [&](int i) { return (const int8_t*)inputs[i]; };
  auto floats = [&](int i) { return (const float*)inputs[i]; };
  grid = {(unsigned)blocks, 1, 1};
  return launch(blocks, THREADS, SHARED, SHARED, seed, [=] {
    screen_table_kernel(bytes(0), bytes(1), (const bf16*)inputs[2], floats(3), floats(4), (float*)norms, (const long long*)inputs[5],
                        (float*)uppers, (bf16*)out, logits);
  });
}
