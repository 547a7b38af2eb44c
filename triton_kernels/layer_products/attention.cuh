// The heads behind a layer's products, for at most eight rows of one text: norms, rotation, the store to the caches, which
// are rings, and attention, by the blocks of the layer's kernel.
//
// A key/value head is the work of eight blocks. Each attends to the chunks of 128 keys whose index is its rank modulo eight,
// of which a window has one, or the end of one and the start of another, and to the tail of one row; then it adds up 32
// columns of all rows. What blocks need of each other goes through exchanged memory.
//
// Roundings and the order of sums are those of norm_rope_store_kernel, of sdpa_splitk_kernel with tiles of 16 rows and 64
// keys, and of sdpa_combine_kernel: results are the same to the bit.
//
// Sizes are macros, which `macros.py` defines: QKV_SPLITS and PROJECTED outputs of the projections, HEADS, GROUP (query heads of
// a key/value head), WINDOW, RING_SLOTS of the SLOTS of a text, OF_HEAD and KEY_PITCH (elements from head to head and from key to
// key), SCALE of scores, HEAD_EPS, NORM_VALUES, and MOVES (entries that are moved, or 0).
#define D 256
#define TAIL 16
#define CHUNK 128
#define RANKS 8
#define ITEMS 16                       // rows of a tile: rows times heads of a group
#define KEY_ROW 528                    // bytes from key to key in shared memory: padded against conflicts of banks
#define P_ROW (2 * CHUNK + 16)
#define TAIL_WARPS 4
static_assert(CHUNKS_SEEN == 9 && WINDOW <= RANKS * CHUNK && 8 * GROUP <= ITEMS, "as op.py has it");
static_assert(ITEMS <= 2 * WARPS && ROWS <= WARPS, "a warp rotates two queries, and keys or values of two rows");
static_assert(PROJECTED / 128 * QKV_SPLITS >= HEADS / GROUP * RANKS * SETS, "see move_entries");

// Shared memory, which has weights and x before.
#define K_AT 0
#define V_AT (K_AT + CHUNK * KEY_ROW)
#define TAIL_K_AT (V_AT + CHUNK * KEY_ROW)
#define TAIL_V_AT (TAIL_K_AT + TAIL * KEY_ROW)
#define Q_AT (TAIL_V_AT + TAIL * KEY_ROW)
#define P_AT (Q_AT + ITEMS * KEY_ROW)
#define MAXIMA_AT (P_AT + SETS * ITEMS * P_ROW)          // float32 [2 x 8, ITEMS]
#define SUMS_AT (MAXIMA_AT + SETS * WARPS * ITEMS * 4)   // the same
#define PEAKS_AT (SUMS_AT + SETS * WARPS * ITEMS * 4)    // largest elements [2 x 8 + 4, ITEMS]
static_assert(PEAKS_AT + (SETS * WARPS + TAIL_WARPS) * ITEMS * 4 <= SHARED, "it has room");

__device__ __forceinline__ void chunk_barrier(int set) {
  __syncwarp();
  set_barrier(set);
}
__device__ __forceinline__ void tail_barrier() {
  __syncwarp();
  meet<32 * TAIL_WARPS>(5);
}
__device__ __forceinline__ void multiply(float (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  multiply(d, a.x, a.y, a.z, a.w, b0, b1);
}
__device__ __forceinline__ uint2 packed4(const float (&x)[4]) { return make_uint2(packed(x[0], x[1]), packed(x[2], x[3])); }
__device__ __forceinline__ void store2(uint32_t at, uint2 v) { store1(at, v.x), store1(at + 4, v.y); }
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int d = 16; d > 2; d >>= 1) v = __fadd_rn(v, __shfl_xor_sync(~0u, v, d));
  return quad_sum(v);
}

