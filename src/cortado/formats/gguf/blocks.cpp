#include <ATen/Parallel.h>

#include <cmath>
#include <cstring>

#include "cortado/formats/gguf/file.h"

namespace cortado {
namespace {

float half_at(const uint8_t* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, 2);
  return c10::Half(bits, c10::Half::from_bits());
}

int low(uint8_t byte) { return byte & 15; }
int high(uint8_t byte) { return byte >> 4; }

void decode_q8_0(const uint8_t* block, float* y) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

// Decodes 32 values with 4 bits each; the first 16 are the low halves of 16 bytes. Bit i of `fifth` is the fifth bit of
// value i.
void decode_nibbles(const uint8_t* bytes, uint32_t fifth, float scale, float offset, float* y) {
  for (int i = 0; i < 16; ++i) {
    const auto upper = [&](int bit) { return static_cast<int>(fifth >> bit & 1) << 4; };
    y[i] = scale * static_cast<float>(low(bytes[i]) | upper(i)) + offset;
    y[i + 16] = scale * static_cast<float>(high(bytes[i]) | upper(i + 16)) + offset;
  }
}

uint32_t word_at(const uint8_t* bytes) {
  uint32_t word = 0;
  std::memcpy(&word, bytes, 4);
  return word;
}

void decode_q4_0(const uint8_t* block, float* y) {
  const float d = half_at(block);
  decode_nibbles(block + 2, 0, d, -8 * d, y);
}

void decode_q4_1(const uint8_t* block, float* y) {
  decode_nibbles(block + 4, 0, half_at(block), half_at(block + 2), y);
}

void decode_q5_0(const uint8_t* block, float* y) {
  const float d = half_at(block);
  decode_nibbles(block + 6, word_at(block + 2), d, -16 * d, y);
}

void decode_q5_1(const uint8_t* block, float* y) {
  decode_nibbles(block + 8, word_at(block + 4), half_at(block), half_at(block + 2), y);
}

// Scale and minimum of part i of a block (8 parts of 32 values). Each has 6 bits; all are packed into 12 bytes.
struct SubBlock {
  float scale, minimum;
};
SubBlock sub_block(const uint8_t* packed, int i) {
  int scale = packed[i] & 63, minimum = packed[i + 4] & 63;
  if (i >= 4) {
    scale = low(packed[i + 4]) | (packed[i - 4] >> 6 << 4);
    minimum = high(packed[i + 4]) | (packed[i] >> 6 << 4);
  }
  return {static_cast<float>(scale), static_cast<float>(minimum)};
}

// Decodes a block of Q4_K or Q5_K: parts 2j and 2j + 1 are the low and high halves of 32 bytes. `fifth` is null for
// Q4_K; for Q5_K it points to 32 bytes whose bit i is the fifth bit of a value of part i.
void decode_parts(const uint8_t* block, const uint8_t* fifth, const uint8_t* bytes, float* y) {
  const float d = half_at(block), minimum = half_at(block + 2);
  for (std::ptrdiff_t i = 0; i < 8; ++i) {
    const SubBlock sub = sub_block(block + 4, static_cast<int>(i));
    const float scale = d * sub.scale, offset = minimum * sub.minimum;
    const uint8_t* from = bytes + i / 2 * 32;
    for (int l = 0; l < 32; ++l) {
      int q = i % 2 == 0 ? low(from[l]) : high(from[l]);
      if (fifth) q |= (fifth[l] >> i & 1) << 4;
      y[i * 32 + l] = scale * static_cast<float>(q) - offset;
    }
  }
}

void decode_q4_k(const uint8_t* block, float* y) { decode_parts(block, nullptr, block + 16, y); }
void decode_q5_k(const uint8_t* block, float* y) { decode_parts(block, block + 16, block + 48, y); }

void decode_q6_k(const uint8_t* block, float* y) {
  const float d = half_at(block + 208);
  for (std::ptrdiff_t half = 0; half < 2; ++half) {
    const uint8_t *lows = block + half * 64, *highs = block + 128 + half * 32, *scales = block + 192 + half * 8;
    for (std::ptrdiff_t quarter = 0; quarter < 4; ++quarter) {
      for (int l = 0; l < 32; ++l) {
        const uint8_t byte = lows[quarter % 2 * 32 + l];
        const int q = (quarter < 2 ? low(byte) : high(byte)) | (highs[l] >> (2 * quarter) & 3) << 4;
        const float scale = d * static_cast<float>(static_cast<int8_t>(scales[quarter * 2 + l / 16]));
        y[half * 128 + quarter * 32 + l] = scale * static_cast<float>(q - 32);
      }
    }
  }
}

// Two bits per value; each of the 16 parts of 16 values has a scale and a minimum of 4 bits.
void decode_q2_k(const uint8_t* block, float* y) {
  const float d = half_at(block + 80), minimum = half_at(block + 82);
  for (std::ptrdiff_t part = 0; part < 16; ++part) {
    const uint8_t* from = block + 16 + part / 8 * 32 + part % 2 * 16;
    const float scale = d * static_cast<float>(low(block[part])),
                offset = minimum * static_cast<float>(high(block[part]));
    for (int l = 0; l < 16; ++l) {
      y[part * 16 + l] = scale * static_cast<float>(from[l] >> (part % 8 / 2 * 2) & 3) - offset;
    }
  }
}

// Three bits per value: the third ones are bit j of 32 bytes for part j of 32 values. Sixteen scales have 6 bits, packed
// into 12 bytes: 8 with their low halves, 4 with two high bits of four scales each.
void decode_q3_k(const uint8_t* block, float* y) {
  const uint8_t *thirds = block, *scales = block + 96;
  const float d = half_at(block + 108);
  for (std::ptrdiff_t part = 0; part < 16; ++part) {
    const int lows = part < 8 ? low(scales[part]) : high(scales[part - 8]);
    const int packed = lows | (scales[8 + part % 4] >> (part / 4 * 2) & 3) << 4;
    const float scale = d * static_cast<float>(packed - 32);
    const uint8_t* from = block + 32 + part / 8 * 32 + part % 2 * 16;
    for (int l = 0; l < 16; ++l) {
      const int third = thirds[part % 2 * 16 + l] >> (part / 2) & 1;
      const int q = (from[l] >> (part % 8 / 2 * 2) & 3) | third << 2;
      y[part * 16 + l] = scale * static_cast<float>(q - 4);
    }
  }
}

// Decodes 32 values that 16 bytes choose from a table of 16; the low halves are the first 16.
void decode_chosen(const uint8_t* bytes, const int8_t* table, float scale, float* y) {
  for (int i = 0; i < 16; ++i) {
    y[i] = scale * static_cast<float>(table[low(bytes[i])]);
    y[i + 16] = scale * static_cast<float>(table[high(bytes[i])]);
  }
}

// The values of IQ4_NL and IQ4_XS, denser around 0, and twice those of a 4-bit float (E2M1).
constexpr int8_t kNonLinear[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
                 kDoubledE2m1[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void decode_iq4_nl(const uint8_t* block, float* y) { decode_chosen(block + 2, kNonLinear, half_at(block), y); }

// The eight scales have 6 bits: 4 bytes hold their low halves, the 16-bit word before them the upper two bits.
void decode_iq4_xs(const uint8_t* block, float* y) {
  const float d = half_at(block);
  for (std::ptrdiff_t i = 0; i < 8; ++i) {
    const int lows = i % 2 == 0 ? low(block[4 + i / 2]) : high(block[4 + i / 2]);
    const int packed = lows | (block[2 + i / 4] >> (i % 4 * 2) & 3) << 4;
    decode_chosen(block + 8 + 16 * i, kNonLinear, d * static_cast<float>(packed - 32), y + 32 * i);
  }
}

// The scale is a power of 2; the table's values are doubled.
void decode_mxfp4(const uint8_t* block, float* y) {
  decode_chosen(block + 1, kDoubledE2m1, std::ldexp(1.0F, block[0] - 128), y);
}

constexpr GgmlType kTypes[] = {{0, "F32", 1, 4, nullptr, at::kFloat},      {1, "F16", 1, 2, nullptr, at::kHalf},
                               {30, "BF16", 1, 2, nullptr, at::kBFloat16}, {8, "Q8_0", 32, 34, decode_q8_0},
                               {2, "Q4_0", 32, 18, decode_q4_0},           {3, "Q4_1", 32, 20, decode_q4_1},
                               {6, "Q5_0", 32, 22, decode_q5_0},           {7, "Q5_1", 32, 24, decode_q5_1},
                               {12, "Q4_K", 256, 144, decode_q4_k},        {13, "Q5_K", 256, 176, decode_q5_k},
                               {14, "Q6_K", 256, 210, decode_q6_k},        {10, "Q2_K", 256, 84, decode_q2_k},
                               {11, "Q3_K", 256, 110, decode_q3_k},        {20, "IQ4_NL", 32, 18, decode_iq4_nl},
                               {23, "IQ4_XS", 256, 136, decode_iq4_xs},    {39, "MXFP4", 32, 17, decode_mxfp4}};

struct KnownName {
  uint32_t id;
  const char* name;
};
constexpr KnownName kOthers[] = {{9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
                                 {19, "IQ1_S"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {24, "I8"},     {25, "I16"},
                                 {26, "I32"},   {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},  {34, "TQ1_0"},
                                 {35, "TQ2_0"}, {40, "NVFP4"}, {41, "Q1_0"}};

}  // namespace

const GgmlType* find_ggml_type(uint32_t id) {
  for (const GgmlType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

std::string ggml_type_name(uint32_t id) {
  if (const GgmlType* type = find_ggml_type(id)) return type->name;
  for (const KnownName& other : kOthers) {
    if (other.id == id) return other.name;
  }
  return "type " + std::to_string(id);
}

std::string ggml_type_names() {
  std::string names;
  for (const GgmlType& type : kTypes) names += (names.empty() ? "" : ", ") + std::string(type.name);
  return names;
}

Tensor decode_ggml(const GgmlType& type, const std::vector<int64_t>& shape, std::string_view bytes) {
  Tensor out = at::empty(shape, type.plain);
  if (!type.decode) {
    std::memcpy(out.mutable_data_ptr(), bytes.data(), bytes.size());
    return out;
  }
  const auto* from = reinterpret_cast<const uint8_t*>(bytes.data());
  auto* to = out.mutable_data_ptr<float>();
  constexpr int64_t kGrain = 1 << 14;  // values per thread, at least
  at::parallel_for(0, out.numel() / type.values, kGrain / type.values, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) type.decode(from + i * type.bytes, to + i * type.values);
  });
  return out;
}

}  // namespace cortado
