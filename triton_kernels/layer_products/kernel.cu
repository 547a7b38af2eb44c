// The products and norms after an attention of a decoder, up to the next, for at most eight rows, as one kernel.
//
// o product, residual sum and norm, gate and up, activation, down, residual sum and norm, and the next layer's
// q/k/v product, which the last layer does not have. Every multiprocessor runs one block. Its two sets of eight
// warps multiply; beside them a warp of each set keeps a ring of weights filled, whatever the products wait for,
// so memory is read while programs wait for each other. Its other lanes empty memory: see below.
//
// Programs give each other results through memory that holds EMPTY at first: they look until a result is there. That
// needs no fence and no counter. No result is EMPTY, which is a NaN: on these GPUs arithmetic returns 0x7FFFFFFF, and
// conversion to bfloat16 or float16 0x7FFF. This kernel empties as much for the next one, which has as many rows.
//
// Weights are packed INT4 in groups of 32, symmetric (int4_gemm/packing.py). Factors, the order of sums and
// roundings are those of int4_small_m_kernel and residual_norm_kernel: results are the same to the bit, for the
// scales that `unpacked` names.
//
// With ATTENDS the next layer's attention follows, of one text: see `attention.cuh`.
//
// A kernel whose code is not in a multiprocessor's cache takes 4 us longer. So layers whose first and last products alone
// differ launch the same one, and the sizes of these are arguments: see `Shape`. Other sizes are macros, which `macros.py`
// defines: the widths HIDDEN and MLP, the largest O_SPLITS and O_STEPS, DOWN_SPLITS, BLOCKS of the grid, HAS_POST, HAS_SCALE,
// SILU, POST_EPS and NEXT_EPS of both norms, and the bytes PAIR; `kernel.py` defines the bytes SHARED and LAUNCHED threads.
#include "../ptx.cuh"
#include "../lanes.cuh"

#define SETS 2
#define WARPS 8
#define ROWS 8
#define PROGRAMS (BLOCKS * SETS)
#define THREADS (SETS * (WARPS + 1) * 32)
#define CODES 8192                     // bytes of 128 x 128 weights
#define SCALES 1024                    // and of their scales
#define SLOT (2 * (CODES + SCALES))    // a slot holds 256 columns of a tile
#define CHUNKS ((HIDDEN + 2047) / 2048) // of a row, with eight columns for each of 256 threads

// Exchanged memory has four parts of PAIR bytes, for two rows each: sums of 16 outputs by a warp of each split of o
// and down, and of tiles of gate and up that another program goes on with; then rows: branches, norms, and those of
// the MLP, from MLP_AT on.
#define EMPTY 0xFFFFFFFFu
#define TILES (HIDDEN / 128)
#define PART 128                       // bytes: two rows of 16 outputs, float32
#define DOWN_AT (O_SPLITS * TILES * WARPS * PART)
#define BEGUN_AT (DOWN_AT + DOWN_SPLITS * TILES * WARPS * PART)
#define BRANCH_AT (BEGUN_AT + PROGRAMS * WARPS * PART)
#define NORMED_AT (BRANCH_AT + 2 * 4 * HIDDEN)
#define MLP_AT (NORMED_AT + 2 * 4 * HIDDEN)
#if ATTENDS
// Then what heads need: parts of their queries, keys and values, and parts of attention.
#define CHUNKS_SEEN ((WINDOW - 16 + 15 + 128 - 2) / 128 + 1)
#define PARTS (CHUNKS_SEEN + 1)
#define PROJECTED_AT (MLP_AT + 4 * MLP)
#define UNITS_AT (PROJECTED_AT + QKV_SPLITS * 2 * PROJECTED * 4)
#define STATS_AT (UNITS_AT + HEADS / GROUP * PARTS * 2 * GROUP * 512)
#define PAIR_END (STATS_AT + HEADS / GROUP * PARTS * 2 * GROUP * 16)
#else
#define PAIR_END (MLP_AT + 4 * MLP)
#endif
static_assert(PAIR_END <= PAIR && PAIR % 16 == 0 && THREADS == LAUNCHED, "as kernel.py has it");

// Shared memory has the columns of x that a product needs, for both sets: they compute neighbouring tiles, of one part of
// K if it is split. They lie as lanes need them: see `place_of`. Rows have padding against conflicts of banks. A row alone
// has its sum and the weights of its norms behind it. The rest is for rings, of at most MOST_SLOTS each.
#define STEPS(columns, splits) (((columns) / 128 + (splits) - 1) / (splits))
#define PITCH(blocks) (256 * (blocks) + 64)
#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define X_OF_ROW PITCH(LARGER(TILES, LARGER(O_STEPS, STEPS(MLP, DOWN_SPLITS))))
#define MOST_SLOTS 6
static_assert((SHARED - ROWS * X_OF_ROW) / SLOT >= 4 && PROGRAMS >= ROWS, "as op.is_served has it");
static_assert(TILES % 2 == 0, "sets compute neighbouring tiles");
static_assert((DOWN_SPLITS - 1) * STEPS(MLP, DOWN_SPLITS) < MLP / 128, "no split is empty");

