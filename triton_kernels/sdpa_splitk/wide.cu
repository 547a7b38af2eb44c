// Attention of rows whose heads have 512 elements, over flat caches in bfloat16, as fast as memory gives keys and values.
//
// It takes the place of sdpa_splitk_kernel: a block attends with a tile of rows, up to 64 queries, to a chunk of the keys of
// one key/value head, or to the tails of these rows. In a chunk two warps keep rings of keys and of values filled, 16 after
// 16; four warps compute the scores and weights of 64 keys at a time, and eight add up values.
//
// Products are transposed: keys by queries, and elements of a head by queries. So keys and values, which are many, go from
// shared memory through registers to the tensor cores as they lie in the cache, and few queries are few columns.
//
// A row's bits follow from its position and the keys it sees: chunks and tiles begin where its position says, a key that it
// does not see adds exactly 0, and its columns are computed alike among 8, 40 or 64 columns.
//
// Sizes are macros, which `wide.py` defines: HEADS, GROUP (query heads of a key/value head), SPLITS and CHUNK (see
// `tiling.py`), SCALE of scores; OF_HEAD and PITCH, elements from head to head and from slot to slot; the bytes SHARED and
// LAUNCHED threads.
#include "../ptx.cuh"
#include "../lanes.cuh"

#define D 512
#define TAIL 16
#define ITEMS 64                     // most queries of a tile: rows times heads of a group
#define ROWS (ITEMS / GROUP)
#define KV_HEADS (HEADS / GROUP)
#define KEYS 64                      // of a tile
#define UNIT 16                      // keys that are copied and awaited together
#define UNITS (KEYS / UNIT)
#define KEY_ROW (2 * D + 16)         // bytes from key to key in shared memory: padded against conflicts of banks
#define UNIT_BYTES (UNIT * KEY_ROW)
#define THREADS 512
#define SCORERS 4                    // warps that compute weights
#define ADDERS 8                     // warps that add up values
#define CONSUMERS (SCORERS + ADDERS)
static_assert(ROWS <= 32 && HEADS % GROUP == 0 && CHUNK % UNIT == 0 && THREADS == LAUNCHED, "as wide.py has it");

// Shared memory for N columns: queries, weights, what warps tell each other of each column, barriers, and the rings.
template <int N>
struct Layout {
  static constexpr int BUFFERS = N == ITEMS ? 1 : 2;                                           // of weights
  static constexpr int WEIGHTS = N * 2 * D, WEIGHT_BYTES = N * 2 * KEYS;                       // queries are at 0
  static constexpr int FACTORS = WEIGHTS + BUFFERS * WEIGHT_BYTES;                             // float32 [BUFFERS, N]
  static constexpr int BASES = FACTORS + BUFFERS * N * 4, MAXIMA = BASES + N * 4;              // [N]; [SCORERS, N]
  static constexpr int SUMS = MAXIMA + SCORERS * N * 4, PEAKS = SUMS + SCORERS * N * 4;        // [SCORERS, N]; [ADDERS, N]
  static constexpr int REACHES = PEAKS + ADDERS * N * 4, BARRIERS = REACHES + N * 4;           // [N]; 32 of 8 bytes
  static constexpr int PLACE = BARRIERS + 256, K = PLACE + 16, ALL = (SHARED - K) / UNIT_BYTES;
  static constexpr int V_UNITS = ALL > 12 ? 5 : 4, K_UNITS = ALL - V_UNITS, V = K + K_UNITS * UNIT_BYTES;
  static constexpr int K_FULL = BARRIERS, K_EMPTY = K_FULL + 8 * K_UNITS, V_FULL = K_EMPTY + 8 * K_UNITS;
  static constexpr int V_EMPTY = V_FULL + 8 * V_UNITS, W_FULL = V_EMPTY + 8 * V_UNITS, W_EMPTY = W_FULL + 8 * BUFFERS;
  static_assert(W_EMPTY + 8 * BUFFERS <= PLACE && K % 16 == 0 && K_UNITS >= UNITS && V_UNITS >= UNITS, "there is room");
};

__device__ __forceinline__ int chunk_length(int reach) { return (reach / (CHUNK * SPLITS) + 1) * CHUNK; }

