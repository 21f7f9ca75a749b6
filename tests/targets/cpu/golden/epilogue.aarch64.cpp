// epilogue for aarch64
// - one thread does the work of 32; 1 synchronisations are removed

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety) unroll(disable)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#define INDEPENDENT _Pragma("GCC ivdep") _Pragma("GCC unroll 1")
#endif

typedef long long Index;

typedef unsigned short f16;

typedef unsigned short bf16;

static inline unsigned bits_of_f32(float x) { return __builtin_bit_cast(unsigned, x); }
static inline float f32_of_bits(unsigned x) { return __builtin_bit_cast(float, x); }

static inline bf16 bf16_of_f32(float x) {
  const unsigned bits = bits_of_f32(x), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return (bf16)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16 & 0x8000) | 0x7fc0 : rounded);
}

static inline float f32_of_f16(f16 x) {
  const unsigned wide = (unsigned)(int)(short)x << 13;  // the sign is in its place
  const unsigned normal = (wide & 0xfffe000) + 0x38000000;
  const unsigned tiny = bits_of_f32(f32_of_bits(normal + 0x800000) - f32_of_bits(0x38800000));
  const unsigned finite = (x & 0x7c00) == 0 ? tiny : normal;
  return f32_of_bits((wide & 0x80000000) | ((x & 0x7fff) >= 0x7c00 ? finite + 0x38000000 : finite));
}

static inline float exp_f32(float x) {
  x = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
  const float shifted = x * 1.4426950408889634f + 12582912.0f, n = shifted - 12582912.0f;
  const float r = x - n * 0.693359375f - n * -2.12194440054691e-4f;
  const float near = 1.0f + (r + r * r * (0.5f + r * (0.16666666666666666f + r * (0.041666666666666664f + r * (0.008333333333333333f + r * (0.001388888888888889f + r * (0.0001984126984126984f)))))));
  // Two factors: 2**n alone may be no normal number.
  const int whole = bits_of_f32(shifted) - bits_of_f32(12582912.0f);
  const int half = whole >> 1, rest = whole - half;
  return near * f32_of_bits((half + 127) << 23) *
         f32_of_bits((rest + 127) << 23);
}

static inline Index within(Index x, Index most) { return x < 0 ? 0 : x < most ? x : most; }

struct epilogue_arguments {
  const float* X;
  const f16* bias;
  bf16* Y;
  float alpha;
  int M;
  int X_stride0;
  int N;
  int Y_stride0;
};

// One block.
static void epilogue_block(const epilogue_arguments& given, long long block, char* scratch) {
  const float* const X = given.X;
  const f16* const bias = given.bias;
  bf16* const Y = given.Y;
  const float alpha = given.alpha;
  const Index M = given.M;
  const Index X_stride0 = given.X_stride0;
  const Index N = given.N;
  const Index Y_stride0 = given.Y_stride0;
  const Index m = block % ((M + 31) / 32);
  const Index n = block / ((M + 31) / 32);
  float* const x = (float*)(scratch + 0);
  f16* const b = (f16*)(scratch + 4672);
  bf16* const staged = (bf16*)(scratch + 6720);
  // test_text.py:61: x = X_part
  {
    const Index inside0 = within(-32*m + M, 32);
    const Index inside1 = within(-32*n + N, 32);
    if (inside0 < 32 || inside1 < 32) {
      for (Index i0 = 0; i0 < 32; ++i0) {
        INDEPENDENT
        for (Index i1 = 0; i1 < 32; ++i1) x[32*i0 + i1] = 0;
      }
    }
    for (Index i0 = 0; i0 < inside0; ++i0) {
      if (inside1 == 32) {
        INDEPENDENT
        for (Index i1 = 0; i1 < 32; ++i1) {
          x[32*i0 + i1] = X[32*X_stride0*m + 32*n + X_stride0*i0 + i1];
        }
      }
      else {
        INDEPENDENT
        for (Index i1 = 0; i1 < inside1; ++i1) {
          x[32*i0 + i1] = X[32*X_stride0*m + 32*n + X_stride0*i0 + i1];
        }
      }
    }
  }
  // test_text.py:62: b = bias.tile((32,), (n,)).broadcast(0, 32)
  {
    const Index inside1 = within(-32*n + N, 32);
    if (inside1 < 32) {
      for (Index i0 = 0; i0 < 32; ++i0) {
        INDEPENDENT
        for (Index i1 = 0; i1 < 32; ++i1) b[32*i0 + i1] = 0;
      }
    }
    for (Index i0 = 0; i0 < 32; ++i0) {
      if (inside1 == 32) {
        INDEPENDENT
        for (Index i1 = 0; i1 < 32; ++i1) b[32*i0 + i1] = bias[32*n + i1];
      }
      else {
        INDEPENDENT
        for (Index i1 = 0; i1 < inside1; ++i1) b[32*i0 + i1] = bias[32*n + i1];
      }
    }
  }
  // test_text.py:63: mul = mul(x, alpha)
  // test_text.py:63: convert = convert(b, f32)
  // test_text.py:63: scaled = add(mul, convert)
  // test_text.py:64: less = less(scaled, 0)
  // test_text.py:64: exp = exp(scaled)
  // test_text.py:64: sub = sub(exp, 1.0)
  // test_text.py:64: active = select(less, sub, scaled)
  // test_text.py:66: staged = active
  INDEPENDENT
  for (Index e = 0; e < 1024; ++e) {
    const float mul_e = x[e] * alpha;
    const float convert_e = f32_of_f16(b[e]);
    const float scaled_e = mul_e + convert_e;
    const bool less_e = (scaled_e < 0.0f);
    const float exp_e = exp_f32(scaled_e);
    const float sub_e = exp_e - 1.0f;
    const float active_e = less_e ? sub_e : scaled_e;
    staged[e] = bf16_of_f32(active_e);
  }
  // test_text.py:68: Y.tile((32, 32), (n, m)) = staged.permute(1, 0)
  {
    const Index limit0 = within(-32*n + N, 32);
    const Index limit1 = within(-32*m + M, 32);
    for (Index i0 = 0; i0 < limit0; ++i0) {
      if (limit1 == 32) {
        INDEPENDENT
        for (Index i1 = 0; i1 < 32; ++i1) {
          Y[32*Y_stride0*n + 32*m + Y_stride0*i0 + i1] = staged[32*i1 + i0];
        }
      }
      else {
        INDEPENDENT
        for (Index i1 = 0; i1 < limit1; ++i1) {
          Y[32*Y_stride0*n + 32*m + Y_stride0*i0 + i1] = staged[32*i1 + i0];
        }
      }
    }
  }
}

extern "C" __attribute__((visibility("default")))
void epilogue(const void* arguments, long long* next_block, void* scratch, long long blocks) {
  for (;;) {
    const long long block = __atomic_fetch_add(next_block, 1, __ATOMIC_RELAXED);
    if (block >= blocks) break;
    epilogue_block(*(const epilogue_arguments*)arguments, block, (char*)scratch);
  }
}