// Barriers 1 and 2 are of a set, 3 of all threads, 4 of both sets, 5 of the tail, and 6 of the warps that fetch.
__device__ __forceinline__ void set_barrier(int set) { meet<WARPS * 32>(set + 1); }
__device__ __forceinline__ void sets_barrier() { meet<SETS * WARPS * 32>(4); }

// Each word of 4 bytes of exchanged memory is there or EMPTY.
__device__ __forceinline__ bool is_there(const uint4& v) {
  return v.x != EMPTY && v.y != EMPTY && v.z != EMPTY && v.w != EMPTY;
}
// Looks at N places at once, at `offsets` from `base` but not at NONE. Callers set `v` to 0 first: the compiler would keep
// registers that are written under a condition alone through all loops around.
#define NONE 0xFFFFFFFFu
template <int N>
__device__ __forceinline__ void look(uint4 (&v)[N], const uint8_t* base, const uint32_t (&offsets)[N]) {
#pragma unroll
  for (int k = 0; k < N; k++)
    if (offsets[k] != NONE) v[k] = look(base + offsets[k]);
}
// The same until all are there, or for about ten seconds: an error instead of a GPU that hangs.
template <int N>
__device__ __forceinline__ void await(uint4 (&v)[N], const uint8_t* base, uint32_t (&offsets)[N]) {
  look(v, base, offsets);
#pragma unroll 1
  for (unsigned polls = 0;; polls++) {
    bool all = true;
#pragma unroll
    for (int k = 0; k < N; k++) {
      if (offsets[k] != NONE && is_there(v[k])) offsets[k] = NONE;
      all &= offsets[k] == NONE;
    }
    if (all) return;
    if (polls == 1u << 24) __trap();
    look(v, base, offsets);
  }
}
__device__ __forceinline__ void take(float (&acc)[4], const uint8_t* at) {
  uint4 v[1];
  uint32_t offset[1] = {0};
  await(v, at, offset);
  acc[0] = __uint_as_float(v[0].x), acc[1] = __uint_as_float(v[0].y);
  acc[2] = __uint_as_float(v[0].z), acc[3] = __uint_as_float(v[0].w);
}
__device__ __forceinline__ void give(void* at, const float (&acc)[4]) {
  give(at, make_uint4(__float_as_uint(acc[0]), __float_as_uint(acc[1]), __float_as_uint(acc[2]), __float_as_uint(acc[3])));
}
__device__ __forceinline__ void add(float (&acc)[4], const uint4& v) {
  acc[0] = __fadd_rn(acc[0], __uint_as_float(v.x)), acc[1] = __fadd_rn(acc[1], __uint_as_float(v.y));
  acc[2] = __fadd_rn(acc[2], __uint_as_float(v.z)), acc[3] = __fadd_rn(acc[3], __uint_as_float(v.w));
}

// A product whose size layers differ in: how many blocks of columns or tiles it has, among how many programs its columns are
// split, and the blocks of each. See `packed_shape` in `macros.py`.
struct Shape {
  int packed;
  __device__ int size() const { return packed >> 1 & 0x1FFF; }
  __device__ int splits() const { return packed >> 14 & 0x1F; }
  __device__ int steps() const { return packed >> 19; }
};

struct Product {
  const uint8_t *codes, *scales;
  int tiles, blocks, splits, steps;  // of 128 outputs; of 128 columns; programs among which K is split; their blocks
  bool even;                         // or programs have even shares of all blocks, and hand sums on
};

struct Piece {
  int tile, split, first, last;  // blocks of columns
};

// The i-th piece of a product that a program computes; false if there is none. It divides by constants alone, for speed.
__device__ __forceinline__ bool piece_of(const Product& p, int program, int i, Piece& piece) {
  if (p.even) {  // gate and up
    // First the start of the last tile, which another program goes on with, and last the end of the first one,
    // which another has begun: nobody waits long.
    const int all = 2 * MLP / 128 * TILES, from = program * all / PROGRAMS, to = (program + 1) * all / PROGRAMS;
    const int first_tile = from / TILES, last_tile = (to - 1) / TILES, n = last_tile - first_tile + 1;
    piece.tile = i == 0 ? last_tile : i == n - 1 ? first_tile : first_tile + i;
    piece.split = 0;
    piece.first = max(from - piece.tile * TILES, 0);
    piece.last = min(to - piece.tile * TILES, TILES);
    return i < n;
  }
  const int unit = program + i * PROGRAMS;
  if (!p.tiles) {  // no product: an empty piece of the first block, which computes the norm before it
    piece = {0, 0, 0, 0};
    return unit < SETS;
  }
  piece.split = 0;
  piece.tile = unit;
  for (; piece.tile >= p.tiles && piece.split < p.splits; piece.split++) piece.tile -= p.tiles;
  piece.first = piece.split * p.steps;
  piece.last = min(piece.first + p.steps, p.blocks);
  return unit < p.tiles * p.splits;
}