// Where a piece of 16 bytes of a row of 128 bytes lies.
__device__ __forceinline__ uint32_t swizzled(int row, int piece) { return row * 128 + ((piece ^ row % 8) << 4); }

// Over the lanes of a column.
__device__ __forceinline__ float column_max(float v) {
#pragma unroll
  for (int d = 4; d < 32; d <<= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
  return v;
}
__device__ __forceinline__ float column_sum(float v) {
#pragma unroll
  for (int d = 4; d < 32; d <<= 1) v = __fadd_rn(v, __shfl_xor_sync(~0u, v, d));
  return v;
}

// A place of a ring, and the parity of its use.
struct Turn {
  int at, parity;
  template <int COUNT>
  __device__ __forceinline__ void next(int by = 1) {
    if ((at += by) >= COUNT) at -= COUNT, parity ^= 1;
  }
};

// Where a block leaves what it computes: `first` is the item of its first row and query, `split` its part of each item's.
struct Place {
  __half* partial;
  float* stats;
  int items, first, split;
  __device__ __forceinline__ int item_of(int row, int head) const { return first + row * HEADS + head; }
  __device__ __forceinline__ uint4* unit_at(int row, int head, int element) const {
    return (uint4*)(partial + ((size_t)split * items + item_of(row, head)) * D + element);
  }
  __device__ __forceinline__ void store_stats(int row, int head, float most, float sum, float peak) const {
    float* at = stats + (size_t)split * items + item_of(row, head);
    const size_t field = (SPLITS + 1) * (size_t)items;
    at[0] = most, at[field] = sum, at[2 * field] = peak;
  }
};

// The rows of a block. `reach` is the last committed key of the row with this lane's number; below -TAIL there is no such row.
struct Tile {
  uint32_t base;
  int rows, reach;
};

// Keys [start, end) of a chunk of those rows whose chunks are as long.
struct Chunk {
  int length, start, end, tiles;
  // Returns how far a row of this tile sees, or -1 if its chunks have another length. All lanes call it.
  __device__ __forceinline__ int reach_of(const Tile& tile, int row) const {
    int reach = __shfl_sync(~0u, tile.reach, row % 32);
    return row < tile.rows && reach >= 0 && chunk_length(reach) == length ? reach : -1;
  }
  __device__ __forceinline__ Chunk(const Tile& tile, int split, int of_length, int lane) : length(of_length), start(split * of_length) {
    const int bound = __reduce_max_sync(~0u, reach_of(tile, lane));
    end = min(start + length, bound + 1), tiles = (end - start + KEYS - 1) / KEYS;
  }
  __device__ __forceinline__ int units(int tile) const { return (min(end - start - tile * KEYS, KEYS) + UNIT - 1) / UNIT; }
};

// Keeps a ring filled. Values that are not there become 0: their weights are, but memory may hold anything.
template <int COUNT, bool IS_KEYS>
__device__ __forceinline__ void fetch(const Chunk& chunk, const bf16* from, uint32_t ring, uint32_t full, uint32_t empty, Turn& turn,
                                      bool& is_first, int lane) {
  const uint64_t policy = read_once();
  const bool is_shared = gridDim.x > KV_HEADS;  // other tiles of rows read the same
  // The first keys are asked for before values are.
  if (!IS_KEYS && is_first) meet<64>(4);
#pragma unroll 1
  for (int unit = 0; unit < chunk.tiles * UNITS; unit++) {
    const int slot = chunk.start + unit * UNIT + lane, count = max(min(chunk.end - chunk.start - unit * UNIT, UNIT), 0);
    const uint32_t to = ring + turn.at * UNIT_BYTES + lane * KEY_ROW, barrier = full + 8 * turn.at;
    wait(empty + 8 * turn.at, turn.parity ^ 1);
    if (!IS_KEYS && count && lane >= count && lane < UNIT) {
      for (int i = 0; i < 2 * D; i += 16) store4(to + i, uint4{});
      fence_copies();
    }
    __syncwarp();
    if (lane == 0 && count) expect(barrier, count * 2 * D);
    if (lane == 0 && !count) arrive(barrier);
    __syncwarp();
    if (lane < count && is_shared) bulk_copy(to, from + (size_t)slot * PITCH, 2 * D, barrier);
    if (lane < count && !is_shared) bulk_copy(to, from + (size_t)slot * PITCH, 2 * D, barrier, policy);
    turn.next<COUNT>();
    if (IS_KEYS && is_first && unit == UNITS - 1) pass<64>(4);
  }
  is_first = false;
}

// Products of 64 keys, of which a warp has 16 at `keys`, with all queries.
template <int N>
__device__ __forceinline__ void multiply_keys(float (&s)[N / 2], uint32_t keys, uint32_t queries, int lane) {
  const uint32_t from = keys + lane % 16 * KEY_ROW + lane / 16 * 16;
  uint4 x[2][4];
#pragma unroll
  for (int i = 0; i < 4; i++) x[0][i] = load_matrices(from + 32 * i);
#pragma unroll
  for (int block = 0; block < D / 64; block++) {
    begin_products();
#pragma unroll
    for (int i = 0; i < 4; i++) multiply_by_four(s, x[block % 2][i], swizzled_rows(queries + block * N * 128 + 32 * i), block + i > 0);
    commit_products();
    if (block == D / 64 - 1) break;
    if (block) await_products<1>();
#pragma unroll
    for (int i = 0; i < 4; i++) x[(block + 1) % 2][i] = load_matrices(from + 128 * (block + 1) + 32 * i);
  }
  await_products<0>();
}

// Computes the weights of a chunk's keys, by four warps.
template <int N>
__device__ __forceinline__ void weigh(const Tile& tile, const Chunk& chunk, Turn& turn, Turn& w, int thread) {
  using L = Layout<N>;
  const int warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const uint32_t base = tile.base, columns = base + 8 * t;  // of what columns have
  float sums[N / 4], most = minus_infinity();
#pragma unroll
  for (int i = 0; i < N / 4; i++) sums[i] = 0;
  const int reach = chunk.reach_of(tile, thread / GROUP);
  if (thread < N) store1(base + L::REACHES + 4 * thread, reach);
  meet<32 * SCORERS>(1);
#pragma unroll 1
  for (int n = 0; n < chunk.tiles; n++) {
    Turn own = turn;
    own.next<L::K_UNITS>(warp);
    turn.next<L::K_UNITS>(UNITS);
    float s[N / 2];
    wait(base + L::K_FULL + 8 * own.at, own.parity);
    __syncwarp();
    multiply_keys<N>(s, base + L::K + own.at * UNIT_BYTES, base, lane);
    if (lane == 0) arrive(base + L::K_EMPTY + 8 * own.at);
    const int key = chunk.start + n * KEYS + warp * UNIT + g;
#pragma unroll
    for (int c = 0; c < N / 8; c++) {
      const float2 reaches = load2(columns + L::REACHES + 32 * c);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int end = min(__float_as_int(i % 2 ? reaches.y : reaches.x), chunk.end - 1);
        s[4 * c + i] = key + i / 2 * 8 <= end ? __fmul_rn(s[4 * c + i], (float)(SCALE)) : minus_infinity();
      }
      const float x = column_max(fmaxf(s[4 * c], s[4 * c + 2])), y = column_max(fmaxf(s[4 * c + 1], s[4 * c + 3]));
      if (g == 0) store2(columns + L::MAXIMA + warp * N * 4 + 32 * c, x, y);
    }
    wait(base + L::W_EMPTY + 8 * w.at, w.parity ^ 1);
    meet<32 * SCORERS>(1);
    const uint32_t factors = L::FACTORS + w.at * N * 4;
    if (thread < N) {
      float now = most;
#pragma unroll
      for (int i = 0; i < SCORERS; i++) now = fmaxf(now, load1(base + L::MAXIMA + (i * N + thread) * 4));
      store1(base + L::BASES + 4 * thread, __float_as_uint(base_of(now)));
      store1(base + factors + 4 * thread, __float_as_uint(flushed_power_of_2(__fsub_rn(most, base_of(now)))));
      most = now;
    }
    meet<32 * SCORERS>(1);
#pragma unroll
    for (int c = 0; c < N / 8; c++) {
      const float2 from = load2(columns + L::BASES + 32 * c), factor = load2(columns + factors + 32 * c);
#pragma unroll
      for (int i = 0; i < 4; i++) s[4 * c + i] = flushed_power_of_2(__fsub_rn(s[4 * c + i], i % 2 ? from.y : from.x));
      sums[2 * c] = __fmaf_rn(sums[2 * c], factor.x, __fadd_rn(s[4 * c], s[4 * c + 2]));
      sums[2 * c + 1] = __fmaf_rn(sums[2 * c + 1], factor.y, __fadd_rn(s[4 * c + 1], s[4 * c + 3]));
    }
    const uint32_t alone = base + L::WEIGHTS + w.at * L::WEIGHT_BYTES + swizzled(lane % 8, 2 * warp + lane / 8 % 2);
#pragma unroll
    for (int c = 0; c < N / 8; c += 2) {
      const int o = c + 1 < N / 8 ? 4 * c + 4 : 4 * c;  // eight columns alone are stored twice
      store_transposed(alone + c * 1024 + (o > 4 * c ? lane / 16 * 1024 : 0),
                       make_uint4(packed(s[4 * c], s[4 * c + 1]), packed(s[4 * c + 2], s[4 * c + 3]), packed(s[o], s[o + 1]),
                                  packed(s[o + 2], s[o + 3])));
    }
    fence_copies();
    arrive(base + L::W_FULL + 8 * w.at);
    w.next<L::BUFFERS>();
  }
#pragma unroll
  for (int c = 0; c < N / 8; c++) {
    const float x = column_sum(sums[2 * c]), y = column_sum(sums[2 * c + 1]);
    if (g == 0) store2(columns + L::SUMS + warp * N * 4 + 32 * c, x, y);
  }
  if (thread < N) store1(base + L::MAXIMA + 4 * thread, __float_as_uint(most));
  pass<32 * CONSUMERS>(3);
}

