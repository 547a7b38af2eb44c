// Computes the logits that may be the largest of their row, as rescore_kernel does, but 16 at a time in place of 64.
//
// A block looks through its share of the upper bounds. Each of its warps computes one unit of 16 outputs after another, from a
// ring of its own that it keeps filled, some columns of the unit's rows at a time. x lies in shared memory whole.
//
// A logit's bits are those of the dense product: tensor cores add 16 columns after 16 to one sum.
//
// Sizes are macros, which `screen.py` defines: OUTPUTS and COLUMNS of the table, SLOTS of a ring, SHARED bytes of shared memory,
// and LAUNCHED threads. So is a number that bounds logits: see BOUNDS in `packing.py`.
#include "../ptx.cuh"
#include "../lanes.cuh"

#define UNIT 16
#define ROWS 8                                  // of x
#define STEP 256                                // columns of a slot
#define STEPS (COLUMNS / STEP)
#define WARPS 4
#define THREADS (32 * WARPS)
#define X_PITCH (2 * COLUMNS + 16)              // bytes from row to row: padded against conflicts of banks
#define PITCH (2 * STEP + 16)
#define SLOT (UNIT * PITCH)
#define RINGS (ROWS * X_PITCH)                  // after x
#define LIST (RINGS + WARPS * SLOTS * SLOT)     // int32 [THREADS]: the units to compute
#define MASKS (LIST + 4 * THREADS)              // int32 [WARPS]: threads whose units those are
static_assert(MASKS + 4 * WARPS <= SHARED && SLOTS >= 2 && THREADS == LAUNCHED, "as screen.py has it");
static_assert(COLUMNS % STEP == 0 && OUTPUTS % UNIT == 0, "whole pieces are copied");

// Whether a row's largest logit may be in a unit.
__device__ __forceinline__ bool may_win(const float* reached, const float* upper, int rows) {
  bool may = false;
#pragma unroll
  for (int m = 0; m < ROWS; m++) may |= m < rows && (rounded(upper[m]) >= rounded(reached[m]) || upper[m] > (float)(SATURATED));
  return may;
}

// Lists the units that some threads found, in their order, and returns how many these are. All threads call it.
__device__ __forceinline__ int list_units(uint32_t base, bool found, int unit, int warp, int lane) {
  const uint32_t mask = __ballot_sync(~0u, found);
  meet<THREADS>(1);  // the list of before has been read
  if (lane == 0) store1(base + MASKS + 4 * warp, mask);
  meet<THREADS>(1);
  int count = 0, place = __popc(mask & ((1u << lane) - 1));
#pragma unroll
  for (int i = 0; i < WARPS; i++) {
    const int of_warp = __popc(__float_as_uint(load1(base + MASKS + 4 * i)));
    count += of_warp, place += i < warp ? of_warp : 0;
  }
  if (found) store1(base + LIST + 4 * place, unit);
  meet<THREADS>(1);
  return count;
}

// A warp's ring of weights, and the step that it is filled with next: a unit of those that are listed, and its first column.
struct Ring {
  uint32_t base;
  int warp, lane, left, unit = warp, column = 0, at = 0;
  __device__ Ring(uint32_t base, int warp, int lane, int count)
      : base(base), warp(warp), lane(lane), left((count - warp + WARPS - 1) / WARPS * STEPS) {}
  __device__ int row(int unit) const { return __float_as_int(load1(base + LIST + 4 * unit)) * UNIT; }
  __device__ uint32_t slot(int at) const { return base + RINGS + (warp * SLOTS + at) * SLOT; }
  // Asks for the next step, if there is one: a row's columns at a time.
  __device__ void fetch(const bf16* weight) {
    if (left-- > 0) {
      const bf16* from = weight + (size_t)row(unit) * COLUMNS + column + 8 * lane;
#pragma unroll
      for (int i = 0; i < UNIT; i++) copy_async(slot(at) + i * PITCH + 16 * lane, from + i * COLUMNS);
      at = at + 1 == SLOTS ? 0 : at + 1;
      if ((column += STEP) == COLUMNS) column = 0, unit += WARPS;
    }
    commit_copies();
  }
};

// Adds the products of a slot's columns.
__device__ __forceinline__ void multiply_step(float (&acc)[4], uint32_t slot, uint32_t x, int lane) {
  const uint32_t from = slot + lane % 16 * PITCH + lane / 16 * 16, from_x = x + lane % 8 * X_PITCH + lane / 8 * 16;
#pragma unroll
  for (int k = 0; k < STEP; k += 32) {
    const uint4 a = load_matrices(from + 2 * k), b = load_matrices(from + 2 * k + 32), c = load_matrices(from_x + 2 * k);
    multiply(acc, a.x, a.y, a.z, a.w, c.x, c.y);
    multiply(acc, b.x, b.y, b.z, b.w, c.z, c.w);
  }
}

// Computes a warp's units of those that are listed.
__device__ __forceinline__ void compute_units(Ring ring, const bf16* weight, bf16* out, int count, int rows) {
  const int g = ring.lane / 4, t = ring.lane % 4;
  int at = 0;
  for (int i = 0; i < SLOTS; i++) ring.fetch(weight);
#pragma unroll 1
  for (int unit = ring.warp; unit < count; unit += WARPS) {
    float acc[4] = {};
#pragma unroll 1
    for (int column = 0; column < COLUMNS; column += STEP) {
      await_copies<SLOTS - 1>();
      __syncwarp();
      multiply_step(acc, ring.slot(at), ring.base + 2 * column, ring.lane);
      __syncwarp();
      ring.fetch(weight);
      at = at + 1 == SLOTS ? 0 : at + 1;
    }
    const int feature = ring.row(unit) + g;
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (2 * t + j % 2 < rows) out[(size_t)(2 * t + j % 2) * OUTPUTS + feature + j / 2 * 8] = __float2bfloat16_rn(acc[j]);
  }
  await_copies();
}

// Arguments are those of rescore_kernel, but `uppers` float32 [OUTPUTS / 16, ROWS] and the number of `logits`. Where all logits
// may be read, it leaves them to the dense product.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
rescore_table_kernel(const bf16* x, const bf16* weight, const float* norms, const long long* largest_only, const float* uppers, bf16* out,
                     int logits) {
  if (*largest_only == 0) return;
  const uint32_t base = shared_address(dynamic_shared());
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, rows = logits / OUTPUTS, units = OUTPUTS / UNIT;
  const int first = (long long)units * blockIdx.x / gridDim.x, last = (long long)units * (blockIdx.x + 1) / gridDim.x;
  bool has_x = false;
#pragma unroll 1
  for (int start = first; start < last; start += THREADS) {
    const int unit = start + thread;
    const bool found = unit < last && may_win(norms + 3 * ROWS, uppers + (size_t)unit * ROWS, rows);
    const int count = list_units(base, found, unit, warp, lane);
    if (!count) continue;
    if (!has_x) {
      for (int i = thread; i < rows * (COLUMNS / 8); i += THREADS)
        copy_async(base + i / (COLUMNS / 8) * X_PITCH + i % (COLUMNS / 8) * 16, x + 8 * i);
      await_copies();
      meet<THREADS>(1);
      has_x = true;
    }
    compute_units(Ring(base, warp, lane, count), weight, out, count, rows);
  }
}