struct Ring {
  uint32_t slots, full, empty;  // addresses
  uint32_t length, at = 0, parity = 0;
  __device__ void next() {
    if (++at == length) at = 0, parity ^= 1;
  }
  // Until the slot before is full, which none is at first: a new barrier seems to have ended a phase of parity 1.
  __device__ void await_previous() const { wait(full + 8 * (at ? at - 1 : length - 1), at ? parity : parity ^ 1); }
};

// Two slots of each set are on their way at a time: with one, memory is not busy; with more, results that programs wait for
// queue up after weights. The first SLOW slots of a product come one at a time, while programs wait for its x.
#define SLOW 4
__device__ __forceinline__ void fetch_weights(const Product& p, int program, Ring& ring, uint64_t policy, bool waits) {
  Piece piece;
  int slot = 0;
#pragma unroll 1
  for (int i = 0; piece_of(p, program, i, piece); i++)
#pragma unroll 1
    for (int b = piece.first; b < piece.last; b += 2, slot++) {
      int n = min(2, piece.last - b);
      size_t block = (size_t)piece.tile * p.blocks + b;
      uint32_t full = ring.full + 8 * ring.at, to = ring.slots + ring.at * SLOT;
      wait(ring.empty + 8 * ring.at, ring.parity ^ 1);
      expect(full, n * (CODES + SCALES));
      bulk_copy(to, p.codes + block * CODES, n * CODES, full, policy);
      bulk_copy(to + 2 * CODES, p.scales + block * SCALES, n * SCALES, full, policy);
      if (waits && slot < SLOW)
        wait(full, ring.parity);
      else
        ring.await_previous();
      ring.next();
    }
}

// Where the first of four words of a piece, of eight columns, lies in a row of x: the others follow 16 bytes from each
// other. So the four words that a lane needs of 32 columns, one of each piece, lie next to each other.
__device__ __forceinline__ uint32_t place_of(unsigned piece) { return piece / 4 * 64 + piece % 4 * 4; }
__device__ __forceinline__ void store_piece(uint32_t row, unsigned piece, const uint4& v) {
  uint32_t at = row + place_of(piece);
  store1(at, v.x), store1(at + 16, v.y), store1(at + 32, v.z), store1(at + 48, v.w);
}
__device__ __forceinline__ void give_piece(uint8_t* row, unsigned piece, const uint4& v) {
  uint8_t* at = row + place_of(piece);
  give(at, v.x), give(at + 16, v.y), give(at + 32, v.z), give(at + 48, v.w);
}

// Copies `blocks` blocks of columns of x to shared memory, by all threads of both sets. Rows have `width` columns.
__device__ __forceinline__ void fetch_attended(uint32_t to, const bf16* x, int width, int blocks, int pitch, int rows,
                                               unsigned thread) {
#pragma unroll 1
  for (int row = 0; row < rows; row++, to += pitch, x += width)
#pragma unroll 1
    for (unsigned piece = thread; piece < 16 * blocks; piece += SETS * WARPS * 32)
#pragma unroll
      for (int word = 0; word < 4; word++) copy_async1(to + place_of(piece) + 16 * word, x + 8 * piece + 2 * word);
  await_copies();
}

// Copies `blocks` blocks of columns of exchanged x, at most MOST, to shared memory as soon as they are there, in the order that
// they have there. Rows of a pair lie WIDTH columns from each other.
template <int WIDTH, int MOST>
__device__ __forceinline__ void fetch_rows(uint32_t to, const uint8_t* x, int blocks, int rows, unsigned thread) {
  const int AT_ONCE = 4, PER_ROW = 16 * MOST, COUNT = SETS * WARPS * 32;
#pragma unroll 1
  for (unsigned start = thread; start < rows * PER_ROW; start += AT_ONCE * COUNT) {
    uint4 v[AT_ONCE] = {};
    uint32_t offsets[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      unsigned i = start + k * COUNT, row = i / PER_ROW, column = i % PER_ROW;
      offsets[k] = row < rows && column < 16 * blocks ? row / 2 * PAIR + row % 2 * (2 * WIDTH) + 16 * column : NONE;
    }
    await(v, x, offsets);
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      unsigned i = start + k * COUNT, row = i / PER_ROW, column = i % PER_ROW;
      if (row < rows && column < 16 * blocks) store4(to + row * PITCH(MOST) + column * 16, v[k]);
    }
  }
}

__device__ __forceinline__ bf162 twice(uint16_t bits) { return bf162{__ushort_as_bfloat16(bits), __ushort_as_bfloat16(bits)}; }

// Two weights of a quarter: (nibble - 8) * scale, rounded once, divided by 2^24. The lowest eight bits of a bfloat16 alone
// are a subnormal number or one of the least normal ones, at the same distance from each other: they are bits / 2^133. So
// a nibble is a number where it is. `factor` is the scale times 2^109 or 2^105, `offset` times -8 / 2^24. This is exact
// for scales that are 0 or from 2^-102 to 2^18.
template <int Q>
__device__ __forceinline__ uint32_t unpacked(uint32_t word, bf162 factor, bf162 offset) {
  uint32_t bits = (Q < 2 ? word : word >> 8) & (Q % 2 ? 0x00F000F0 : 0x000F000F);
  bf162 weight = __hfma2(*(bf162*)&bits, factor, offset);
  return *(uint32_t*)&weight;
}