// Of two rows four columns of a product, and four at a distance from them; all are awaited together, their parts added up and
// rounded. There is nothing of rows below 0.
__device__ __forceinline__ void take_products(float (&x)[2][2][4], const uint8_t* exchanged, const int (&rows)[2],
                                              const int (&columns)[2], int distance) {
  uint4 v[4 * QKV_SPLITS] = {};
  uint32_t offsets[4 * QKV_SPLITS];
#pragma unroll
  for (int k = 0; k < 4 * QKV_SPLITS; k++) {
    const int n = k / QKV_SPLITS, s = k % QKV_SPLITS, row = rows[n / 2], column = columns[n / 2] + n % 2 * distance;
    offsets[k] = row < 0 ? NONE : row / 2 * PAIR + PROJECTED_AT + ((2 * s + row % 2) * PROJECTED + column) * 4;
  }
  await(v, exchanged, offsets);
#pragma unroll
  for (int n = 0; n < 4; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float sum = 0;
#pragma unroll
      for (int s = 0; s < QKV_SPLITS; s++) sum = __fadd_rn(sum, __uint_as_float(word_of(v[n * QKV_SPLITS + s], i)));
      x[n / 2][n % 2][i] = rounded(sum);
    }
}

__device__ __forceinline__ float head_factor(float squares) {
  return inverse_root(__fadd_rn(divided(warp_sum(squares), (float)D), (float)(HEAD_EPS)));
}

// A lane's columns of both halves of a head, x from 4 lane on and y as many of the second, normalised and rotated.
struct Halves {
  uint2 low, high;
  __device__ __forceinline__ Halves(float (&x)[4], float (&y)[4], int row, const bf16* weight, const float* cos, const float* sin, int lane) {
    const int at = 4 * lane, angle = row * D + at;
    const uint2 x_weight = *(const uint2*)(weight + at), y_weight = *(const uint2*)(weight + D / 2 + at);
    const float4 x_cos = *(const float4*)(cos + angle), x_sin = *(const float4*)(sin + angle);
    const float4 y_cos = *(const float4*)(cos + angle + D / 2), y_sin = *(const float4*)(sin + angle + D / 2);
    float squares[4];
#pragma unroll
    for (int i = 0; i < 4; i++) squares[i] = __fmaf_rn(x[i], x[i], __fmul_rn(y[i], y[i]));
    float factor = head_factor(__fadd_rn(__fadd_rn(__fadd_rn(squares[0], squares[1]), squares[2]), squares[3]));
    float new_x[4], new_y[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float2 of_x = both_of(i / 2 ? x_weight.y : x_weight.x), of_y = both_of(i / 2 ? y_weight.y : y_weight.x);
      x[i] = rounded(__fmul_rn(__fmul_rn(factor, x[i]), i % 2 ? of_x.y : of_x.x));
      y[i] = rounded(__fmul_rn(__fmul_rn(factor, y[i]), i % 2 ? of_y.y : of_y.x));
      new_x[i] = __fmaf_rn(x[i], (&x_cos.x)[i], __fmul_rn(y[i], (&x_sin.x)[i]));
      new_y[i] = __fmaf_rn(x[i], (&y_sin.x)[i], __fmul_rn(y[i], (&y_cos.x)[i]));
    }
    low = packed4(new_x), high = packed4(new_y);
  }
};

// A lane's columns of a value, eight one after another, normalised.
__device__ __forceinline__ uint4 value_of(float (&x)[4], float (&y)[4]) {
#if NORM_VALUES
  float squares = __fmaf_rn(x[0], x[0], __fmul_rn(x[1], x[1]));
#pragma unroll
  for (int i = 2; i < 8; i++) squares = __fmaf_rn((i < 4 ? x : y)[i % 4], (i < 4 ? x : y)[i % 4], squares);
  float factor = head_factor(squares);
#pragma unroll
  for (int i = 0; i < 4; i++) x[i] = __fmul_rn(factor, x[i]), y[i] = __fmul_rn(factor, y[i]);
#endif
  uint2 low = packed4(x), high = packed4(y);
  return make_uint4(low.x, low.y, high.x, high.y);
}