// Adds up a chunk's values, by eight warps: a warp has 16 of each 64 elements of one half of a head.
template <int N>
__device__ __forceinline__ void add_values(const Tile& tile, const Chunk& chunk, Place place, Turn& turn, Turn& w, int thread) {
  using L = Layout<N>;
  const int warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const uint32_t base = tile.base, columns = base + 8 * t, element = lane / 8 % 2 * 16 + warp / 4 * D + warp % 4 * 32;
  const uint32_t from = base + L::V + (lane % 8 + lane / 16 * 8) * KEY_ROW + element;
  float acc[4][N / 2] = {};
#pragma unroll 1
  for (int n = 0; n < chunk.tiles; n++) {
    const int units = chunk.units(n);
    wait(base + L::W_FULL + 8 * w.at, w.parity);
    __syncwarp();
    if (n)
#pragma unroll
      for (int c = 0; c < N / 8; c++) {
        const float2 factor = load2(columns + L::FACTORS + w.at * N * 4 + 32 * c);
#pragma unroll
        for (int i = 0; i < 16; i++) {
          float& x = acc[i / 4][4 * c + i % 4];
          x = __fmul_rn(x, i % 2 ? factor.y : factor.x);
        }
      }
    uint4 x[L::BUFFERS][4];  // two do not fit registers with 64 columns
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
      uint4(&values)[4] = x[u % L::BUFFERS];
      wait(base + L::V_FULL + 8 * turn.at, turn.parity);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; i++) {
        values[i] = load_transposed(from + turn.at * UNIT_BYTES + 128 * i);
        if (u >= units) values[i] = uint4{};
        finish(values[i]);
      }
      __syncwarp();
      if (lane == 0) arrive(base + L::V_EMPTY + 8 * turn.at);
      turn.next<L::V_UNITS>();
      begin_products();
#pragma unroll
      for (int i = 0; i < 4; i++) multiply_by_four(acc[i], values[i], swizzled_rows(base + L::WEIGHTS + w.at * L::WEIGHT_BYTES + 32 * u), true);
      commit_products();
      await_products<L::BUFFERS - 1>();
    }
    await_products<0>();
    if (lane == 0) arrive(base + L::W_EMPTY + 8 * w.at);
    w.next<L::BUFFERS>();
  }
