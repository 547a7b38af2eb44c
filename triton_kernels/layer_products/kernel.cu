// The products and norms between two attentions of a decoder, for at most eight rows, as one kernel.
//
// o product, residual sum and norm, gate and up, activation, down, residual sum and norm, and the next layer's
// q/k/v product. Every multiprocessor runs one block. Its two sets of eight warps multiply; beside them a thread
// of each set keeps a ring of weights filled, without regard to what the products wait for, so memory is read
// while programs wait for each other. A second warp of each set copies rows of x once they are ready.
//
// Weights are packed INT4 in groups of 32, symmetric (int4_gemm/packing.py). Factors, the order of sums and
// roundings are those of int4_small_m_kernel and residual_norm_kernel: results are the same to the bit.
//
// Sizes are macros, which `kernel.py` defines: the widths HIDDEN, MLP, ATTENDED and PROJECTED (of q/k/v), O_SPLITS,
// DOWN_SPLITS, QKV_SPLITS, BLOCKS of the grid, HAS_POST, HAS_SCALE, SILU, POST_EPS and NEXT_EPS of both norms, and
// SHARED and LAUNCHED, which are checked.
#include <cstdint>
#include <cuda_bf16.h>

#define SETS 2
#define WARPS 8
#define SLOTS 4
#define PROGRAMS (BLOCKS * SETS)
#define THREADS (SETS * (WARPS + 2) * 32)
#define CODES 8192                     // bytes of 128 x 128 weights
#define SCALES 1024                    // and of their scales
#define ROW (2 * 256 + 16)             // bytes of a row of x in a slot: 256 columns, and padding against conflicts
#define WEIGHTS (2 * (CODES + SCALES)) // a slot holds 256 columns of a tile
#define SLOT (WEIGHTS + 8 * ROW)
static_assert(SETS * SLOTS * SLOT == SHARED && THREADS == LAUNCHED, "as kernel.py launches it");
#define CHUNKS ((HIDDEN + 2047) / 2048) // of a row, with eight columns for each of 256 threads
#define LINE 32                         // numbers in 128 bytes

// Counters, zero at first: some in a line of their own, then those of each warp of a program or of a tile.
enum { NORM1, NORM2, DONE_O, DONE_DOWN, DONE_GATE };
#define BEGUN ((DONE_GATE + DOWN_SPLITS) * LINE)
#define O_PARTS (BEGUN + PROGRAMS * WARPS)
#define DOWN_PARTS (O_PARTS + HIDDEN / 128 * WARPS)

typedef __nv_bfloat16 bf16;