// Where the text stands. Rows see the committed keys up to `reach`, TAIL before their positions, and their own tail.
struct Text {
  int least, bound, first, last;  // the least reach and the largest; chunks
  __device__ int first_chunk(int reach) const { return max(reach + TAIL - WINDOW + 1, 0) / CHUNK; }
  // Whether any row sees one of so many keys.
  __device__ bool sees(int key, int count) const { return key <= bound && key + count > least + TAIL - WINDOW + 1; }
  __device__ bool is_present(int key) const { return sees(key, 1); }
};

__device__ __forceinline__ bool is_visible(int key, int reach) { return key <= reach && key > reach + TAIL - WINDOW; }

__device__ __forceinline__ int reach_of(const long long* positions, int row, int rows) {
  return row < rows ? (int)positions[row] - TAIL : -1 - TAIL;
}

__device__ __forceinline__ Text text_of(const long long* positions, int rows, int lane) {
  int reach = reach_of(positions, lane % 8, rows), least = reach >= 0 ? reach : 1 << 30, bound = max(reach, 0);
#pragma unroll
  for (int d = 4; d; d >>= 1) {
    least = min(least, __shfl_xor_sync(~0u, least, d));
    bound = max(bound, __shfl_xor_sync(~0u, bound, d));
  }
  Text text = {least, bound, 0, bound / CHUNK};
  text.first = text.first_chunk(least);
  return text;
}

// Starts to copy an entry, or clears its place.
__device__ __forceinline__ void fetch_entry(uint32_t to, const bf16* from, bool is_present, uint32_t barrier) {
  if (is_present) {
    expect(barrier, 2 * D);
    bulk_copy(to, from, 2 * D, barrier);
    return;
  }
  for (int i = 0; i < 2 * D; i += 16) store4(to + i, uint4{});
  arrive(barrier);
}

// Products of the tile's queries with two groups of eight keys, which lie at `first` and `second`.
__device__ __forceinline__ void score(float (&s)[2][4], uint32_t q, uint32_t first, uint32_t second, int lane) {
  uint32_t a = q + lane % 16 * KEY_ROW + lane / 16 * 16, b = lane % 8 * KEY_ROW + lane / 8 * 16;
#pragma unroll
  for (int k = 0; k < D; k += 32) {
    uint4 a0 = load_matrices(a + 2 * k), a1 = load_matrices(a + 2 * k + 32);
    uint4 b0 = load_matrices(first + b + 2 * k), b1 = load_matrices(second + b + 2 * k);
    multiply(s[0], a0, b0.x, b0.y), multiply(s[1], a0, b1.x, b1.y);
    multiply(s[0], a1, b0.z, b0.w), multiply(s[1], a1, b1.z, b1.w);
  }
}

// What a head's blocks give each other: an item's parts of `bytes`, of each chunk that the text sees and, last, of the tail.
__device__ __forceinline__ uint32_t part_at(int at, int bytes, int head, int part, int item) {
  return item / (2 * GROUP) * PAIR + at + ((head * PARTS + part) * 2 * GROUP + item % (2 * GROUP)) * bytes;
}

template <int COUNT>
__device__ __forceinline__ float largest(const float (&acc)[COUNT][4], int half) {
  float peak = 0;
#pragma unroll
  for (int n = 0; n < COUNT; n++) peak = fmaxf(peak, fmaxf(fabsf(acc[n][2 * half]), fabsf(acc[n][2 * half + 1])));
  return quad_max(peak);
}

// Gives sums of values divided by their largest element, in float16, from column `column` on; with `is_first` the part's
// maximum, sum of weights and largest element as well.
template <int COUNT>
__device__ __forceinline__ void give_part(uint8_t* exchanged, int head, int part, int item, int column, const float (&acc)[COUNT][4],
                                          int half, float m, float l, float peak, bool is_first, int lane) {
  float inverse = divided(1.0f, peak);
  uint8_t* at = exchanged + part_at(UNITS_AT, 2 * D, head, part, item) + 2 * column + lane % 4 * 4;
#pragma unroll
  for (int n = 0; n < COUNT; n++)
    give(at + 16 * n, half_pair(__fmul_rn(acc[n][2 * half], inverse), __fmul_rn(acc[n][2 * half + 1], inverse)));
  if (is_first && lane % 4 == 0)
    give(exchanged + part_at(STATS_AT, 16, head, part, item),
         make_uint4(__float_as_uint(m), __float_as_uint(l), __float_as_uint(peak), 0));
}