#pragma unroll
  for (int c = 0; c < N / 8; c++) {
    float x = 0, y = 0;
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
      x = fmaxf(x, fabsf(acc[i / 4][4 * c + i % 4]));
      y = fmaxf(y, fabsf(acc[i / 4][4 * c + i % 4 + 1]));
    }
    x = column_max(x), y = column_max(y);
    if (g == 0) store2(columns + L::PEAKS + warp * N * 4 + 32 * c, x, y);
  }
  meet<32 * CONSUMERS>(3);
  place.first = __float_as_int(load1(base + L::PLACE)), place.split = __float_as_int(load1(base + L::PLACE + 4));
  if (thread < N) {
    float peak = 1e-30f, sum = 0;
#pragma unroll
    for (int i = 0; i < ADDERS; i++) peak = fmaxf(peak, load1(base + L::PEAKS + (i * N + thread) * 4));
#pragma unroll
    for (int i = 0; i < SCORERS; i++) sum = __fadd_rn(sum, load1(base + L::SUMS + (i * N + thread) * 4));
    store1(base + L::BASES + 4 * thread, __float_as_uint(divided(1.0f, peak)));
    if (__float_as_int(load1(base + L::REACHES + 4 * thread)) >= 0)
      place.store_stats(thread / GROUP, thread % GROUP, load1(base + L::MAXIMA + 4 * thread), sum, peak);
  }
  meet<32 * ADDERS>(2);
  // Through memory that keys had, so that a row's elements are stored together.
  const uint32_t alone = base + L::K + lane % 8 * KEY_ROW + element;
