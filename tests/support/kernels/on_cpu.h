// Runs CUDA kernels on a CPU, with other definitions of what ptx.cuh has: threads are fibers that change places where a
// GPU's would wait, in random order. Some warps pause, and copies that nothing waits for end sooner or later. A warp's
// instructions wait for its 32 lanes. What only memory order decides does not show.
#define PTX_CUH
#undef _FORTIFY_SOURCE  // it refuses longjmp to another stack
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <vector>

using std::max, std::min;

struct Meeting {
  int arrived = 0;
  unsigned times = 0;
};
struct CountingBarrier {
  int expected, pending;
  long bytes;
  unsigned phase;
};
struct Warp {
  int pause = 0;
  Meeting meeting;
  uint32_t words[32][6];
};
struct Block {
  std::vector<uint8_t> memory;
  size_t used;
  std::map<const void*, void*> statics;
  std::map<uint32_t, CountingBarrier> barriers;
  Meeting meetings[16];
  std::vector<Warp> warps;
};
struct Index {
  unsigned x, y, z;
};
struct Copy {
  Block* block;
  uint32_t to;
  const void* from;
  int bytes;
  uint32_t barrier;
};
struct Fiber {
  ucontext_t start;
  jmp_buf here;
  std::vector<Copy> copies;
  std::vector<std::vector<Copy>> groups;  // of copies that were committed
  std::vector<char> stack;
  Block* block;
  Index thread, index;
  bool has_begun, is_done;
};

static std::vector<Fiber> fibers;
static Fiber* running;
static jmp_buf scheduler;  // a ucontext_t would ask the system at each change
static std::function<void()> kernel;
static Index grid;
static long events;  // without any for a while, nothing will ever happen
static std::mt19937 chance;
static std::vector<Copy> copies;
static void end_some(std::vector<Copy>& copies, unsigned one_of);

#define blockIdx (running->index)
#define gridDim grid
#define threadIdx (running->thread)
#define __launch_bounds__(...)

static Warp& warp_of(const Fiber& fiber) { return fiber.block->warps[fiber.thread.x / 32]; }
static Warp& own_warp() { return warp_of(*running); }
static void yield() {
  if (!_setjmp(running->here)) _longjmp(scheduler, 1);
}
static void resume(Fiber* fiber) {
  running = fiber;
  if (_setjmp(scheduler)) return;
  if (fiber->has_begun) _longjmp(fiber->here, 1);
  fiber->has_begun = true;
  setcontext(&fiber->start);
}
static void run_thread() {
  kernel();
  running->is_done = true, events++;
  yield();
}
// Returns whether all threads ended.
static bool launch(int blocks, int threads, size_t dynamic, size_t all, unsigned seed, std::function<void()> body) {
  kernel = body, events = 0, chance.seed(seed), copies.clear();
  std::vector<Block> parts(blocks);
  for (auto& block : parts) {
    block.memory.assign(all, 0xFF), block.used = dynamic, block.warps.resize(threads / 32);
    for (auto& warp : block.warps) warp.pause = chance() % 16 ? 0 : 128;
  }
  fibers = std::vector<Fiber>(blocks * threads);
  for (size_t i = 0; i < fibers.size(); i++) {
    Fiber& fiber = fibers[i];
    fiber.block = &parts[i / threads], fiber.index.x = i / threads, fiber.thread.x = i % threads;
    fiber.stack.resize(1 << 16);
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.data(), fiber.start.uc_stack.ss_size = fiber.stack.size();
    makecontext(&fiber.start, run_thread, 0);
  }
  std::vector<Fiber*> order(fibers.size());
  std::iota(order.begin(), order.end(), fibers.data());
  for (int idle = 0; idle < 5000;) {
    long before = events;
    bool is_done = true;
    std::shuffle(order.begin(), order.end(), chance);
    for (Fiber* fiber : order) {
      if (fiber->is_done) continue;
      is_done = false;
      if (!warp_of(*fiber).pause) resume(fiber);
    }
    if (is_done) return true;
    for (auto& block : parts)
      for (auto& warp : block.warps) warp.pause = warp.pause ? warp.pause - 1 : chance() % 256 ? 0 : chance() % 128;
    end_some(copies, 64);
    idle = events == before ? idle + 1 : 0;
  }
  return false;
}
static void arrive_at(Meeting& meeting, int count) {
  events++;
  if (++meeting.arrived == count) meeting.arrived = 0, meeting.times++;
}
static void meet_at(Meeting& meeting, int count) {
  unsigned times = meeting.times;
  arrive_at(meeting, count);
  while (meeting.times == times) yield();
}
static void __syncwarp() { meet_at(own_warp().meeting, 32); }
static void __trap() { abort(); }