// Two columns of an item: even and odd chunks are added up apart, their sums next and the tail last. In odd groups of 32
// columns the sum of weights begins with the ninth chunk.
__device__ __forceinline__ uint32_t combined(const Text& text, int position, int head, int item, int column,
                                             const uint8_t* exchanged) {
  const int reach = position - TAIL, first = text.first_chunk(reach);
  uint4 stats[PARTS];
  uint32_t units[PARTS] = {};
#pragma unroll
  for (int j = 0; j < PARTS; j++)  // of what there is none
    stats[j] = j == CHUNKS_SEEN ? make_uint4(0, __float_as_uint(1.0f), 0, 0) : make_uint4(0xFF800000u, 0, 0, 0);
  if (reach / CHUNK - text.first >= CHUNKS_SEEN) __trap();  // rows too far from each other: what they wait for never comes
#pragma unroll 1
  for (bool all = false; !all;) {
    all = true;
#pragma unroll
    for (int j = 0; j < PARTS; j++) {
      const bool is_tail = j == CHUNKS_SEEN;
      if (is_tail ? position < 0 : (first + j) * CHUNK > reach) continue;
      const int part = is_tail ? j : first + j - text.first;
      stats[j] = look(exchanged + part_at(STATS_AT, 16, head, part, item));
      units[j] = look1(exchanged + part_at(UNITS_AT, 2 * D, head, part, item) + 2 * column);
      all &= is_there(stats[j]) && units[j] != EMPTY;
    }
  }
  float m[PARTS], l[PARTS], weights[PARTS], alphas[PARTS];
  float2 unit[PARTS];
#pragma unroll
  for (int j = 0; j < PARTS; j++) {
    m[j] = __uint_as_float(stats[j].x), l[j] = __uint_as_float(stats[j].y);
    unit[j] = __half22float2(*(__half2*)&units[j]);
  }
  float most = m[CHUNKS_SEEN];
#pragma unroll
  for (int j = 0; j < CHUNKS_SEEN; j++) most = fmaxf(most, m[j]);
#pragma unroll
  for (int j = 0; j < PARTS; j++)
    alphas[j] = flushed_power_of_2(__fsub_rn(m[j], most)), weights[j] = __fmul_rn(alphas[j], __uint_as_float(stats[j].z));
  float2 sums[2];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    float2& sum = sums[e];
    sum.x = __fmaf_rn(weights[e], unit[e].x, __fmul_rn(weights[e + 2], unit[e + 2].x));
    sum.y = __fmaf_rn(weights[e], unit[e].y, __fmul_rn(weights[e + 2], unit[e + 2].y));
#pragma unroll
    for (int j = e + 4; j < CHUNKS_SEEN; j += 2)
      sum.x = __fmaf_rn(weights[j], unit[j].x, sum.x), sum.y = __fmaf_rn(weights[j], unit[j].y, sum.y);
  }
  const float2 tail = unit[CHUNKS_SEEN];
  float x = __fmaf_rn(weights[CHUNKS_SEEN], tail.x, __fadd_rn(sums[0].x, sums[1].x)),
        y = __fmaf_rn(weights[CHUNKS_SEEN], tail.y, __fadd_rn(sums[0].y, sums[1].y));
  float of[8];
#pragma unroll
  for (int j = 1; j < 8; j++) of[j] = __fmul_rn(alphas[j], l[j]);
  of[0] = column / 32 % 2 ? __fmaf_rn(alphas[8], l[8], __fmul_rn(alphas[0], l[0])) : __fmaf_rn(alphas[0], l[0], __fmul_rn(alphas[8], l[8]));
#pragma unroll
  for (int d = 4; d; d >>= 1)
#pragma unroll
    for (int j = 0; j < d; j++) of[j] = __fadd_rn(of[j], of[j + d]);
  float sum = __fmaf_rn(alphas[CHUNKS_SEEN], l[CHUNKS_SEEN], of[0]);
  return packed(divided(x, sum), divided(y, sum));
}