// 16 outputs x 32 columns x 8 rows: two products of the tensor cores for each of N blocks.
template <int Q, int N>
__device__ __forceinline__ void add_quarter(float (&part)[2][4], const uint4 (&words)[2][2], const uint4 (&scales)[2],
                                            uint4 (&b)[2], uint32_t x, const bool (&is_row)[2]) {
#pragma unroll
  for (int j = 0; j < N; j++) load4_if(is_row[j], b[j], x + j * 256 + Q * 64);
#pragma unroll
  for (int c = 0; c < 2; c++)
#pragma unroll
    for (int j = 0; j < N; j++) {
      uint32_t bits = word_of(scales[j], Q);
      bf162 scale = *(bf162*)&bits, factor = __hmul2_rn(scale, twice(Q % 2 ? 0x7400 : 0x7600)),  // 2^105, 2^109
          offset = __hmul2_rn(scale, twice(0xB500));                                             // -2^-21
      bf162 low = __low2bfloat162(factor), high = __high2bfloat162(factor), low_offset = __low2bfloat162(offset),
            high_offset = __high2bfloat162(offset);
      const uint4& w = words[j][c];
      multiply(part[j], unpacked<Q>(w.x, low, low_offset), unpacked<Q>(w.y, high, high_offset),
               unpacked<Q>(w.z, low, low_offset), unpacked<Q>(w.w, high, high_offset), c ? b[j].z : b[j].x,
               c ? b[j].w : b[j].y);
    }
}

// Adds the products of N blocks, each summed up from zero by the tensor cores.
template <int N>
__device__ __forceinline__ void add_blocks(float (&acc)[4], uint32_t words_at, uint32_t scales_at, uint4 (&b)[2], uint32_t x,
                                           const bool (&is_row)[2], uint32_t empty, int lane) {
  uint4 words[2][2], scales[2];
#pragma unroll
  for (int j = 0; j < N; j++) {
    words[j][0] = load4(words_at + j * CODES);
    words[j][1] = load4(words_at + j * CODES + CODES / 2);
    scales[j] = load4(scales_at + j * SCALES);
  }
  float part[2][4] = {};
  add_quarter<0, N>(part, words, scales, b, x, is_row);
  add_quarter<1, N>(part, words, scales, b, x, is_row);
  add_quarter<2, N>(part, words, scales, b, x, is_row);
  add_quarter<3, N>(part, words, scales, b, x, is_row);
  __syncwarp();
  if (lane == 0) arrive(empty);
#pragma unroll
  for (int j = 0; j < N; j++)
#pragma unroll
    for (int k = 0; k < 4; k++) acc[k] = __fadd_rn(acc[k], part[j][k]);
}

__device__ __forceinline__ float sigmoid(float minus_x) {
  return divided(1.0f, __fadd_rn(power_of_2(__fmul_rn(minus_x, 1.4426950408889634f)), 1.0f));
}
__device__ __forceinline__ float activated(float g, float up) {
#if SILU
  float s = sigmoid(__fsub_rn(0.0f, g));
#else
  float cubic = __fmul_rn(__fmaf_rn(g, __fmul_rn(g, __fmul_rn(g, 0.044715f)), g), 0.7978845608028654f);
  float s = sigmoid(__fmaf_rn(cubic, -2.0f, 0.0f));
#endif
  return __fmul_rn(up, __fmul_rn(g, s));
}

// The sum of what `splits` warps give, in ascending order; the last of them has `own`.
__device__ __forceinline__ void add_up(float (&own)[4], const uint8_t* first, int distance, int splits) {
  const int MOST = LARGER(O_SPLITS, DOWN_SPLITS);
  uint4 v[MOST] = {};
  uint32_t offsets[MOST];
#pragma unroll
  for (int s = 0; s < MOST; s++) offsets[s] = s < splits - 1 ? s * distance : NONE;
  await(v, first, offsets);
  float sum[4] = {};
#pragma unroll
  for (int s = 0; s < MOST - 1; s++)
    if (s < splits - 1) add(sum, v[s]);
#pragma unroll
  for (int k = 0; k < 4; k++) own[k] = __fadd_rn(sum[k], own[k]);
}

__device__ __forceinline__ float2 both_of(uint32_t pair) { return __bfloat1622float2(*(bf162*)&pair); }

// Lanes hold two rows of an output. Returns one of them, rounded, of two neighbouring outputs: in even lanes (of `j`)
// the first row, in odd lanes the second.
__device__ __forceinline__ uint32_t neighbours(float first, float second, int j) {
  float got = __shfl_xor_sync(~0u, j & 1 ? first : second, 4);
  return j & 1 ? packed(got, second) : packed(first, got);
}

