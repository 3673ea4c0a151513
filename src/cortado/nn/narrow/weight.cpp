#include "cortado/nn/narrow/weight.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "cortado/base/error.h"
#include "cortado/base/words.h"
#include "cortado/nn/linear/op.h"
#include "cortado/nn/narrow/kernel.h"
#include "cortado/nn/narrow/six_bits.h"
#include "cortado/primitives/kernels/tensors.h"

namespace cortado {
namespace {

using narrow::kColumns;
using narrow::kGroup;

const Words<WeightFormat> kFormats = {{"bfloat16", WeightFormat::kBFloat16},
                                      {"float16", WeightFormat::kFloat16},
                                      {"int8", WeightFormat::kInt8},
                                      {"int4", WeightFormat::kInt4}};
constexpr double kMostHalf = 65504;  // float16's largest

void refuse_derivatives(const Tensor& x) {
  fail_input_if(at::GradMode::is_enabled() && x.requires_grad(),
                "[weights] weights of 8 and 4 bits are for inference: they have no derivative");
}

// The step of a group whose n numbers are whole multiples of it from -8 to 7, as in ggml's Q4_0: that is an eighth of
// the largest one, which is -8 steps. Infinite if there is none; 0 if all numbers are 0.
float centred_step(const float* x, int64_t n) {
  constexpr float kNone = std::numeric_limits<float>::infinity();
  if (n == 0) return 0;
  const float largest = *std::max_element(x, x + n, [](float a, float b) { return std::abs(a) < std::abs(b); });
  const c10::Half step = largest / -8;
  if (static_cast<float>(step) * -8 != largest) return kNone;
  if (largest == 0) return 0;
  const float inverse = 1 / static_cast<float>(step);
  const bool lies = std::all_of(x, x + n, [&](float number) {
    const float at = number * inverse, whole = std::nearbyint(at);
    return whole <= 7 && whole >= -8 && std::abs(at - whole) < 1e-3F;
  });
  return lies ? static_cast<float>(step) : kNone;
}

// Up to 16 evenly spaced numbers that represent a group of n numbers, from its least to its largest. If the group came
// from a 4-bit format, its numbers lie on such a grid (of which some may be unused), and that grid is found; else all
// 16 are used.
struct Spaced {
  c10::Half step = 0, least = 0;

  Spaced(const float* x, int64_t n) {
    if (n == 0) return;
    const auto [low, high] = std::minmax_element(x, x + n);
    const float from = *low, range = *high - from;
    least = from;
    if (range < 1e-30f) return;  // all equal
    int steps = kMost;
    while (steps > kMost / 2 && !lie_on(x, n, from, range / static_cast<float>(steps))) --steps;
    step = range / static_cast<float>(steps > kMost / 2 ? steps : kMost);
  }
  // The numbers lie on the grid of their centred_step().
  static Spaced centred(const float* x, int64_t n) {
    Spaced spaced(x, 0);
    spaced.step = centred_step(x, n);
    spaced.least = -8 * static_cast<float>(spaced.step);
    return spaced;
  }
  // Returns the index of the grid point nearest to x.
  int value(float x) const {
    const float wide = step, at = wide != 0 ? (x - static_cast<float>(least)) / wide : 0;
    return at > 0 ? std::min(nearest(at), kMost) : 0;
  }