#pragma unroll
  for (int c = 0; c < N / 8; c += 2) {
    const int o = c + 1 < N / 8 ? 4 : 0;
    const float2 low = load2(columns + L::BASES + 32 * c), high = load2(columns + L::BASES + 32 * c + 8 * o);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float *a = acc[i] + 4 * c, *b = a + o;
      store_transposed(alone + c * 8 * KEY_ROW + (o ? lane / 16 * 8 * KEY_ROW : 0) + 128 * i,
                       make_uint4(half_pair(a[0] * low.x, a[1] * low.y), half_pair(a[2] * low.x, a[3] * low.y),
                                  half_pair(b[0] * high.x, b[1] * high.y), half_pair(b[2] * high.x, b[3] * high.y)));
    }
  }
  meet<32 * ADDERS>(2);
#pragma unroll 4
  for (int item = thread / 64; item < N; item += 4) {
    const uint4 unit = load4(base + L::K + item * KEY_ROW + thread % 64 * 16);
    if (__float_as_int(load1(base + L::REACHES + 4 * item)) >= 0)
      *place.unit_at(item / GROUP, item % GROUP, thread % 64 * 8) = unit;
  }
  fence_copies();  // the next length's keys come to where these were
}

// A block's chunk of a tile of rows, at most N columns. Rows have chunks of two lengths, or more if there are few splits.
template <int N>
__device__ __forceinline__ void attend_chunk(const Tile& tile, const Place& place, const bf16* q, const bf16* k, const bf16* v, int thread) {
  using L = Layout<N>;
  const uint32_t base = tile.base;
  if (base % 1024) __trap();  // as `swizzled` has it
  const int warp = thread / 32, lane = thread % 32, split = place.split;
  const int shortest = chunk_length(__reduce_min_sync(~0u, tile.reach >= 0 ? tile.reach : 1 << 30));
  const int most = __reduce_max_sync(~0u, tile.reach), longest = chunk_length(max(most, 0));
  if (most < 0 || split * shortest > most) return;
  Turn turn = {0, 0}, w = {0, 0};
  auto for_each_length = [&](auto run) {
#pragma unroll 1
    for (int length = shortest; length <= longest; length += CHUNK) {
      const Chunk chunk(tile, split, length, lane);
      if (chunk.tiles > 0) run(chunk);
      if (length < longest) meet<THREADS>(6);
    }
  };
  if (warp >= CONSUMERS) {
    leave_registers<40>();
    if (warp == CONSUMERS) {
      if (lane == 0) {
#pragma unroll
        for (int i = 0; i < L::K_UNITS; i++) init(base + L::K_FULL + 8 * i, 1), init(base + L::K_EMPTY + 8 * i, 1);
#pragma unroll
        for (int i = 0; i < L::V_UNITS; i++) init(base + L::V_FULL + 8 * i, 1), init(base + L::V_EMPTY + 8 * i, ADDERS);
#pragma unroll
        for (int i = 0; i < L::BUFFERS; i++) init(base + L::W_FULL + 8 * i, 32 * SCORERS), init(base + L::W_EMPTY + 8 * i, ADDERS);
        publish_barriers();
      }
      __syncwarp();
    }
    pass<THREADS>(5);
    bool is_first = true;
    for_each_length([&](const Chunk& chunk) {
      if (warp == CONSUMERS)
        fetch<L::K_UNITS, true>(chunk, k, base + L::K, base + L::K_FULL, base + L::K_EMPTY, turn, is_first, lane);
      else if (warp == CONSUMERS + 1)
        fetch<L::V_UNITS, false>(chunk, v, base + L::V, base + L::V_FULL, base + L::V_EMPTY, turn, is_first, lane);
    });
    return;
  }
  for (int i = thread; i < tile.rows * GROUP * (D / 8); i += 32 * CONSUMERS) {
    const int item = i / (D / 8), piece = i % (D / 8);
    copy_async(base + piece / 8 * N * 128 + swizzled(item, piece % 8), q + (size_t)place.item_of(item / GROUP, item % GROUP) * D + 8 * piece);
  }
  // For `add_values`, which has no registers left to keep them in.
  if (thread == 0) store1(base + L::PLACE, place.first), store1(base + L::PLACE + 4, split);
  await_copies();
  fence_copies();
  if (warp < SCORERS) {
    leave_registers<112>();
    meet<THREADS>(5);
    for_each_length([&](const Chunk& chunk) { weigh<N>(tile, chunk, turn, w, thread); });
  } else {
    take_registers<176>();
    meet<THREADS>(5);
    for_each_length([&](const Chunk& chunk) { add_values<N>(tile, chunk, place, turn, w, thread - 32 * SCORERS); });
  }
}