struct Norm {
  const bf16 *stream, *post, *scale, *next;  // a row, [HIDDEN], [1], [HIDDEN]
  bf16 *sum, *normed;                        // rows; the second may be null
  const uint8_t* branch;                     // rows of exchanged memory
  uint8_t* given;
  float post_eps, next_eps;
};

// A thread's columns of a row, rounded: eight of each chunk of 2048.
struct Columns {
  uint4 v[CHUNKS];
  __device__ uint32_t& pair(int i) { return (&v[i / 4].x)[i % 4]; }
  __device__ void load(const bf16* row, int thread) {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
      v[c] = is_live(c, thread) ? __ldcg((const uint4*)(row + c * 2048 + thread * 8)) : uint4{};
  }
  __device__ void await_exchanged(const uint8_t* row, int thread) {
    uint32_t offsets[CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) v[c] = {}, offsets[c] = is_live(c, thread) ? c * 4096 + thread * 16 : NONE;
    await(v, row, offsets);
  }
  __device__ void store(bf16* row, int thread) const {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
      if (is_live(c, thread)) *(uint4*)(row + c * 2048 + thread * 8) = v[c];
  }
  static __device__ bool is_live(int c, int thread) { return c * 2048 + thread * 8 < HIDDEN; }
};

// 1 / root mean square of a row.
__device__ __forceinline__ float factor_of(Columns& x, float eps, float* sums, int thread, int set) {
  float s = 0;
#pragma unroll
  for (int i = 0; i < 4 * CHUNKS; i++) {
    float2 v = both_of(x.pair(i));
    s = __fmaf_rn(v.x, v.x, s), s = __fmaf_rn(v.y, v.y, s);
  }
#pragma unroll
  for (int d = 16; d; d >>= 1) s += __shfl_xor_sync(~0u, s, d);
  if (thread % 32 == 0) sums[thread / 32] = s;
  set_barrier(set);
  s = sums[thread & 7];
#pragma unroll
  for (int d = 4; d; d >>= 1) s += __shfl_xor_sync(~0u, s, d);
  set_barrier(set);
  return inverse_root(divided(s, (float)HIDDEN) + eps);
}

__device__ __forceinline__ uint32_t weighted(uint32_t pair, float factor, uint32_t weights) {
  float2 v = both_of(pair), weight = both_of(weights);
  return packed(__fmul_rn(__fmul_rn(factor, v.x), weight.x), __fmul_rn(__fmul_rn(factor, v.y), weight.y));
}

__device__ __forceinline__ float scale_of(const Norm& n) { return HAS_SCALE && n.scale ? __bfloat162float(*n.scale) : 1.0f; }

// The residual sum of two elements.
__device__ __forceinline__ uint32_t residual(uint32_t branch, uint32_t onto, float factor, uint32_t post, const Norm& n,
                                             float scale) {
  float2 v = both_of(HAS_POST ? weighted(branch, factor, post) : branch), stream = both_of(onto);
  uint32_t sum = packed(__fadd_rn(stream.x, v.x), __fadd_rn(stream.y, v.y));
  if (!HAS_SCALE || !n.scale) return sum;
  v = both_of(sum);
  return packed(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale));
}

// One row for all blocks, by the 256 threads of a set.
__device__ __forceinline__ void residual_norm(const Norm& n, float* sums, int thread, int set) {
  Columns stream, post, next, branch;
  float scale = scale_of(n);
  stream.load(n.stream, thread);
  if (HAS_POST) post.load(n.post, thread);
  next.load(n.next, thread);
  branch.await_exchanged(n.branch, thread);
  float factor = HAS_POST ? factor_of(branch, n.post_eps, sums, thread, set) : 0;
#pragma unroll
  for (int i = 0; i < 4 * CHUNKS; i++)
    if (Columns::is_live(i / 4, thread))
      branch.pair(i) = residual(branch.pair(i), stream.pair(i), factor, post.pair(i), n, scale);
  factor = factor_of(branch, n.next_eps, sums, thread, set);
#pragma unroll
  for (int i = 0; i < 4 * CHUNKS; i++)
    if (Columns::is_live(i / 4, thread)) next.pair(i) = weighted(branch.pair(i), factor, next.pair(i));
#pragma unroll
  for (int c = 0; c < CHUNKS; c++)
    if (Columns::is_live(c, thread)) give_piece(n.given, c * 256 + thread, next.v[c]);
  branch.store(n.sum, thread);
  if (n.normed) next.store(n.normed, thread);
}