 private:
  static constexpr int kMost = 15;
  static int nearest(float x) { return static_cast<int>(x + 0.5f); }  // no call. NOLINT(bugprone-incorrect-roundings)
  static bool lie_on(const float* x, int64_t n, float from, float step) {
    const float inverse = 1 / step;
    return std::all_of(x, x + n, [&](float number) {
      const float at = (number - from) * inverse;
      return std::abs(at - static_cast<float>(nearest(at))) < 1e-3f;
    });
  }
};

// Whether each group of each row, `group` numbers, has a centred step.
bool is_centred(const Tensor& weight, int64_t group) {
  std::atomic<bool> all{true};
  at::parallel_for(0, weight.size(0), kColumns, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;
    for (int64_t row = begin; row < end && all; ++row) {
      const Tensor numbers = weight.select(0, row).to(at::kCPU, at::kFloat).contiguous();
      const auto* x = numbers.const_data_ptr<float>();
      for (int64_t first = 0; first < weight.size(1); first += group) {
        if (!std::isinf(centred_step(x + first, std::min(group, weight.size(1) - first)))) continue;
        all = false;
        break;
      }
    }
  });
  return all;
}

// Packs the rows of one block into 6 bits; false if a number is not of such a format.
bool pack_six_block(const Tensor& rows, const narrow::Matrix& to, int64_t block) {
  const int64_t in = rows.size(1), groups = to.groups(), units = in / narrow::kSixBlock;
  const auto* x = rows.const_data_ptr<float>();
  uint8_t* bytes = to.values + block * to.block_bytes();
  auto* scales = static_cast<int8_t*>(to.scales) + block * groups * kColumns;
  std::memset(bytes, 0, static_cast<size_t>(to.block_bytes()));
  std::memset(scales, 0, static_cast<size_t>(groups * kColumns));
  std::memset(to.offsets + block * units * kColumns, 0, static_cast<size_t>(units * kColumns) * sizeof(uint16_t));
  for (int64_t c = 0; c < rows.size(0); ++c) {
    for (int64_t unit = 0; unit < units; ++unit) {
      const auto found = narrow::six_bits_of(x + c * in + unit * narrow::kSixBlock);
      if (!found) return false;
      to.offsets[(block * units + unit) * kColumns + c] = found->unit.x;
      for (size_t part = 0; part < found->scales.size(); ++part) {
        const int64_t at = unit * static_cast<int64_t>(found->scales.size()) + static_cast<int64_t>(part);
        scales[at * kColumns + c] = found->scales[part];
        narrow::put_six(found->values.data() + part * narrow::kSixGroup, bytes + at * narrow::kSixBytes, c);
      }
    }
  }
  return true;
}

void unpack_six(const narrow::Matrix& from, int64_t row, float* to) {
  const int64_t block = row / kColumns, c = row % kColumns, groups = from.groups();
  const uint8_t* bytes = from.values + block * from.block_bytes();
  for (int64_t at = 0; at < groups; ++at, to += narrow::kSixGroup) {
    const int64_t unit = block * (from.in / narrow::kSixBlock) + at * narrow::kSixGroup / narrow::kSixBlock;
    const float d = c10::Half(from.offsets[unit * kColumns + c], c10::Half::from_bits());
    const float scale =
        d * static_cast<float>(static_cast<const int8_t*>(from.scales)[(block * groups + at) * kColumns + c]);
    uint8_t values[narrow::kSixGroup];
    narrow::get_six(bytes + at * narrow::kSixBytes, c, values);
    for (int64_t i = 0; i < narrow::kSixGroup; ++i) to[i] = scale * static_cast<float>(values[i] - 32);
  }
}

// Memory for rounded inputs, kept per calling thread: fresh pages would cost more than the rounding.
float* room_for(int64_t floats) {
  constexpr int64_t kMost = int64_t{1} << 24;
  thread_local Tensor room;
  if (!room.defined() || room.numel() < floats || room.numel() > kMost) {
    const c10::InferenceMode ordinary(false);
    room = at::empty({std::max<int64_t>(floats, 1 << 14)}, at::kFloat);
  }
  return room.data_ptr<float>();
}

// Returns x as float32 [rows, in] with contiguous rows. If x is that already it is returned, whatever its shape.
Tensor plain_rows(const Tensor& x) {
  if (x.scalar_type() == at::kFloat && x.is_contiguous()) return x;
  return kernels::dense_rows(x.reshape({-1, x.size(-1)}).to(at::kFloat));
}

OptionalTensor plain(const OptionalTensor& bias) {
  if (!bias || (bias->scalar_type() == at::kFloat && bias->is_contiguous())) return bias;
  return bias->to(at::kFloat).contiguous();
}

const float* data(const OptionalTensor& x) { return x ? x->const_data_ptr<float>() : nullptr; }

std::vector<int64_t> with_last(const Tensor& x, int64_t size) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = size;
  return sizes;
}

// With up to this many rows, 16-bit weights are read as stored; with more it pays to widen them first.
constexpr int64_t kFewRows = 8;
constexpr int64_t kFewFloatRows = 2;  // with more, torch's product is faster
constexpr int64_t kRowsApart = 64;    // limit while RowsApart is active
constexpr int64_t kWidened = 4096;    // outputs at a time, which bounds the memory

thread_local bool rows_apart = false;

int64_t few_rows(at::ScalarType weight) {
  if (rows_apart) return kRowsApart;
  return weight == at::kFloat ? kFewFloatRows : kFewRows;
}

Tensor widened_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  if (weight.size(0) <= kWidened) return linear_map(x, weight.to(at::kFloat), bias);
  const Tensor y = at::empty(with_last(x, weight.size(0)), at::kFloat);
  for (int64_t first = 0; first < weight.size(0); first += kWidened) {
    const int64_t count = std::min(kWidened, weight.size(0) - first);
    const auto part = bias ? std::optional<Tensor>(bias->narrow(0, first, count)) : std::nullopt;
    y.narrow(-1, first, count).copy_(linear_map(x, weight.narrow(0, first, count).to(at::kFloat), part));
  }
  return y;
}