// A head's work by a block. Its barriers count keys, values and entries of the tail that have come, and warps that have done
// with shared memory. Slots of rows and of moves are those of the whole buffer, the tail's those of the text.
struct Attention {
  bf16 *k, *v;  // of the head, for all texts
  const float *cos, *sin;
  const bf16 *q_weight, *k_weight;
  const long long *row_slots, *positions, *tail;
  uint8_t* exchanged;
  bf16* out;
  uint32_t base, barriers;
  int rows, head, rank;
  long long first_slot;  // of the text
  Text text;
  bool has_tail;

  // Keys have 32 bits here, for speed: a ring is often no power of two, and the warps that fetch get few turns.
  __device__ long long slot_of(unsigned key) const { return first_slot + key % RING_SLOTS; }

  // The key at a place of this block.
  __device__ __forceinline__ int key_at(int place) const {
    int key = (text.first + ((rank - text.first) & (RANKS - 1))) * CHUNK + place;
    return text.is_present(key) ? key : key + RANKS * CHUNK;
  }

  // Whether a slot is that of a row, whose key and value are not stored yet.
  __device__ __forceinline__ bool is_new(long long slot) const {
    bool is = false;
    for (int row = 0; row < rows; row++) is |= row_slots[row] == slot;
    return is;
  }

  // Copies the keys and values of this block and of its tail, by the two warps beside those that multiply, once nothing else is
  // in shared memory. Before, it brings what the others will read into the multiprocessor's cache.
  __device__ __forceinline__ void fetch(bool is_second, int lane) {
    look_up(lane);
    meet<SETS * 32>(6);  // the first of them has made the barriers
    const float* angles = is_second ? sin : cos;
    for (int i = 32 * lane; i < rows * D; i += 32 * 32) touch(angles + i);
    if (lane < 4) touch((is_second ? k_weight : q_weight) + 64 * lane);
    wait(barriers + 24, 0);
    fetch_half(k, K_AT, is_second, barriers, lane);
    if (has_tail && lane < TAIL) fetch_tail(is_second ? v : k, is_second ? TAIL_V_AT : TAIL_K_AT, lane);
    fetch_half(v, V_AT, is_second, barriers + 8, lane);
  }

  __device__ __forceinline__ void fetch_half(const bf16* from, int at, bool is_second, uint32_t barrier, int lane) const {
#pragma unroll 1
    for (int place = CHUNK / 2 * is_second + lane; place < CHUNK / 2 * (is_second + 1); place += 32) {
      const int key = key_at(place);
      fetch_entry(base + at + place * KEY_ROW, from + slot_of(key) * KEY_PITCH, text.is_present(key), barrier);
    }
  }

  __device__ __forceinline__ void fetch_tail(const bf16* from, int at, int lane) const {
    const long long key = tail[rank * TAIL + lane], slot = slot_of(key);
    if (key >= 0 && is_new(slot))
      arrive(barriers + 16);
    else
      fetch_entry(base + at + lane * KEY_ROW, from + slot * KEY_PITCH, key >= 0, barriers + 16);
  }