__device__ __forceinline__ uint4 load_if(bool condition, const bf16* at) { return condition ? *(const uint4*)at : uint4{}; }

// The tails of a tile's rows: two warps have one row after another. Both compute its weights, and each adds up half of a head's
// values. Elements of a head are in any order that queries and keys share, so that a lane reads 16 bytes at once.
__device__ __forceinline__ void attend_tails(const Tile& tile, const Place& place, const bf16* q, const bf16* k, const bf16* v, const long long* tail,
                                             int thread) {
  const int warp = thread / 32, half = warp % 2, lane = thread % 32, g = lane / 4, t = lane % 4;
  const int head = g < GROUP ? g : 0;
#pragma unroll 1
  for (int row = warp / 2; row < tile.rows; row += THREADS / 64) {
    if (__shfl_sync(~0u, tile.reach, row) < -TAIL) continue;
    const int slot = tail[row * TAIL + lane % TAIL];
    float s[2][4] = {};
    const bf16* query = q + (size_t)place.item_of(row, head) * D + 8 * t;
    int own[2], keys[4];  // the slots of this lane's keys, and of those that it has scores of
#pragma unroll
    for (int i = 0; i < 2; i++) own[i] = __shfl_sync(~0u, slot, 8 * i + g);
#pragma unroll
    for (int i = 0; i < 4; i++) keys[i] = __shfl_sync(~0u, slot, i / 2 * 8 + 2 * t + i % 2);
#pragma unroll 1
    for (int block = 0; block < 4; block++) {
      uint4 x[4], y[2][4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int column = 128 * block + 32 * i;
        x[i] = load_if(g < GROUP, query + column);
#pragma unroll
        for (int j = 0; j < 2; j++) y[j][i] = load_if(own[j] >= 0, k + (size_t)max(own[j], 0) * PITCH + column + 8 * t);
      }
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          multiply(s[j], x[i].x, 0, x[i].y, 0, y[j][i].x, y[j][i].y);
          multiply(s[j], x[i].z, 0, x[i].w, 0, y[j][i].z, y[j][i].w);
        }
    }
    float weights[4], most = minus_infinity();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      weights[i] = keys[i] >= 0 ? __fmul_rn(s[i / 2][i % 2], (float)(SCALE)) : minus_infinity();
      most = fmaxf(most, weights[i]);
    }
    most = quad_max(most);