// Whether a kernel, which has no backward, may read the weight in place.
bool readable(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  const bool differentiate =
      at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad() || (bias && bias->requires_grad()));
  return !differentiate && weight.stride(1) == 1 && kernels::usable({x, weight});
}

}  // namespace

WeightFormat weight_format_of(const std::string& name) { return value_of(kFormats, name, "[weights] the format"); }

const std::vector<std::string>& weight_format_names() {
  static const std::vector<std::string> names = names_in(kFormats);
  return names;
}

std::string weight_format_name(WeightFormat format) {
  return format == WeightFormat::kPlain ? "plain" : name_of(kFormats, format);
}

NarrowWeight::NarrowWeight(int bits, int64_t out, int64_t in, bool or_six)
    : bits_(bits), or_six_(or_six && in % narrow::kSixBlock == 0), out_(out), in_(in) {
  make_room(bits);
}

void NarrowWeight::make_room(int bits) {
  const narrow::Matrix size{.bits = bits, .out = out_, .in = in_};
  const int64_t blocks = size.blocks(), groups = size.groups();
  bits_ = bits;
  values_ = at::empty({blocks, size.block_bytes()}, at::kByte);
  scales_ = at::empty({blocks, groups, kColumns}, bits == 8 ? at::kBFloat16 : bits == 6 ? at::kChar : at::kHalf);
  offsets_ = Tensor();
  if (bits == 8) offsets_ = at::empty({blocks, groups, kColumns}, at::kShort);
  if (bits == 6) offsets_ = at::empty({blocks, in_ / narrow::kSixBlock, kColumns}, at::kHalf);
}

// Packs into 6 bits; false, and the matrix is as before, if some numbers are not of such a format.
bool NarrowWeight::pack_six(const Tensor& weight) {
  NarrowWeight packed(8, out_, in_);
  packed.make_room(6);
  const narrow::Matrix to = packed.matrix();
  std::atomic<bool> all{true};
  at::parallel_for(0, to.blocks(), 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;
    for (int64_t block = begin; block < end && all; ++block) {
      const int64_t count = std::min(kColumns, out_ - block * kColumns);
      const Tensor rows = weight.narrow(0, block * kColumns, count).to(at::kCPU, at::kFloat).contiguous();
      if (!pack_six_block(rows, to, block)) all = false;
    }
  });
  if (!all) return false;
  bits_ = 6;
  values_ = packed.values_;
  scales_ = packed.scales_;
  offsets_ = packed.offsets_;
  return true;
}

narrow::Matrix NarrowWeight::matrix() const {
  return {bits_,
          out_,
          in_,
          values_.data_ptr<uint8_t>(),
          scales_.data_ptr(),
          offsets_.defined() ? static_cast<uint16_t*>(offsets_.data_ptr()) : nullptr};
}

void NarrowWeight::pack(const Tensor& weight) {
  fail_input_if(weight.sizes() != at::IntArrayRef({out_, in_}) || !at::isFloatingType(weight.scalar_type()),
                "[weights] expected floating-point numbers ", at::IntArrayRef({out_, in_}), ", got ",
                weight.scalar_type(), " ", weight.sizes());
  if (bits_ == 4 && weight.numel() > 0) {
    const auto [least, largest] = weight.aminmax();
    const bool held = least.item<double>() >= -kMostHalf && largest.item<double>() <= kMostHalf;  // false for NaN
    fail_input_if(!held, "[weights] int4 weights are of finite numbers up to ", kMostHalf);
  }
  if (or_six_ && pack_six(weight)) return;
  if (bits_ == 6) make_room(8);
  if (bits_ == 4) offsets_ = is_centred(weight, matrix().group()) ? Tensor() : at::empty(scales_.sizes(), at::kHalf);
  const narrow::Matrix to = matrix();
  at::parallel_for(0, to.blocks(), 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kColumns, count = std::min(kColumns, out_ - first);
      const Tensor rows = weight.narrow(0, first, count).to(at::kCPU, at::kFloat).contiguous();
      bits_ == 8 ? narrow::pack_int8(rows.const_data_ptr<float>(), in_, to, block) : pack_int4(rows, block);
    }
  });
}