static uint8_t* dynamic_shared() { return running->block->memory.data(); }
template <class T>
static T& static_shared() {
  static const char key = 0;
  void*& at = running->block->statics[&key];
  if (!at) at = dynamic_shared() + running->block->used, running->block->used += sizeof(T);
  return *(T*)at;
}
static uint32_t shared_address(const void* p) { return (const uint8_t*)p - dynamic_shared(); }
static void* at_address(uint32_t at, size_t size = 16, Block* block = running->block) {
  if (at + size > block->memory.size()) abort();
  return block->memory.data() + at;
}
static uint4 load4(uint32_t at) { return *(uint4*)at_address(at); }
static void store4(uint32_t at, const uint4& v) { *(uint4*)at_address(at) = v; }
static void store1(uint32_t at, uint32_t v) { *(uint32_t*)at_address(at, 4) = v; }
static float load_bf16(uint32_t at) {
  uint32_t bits = *(uint16_t*)at_address(at, 2) << 16;
  return *(float*)&bits;
}
static void raise(float* at, float v) { *at = max(*at, v); }
static int claim(int* counter) {
  yield(), events++;
  return (*counter)++;
}
static void store2(uint32_t at, float x, float y) { store1(at, *(uint32_t*)&x), store1(at + 4, *(uint32_t*)&y); }
static float2 load2(uint32_t at) { return *(float2*)at_address(at, 8); }
static void load4_if(bool condition, uint4& v, uint32_t at) {
  if (condition) v = load4(at);
}
static float load1(uint32_t at) { return *(float*)at_address(at, 4); }
static unsigned lane_id() { return threadIdx.x % 32; }

static void init(uint32_t barrier, int arrivals) { running->block->barriers[barrier] = {arrivals, arrivals, 0, 0}; }
static void publish_barriers() {}
static void count(uint32_t barrier, int arrivals, int bytes, Block* block = running->block) {
  CountingBarrier& b = block->barriers.at(barrier);
  b.pending -= arrivals, b.bytes += bytes, events++;
  if (b.pending == 0 && b.bytes == 0) b.phase++, b.pending = b.expected;
}
static void arrive(uint32_t barrier) { count(barrier, 1, 0); }
static void expect(uint32_t barrier, int bytes) { count(barrier, 1, bytes); }
static void wait(uint32_t barrier, uint32_t parity) {
  while ((running->block->barriers.at(barrier).phase & 1) == parity) yield();
}
static uint64_t read_once() { return 0; }
#define NO_BARRIER 0xFFFFFFFFu
static void end(const Copy& copy) {
  memcpy(at_address(copy.to, copy.bytes, copy.block), copy.from, copy.bytes);
  if (copy.barrier != NO_BARRIER) count(copy.barrier, 0, -copy.bytes, copy.block);
}
// Ends one of so many copies, by chance.
static void end_some(std::vector<Copy>& copies, unsigned one_of) {
  std::vector<Copy> begun;
  begun.swap(copies);
  for (auto& copy : begun)
    if (chance() % one_of)
      copies.push_back(copy);
    else
      end(copy);
}
static void bulk_copy(uint32_t to, const void* from, int bytes, uint32_t barrier, uint64_t policy) {
  copies.push_back({running->block, to, from, bytes, barrier});
}
static void bulk_copy(uint32_t to, const void* from, int bytes, uint32_t barrier) { bulk_copy(to, from, bytes, barrier, 0); }
static void fence_copies() {}
static void fence_gpu() {}
static void touch(const void*) {}
static void copy_async(uint32_t to, const void* from) {
  running->copies.push_back({running->block, to, from, 16, NO_BARRIER});
  end_some(running->copies, 2);
}
static void copy_async1(uint32_t to, const void* from) {
  running->copies.push_back({running->block, to, from, 4, NO_BARRIER});
  end_some(running->copies, 2);
}
static void await_copies() {
  for (auto& group : running->groups) end_some(group, 1);
  end_some(running->copies, 1);
}
static void commit_copies() { running->groups.push_back(std::exchange(running->copies, {})); }
template <int LEFT>
static void await_copies() {
  auto& groups = running->groups;
  for (size_t i = 0; i < groups.size(); i++) end_some(groups[i], i + LEFT < groups.size() ? 1 : 4);
}
template <int COUNT>
static void meet(int barrier) {
  meet_at(running->block->meetings[barrier], COUNT);
}
template <int COUNT>
static void pass(int barrier) {
  arrive_at(running->block->meetings[barrier], COUNT);
}

