// Computes the logits that may be the largest of their row, as rescore_kernel does, but fewer besides: 16 at a time.
//
// A block looks through its share of the upper bounds. Each of its warps computes one unit of 16 outputs after another: lanes
// fill a ring of the warp's own by bulk copies, some columns of the unit's rows at a time. x lies in shared memory whole.
//
// A logit's bits are those of the dense product: tensor cores add 16 columns after 16 to one sum.
//
// Sizes are macros, which `screen.py` defines: OUTPUTS and COLUMNS of the table, SLOTS of a ring, and the bytes SHARED and LAUNCHED
// threads.
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
#define UNITS (RINGS + WARPS * SLOTS * SLOT)    // int32 [THREADS]: what there is to compute
#define MASKS (UNITS + 4 * THREADS)             // int32 [WARPS]: threads whose units those are
#define BARRIERS (MASKS + 4 * WARPS)
static_assert(BARRIERS + 8 * (1 + WARPS * SLOTS) <= SHARED && SLOTS >= 2 && THREADS == LAUNCHED, "as screen.py has it");
static_assert(COLUMNS % STEP == 0 && OUTPUTS % UNIT == 0, "whole pieces are copied");

#define SATURATED 128.0f                        // as kernel.py has it

__device__ __forceinline__ float rounded(float v) { return __bfloat162float(__float2bfloat16_rn(v)); }

// Whether a row's largest logit may be in a unit.
__device__ __forceinline__ bool may_win(const float* reached, const float* upper, int rows) {
  bool may = false;
#pragma unroll
  for (int m = 0; m < ROWS; m++) may |= m < rows && (rounded(upper[m]) >= rounded(reached[m]) || upper[m] > SATURATED);
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
  if (found) store1(base + UNITS + 4 * place, unit);
  meet<THREADS>(1);
  return count;
}

// A warp's ring of weights: the step that comes next, of all since the kernel began.
struct Ring {
  uint32_t base;
  int warp, lane, step = 0;
  __device__ uint32_t slot(int of_step) const { return base + RINGS + (warp * SLOTS + of_step % SLOTS) * SLOT; }
  __device__ uint32_t full(int of_step) const { return base + BARRIERS + 8 * (1 + warp * SLOTS + of_step % SLOTS); }
  __device__ int unit(int i) const { return __float_as_int(load1(base + UNITS + 4 * (warp + i * WARPS))); }
  // Asks for step i of all units that the warp has.
  __device__ void fetch(const bf16* weight, int i, uint64_t policy) const {
    const int of_step = step + i;
    if (lane == 0) expect(full(of_step), UNIT * 2 * STEP);
    __syncwarp();
    if (lane >= UNIT) return;
    const bf16* row = weight + (size_t)(unit(i / STEPS) * UNIT + lane) * COLUMNS + i % STEPS * STEP;
    bulk_copy(slot(of_step) + lane * PITCH, row, 2 * STEP, full(of_step), policy);
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
__device__ __forceinline__ void compute_units(Ring& ring, const bf16* weight, bf16* out, int count, int rows) {
  const int lane = ring.lane, g = lane / 4, t = lane % 4, steps = (count - ring.warp + WARPS - 1) / WARPS * STEPS;
  const uint64_t policy = read_once();
  for (int i = 0; i < min(SLOTS, steps); i++) ring.fetch(weight, i, policy);
  if (steps) wait(ring.base + BARRIERS, 0);  // for x
  float acc[4] = {};
#pragma unroll 1
  for (int i = 0; i < steps; i++) {
    const int of_step = ring.step + i;
    wait(ring.full(of_step), of_step / SLOTS % 2);
    __syncwarp();
    multiply_step(acc, ring.slot(of_step), ring.base + i % STEPS * 2 * STEP, lane);
    fence_copies();
    __syncwarp();
    if (i + SLOTS < steps) ring.fetch(weight, i + SLOTS, policy);
    if (i % STEPS < STEPS - 1) continue;
    const int feature = ring.unit(i / STEPS) * UNIT + g;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (2 * t + j % 2 < rows) out[(size_t)(2 * t + j % 2) * OUTPUTS + feature + j / 2 * 8] = __float2bfloat16_rn(acc[j]);
      acc[j] = 0;
    }
  }
  ring.step += steps;
}

// Arguments are those of rescore_kernel, but `uppers` float32 [OUTPUTS / 16, ROWS] and the number of `logits`.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
rescore_table_kernel(const bf16* x, const bf16* weight, const float* norms, const long long* largest_only, const float* uppers, bf16* out,
                     int logits) {
  const uint32_t base = shared_address(dynamic_shared());
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, rows = logits / OUTPUTS, units = OUTPUTS / UNIT;
  const int first = (long long)units * blockIdx.x / gridDim.x, last = (long long)units * (blockIdx.x + 1) / gridDim.x;
  if (thread == 0) {
#pragma unroll
    for (int i = 0; i < 1 + WARPS * SLOTS; i++) init(base + BARRIERS + 8 * i, 1);
    publish_barriers();
  }
  const bool all = *largest_only == 0;
  bool has_x = false;  // x was asked for, which only blocks with something to compute do
  Ring ring = {base, warp, lane};
#pragma unroll 1
  for (int start = first; start < last; start += THREADS) {
    const int unit = start + thread;
    const int count = list_units(base, unit < last && (all || may_win(norms + 3 * ROWS, uppers + (size_t)unit * ROWS, rows)), unit, warp, lane);
    if (count && !has_x) {
      if (thread == 0) expect(base + BARRIERS, rows * 2 * COLUMNS);
      if (warp == 0) __syncwarp();
      if (thread < rows) bulk_copy(base + thread * X_PITCH, x + (size_t)thread * COLUMNS, 2 * COLUMNS, base + BARRIERS);
      has_x = true;
    }
    compute_units(ring, weight, out, count, rows);
  }
}