void NarrowWeight::pack_int4(const Tensor& rows, int64_t block) {
  const narrow::Matrix to = matrix();
  const int64_t groups = to.groups(), group = to.group();
  const auto* x = rows.const_data_ptr<float>();
  uint8_t* bytes = to.values + block * to.block_bytes();
  std::memset(bytes, 0, static_cast<size_t>(to.block_bytes()));
  for (int64_t c = 0; c < kColumns; ++c) {
    const bool there = c < rows.size(0);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = g * group, count = there ? std::clamp<int64_t>(in_ - first, 0, group) : 0;
      const float* numbers = x + c * in_ + first;
      const Spaced spaced = to.centred() ? Spaced::centred(numbers, count) : Spaced(numbers, count);
      const int64_t at = (block * groups + g) * kColumns + c;
      static_cast<uint16_t*>(to.scales)[at] = spaced.step.x;
      if (!to.centred()) to.offsets[at] = spaced.least.x;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t input = first + i;
        const int value = spaced.value(numbers[i]) << (input % 8 < 4 ? 0 : 4);
        bytes[input / 8 * 4 * kColumns + 4 * c + input % 4] |= static_cast<uint8_t>(value);
      }
    }
  }
}

std::vector<Tensor> NarrowWeight::multiply(const Tensor& x, const std::vector<const NarrowWeight*>& weights,
                                           const std::vector<OptionalTensor>& biases) {
  refuse_derivatives(x);
  std::vector<Tensor> results;
  for (const NarrowWeight* weight : weights) {
    fail_input_if(x.dim() < 1 || x.size(-1) != weight->in_, "[weights] expected [..., ", weight->in_, "], got ",
                  x.sizes());
    fail_input_if(weight->bits_ != weights[0]->bits_,
                  "[weights] matrices of 8 and of 4 bits are not multiplied at once");
  }
  if (!kernels::usable({x})) {
    for (size_t i = 0; i < weights.size(); ++i) results.push_back(weights[i]->multiply_by_definition(x, biases[i]));
    return results;
  }
  const Tensor rows = plain_rows(x);
  const int64_t in = x.size(-1), count = x.numel() / in;
  std::vector<OptionalTensor> wide;
  std::vector<narrow::Map> maps;
  for (size_t i = 0; i < weights.size(); ++i) {
    const NarrowWeight& weight = *weights[i];
    wide.push_back(plain(biases[i]));
    results.push_back(at::empty(with_last(x, weight.out_), at::kFloat));
    maps.push_back({weight.matrix(), data(wide.back()), results.back().data_ptr<float>(), weight.out_});
  }
  narrow::multiply({.rows = count,
                    .in = in,
                    .x = rows.const_data_ptr<float>(),
                    .x_row = rows.is_contiguous() ? in : rows.stride(0),
                    .maps = maps.data(),
                    .count = static_cast<int64_t>(maps.size()),
                    .room = room_for(narrow::room_of(count, in))},
                   kernels::parallel());
  if (x.scalar_type() != at::kFloat) {
    for (Tensor& y : results) y = y.to(x.scalar_type());
  }
  return results;
}

Tensor NarrowWeight::multiply(const Tensor& x, const OptionalTensor& bias) const {
  return multiply(x, {this}, {bias})[0];
}

Tensor NarrowWeight::multiply_by_definition(const Tensor& x, const OptionalTensor& bias) const {
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t groups = (in_ + kGroup - 1) / kGroup;
  const Tensor filled = at::constant_pad_nd(x.to(type), {0, groups * kGroup - in_}).unflatten(-1, {groups, kGroup});
  const Tensor largest = filled.abs().amax(-1, true);
  const Tensor values = (filled * (127 / largest)).nan_to_num(0.0).round();
  const Tensor rounded = (values * (largest / 127)).flatten(-2).narrow(-1, 0, in_);
  const auto wide = bias ? std::optional<Tensor>(bias->to(type)) : std::nullopt;
  return at::linear(rounded, unpacked().to(x.device(), type), wide).to(x.scalar_type());
}

Tensor NarrowWeight::rows(const Tensor& indices, at::ScalarType type) const {
  const Tensor flat = indices.to(at::kCPU).flatten().contiguous();
  const auto* index = flat.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < flat.size(0); ++i) {
    fail_input_if(index[i] < 0 || index[i] >= out_, "[weights] there is no row ", index[i], " of ", out_);
  }
  Tensor result;
  if (bits_ != 4) {
    result = at::empty({flat.size(0), in_}, at::kFloat);
    const narrow::Matrix from = matrix();
    auto* to = result.data_ptr<float>();
    const auto unpack = bits_ == 8 ? narrow::unpack_int8 : unpack_six;
    for (int64_t i = 0; i < flat.size(0); ++i) unpack(from, index[i], to + i * in_);
  } else {
    result = unpack_int4(flat);
  }
  std::vector<int64_t> sizes = indices.sizes().vec();
  sizes.push_back(in_);
  return result.view(sizes).to(indices.device(), type);
}

