// Screens an output table, as screen_kernel does, but with an upper bound for each 16 outputs, and faster.
//
// A block claims units of 16 rows of the table one after another. One warp fills a ring, eight rows at a time, by bulk copies of
// whole rows. Up to eight warps multiply some columns each, by digits of x that they keep in registers. Another one adds up
// what they have and bounds logits.
//
// Sizes are macros, which `screen.py` defines: OUTPUTS and the columns PADDED, SLOTS of the ring, SHARED bytes of shared memory,
// and LAUNCHED threads. So are numbers that bound logits: see BOUNDS in `packing.py`.
#include "../ptx.cuh"
#include "../lanes.cuh"

#define UNIT 16
#define UNITS (OUTPUTS / UNIT)
#define PART 8                                     // rows of a slot
#define ROWS 8                                     // of x
#define GROUP 128
#define GROUPS (PADDED / GROUP)
#define GROUPS_OF_WARP ((GROUPS + 7) / 8)          // of a warp that multiplies
#define WARPS ((GROUPS + GROUPS_OF_WARP - 1) / GROUPS_OF_WARP)
#define FETCHING 8                                 // a warp behind those that multiply, and those that do nothing
#define FINISHING 9
#define THREADS 320
#define PITCH (PADDED + 16)                        // bytes from row to row: padded against conflicts of banks
#define SCALES (PART * PITCH)
#define SCALE_BYTES (PART * GROUPS * 2)
#define SLOT (SCALES + SCALE_BYTES)
#define SUM_PITCH 24                               // floats from row to row: 16, and padding
#define SUM_UNIT (WARPS * UNIT * SUM_PITCH * 4)     // the number of the unit, after its sums
#define SUM_BYTES (SUM_UNIT + 16)
#define SUMS (SLOTS * SLOT)                        // twice
#define BARRIERS (SUMS + 2 * SUM_BYTES)             // two of a slot, and then the units that slots have rows of
static_assert(BARRIERS + 32 * SLOTS <= SHARED && SLOTS >= 3 && THREADS == LAUNCHED, "as screen.py has it");
static_assert(PADDED % GROUP == 0 && OUTPUTS % UNIT == 0 && SCALE_BYTES % 16 == 0, "whole pieces are copied");

// A slot of the ring: its barriers count bytes, and warps that have done with it.
struct Slot {
  uint32_t base;
  int at = 0, parity = 0;
  __device__ uint32_t memory() const { return base + at * SLOT; }
  __device__ uint32_t full() const { return base + BARRIERS + 16 * at; }
  __device__ uint32_t empty() const { return full() + 8; }
  __device__ uint32_t unit() const { return base + BARRIERS + 16 * SLOTS + 4 * at; }
  __device__ Slot next() const { return at + 1 == SLOTS ? Slot{base, 0, parity ^ 1} : Slot{base, at + 1, parity}; }
};

// Barrier 1 is of all warps, once the ring's barriers are made. Barriers 2 and 3 are for sums that were read, 4 and 5 for sums
// that were written, of every other unit.

// Claims units until none are left, which a number beyond them says. The next is claimed while a unit is asked for.
__device__ __forceinline__ void fetch(const int8_t* values, const bf16* scales, int* counter, Slot slot, int lane) {
  const uint64_t policy = read_once();
  int next = lane == 0 ? claim(counter) : 0, unit;
  do {
    unit = __shfl_sync(~0u, next, 0);
    const bool is_unit = unit < UNITS;
    if (lane == 0 && is_unit) next = claim(counter);
#pragma unroll
    for (int part = 0; part < UNIT / PART; part++, slot = slot.next()) {
      const size_t row = (size_t)unit * UNIT + part * PART;
      wait(slot.empty(), slot.parity ^ 1);
      if (lane == 0) {
        store1(slot.unit(), unit);
        if (is_unit) expect(slot.full(), PART * PADDED + SCALE_BYTES);
        else arrive(slot.full());
      }
      __syncwarp();
      if (is_unit && lane < PART) bulk_copy(slot.memory() + lane * PITCH, values + (row + lane) * PADDED, PADDED, slot.full(), policy);
      if (is_unit && lane == PART) bulk_copy(slot.memory() + SCALES, scales + row * GROUPS, SCALE_BYTES, slot.full(), policy);
    }
  } while (unit < UNITS);
}