static uint4 look(const void* at) {
  yield();
  return *(const uint4*)at;
}
static uint32_t look1(const void* at) {
  yield();
  return *(const uint32_t*)at;
}
static void give(void* at, const uint4& v) { *(uint4*)at = v, events++; }
static void give(void* at, uint32_t v) { *(uint32_t*)at = v, events++; }

static float __uint_as_float(uint32_t v) { return *(float*)&v; }
static uint32_t __float_as_uint(float v) { return *(uint32_t*)&v; }
static int __float_as_int(float v) { return *(int*)&v; }
static uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t choice) {
  uint64_t bytes = (uint64_t)b << 32 | a;
  uint32_t v = 0;
  for (int i = 0; i < 4; i++) v |= (uint32_t)(bytes >> (choice >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
  return v;
}
static float __fadd_rn(float a, float b) { return a + b; }
static float __fsub_rn(float a, float b) { return a - b; }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static float divided(float a, float b) { return a / b; }
static float power_of_2(float x) { return exp2f(x); }
static float flushed_power_of_2(float x) { return exp2f(x); }
static float inverse_root(float x) { return 1 / sqrtf(x); }
static uint4 load_once(const uint4* p) { return *p; }
#define __ldcg load_once
static __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  float2 x = __bfloat1622float2(a), y = __bfloat1622float2(b), z = __bfloat1622float2(c);
  return __floats2bfloat162_rn(fmaf(x.x, y.x, z.x), fmaf(x.y, y.y, z.y));
}

// The words that all lanes of a warp show each other, between two meetings.
template <class Use>
static void exchange(const std::vector<uint32_t>& words, Use use) {
  Warp& warp = own_warp();
  std::copy(words.begin(), words.end(), warp.words[threadIdx.x % 32]);
  __syncwarp();
  use(warp.words);
  __syncwarp();
}
static float __shfl_xor_sync(unsigned, float v, int mask) {
  exchange({__float_as_uint(v)}, [&](auto& words) { v = __uint_as_float(words[threadIdx.x % 32 ^ mask][0]); });
  return v;
}
static int __shfl_xor_sync(unsigned mask, int v, int distance) {
  return __float_as_uint(__shfl_xor_sync(mask, __uint_as_float(v), distance));
}
static int __shfl_sync(unsigned, int v, int lane) {
  exchange({(uint32_t)v}, [&](auto& words) { v = words[lane & 31][0]; });
  return v;
}
template <class Choose>
static int reduced(int v, Choose choose) {
  exchange({(uint32_t)v}, [&](auto& words) {
    for (auto& word : words) v = choose(v, (int)word[0]);
  });
  return v;
}
static int __reduce_min_sync(unsigned, int v) {
  return reduced(v, [](int a, int b) { return min(a, b); });
}
static int __reduce_max_sync(unsigned, int v) {
  return reduced(v, [](int a, int b) { return max(a, b); });
}
static unsigned __ballot_sync(unsigned, bool is) {
  unsigned lanes = 0;
  exchange({is}, [&](auto& words) {
    for (int i = 0; i < 32; i++) lanes |= words[i][0] << i;
  });
  return lanes;
}
#define __ffs __builtin_ffs
#define __popc __builtin_popcount
static uint4 load_matrices(uint32_t at) {
  unsigned lane = threadIdx.x % 32;
  uint32_t v[4];
  exchange({at}, [&](auto& words) {
    for (int i = 0; i < 4; i++) v[i] = *(uint32_t*)at_address(words[8 * i + lane / 4][0] + lane % 4 * 4, 4);
  });
  return make_uint4(v[0], v[1], v[2], v[3]);
}
static uint4 load_transposed(uint32_t at) {
  unsigned lane = threadIdx.x % 32;
  uint32_t v[4] = {};
  exchange({at}, [&](auto& words) {
    for (int i = 0; i < 8; i++)
      v[i / 2] |= *(uint16_t*)at_address(words[i / 2 * 8 + lane % 4 * 2 + i % 2][0] + lane / 4 * 2, 2) << i % 2 * 16;
  });
  return make_uint4(v[0], v[1], v[2], v[3]);
}
static float element(uint32_t word, int i) { return __uint_as_float(i ? word & 0xFFFF0000 : word << 16); }
static void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  unsigned lane = threadIdx.x % 32;
  exchange({a0, a1, a2, a3, b0, b1}, [&](auto& words) {
    for (int i = 0; i < 4; i++) {
      int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      float sum = 0;
      for (int k = 0; k < 16; k++)
        sum += element(words[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2) *
               element(words[column * 4 + k % 8 / 2][4 + k / 8], k % 2);
      d[i] += sum;
    }
  });
}

static void begin_products() {}
static void commit_products() {}
template <int LEFT>
static void await_products() {}
template <int COUNT>
static void take_registers() {}
template <int COUNT>
static void leave_registers() {}
static void finish(uint4&) {}
static uint64_t swizzled_rows(uint32_t at) { return at; }
// A warp's rows of a product of four warps, computed at once.
template <int COUNT>
static void multiply_by_four(float (&d)[COUNT], const uint4& a, uint64_t b, bool adds) {
  unsigned lane = threadIdx.x % 32;
  exchange({a.x, a.y, a.z, a.w}, [&](auto& words) {
    for (int i = 0; i < COUNT; i++) {
      int row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      float sum = 0;
      for (int k = 0; k < 16; k++) {
        uint32_t at = b + column * 128 + 2 * k;
        sum += element(words[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2) *
               element(*(uint16_t*)at_address(at ^ (at >> 7 & 7) << 4, 2), 0);
      }
      d[i] = (adds ? d[i] : 0) + sum;
    }
  });
}
static void store_transposed(uint32_t at, const uint4& v) {
  unsigned lane = threadIdx.x % 32;
  exchange({v.x, v.y, v.z, v.w}, [&](auto& words) {
    for (int i = 0; i < 8; i++)
      *(uint16_t*)at_address(at + 2 * i, 2) = words[i * 4 + lane % 8 / 2][lane / 8] >> lane % 2 * 16;
  });
}
static int byte_of(uint32_t word, int i) { return (int8_t)(word >> 8 * i); }
static void multiply(int (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  unsigned lane = threadIdx.x % 32;
  exchange({a.x, a.y, a.z, a.w, b0, b1}, [&](auto& words) {
    for (int i = 0; i < 4; i++) {
      int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < 32; k++)
        d[i] += byte_of(words[row % 8 * 4 + k % 16 / 4][row / 8 + k / 16 * 2], k % 4) *
                byte_of(words[column * 4 + k % 16 / 4][4 + k / 16], k % 4);
    }
  });
}