Tensor NarrowWeight::unpack_int4(const Tensor& indices) const {
  const auto of_rows = [&](const Tensor& kept) {  // from [blocks, ..., kColumns, n]
    return kept.transpose(1, 2).flatten(0, 1).index_select(0, indices);
  };
  const Tensor bytes = of_rows(values_.unflatten(1, {-1, kColumns, 4}));
  const Tensor values = at::stack({bytes.bitwise_and(15), bytes.bitwise_right_shift(4)}, 2).to(at::kFloat);
  const Tensor scales = of_rows(scales_.unsqueeze(3)).to(at::kFloat),
               leasts = offsets_.defined() ? of_rows(offsets_.unsqueeze(3)).to(at::kFloat) : scales * -8;
  const Tensor groups = values.reshape({indices.size(0), -1, matrix().group()});
  return (groups * scales + leasts).flatten(1).narrow(1, 0, in_).contiguous();
}

std::vector<std::pair<std::string, Tensor>> NarrowWeight::parts() const {
  std::vector<std::pair<std::string, Tensor>> all = {{"values", values_}, {"scales", scales_}};
  if (offsets_.defined()) all.emplace_back("offsets", offsets_);
  return all;
}

void NarrowWeight::assemble(const std::map<std::string, Tensor>& parts) {
  const narrow::Matrix six{.bits = 6, .out = out_, .in = in_};
  const auto given_values = parts.find("values");
  const bool is_six = or_six_ && given_values != parts.end() && given_values->second.dim() == 2 &&
                      given_values->second.size(1) == six.block_bytes();
  if (is_six != (bits_ == 6)) make_room(is_six ? 6 : 8);
  const auto part = [&](const char* name, at::IntArrayRef sizes, at::ScalarType type) {
    const auto found = parts.find(name);
    if (found == parts.end()) return Tensor();
    const Tensor& given = found->second;
    fail_input_if(given.sizes() != sizes || given.scalar_type() != type, "[weights] ", name, " of ", bits_,
                  " bits: expected ", type, " ", sizes, ", got ", given.scalar_type(), " ", given.sizes());
    return given.contiguous();
  };
  const Tensor values = part("values", values_.sizes(), at::kByte),
               scales = part("scales", scales_.sizes(), scales_.scalar_type()),
               offsets = part("offsets", bits_ == 6 ? offsets_.sizes() : scales_.sizes(),
                              bits_ == 8 ? at::kShort : at::kHalf);
  fail_input_if(!values.defined() || !scales.defined() || (bits_ != 4 && !offsets.defined()), "[weights] a matrix of ",
                bits_, " bits is incomplete");
  values_ = values;
  scales_ = scales;
  offsets_ = offsets;
}

Tensor NarrowWeight::unpacked() const { return rows(at::arange(out_), at::kFloat); }

RowsApart::RowsApart() : before_(std::exchange(rows_apart, true)) {}
RowsApart::~RowsApart() { rows_apart = before_; }

bool few_rows_linear_takes(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  const int64_t in = weight.size(1);
  return x.scalar_type() == at::kFloat && x.dim() >= 1 && x.size(-1) == in &&
         x.numel() <= few_rows(weight.scalar_type()) * in && readable(x, weight, bias);
}

Tensor few_rows_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  const auto type = weight.scalar_type();
  const int64_t in = weight.size(1), out = weight.size(0);
  const Tensor rows = plain_rows(x);
  const auto wide = plain(bias);
  const Tensor y = at::empty(with_last(x, out), at::kFloat);
  narrow::multiply_short({.rows = x.numel() / in,
                          .in = in,
                          .out = out,
                          .x = rows.const_data_ptr<float>(),
                          .x_row = rows.is_contiguous() ? in : rows.stride(0),
                          .weight = weight.const_data_ptr(),
                          .type = type == at::kFloat  ? kernels::Element::kFloat32
                                  : type == at::kHalf ? kernels::Element::kFloat16
                                                      : kernels::Element::kBFloat16,
                          .w_row = weight.stride(0),
                          .bias = data(wide),
                          .y = y.data_ptr<float>(),
                          .y_row = out},
                         kernels::parallel(x.numel() * out));
  return y;
}

Tensor short_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  const auto wide = plain(bias);
  if (!readable(x, weight, bias)) return linear_map(x, weight.to(at::kFloat), wide);
  return widened_linear(plain_rows(x), weight, wide);
}

}  // namespace cortado
