#include <cctype>

#include "cortado/base/error.h"
#include "cortado/formats/gguf/writer.h"

namespace cortado {
namespace {

constexpr int64_t kBlock = 32;

// The quantizers get blocks [N, 32] in float32 and give their bytes [N, bytes]. Products and sums are separate
// operations, as in the reference: a fused one would round differently.

Tensor half_bytes(const Tensor& scales) { return scales.to(at::kHalf).view(at::kByte); }

// 1/d, and 0 for blocks of zeros.
Tensor one_over(const Tensor& d) { return at::where(d == 0, at::zeros_like(d), at::ones_like(d) / d); }

// Bytes of two values each: the first half of a block are the low halves.
Tensor nibbles(const Tensor& values) {
  const Tensor whole = values.trunc().clamp(0, 15).to(at::kByte);
  return whole.narrow(1, 0, kBlock / 2) + whole.narrow(1, kBlock / 2, kBlock / 2) * 16;
}

Tensor quantise_q8_0(const Tensor& blocks) {
  const Tensor d = blocks.abs().amax(1, true) / 127;
  const Tensor scaled = blocks * one_over(d), size = scaled.abs(), below = size.floor();
  const Tensor rounded = scaled.sign() * (below + ((size - below) * 2).floor());  // halves away from zero
  return at::cat({half_bytes(d), rounded.to(at::kChar).view(at::kByte)}, 1);
}

// The value of the largest size, with its sign, becomes -8.
Tensor quantise_q4_0(const Tensor& blocks) {
  const Tensor d = blocks.gather(1, blocks.abs().argmax(1, true)) / -8;
  return at::cat({half_bytes(d), nibbles(blocks * one_over(d) + 8.5)}, 1);
}

Tensor quantise_q4_1(const Tensor& blocks) {
  const Tensor least = blocks.amin(1, true), d = (blocks.amax(1, true) - least) / 15;
  return at::cat({half_bytes(d), half_bytes(least), nibbles((blocks - least) * one_over(d) + 0.5)}, 1);
}

struct Writable {
  const char* name;
  uint32_t id;
  Tensor (*quantise)(const Tensor& blocks);  // null for plain numbers
};
constexpr Writable kWritable[] = {{"f32", 0, nullptr},        {"f16", 1, nullptr},        {"bf16", 30, nullptr},
                                  {"q8_0", 8, quantise_q8_0}, {"q4_0", 2, quantise_q4_0}, {"q4_1", 3, quantise_q4_1}};

}  // namespace

const GgmlType* writable_type(const std::string& name) {
  for (const Writable& type : kWritable) {
    if (name == type.name) return find_ggml_type(type.id);
  }
  return nullptr;
}

std::string writable_types() {
  std::string names;
  for (const Writable& type : kWritable) names += (names.empty() ? "" : ", ") + std::string(type.name);
  return names;
}

Tensor encode_ggml(const GgmlType& type, const Tensor& values) {
  if (!at::isfinite(values).all().item<bool>()) throw Failure("[gguf] a tensor has numbers that are not finite");
  if (!type.decode) return values.to(type.plain).contiguous().view(at::kByte);
  for (const Writable& writable : kWritable) {
    if (writable.id == type.id) return writable.quantise(values.to(at::kFloat).reshape({-1, kBlock}));
  }
  throw Failure(concat("[gguf] ", type.name, " is not written"));
}

}  // namespace cortado