__device__ __forceinline__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void expect(uint32_t barrier, int bytes) {
  asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
  asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @p bra D; bra W; D: }" ::"r"(barrier),
               "r"(parity)
               : "memory");
}
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, int bytes, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ __forceinline__ unsigned acquire(const unsigned* p) {
  unsigned v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void release(unsigned* p) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
}
__device__ __forceinline__ unsigned count(unsigned* p) {
  unsigned v;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void spin(const unsigned* counter, unsigned target) {
  for (unsigned polls = 0; acquire(counter) < target; polls++)
    if (polls == 1u << 24) __trap();  // about ten seconds: an error instead of a GPU that hangs
}
__device__ __forceinline__ void set_barrier(int set) { asm volatile("bar.sync %0, 256;" ::"r"(set + 1) : "memory"); }

__device__ __forceinline__ void get(float (&acc)[4], const float4* from) {
  float4 v = __ldcg(from);
  acc[0] = v.x, acc[1] = v.y, acc[2] = v.z, acc[3] = v.w;
}
__device__ __forceinline__ void put(float4* to, const float (&acc)[4]) {
  __stcg(to, make_float4(acc[0], acc[1], acc[2], acc[3]));
}

struct Product {
  const uint8_t *codes, *scales;
  int tiles, blocks, splits;  // of 128 outputs; of 128 columns; programs among which K is split
  bool shared;                // or programs have even shares of all blocks, and hand sums on
  __device__ int steps() const { return (blocks + splits - 1) / splits; }
};

struct Piece {
  int tile, split, first, last;  // blocks of columns
};

// The i-th piece of a product that a program computes; false if there is none.
__device__ __forceinline__ bool piece_of(const Product& p, int program, int i, Piece& piece) {
  if (p.shared) {
    // First the start of the last tile, which another program goes on with, and last the end of the first one,
    // which another has begun: nobody waits long.
    int all = p.tiles * p.blocks, from = program * all / PROGRAMS, to = (program + 1) * all / PROGRAMS;
    int first_tile = from / p.blocks, last_tile = (to - 1) / p.blocks, n = last_tile - first_tile + 1;
    piece.tile = i == 0 ? last_tile : i == n - 1 ? first_tile : first_tile + i;
    piece.split = 0;
    piece.first = max(from - piece.tile * p.blocks, 0);
    piece.last = min(to - piece.tile * p.blocks, p.blocks);
    return i < n;
  }
  int unit = program + i * PROGRAMS;
  piece.split = unit / p.tiles;
  piece.tile = unit - piece.split * p.tiles;
  piece.first = piece.split * p.steps();
  piece.last = min(piece.first + p.steps(), p.blocks);
  return unit < p.tiles * p.splits;
}

struct Ring {
  uint32_t slots, full, empty;  // addresses
  uint32_t at = 0, parity = 0;
  __device__ void next() {
    if (++at == SLOTS) at = 0, parity ^= 1;
  }
};

__device__ __forceinline__ void fetch_weights(const Product& p, int program, Ring& ring, uint64_t policy) {
  Piece piece;
#pragma unroll 1
  for (int i = 0; piece_of(p, program, i, piece); i++)
#pragma unroll 1
    for (int b = piece.first; b < piece.last; b += 2) {
      int n = min(2, piece.last - b);
      size_t block = (size_t)piece.tile * p.blocks + b;
      wait(ring.empty + 8 * ring.at, ring.parity ^ 1);
      uint32_t full = ring.full + 8 * ring.at, to = ring.slots + ring.at * SLOT;
      expect(full, n * (CODES + SCALES));
      bulk_copy(to, p.codes + block * CODES, n * CODES, full, policy);
      bulk_copy(to + 2 * CODES, p.scales + block * SCALES, n * SCALES, full, policy);
      ring.next();
    }
}

// Copies rows of x, which `ready(split)` waits for.
template <class F>
__device__ __forceinline__ void fetch_rows(const Product& p, int program, Ring& ring, const bf16* x, int rows, int lane,
                                           F ready) {
  Piece piece;
#pragma unroll 1
  for (int i = 0; piece_of(p, program, i, piece); i++) {
    ready(piece.split);
#pragma unroll 1
    for (int b = piece.first; b < piece.last; b += 2) {
      int columns = 128 * min(2, piece.last - b);
      uint32_t to = ring.slots + ring.at * SLOT + WEIGHTS + lane * 16;
      wait(ring.empty + 8 * ring.at, ring.parity ^ 1);
      if (8 * lane < columns)
        for (int row = 0; row < rows; row++)
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + row * ROW),
                       "l"(x + (size_t)row * p.blocks * 128 + b * 128 + lane * 8)
                       : "memory");
      asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(ring.full + 8 * ring.at) : "memory");
      ring.next();
    }
  }
}

__device__ __forceinline__ uint4 load4(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_matrices(uint32_t at) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}

// Two weights of a quarter: (nibble - 8) * scale, rounded. A nibble in the lowest bits of bfloat16 128 is 128 + nibble.
template <int Q>
__device__ __forceinline__ uint32_t unpacked(uint32_t word, __nv_bfloat162 scale) {
  uint32_t v;
  asm("{ .reg .b32 t; lop3.b32 t, %1, 0x000F000F, 0x43004300, 0xEA; add.rn.bf16x2 %0, t, %2; }"
      : "=r"(v)
      : "r"(word >> (4 * Q)), "r"(0xC308C308));
  __nv_bfloat162 w = __hmul2_rn(*(__nv_bfloat162*)&v, scale);
  return *(uint32_t*)&w;
}

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// 16 outputs x 32 columns x 8 rows: two products of the tensor cores for each of N blocks.
template <int Q, int N>
__device__ __forceinline__ void add_quarter(float (&part)[2][4], const uint4 (&words)[2][2], const uint4 (&scales)[2],
                                            uint32_t x) {
  uint4 b[2];
#pragma unroll
  for (int j = 0; j < N; j++) b[j] = load_matrices(x + j * 256 + Q * 64);
#pragma unroll
  for (int c = 0; c < 2; c++)
#pragma unroll
    for (int j = 0; j < N; j++) {
      uint32_t pair = word_of(scales[j], Q);
      __nv_bfloat162 low = __low2bfloat162(*(__nv_bfloat162*)&pair), high = __high2bfloat162(*(__nv_bfloat162*)&pair);
      const uint4& w = words[j][c];
      float(&d)[4] = part[j];
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(unpacked<Q>(w.x, low)), "r"(unpacked<Q>(w.y, high)), "r"(unpacked<Q>(w.z, low)),
            "r"(unpacked<Q>(w.w, high)), "r"(c ? b[j].z : b[j].x), "r"(c ? b[j].w : b[j].y));
    }
}