// The only row, by the 256 threads of the first set of every block. Its norm becomes the block's x at `x`, in shared memory;
// its sum stays at `kept`, with the norms' weights behind it. `stream` is null if a sum is there already, and `sum` except in
// one block's last norm.
__device__ __forceinline__ void residual_norm_alone(const Norm& n, uint32_t x, uint32_t kept, float* sums, int thread) {
  Columns branch;
  kept += thread * 16;
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    if (!Columns::is_live(c, thread)) continue;
    copy_async(kept + 2 * HIDDEN + c * 4096, n.next + c * 2048 + thread * 8);
    if (HAS_POST) copy_async(kept + 4 * HIDDEN + c * 4096, n.post + c * 2048 + thread * 8);
    if (n.stream) copy_async(kept + c * 4096, n.stream + c * 2048 + thread * 8);
  }
  float scale = scale_of(n);
  branch.await_exchanged(n.branch, thread);
  float factor = HAS_POST ? factor_of(branch, n.post_eps, sums, thread, 0) : 0;
  await_copies();
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    if (!Columns::is_live(c, thread)) continue;
    uint4 onto = load4(kept + c * 4096), post = HAS_POST ? load4(kept + 4 * HIDDEN + c * 4096) : uint4{};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint32_t& pair = branch.pair(4 * c + i);
      pair = residual(pair, word_of(onto, i), factor, word_of(post, i), n, scale);
    }
    store4(kept + c * 4096, branch.v[c]);
  }
  factor = factor_of(branch, n.next_eps, sums, thread, 0);
  if (n.sum) branch.store(n.sum, thread);
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    if (!Columns::is_live(c, thread)) continue;
    uint4 next = load4(kept + 2 * HIDDEN + c * 4096);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint32_t& pair = branch.pair(4 * c + i);
      pair = weighted(pair, factor, word_of(next, i));
    }
    store_piece(x, c * 256 + thread, branch.v[c]);
  }
  if (n.sum) branch.store(n.normed, thread);
}

// What a lane keeps of a product: two rows of output j and of j + 8 of its warp.
struct Lane {
  uint8_t* exchanged;  // of these rows
  int warp, pair, j, rows;
  __device__ bool is_live() const { return 2 * pair < rows; }
  // One row of two neighbouring outputs, which lanes j and j + 1 get from each other.
  __device__ int row() const { return 2 * pair + j % 2; }
  __device__ uint8_t* at(int offset, int width, int output) const {
    return exchanged + offset + 2 * (j % 2 * width + output + j / 2 * 2);
  }
};

__device__ __forceinline__ void give_hidden(const Lane& lane, const Piece& piece, const float (&acc)[4]) {
  uint32_t v = neighbours(activated(acc[0], acc[2]), activated(acc[1], acc[3]), lane.j);
  uint8_t* row = lane.exchanged + MLP_AT + lane.j % 2 * (2 * MLP);
  if (lane.row() < lane.rows) give(row + place_of(8 * piece.tile + lane.warp) + lane.j / 2 * 16, v);
}

// The last of the splits adds up what the others give, and gives the branch.
__device__ __forceinline__ void give_branch(const Lane& lane, const Piece& piece, float (&acc)[4], int splits, int parts_at,
                                            int branch_at) {
  const int DISTANCE = TILES * WARPS * PART;
  uint8_t* parts = lane.exchanged + parts_at + (piece.tile * WARPS + lane.warp) * PART + lane.j * 16;
  if (piece.split < splits - 1) {
    if (lane.is_live()) give(parts + piece.split * DISTANCE, acc);
    return;
  }
  if (lane.is_live()) add_up(acc, parts, DISTANCE, splits);
  __syncwarp();
  uint32_t low = neighbours(acc[0], acc[1], lane.j), high = neighbours(acc[2], acc[3], lane.j);
  uint8_t* branch = lane.at(branch_at, HIDDEN, 128 * piece.tile + 16 * lane.warp);
  if (lane.row() < lane.rows) give(branch, low), give(branch + 16, high);
}

__device__ __forceinline__ void store_parts(const Lane& lane, const Product& p, const Piece& piece, const float (&acc)[4],
                                            void* out) {
#pragma unroll
  for (int k = 0; k < 2; k++)
    if (2 * lane.pair + k < lane.rows) {
      size_t row = piece.split * lane.rows + 2 * lane.pair + k, at = 128 * (row * p.tiles + piece.tile) + 16 * lane.warp + lane.j;
      if (p.splits == 1)
        ((bf16*)out)[at] = __float2bfloat16_rn(acc[k]), ((bf16*)out)[at + 8] = __float2bfloat16_rn(acc[2 + k]);
      else
        ((float*)out)[at] = acc[k], ((float*)out)[at + 8] = acc[2 + k];
    }
}

#if ATTENDS
#include "attention.cuh"