#pragma unroll
    for (int i = 0; i < 4; i++) weights[i] = flushed_power_of_2(__fsub_rn(weights[i], base_of(most)));
    const float sum = quad_sum(__fadd_rn(__fadd_rn(weights[0], weights[1]), __fadd_rn(weights[2], weights[3])));
    const uint32_t low = packed(weights[0], weights[1]), high = packed(weights[2], weights[3]);
    // Twice: sums for their largest element first, since all of them do not fit registers.
    auto for_each_sum = [&](auto use) {
#pragma unroll 2
      for (int element = half * (D / 2); element < (half + 1) * (D / 2); element += 64) {
        uint4 x[4];
        float acc[2][8];
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = load_if(keys[i] >= 0, v + (size_t)max(keys[i], 0) * PITCH + element + 8 * g);
#pragma unroll
        for (int i = 0; i < 8; i++) {
          const uint32_t choice = i % 2 ? 0x7632 : 0x5410;
          float d[4] = {};
          multiply(d, low, 0, high, 0, __byte_perm(word_of(x[0], i / 2), word_of(x[1], i / 2), choice),
                   __byte_perm(word_of(x[2], i / 2), word_of(x[3], i / 2), choice));
          acc[0][i] = d[0], acc[1][i] = d[1];
        }
        use(acc[0], element + 16 * t), use(acc[1], element + 16 * t + 8);
      }
    };
    float peak = 0;
    for_each_sum([&](const float (&x)[8], int element) {
#pragma unroll
      for (int i = 0; i < 8; i++) peak = fmaxf(peak, fabsf(x[i]));
    });
    peak = quad_max(peak);
    if (t == 0) store1(tile.base + (warp * 8 + g) * 4, __float_as_uint(peak));
    meet<64>(1 + warp / 2);
    peak = fmaxf(fmaxf(peak, load1(tile.base + ((warp ^ 1) * 8 + g) * 4)), 1e-30f);
    meet<64>(1 + warp / 2);
    if (half == 0 && t == 0 && g < GROUP) place.store_stats(row, g, most, sum, peak);
    const float inverse = divided(1.0f, peak);
    for_each_sum([&](const float (&x)[8], int element) {
      if (g < GROUP)
        *place.unit_at(row, g, element) = make_uint4(half_pair(x[0] * inverse, x[1] * inverse), half_pair(x[2] * inverse, x[3] * inverse),
                                                     half_pair(x[4] * inverse, x[5] * inverse), half_pair(x[6] * inverse, x[7] * inverse));
    });
  }
}

// Pointers are those of sdpa_splitk_kernel; `items` are batch x rows x HEADS, `of_text` rows x HEADS, and `of_cache` entries from
// text to text. The grid is tiles of rows and heads, by tails and splits, by texts: heads, whose keys lie together, run side by side.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
sdpa_wide_kernel(const bf16* q, const bf16* k, const bf16* v, const long long* positions, const long long* sequences,
                 const long long* tail, __half* partial, float* stats, int items, int of_text, int of_cache) {
  const int rows = of_text / HEADS, head = blockIdx.x % KV_HEADS, first_row = blockIdx.x / KV_HEADS * ROWS, text = blockIdx.z;
  const bool is_tail = blockIdx.y == 0;
  const int split = is_tail ? SPLITS : blockIdx.y - 1, thread = threadIdx.x, lane = thread % 32;
  const size_t row = (size_t)text * rows + first_row, cache = head * (size_t)(OF_HEAD) + sequences[text] * (size_t)of_cache * D;
  const int first = (text * rows + first_row) * HEADS + head * GROUP;
  const Place place = {partial, stats, items, first, split};
  Tile tile = {shared_address(dynamic_shared()), min(ROWS, rows - first_row)};
  tile.reach = lane < tile.rows ? (int)positions[row + lane] - TAIL : -1 - TAIL;
  if (is_tail)
    attend_tails(tile, place, q, k + cache, v + cache, tail + row * TAIL, thread);
  else if (tile.rows * GROUP <= 8)
    attend_chunk<8>(tile, place, q, k + cache, v + cache, thread);
  else if (tile.rows * GROUP <= 40)
    attend_chunk<40>(tile, place, q, k + cache, v + cache, thread);
  else
    attend_chunk<64>(tile, place, q, k + cache, v + cache, thread);
}