  // Queries, by the first set: two by a warp.
  __device__ __forceinline__ void rotate_queries(int warp, int lane) {
    float x[2][2][4];
    int of_rows[2], columns[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int item = warp + i * WARPS;
      of_rows[i] = item < rows * GROUP ? item / GROUP : -1;
      columns[i] = (head * GROUP + item % GROUP) * D + 4 * lane;
    }
    take_products(x, exchanged, of_rows, columns, D / 2);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (of_rows[i] < 0) break;
      Halves q(x[i][0], x[i][1], of_rows[i], q_weight, cos, sin, lane);
      uint32_t at = base + Q_AT + (warp + i * WARPS) * KEY_ROW + 8 * lane;
      store2(at, q.low), store2(at + D, q.high);
    }
  }

  // Keys and values of all rows, by the second set: of two rows by a warp. The first block stores them, others have those in
  // their tail.
  __device__ __forceinline__ void rotate_entries(int warp, int lane) {
    if (rank && !has_tail) return;
    const bool is_value = warp % 2;
    const int column = is_value ? PROJECTED - (HEADS / GROUP - head) * D + 8 * lane : (HEADS + head) * D + 4 * lane;
    const int first = warp / 2, second = first + WARPS / 2;
    const int of_rows[2] = {first < rows ? first : -1, second < rows ? second : -1}, columns[2] = {column, column};
    const long long key = has_tail ? tail[rank * TAIL + lane % TAIL] : -1;
    const long long slots[2] = {row_slots[max(of_rows[0], 0)], row_slots[max(of_rows[1], 0)]};
    float x[2][2][4];
    take_products(x, exchanged, of_rows, columns, is_value ? 4 : D / 2);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (of_rows[i] < 0) break;
      const long long slot = slots[i];
      const unsigned places = __ballot_sync(~0u, key >= 0 && slot_of(key) == slot) & 0xFFFF;
      const uint32_t at = base + (is_value ? TAIL_V_AT : TAIL_K_AT) + (__ffs(places) - 1) * KEY_ROW;
      if (is_value) {
        uint4 value = value_of(x[i][0], x[i][1]);
        if (rank == 0) *(uint4*)(v + slot * KEY_PITCH + 8 * lane) = value;
        if (places) store4(at + 16 * lane, value);
      } else {
        Halves halves(x[i][0], x[i][1], of_rows[i], k_weight, cos, sin, lane);
        bf16* to = k + slot * KEY_PITCH + 4 * lane;
        if (rank == 0) *(uint2*)to = halves.low, *(uint2*)(to + D / 2) = halves.high;
        if (places) store2(at + 8 * lane, halves.low), store2(at + D + 8 * lane, halves.high);
      }
    }
  }

  // A chunk of a block, by a set. Warps are those of two tiles of 64 keys, of which each has the keys 8 v and 32 + 8 v on.
  __device__ __forceinline__ void attend_chunk(int set, int warp, int lane) {
    const int chunk = text.first + ((rank - text.first) & (RANKS - 1)) + set * RANKS;
    if (chunk > text.last || text.least > text.bound) return;
    const uint32_t weights_at = base + P_AT + set * ITEMS * P_ROW, maxima = base + MAXIMA_AT + set * WARPS * ITEMS * 4,
                   sums = base + SUMS_AT + set * WARPS * ITEMS * 4, peaks = base + PEAKS_AT + set * WARPS * ITEMS * 4;
    const int tile = warp / 4, v = warp % 4, g = lane / 4, t = lane % 4;
    int reach[2];
#pragma unroll
    for (int h = 0; h < 2; h++) reach[h] = reach_of(positions, (g + 8 * h) / GROUP, rows);
    float s[2][4] = {};
    wait(barriers, 0);
    __syncwarp();
    if (text.sees(chunk * CHUNK + 64 * tile + 8 * v, 32 + 8))
      score(s, base + Q_AT, base + K_AT + (64 * tile + 8 * v) * KEY_ROW, base + K_AT + (64 * tile + 32 + 8 * v) * KEY_ROW, lane);
    float p[2][4], m[2][2], l[2], alpha[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float most = minus_infinity();
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int key = chunk * CHUNK + 64 * tile + i / 2 * 32 + 8 * v + 2 * t + i % 2;
        float& x = p[i / 2][2 * h + i % 2];
        x = is_visible(key, reach[h]) ? __fmul_rn(s[i / 2][2 * h + i % 2], (float)(SCALE)) : minus_infinity();
        most = fmaxf(most, x);
      }
      most = quad_max(most);
      if (t == 0) store1(maxima + (warp * ITEMS + g + 8 * h) * 4, __float_as_uint(most));
    }
    chunk_barrier(set);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      m[h][0] = minus_infinity();