// What a program has of the next projections, for the heads of all blocks.
__device__ __forceinline__ void give_projected(const Lane& lane, const Piece& piece, const float (&acc)[4]) {
#pragma unroll
  for (int k = 0; k < 2; k++) {
    int output = (piece.split * 2 + k) * PROJECTED + 128 * piece.tile + 16 * lane.warp + lane.j;
    uint8_t* at = lane.exchanged + PROJECTED_AT + output * 4;
    if (2 * lane.pair + k < lane.rows) give(at, __float_as_uint(acc[k])), give(at + 32, __float_as_uint(acc[2 + k]));
  }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
layer_products_kernel(const bf16* attended, const bf16* stream, const uint8_t* o_codes, const uint8_t* o_scales,
                      const uint8_t* gate_codes, const uint8_t* gate_scales, const uint8_t* down_codes,
                      const uint8_t* down_scales, const uint8_t* qkv_codes, const uint8_t* qkv_scales, const bf16* post1,
                      const bf16* next1, const bf16* post2, const bf16* scale2, const bf16* next2, uint8_t* exchanged,
                      uint8_t* emptied, bf16* stream1, bf16* stream2, bf16* normed2, void* out, int rows, int of_o, int of_qkv,
                      bf16* k, bf16* v, bf16* attended2, const float* cos, const float* sin, const bf16* q_weight,
                      const bf16* k_weight, const long long* row_slots, const long long* sources, const long long* targets,
                      const long long* positions, const long long* sequences, const long long* tail, int attends) {
  const uint32_t memory = shared_address(dynamic_shared());
  auto& barriers = static_shared<uint64_t[SETS][2 * MOST_SLOTS]>();
  auto& sums = static_shared<float[SETS][8]>();
#if ATTENDS
  const uint32_t entry_barriers = shared_address(&static_shared<uint64_t[4]>());
  const int head = blockIdx.x / RANKS, rank = blockIdx.x % RANKS;
  const bool has_head = attends == 1 && head < HEADS / GROUP;
  auto of_head = [&] {
    return Attention{k + (size_t)head * OF_HEAD, v + (size_t)head * OF_HEAD, cos, sin, q_weight, k_weight, row_slots, positions,
                     tail, exchanged, attended2, memory, entry_barriers, rows, head, rank, sequences[0] * SLOTS};
  };
#endif
  unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  // warps 0 to 15 multiply; 16 and 17 fetch weights
  int set = warp < SETS * WARPS ? warp / WARPS : warp % SETS, program = SETS * blockIdx.x + set;
  Ring ring;
  // A row alone is normalised by every block, which keeps the sum of the first norm for the second. Its norms are not
  // exchanged.
  const bool is_alone = rows == 1;
  int slots = min(SETS * MOST_SLOTS, (SHARED - rows * X_OF_ROW - is_alone * (HAS_POST + 2) * 2 * HIDDEN) / SLOT);
  ring.length = (slots + 1 - set) / SETS;
  ring.slots = memory + set * (slots + 1) / SETS * SLOT;
  ring.full = shared_address(&barriers[set][0]);
  ring.empty = ring.full + 8 * MOST_SLOTS;
  uint32_t x_at = memory + slots * SLOT;
  const Shape o{of_o}, qkv{of_qkv};
  auto product = [&](int phase) {
    switch (phase) {
      case 0: return Product{o_codes, o_scales, TILES, o.size(), o.splits(), o.steps(), false};
      case 1: return Product{gate_codes, gate_scales, 2 * MLP / 128, TILES, 1, TILES, true};
      case 2: return Product{down_codes, down_scales, TILES, MLP / 128, DOWN_SPLITS, STEPS(MLP, DOWN_SPLITS), false};
      default: return Product{qkv_codes, qkv_scales, qkv.size(), TILES, qkv.splits(), qkv.steps(), false};
    }
  };

  if (warp >= SETS * WARPS) {
    // Addresses that the compiler knows: at others each of these takes 100 cycles, before any weights are asked for.
    auto init_ring = [](uint64_t* barriers) {
#pragma unroll
      for (int i = 0; i < MOST_SLOTS; i++)
        init(shared_address(barriers + i), 1), init(shared_address(barriers + MOST_SLOTS + i), WARPS);
    };
    if (lane == 0) {
      if (set == 0)
        init_ring(barriers[0]);
      else
        init_ring(barriers[1]);
#if ATTENDS
      if (set == 0) init(entry_barriers, CHUNK), init(entry_barriers + 8, CHUNK), init(entry_barriers + 16, 2 * TAIL),
                      init(entry_barriers + 24, SETS * WARPS);
#endif
      publish_barriers();
    }
    __syncwarp();
    pass<THREADS>(3);
    if (lane == 0) {
      uint64_t policy = read_once();
#pragma unroll 1
      for (int phase = 0; phase < 4; phase++) fetch_weights(product(phase), program, ring, policy, phase > 0);
    } else {
      const unsigned others = SETS * 31, pieces = (rows + 1) / 2 * (PAIR / 16);
      for (unsigned i = blockIdx.x * others + set * 31 + lane - 1; i < pieces; i += BLOCKS * others)
        ((uint4*)emptied)[i] = make_uint4(EMPTY, EMPTY, EMPTY, EMPTY);
    }
    __syncwarp();
#if ATTENDS
    if (has_head) of_head().fetch(set, lane);
#endif
    return;
  }
  meet<THREADS>(3);

  const Lane own = {exchanged + lane % 4 * (size_t)PAIR, (int)warp % WARPS, (int)lane % 4, (int)lane / 4, rows};
  uint8_t* begun = own.exchanged + BEGUN_AT + (program * WARPS + own.warp) * PART + own.j * 16;
  uint32_t words_at = ring.slots + own.warp * 512 + lane * 16,
           scales_at = ring.slots + 2 * CODES + own.warp * 128 + lane / 4 * 16;
  // The second is the same, which the compiler does not know: with one it would branch around loads.
  const bool is_row[2] = {lane / 4 < rows, lane_id() / 4 < rows};
  // The norm of a row behind the product of o or down.
  auto norm_behind = [&](bool is_last, int r) {
    size_t at = (size_t)r * HIDDEN;
    uint8_t* row = exchanged + r / 2 * (size_t)PAIR + (r % 2 + 2 * is_last) * 2 * HIDDEN;
    return Norm{(is_last ? stream1 : stream) + at,
                is_last ? post2 : post1,
                is_last ? scale2 : nullptr,
                is_last ? next2 : next1,
                (is_last ? stream2 : stream1) + at,
                is_last ? normed2 + at : nullptr,
                row + BRANCH_AT,
                row + NORMED_AT,
                float(is_last ? POST_EPS2 : POST_EPS1),
                float(is_last ? NEXT_EPS2 : NEXT_EPS1)};
  };
#pragma unroll 1
  for (int phase = 0; phase < 4; phase++) {
    const Product p = product(phase);
    if (!p.tiles && !is_alone) break;  // owners have stored the norm
    const bool whole = phase % 2;      // all columns of x are in shared memory, not those of a piece
    Piece piece;
#pragma unroll 1
    for (int i = 0; piece_of(p, program, i, piece); i++) {
      if (!whole || i == 0) {
        sets_barrier();  // x of the product before is not read any more
        const int blocks = piece.last - piece.first;
        if (phase == 0)
          fetch_attended(x_at, attended + 128 * piece.first, 128 * p.blocks, blocks, PITCH(p.steps), rows, thread);
        else if (phase == 2)
          fetch_rows<MLP, STEPS(MLP, DOWN_SPLITS)>(x_at, exchanged + MLP_AT + 256 * piece.first, blocks, rows, thread);
        else if (is_alone) {
          Norm norm = norm_behind(phase == 3, 0);
          if (phase == 3) norm.stream = nullptr;
          if (phase == 1 || blockIdx.x) norm.sum = nullptr;
          if (set == 0) residual_norm_alone(norm, x_at, x_at + X_OF_ROW, sums[0], thread);
        } else
          fetch_rows<HIDDEN, TILES>(x_at, exchanged + NORMED_AT + (phase == 1 ? 0 : 4 * HIDDEN), TILES, rows, thread);
        __syncwarp();
        sets_barrier();
      }
      float acc[4] = {};
      if (p.even && piece.first && own.is_live()) take(acc, begun - WARPS * PART);  // what another program has begun
      __syncwarp();
      uint32_t x = x_at + lane / 4 * PITCH(whole ? TILES : p.steps) + (whole ? 256 * piece.first : 0) + lane % 4 * 16;
      uint4 of_x[2] = {};  // zeros stand for rows beyond the last
#pragma unroll 1
      for (int b = piece.first; b < piece.last; b += 2, x += 512) {
        uint32_t slot = ring.at * SLOT, empty = ring.empty + 8 * ring.at;
        wait(ring.full + 8 * ring.at, ring.parity);
        if (b + 1 < piece.last)
          add_blocks<2>(acc, words_at + slot, scales_at + slot, of_x, x, is_row, empty, lane);
        else
          add_blocks<1>(acc, words_at + slot, scales_at + slot, of_x, x, is_row, empty, lane);
        ring.next();
      }
      if (p.even && piece.last < p.blocks) {  // another program goes on
        if (own.is_live()) give(begun, acc);
        continue;
      }
#pragma unroll
      for (int k = 0; k < 4; k++) acc[k] *= 16777216.0f;  // 2^24: see `unpacked`
      if (phase == 0)
        give_branch(own, piece, acc, p.splits, 0, BRANCH_AT);
      else if (phase == 2)
        give_branch(own, piece, acc, DOWN_SPLITS, DOWN_AT, BRANCH_AT + 4 * HIDDEN);
      else if (phase == 1)
        give_hidden(own, piece, acc);
#if ATTENDS
      else if (attends == 1)
        give_projected(own, piece, acc);
#endif
      else if (p.tiles)
        store_parts(own, p, piece, acc, out);
    }
#if ATTENDS && MOVES
    if (phase == 0 && has_head && set == 1)
      move_entries(k + (size_t)head * OF_HEAD, v + (size_t)head * OF_HEAD, sources, targets, rank, warp - WARPS, lane);
    __syncwarp();
#endif
    int r = PROGRAMS - 1 - program;  // the last programs have the fewest pieces of these products
    if (!is_alone && r < rows && !whole) residual_norm(norm_behind(phase == 2, r), sums[set], thread % 256, set);
  }
#if ATTENDS
  if (has_head) of_head().run(thread);
#endif
}