// Adds the products of N blocks, each summed up from zero by the tensor cores.
template <int N>
__device__ __forceinline__ void add_blocks(float (&acc)[4], uint32_t words_at, uint32_t scales_at, uint32_t x, uint32_t empty,
                                           int lane) {
  uint4 words[2][2], scales[2];
#pragma unroll
  for (int j = 0; j < N; j++) {
    words[j][0] = load4(words_at + j * CODES);
    words[j][1] = load4(words_at + j * CODES + CODES / 2);
    scales[j] = load4(scales_at + j * SCALES);
  }
  float part[2][4] = {};
  add_quarter<0, N>(part, words, scales, x);
  add_quarter<1, N>(part, words, scales, x);
  add_quarter<2, N>(part, words, scales, x);
  add_quarter<3, N>(part, words, scales, x);
  __syncwarp();
  if (lane == 0) arrive(empty);
#pragma unroll
  for (int j = 0; j < N; j++)
#pragma unroll
    for (int k = 0; k < 4; k++) acc[k] = __fadd_rn(acc[k], part[j][k]);
}

__device__ __forceinline__ float divided(float a, float b) {
  float v;
  asm("div.full.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
}
__device__ __forceinline__ float sigmoid(float minus_x) {
  float e;
  asm("ex2.approx.f32 %0, %1;" : "=f"(e) : "f"(__fmul_rn(minus_x, 1.4426950408889634f)));
  return divided(1.0f, __fadd_rn(e, 1.0f));
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

union Eight {
  uint4 raw;
  bf16 v[8];
};
__device__ __forceinline__ float rounded(float v) { return __bfloat162float(__float2bfloat16_rn(v)); }

struct Norm {
  const bf16 *branch, *stream, *post, *scale, *next;  // scale [1], the others [.., HIDDEN]
  bf16 *sum, *normed;
  float post_eps, next_eps;
};

// 1 / root mean square of a row, of which this thread has the columns v.
__device__ __forceinline__ float factor_of(const float (&v)[CHUNKS][8], float eps, float* sums, int thread, int set) {
  float s = 0, r;
#pragma unroll
  for (int c = 0; c < CHUNKS; c++)
#pragma unroll
    for (int j = 0; j < 8; j++) s = __fmaf_rn(v[c][j], v[c][j], s);
#pragma unroll
  for (int d = 16; d; d >>= 1) s += __shfl_xor_sync(~0u, s, d);
  if (thread % 32 == 0) sums[thread / 32] = s;
  set_barrier(set);
  s = sums[thread & 7];
#pragma unroll
  for (int d = 4; d; d >>= 1) s += __shfl_xor_sync(~0u, s, d);
  set_barrier(set);
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(divided(s, (float)HIDDEN) + eps));
  return r;
}

// One row, by the 256 threads of a set, once `done` has counted the tiles of the branch.
__device__ __forceinline__ void residual_norm(const Norm& n, int row, float* sums, int thread, int set, const unsigned* done,
                                              unsigned target) {
  Eight stream[CHUNKS], post[CHUNKS], next[CHUNKS], branch[CHUNKS];
  float v[CHUNKS][8];
  auto load = [&](Eight(&to)[CHUNKS], const bf16* from) {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
      if (c * 2048 + thread * 8 < HIDDEN) to[c].raw = __ldcg((const uint4*)(from + c * 2048 + thread * 8));
  };
  auto live = [&](int c) { return c * 2048 + thread * 8 < HIDDEN; };
  float scale = HAS_SCALE && n.scale ? __bfloat162float(*n.scale) : 1.0f;
  load(stream, n.stream + (size_t)row * HIDDEN);
  if (HAS_POST) load(post, n.post);
  load(next, n.next);
  if (thread == 0) spin(done, target);
  set_barrier(set);
  load(branch, n.branch + (size_t)row * HIDDEN);
#pragma unroll
  for (int c = 0; c < CHUNKS; c++)
#pragma unroll
    for (int j = 0; j < 8; j++) v[c][j] = live(c) ? __bfloat162float(branch[c].v[j]) : 0.0f;
  float factor = HAS_POST ? factor_of(v, n.post_eps, sums, thread, set) : 0;
#pragma unroll
  for (int c = 0; c < CHUNKS; c++)
    if (live(c)) {
#pragma unroll
      for (int j = 0; j < 8; j++) {
        if (HAS_POST) v[c][j] = rounded(__fmul_rn(__fmul_rn(factor, v[c][j]), __bfloat162float(post[c].v[j])));
        v[c][j] = rounded(__fadd_rn(__bfloat162float(stream[c].v[j]), v[c][j]));
        if (HAS_SCALE && n.scale) v[c][j] = rounded(__fmul_rn(v[c][j], scale));
        stream[c].v[j] = __float2bfloat16_rn(v[c][j]);
      }
      *(uint4*)(n.sum + (size_t)row * HIDDEN + c * 2048 + thread * 8) = stream[c].raw;
    }
  factor = factor_of(v, n.next_eps, sums, thread, set);
#pragma unroll
  for (int c = 0; c < CHUNKS; c++)
    if (live(c)) {
#pragma unroll
      for (int j = 0; j < 8; j++)
        next[c].v[j] = __float2bfloat16_rn(__fmul_rn(__fmul_rn(factor, v[c][j]), __bfloat162float(next[c].v[j])));
      *(uint4*)(n.normed + (size_t)row * HIDDEN + c * 2048 + thread * 8) = next[c].raw;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
layer_products_kernel(const bf16* attended, const bf16* stream, const uint8_t* o_codes, const uint8_t* o_scales,
                      const uint8_t* gate_codes, const uint8_t* gate_scales, const uint8_t* down_codes,
                      const uint8_t* down_scales, const uint8_t* qkv_codes, const uint8_t* qkv_scales, const bf16* post1,
                      const bf16* next1, const bf16* post2, const bf16* scale2, const bf16* next2, unsigned* counters,
                      float4* begun, float4* parts, bf16* branch, bf16* stream1, bf16* normed1, bf16* hidden,
                      bf16* stream2, bf16* normed2, void* out, int rows) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ uint64_t barriers[SETS][2 * SLOTS];
  __shared__ float sums[SETS][8];
  int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  // warps 0 to 15 multiply; 16 and 17 fetch weights, 18 and 19 rows
  int set = warp < SETS * WARPS ? warp / WARPS : warp % SETS, program = blockIdx.x + set * BLOCKS;
  Ring ring;
  ring.slots = shared_address(memory) + set * SLOTS * SLOT;
  ring.full = shared_address(&barriers[set][0]);
  ring.empty = ring.full + 8 * SLOTS;
  auto counter = [&](int i) { return counters + LINE * i; };
  auto product = [&](int phase) {
    switch (phase) {
      case 0: return Product{o_codes, o_scales, HIDDEN / 128, ATTENDED / 128, O_SPLITS, false};
      case 1: return Product{gate_codes, gate_scales, 2 * MLP / 128, HIDDEN / 128, 1, true};
      case 2: return Product{down_codes, down_scales, HIDDEN / 128, MLP / 128, DOWN_SPLITS, false};
      default: return Product{qkv_codes, qkv_scales, PROJECTED / 128, HIDDEN / 128, QKV_SPLITS, false};
    }
  };

  if (warp == SETS * WARPS + set) {
    if (lane == 0) {
      for (int i = 0; i < SLOTS; i++) init(ring.full + 8 * i, 1 + 32), init(ring.empty + 8 * i, WARPS);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    asm volatile("bar.arrive 3, %0;" ::"n"(THREADS) : "memory");
    if (lane == 0) {
      uint64_t policy;
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#pragma unroll 1
      for (int phase = 0; phase < 4; phase++) fetch_weights(product(phase), program, ring, policy);
    }
    return;
  }
  if (warp < SETS * WARPS)  // rows beyond the last are zero
    for (int i = thread % 256; i < SLOTS * 8 * (ROW / 16); i += 256)
      asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};" ::"r"(ring.slots + i / (8 * (ROW / 16)) * SLOT + WEIGHTS +
                                                                i % (8 * (ROW / 16)) * 16), "r"(0)
                   : "memory");
  asm volatile("bar.sync 3, %0;" ::"n"(THREADS) : "memory");

  if (warp >= SETS * WARPS) {
    const int steps = product(2).steps(), tiles = product(1).tiles;
#pragma unroll 1
    for (int phase = 0; phase < 4; phase++) {
      const bf16* x = phase == 0 ? attended : phase == 1 ? normed1 : phase == 2 ? hidden : normed2;
      fetch_rows(product(phase), program, ring, x, rows, lane, [&](int split) {
        // a block of down's columns are the outputs of two tiles of gate and up
        int which = phase == 2 ? DONE_GATE + split : phase == 1 ? NORM1 : NORM2;
        unsigned target = phase == 2 ? WARPS * (min(2 * (split + 1) * steps, tiles) - 2 * split * steps) : rows;
        if (phase && lane == 0) spin(counter(which), target);
        __syncwarp();
      });
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    return;
  }

  int w = warp % WARPS;
  uint32_t words_at = ring.slots + w * 512 + lane * 16, scales_at = ring.slots + 2 * CODES + w * 128 + lane / 4 * 16,
           x_at = ring.slots + WEIGHTS + lane % 8 * ROW + lane / 8 * 16;
#pragma unroll 1
  for (int phase = 0; phase < 4; phase++) {
    Product p = product(phase);
    Piece piece;
#pragma unroll 1
    for (int i = 0; piece_of(p, program, i, piece); i++) {
      float acc[4] = {};
      float4* handed = begun + (program * WARPS + w) * 32 + lane;
      if (p.shared && piece.first) {  // what another program has begun
        if (lane == 0) spin(counters + BEGUN + (program - 1) * WARPS + w, 1);
        __syncwarp();
        get(acc, handed - WARPS * 32);
      }
#pragma unroll 1
      for (int b = piece.first; b < piece.last; b += 2) {
        uint32_t slot = ring.at * SLOT, empty = ring.empty + 8 * ring.at;
        wait(ring.full + 8 * ring.at, ring.parity);
        if (b + 1 < piece.last)
          add_blocks<2>(acc, words_at + slot, scales_at + slot, x_at + slot, empty, lane);
        else
          add_blocks<1>(acc, words_at + slot, scales_at + slot, x_at + slot, empty, lane);
        ring.next();
      }
      int row = 2 * (lane % 4), n = 128 * piece.tile + 16 * w + lane / 4;
      unsigned* done = counter(phase == 0 ? DONE_O : phase == 2 ? DONE_DOWN : DONE_GATE + piece.tile / 2 / product(2).steps());
      if (p.shared && piece.last < p.blocks) {  // another program goes on
        put(handed, acc);
        done = counters + BEGUN + program * WARPS + w;
      } else if (phase == 1) {
#pragma unroll
        for (int k = 0; k < 2; k++)
          if (row + k < rows)
            hidden[(row + k) * MLP + 64 * piece.tile + 8 * w + lane / 4] = __float2bfloat16_rn(activated(acc[k], acc[2 + k]));
      } else if (phase == 3) {
#pragma unroll
        for (int k = 0; k < 2; k++)
          if (row + k < rows) {
            size_t at = (size_t)(piece.split * rows + row + k) * PROJECTED + n;
            if (QKV_SPLITS == 1)
              ((bf16*)out)[at] = __float2bfloat16_rn(acc[k]), ((bf16*)out)[at + 8] = __float2bfloat16_rn(acc[2 + k]);
            else
              ((float*)out)[at] = acc[k], ((float*)out)[at + 8] = acc[2 + k];
          }
        continue;
      } else {  // the last of the splits of an output adds them up
        float4* own = parts + (piece.tile * WARPS + w) * 32 + lane;
        put(own + piece.split * p.tiles * WARPS * 32, acc);
        __syncwarp();
        unsigned before = 0;
        if (lane == 0) before = count(counters + (phase ? DOWN_PARTS : O_PARTS) + piece.tile * WARPS + w);
        before = __shfl_sync(~0u, before, 0);
        __syncwarp();
        if (before < p.splits - 1) continue;
        float sum[4] = {};
#pragma unroll 6
        for (int s = 0; s < p.splits; s++) {
          float part[4];
          get(part, own + s * p.tiles * WARPS * 32);
#pragma unroll
          for (int k = 0; k < 4; k++) sum[k] = __fadd_rn(sum[k], part[k]);
        }
#pragma unroll
        for (int k = 0; k < 2; k++)
          if (row + k < rows) {
            bf16* at = branch + (row + k) * HIDDEN + n;
            at[0] = __float2bfloat16_rn(sum[k]), at[8] = __float2bfloat16_rn(sum[2 + k]);
          }
      }
      __syncwarp();
      if (lane == 0) release(done);
    }
    // the last programs have no piece of these products
    int row = PROGRAMS - 1 - program;
    if (row < rows && (phase == 0 || phase == 2)) {
      Norm norm = phase ? Norm{branch, stream1, post2, scale2, next2, stream2, normed2, POST_EPS2, NEXT_EPS2}
                        : Norm{branch, stream, post1, nullptr, next1, stream1, normed1, POST_EPS1, NEXT_EPS1};
      residual_norm(norm, row, sums[set], thread % 256, set, counter(phase ? DONE_DOWN : DONE_O), WARPS * p.tiles);
      set_barrier(set);
      if (thread % 256 == 0) release(counter(phase ? NORM2 : NORM1));
    }
  }
}
