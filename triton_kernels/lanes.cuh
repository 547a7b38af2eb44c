// What kernels do with words of two elements, and with the four lanes that have a row of a product.
#pragma once
#include <cuda_fp16.h>

typedef __nv_bfloat16 bf16;
typedef __nv_bfloat162 bf162;

__device__ __forceinline__ uint32_t packed(float a, float b) {
  bf162 v = __floats2bfloat162_rn(a, b);
  return *(uint32_t*)&v;
}
__device__ __forceinline__ float rounded(float v) { return __bfloat162float(__float2bfloat16_rn(v)); }
__device__ __forceinline__ uint32_t half_pair(float a, float b) {
  __half2 v = __floats2half2_rn(a, b);
  return *(uint32_t*)&v;
}
__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xFF800000u); }
__device__ __forceinline__ float base_of(float m) { return m == minus_infinity() ? 0.0f : m; }
__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(~0u, v, 2));
  return fmaxf(v, __shfl_xor_sync(~0u, v, 1));
}
__device__ __forceinline__ float quad_sum(float v) {
  v = __fadd_rn(v, __shfl_xor_sync(~0u, v, 2));
  return __fadd_rn(v, __shfl_xor_sync(~0u, v, 1));
}