#pragma unroll
      for (int i = 0; i < WARPS; i++) {
        if (i == 4) m[h][1] = m[h][0];
        float& most = m[h][i / 4];
        most = fmaxf(most, load1(maxima + (i * ITEMS + g + 8 * h) * 4));
      }
      float last = base_of(m[h][1]), own = tile ? last : base_of(m[h][0]);
      alpha[h] = flushed_power_of_2(__fsub_rn(m[h][0], last));
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float& x = p[i / 2][2 * h + i % 2];
        x = flushed_power_of_2(__fsub_rn(x, own));
      }
      float sum = __fadd_rn(__fadd_rn(__fadd_rn(p[0][2 * h], p[0][2 * h + 1]), p[1][2 * h]), p[1][2 * h + 1]);
      sum = quad_sum(sum);
      if (t == 0) store1(sums + (warp * ITEMS + g + 8 * h) * 4, __float_as_uint(sum));
#pragma unroll
      for (int n = 0; n < 2; n++)
        store1(weights_at + (g + 8 * h) * P_ROW + 2 * (64 * tile + 32 * n + 8 * v + 2 * t), packed(p[n][2 * h], p[n][2 * h + 1]));
    }
    chunk_barrier(set);
    wait(barriers + 8, 0);
    __syncwarp();
    float acc[4][4] = {};
    uint32_t a = weights_at + lane % 16 * P_ROW + lane / 16 * 16, b = base + V_AT + lane % 16 * KEY_ROW + lane / 16 * 16 + 64 * warp;
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++) {
      if (k == 4)
#pragma unroll
        for (int i = 0; i < 16; i++) acc[i / 4][i % 4] = __fmul_rn(acc[i / 4][i % 4], alpha[i / 2 % 2]);
      if (!text.sees(chunk * CHUNK + 16 * k, 16)) continue;  // weights are 0
      uint4 weights = load_matrices(a + 32 * k), low = load_transposed(b + 16 * k * KEY_ROW),
            high = load_transposed(b + 16 * k * KEY_ROW + 32);
      multiply(acc[0], weights, low.x, low.y), multiply(acc[1], weights, low.z, low.w);
      multiply(acc[2], weights, high.x, high.y), multiply(acc[3], weights, high.z, high.w);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float of_tile[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        uint32_t at = sums + (i * 4 * ITEMS + g + 8 * h) * 4;
        of_tile[i] = __fadd_rn(__fadd_rn(load1(at), load1(at + 2 * ITEMS * 4)), __fadd_rn(load1(at + ITEMS * 4), load1(at + 3 * ITEMS * 4)));
      }
      l[h] = __fmaf_rn(of_tile[0], alpha[h], of_tile[1]);
      float peak = largest(acc, h);
      if (t == 0) store1(peaks + (warp * ITEMS + g + 8 * h) * 4, __float_as_uint(peak));
    }
    chunk_barrier(set);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int item = g + 8 * h;
      if (item >= rows * GROUP) continue;
      float peak = 1e-30f;
