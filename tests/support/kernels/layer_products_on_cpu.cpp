// One layer by the threads of KERNEL, a path: see `on_cpu.h`.
#include "on_cpu.h"
#include KERNEL

// Takes the arguments of the kernel that are pointers, those of attention apart. The seed orders threads. Returns whether all
// threads ended.
extern "C" bool layer(const void* const* inputs, void* const* outputs, void* const* attention, int rows, int of_o, int of_qkv,
                      int attends, unsigned seed) {
  auto bf = [&](int i) { return (const bf16*)inputs[i]; };
  auto bytes = [&](int i) { return (const uint8_t*)inputs[i]; };
  auto slots = [&](int i) { return (const long long*)attention[i]; };
  return launch(BLOCKS, THREADS, SHARED, SHARED + 1024, seed, [=] {
    layer_products_kernel(bf(0), bf(1), bytes(2), bytes(3), bytes(4), bytes(5), bytes(6), bytes(7), bytes(8), bytes(9), bf(10),
                          bf(11), bf(12), bf(13), bf(14), (uint8_t*)outputs[0], (uint8_t*)outputs[1], (bf16*)outputs[2],
                          (bf16*)outputs[3], (bf16*)outputs[4], outputs[5], rows, of_o, of_qkv,
                          (bf16*)attention[0], (bf16*)attention[1], (bf16*)attention[2], (const float*)attention[3],
                          (const float*)attention[4], (const bf16*)attention[5], (const bf16*)attention[6], slots(7), slots(8), slots(9),
                          slots(10), slots(11), slots(12), attends);
  });
}