// Sums of a warp's columns: of 16 rows of the table by the digits of eight rows of x, the first digits first.
__device__ __forceinline__ void multiply_columns(const int8_t* digits, Slot slot, int warp, int lane) {
  const int g = lane / 4, t = lane % 4, from = warp * GROUPS_OF_WARP, groups = min(GROUPS_OF_WARP, GROUPS - from);
  uint32_t b[GROUPS_OF_WARP][4][2][2];
#pragma unroll
  for (int i = 0; i < GROUPS_OF_WARP * 16; i++) {
    const int group = i / 16, k = i / 4 % 4, n = i / 2 % 2, half = i % 2;
    const int8_t* at = digits + (size_t)(ROWS * n + g) * PADDED + (from + group) * GROUP + 32 * k + 16 * half + 4 * t;
    b[group][k][n][half] = group < groups ? *(const uint32_t*)at : 0;
  }
  meet<THREADS>(1);
#pragma unroll 1
  for (int half = 0;; half ^= 1) {
    const Slot second = slot.next();
    const uint32_t rows = (lane & 8 ? second : slot).memory() + lane % 8 * PITCH + lane / 16 * 16 + from * GROUP;
    const uint32_t low = slot.memory() + SCALES + (g * GROUPS + from) * 2, high = second.memory() + SCALES + (g * GROUPS + from) * 2;
    wait(slot.full(), slot.parity);
    wait(second.full(), second.parity);
    __syncwarp();
    const uint32_t unit = __float_as_uint(load1(slot.unit()));
    float acc[2][4] = {};
#pragma unroll
    for (int i = 0; i < GROUPS_OF_WARP; i++) {
      if (i >= groups || unit >= UNITS) break;
      int part[2][4] = {};
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const uint4 a = load_matrices(rows + i * GROUP + 32 * k);
#pragma unroll
        for (int n = 0; n < 2; n++) multiply(part[n], a, b[i][k][n][0], b[i][k][n][1]);
      }
      const float of_rows[2] = {load_bf16(low + 2 * i), load_bf16(high + 2 * i)};
#pragma unroll
      for (int j = 0; j < 8; j++) acc[j / 4][j % 4] = __fmaf_rn((float)part[j / 4][j % 4], of_rows[j / 2 % 2], acc[j / 4][j % 4]);
    }
    __syncwarp();
    if (lane == 0) arrive(slot.empty()), arrive(second.empty());
    __syncwarp();
    slot = second.next();
    meet<32 * (WARPS + 1)>(2 + half);
    const uint32_t own = slot.base + SUMS + half * SUM_BYTES, sums = own + (warp * UNIT + g) * SUM_PITCH * 4 + 8 * t;
    if (warp == 0 && lane == 0) store1(own + SUM_UNIT, unit);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4; j++) store2(sums + j % 2 * 8 * SUM_PITCH * 4 + j / 2 * 32, acc[j / 2][j % 2 * 2], acc[j / 2][j % 2 * 2 + 1]);
    pass<32 * (WARPS + 1)>(4 + half);
    if (unit >= UNITS) return meet<32 * (WARPS + 1)>(3 - half);
  }
}

// Over the lanes of a row of x.
__device__ __forceinline__ float over_rows(float v) {
  v = fmaxf(v, __shfl_xor_sync(~0u, v, 8));
  return fmaxf(v, __shfl_xor_sync(~0u, v, 16));
}

// Adds up the sums of all warps and bounds logits: a lane has one row of x, and every fourth row of the table.
__device__ __forceinline__ void bound_logits(uint32_t base, const float* errors, const float* copies, float* norms, float* uppers, bf16* out,
                                             int rows, int lane) {
  const int m = lane % ROWS;
  const float scale = norms[m], norm = norms[ROWS + m], lacking = norms[2 * ROWS + m];
  float largest = minus_infinity();
  for (int i = 0; i < 2; i++) pass<32 * (WARPS + 1)>(2 + i);
#pragma unroll 1
  for (int half = 0;; half ^= 1) {
    meet<32 * (WARPS + 1)>(4 + half);
    const uint32_t unit = __float_as_uint(load1(base + SUMS + half * SUM_BYTES + SUM_UNIT));
    if (unit >= UNITS) break;
    const int row = unit * UNIT + lane / ROWS;
    float error[4], copied[4], upper = minus_infinity();
#pragma unroll
    for (int i = 0; i < 4; i++) error[i] = errors[row + 4 * i], copied[i] = copies[row + 4 * i];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t sums = base + SUMS + half * SUM_BYTES + (4 * i + lane / ROWS) * SUM_PITCH * 4 + 4 * m;
      float high = 0, low = 0;
#pragma unroll
      for (int w = 0; w < WARPS; w++) {
        high += load1(sums + w * UNIT * SUM_PITCH * 4);
        low += load1(sums + w * UNIT * SUM_PITCH * 4 + 4 * ROWS);
      }
      const float approximate = high * scale + low * (scale / (float)(DIGIT));
      const float bound = norm * (error[i] + (float)(ROUNDING) * (copied[i] + error[i])) + lacking * copied[i];
      largest = fmaxf(largest, approximate - bound), upper = fmaxf(upper, approximate + bound);
      if (m < rows) out[(size_t)m * OUTPUTS + row + 4 * i] = __float2bfloat16_rn(approximate);
    }
    upper = over_rows(upper);
    if (lane < ROWS) uppers[unit * ROWS + m] = upper;
    __syncwarp();
    pass<32 * (WARPS + 1)>(2 + half);
  }
  largest = over_rows(largest);
  if (lane < rows) raise(norms + 3 * ROWS + m, largest);
}

// Arguments are those of screen_kernel, but `uppers` float32 [OUTPUTS / 16, ROWS], the number of `logits`, and a counter at
// `norms` [4, 0], which is 0.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
screen_table_kernel(const int8_t* digits, const int8_t* values, const bf16* scales, const float* errors, const float* copies, float* norms,
                    const long long* largest_only, float* uppers, bf16* out, int logits) {
  if (*largest_only == 0) return;
  const uint32_t base = shared_address(dynamic_shared());
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Slot slot = {base};
  if (warp < WARPS) return multiply_columns(digits, slot, warp, lane);
  if (warp == FETCHING) {
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < SLOTS; i++) init(base + BARRIERS + 16 * i, 1), init(base + BARRIERS + 16 * i + 8, WARPS);
      publish_barriers();
    }
    __syncwarp();
  }
  pass<THREADS>(1);
  if (warp == FETCHING) fetch(values, scales, (int*)(norms + 4 * ROWS), slot, lane);
  if (warp == FINISHING) bound_logits(base, errors, copies, norms, uppers, out, logits / OUTPUTS, lane);
}