#pragma unroll
      for (int i = 0; i < WARPS; i++) peak = fmaxf(peak, load1(peaks + (i * ITEMS + item) * 4));
      give_part(exchanged, head, chunk - text.first, item, 32 * warp, acc, h, m[h][1], l[h], peak, warp == 0, lane);
    }
  }

  // The tail of the row with this block's rank: every warp computes its weights, and 64 columns.
  __device__ __forceinline__ void attend_tail(int warp, int lane) {
    const int g = lane / 4, t = lane % 4;
    float s[2][4] = {}, m[2], l[2];
    bool is_present[4];
#pragma unroll
    for (int i = 0; i < 4; i++) is_present[i] = tail[rank * TAIL + i / 2 * 8 + 2 * t + i % 2] >= 0;
    wait(barriers + 16, 0);
    __syncwarp();
    score(s, base + Q_AT, base + TAIL_K_AT, base + TAIL_K_AT + 8 * KEY_ROW, lane);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const bool is_own = (g + 8 * h) / GROUP == rank;
      float most = minus_infinity();
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float& x = s[i / 2][2 * h + i % 2];
        x = is_own && is_present[i] ? __fmul_rn(x, (float)(SCALE)) : minus_infinity();
        most = fmaxf(most, x);
      }
      m[h] = quad_max(most);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float& x = s[i / 2][2 * h + i % 2];
        x = flushed_power_of_2(__fsub_rn(x, base_of(m[h])));
      }
      l[h] = __fadd_rn(quad_sum(__fadd_rn(s[0][2 * h], s[0][2 * h + 1])), quad_sum(__fadd_rn(s[1][2 * h], s[1][2 * h + 1])));
    }
    uint4 weights = make_uint4(packed(s[0][0], s[0][1]), packed(s[0][2], s[0][3]), packed(s[1][0], s[1][1]), packed(s[1][2], s[1][3]));
    float acc[8][4] = {};
    uint32_t b = base + TAIL_V_AT + lane % 16 * KEY_ROW + lane / 16 * 16 + 128 * warp;
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      uint4 values = load_transposed(b + 16 * n);
      multiply(acc[n], weights, values.x, values.y), multiply(acc[n + 1], weights, values.z, values.w);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float peak = largest(acc, h);
      if (t == 0) store1(base + PEAKS_AT + ((SETS * WARPS + warp) * ITEMS + g + 8 * h) * 4, __float_as_uint(peak));
    }
    tail_barrier();
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int item = g + 8 * h;
      if (item / GROUP != rank) continue;
      float peak = 1e-30f;
#pragma unroll
      for (int i = SETS * WARPS; i < SETS * WARPS + TAIL_WARPS; i++) peak = fmaxf(peak, load1(base + PEAKS_AT + (i * ITEMS + item) * 4));
      give_part(exchanged, head, CHUNKS_SEEN, item, 64 * warp, acc, h, m[h], l[h], peak, warp == 0, lane);
    }
  }

  // Adds up 32 columns of all rows, by the first set.
  __device__ __forceinline__ void combine(int thread) {
    int item = thread / 16, column = 32 * rank + thread % 16 * 2, row = item / GROUP;
    if (item >= rows * GROUP) return;
    uint32_t pair = combined(text, (int)positions[row], head, item, column, exchanged);
    *(uint32_t*)(out + ((size_t)row * HEADS + head * GROUP + item % GROUP) * D + column) = pair;
  }

  __device__ __forceinline__ void look_up(int lane) {
    text = text_of(positions, rows, lane);
    has_tail = rank < rows && positions[rank] >= 0;
    __syncwarp();
  }

  // All of it but copies, by both sets, once their products are there.
  __device__ __forceinline__ void run(int thread) {
    const int warp = thread / 32, lane = thread % 32;
    fence_copies();
    __syncwarp();
    if (lane == 0) arrive(barriers + 24);
    look_up(lane);
    sets_barrier();  // as `fetch` waits for it
    if (warp < WARPS)
      rotate_queries(warp, lane);
    else
      rotate_entries(warp - WARPS, lane);
    __syncwarp();
    sets_barrier();
    // The tail first: it comes before the values, for which a chunk waits.
    if (warp >= WARPS && warp < WARPS + TAIL_WARPS && has_tail) attend_tail(warp - WARPS, lane);
    __syncwarp();
    attend_chunk(warp / WARPS, warp % WARPS, lane);
    if (warp < WARPS) combine(thread);
  }
};

#if MOVES
// Moves entries of a head before its blocks read any: a block that reads has a piece of q/k/v, so it has waited for norms of
// all rows behind down, which need gate and up of all programs, which come after this. Each block moves two entries, whose
// keys and values have a warp each.
__device__ __forceinline__ void move_entries(bf16* k, bf16* v, const long long* sources, const long long* targets, int rank, int warp,
                                             int lane) {
  static_assert(MOVES == 2 * RANKS, "two entries a block");
  if (warp >= 4) return;
  const long long source = sources[2 * rank + warp / 2], target = targets[2 * rank + warp / 2];
  bf16* entries = (warp % 2 ? v : k) + 8 * lane;
  if (source == target) return;
  *(uint4*)(entries + target * KEY_PITCH) = *(const uint4*)(entries + source * KEY_PITCH);
  fence_gpu();
}
#endif
